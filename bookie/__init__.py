"""A bookie, the storage node of quire: it stores, serves and finally deletes entries."""
