"""``quire demo``: write a topic, lose a bookie, repair, compact, replay, and compare all counts."""
