"""Does every bookie of the location list hold what the ledger's readers will ask it for?

Looked at once, after everything was healed: the last version of the list by then must lead to
write_quorum equal copies of every entry of a closed ledger. A ledger with acknowledged entries
must be there for that: recorded, closed, and on some bookie.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from facts import Facts

Missing = Iterator[tuple[int, int, str]]
"""(number of the invariant, entry, message)"""


def missing_copies(facts: Facts) -> Missing:
    """Yield each copy that is missing or differs, of a history that ends with an audit."""
    if facts.end is None or not facts.replicas or not facts.versions or not facts.created:
        if facts.acked:
            yield 6, max(facts.acked), f"acknowledged, and the ledger {_lack(facts)}"
        return
    for entry, bookies in _write_sets(facts, facts.end):
        yield from _check_entry(facts, entry, bookies)


def _lack(facts: Facts) -> str:
    """Say why nothing can be looked for."""
    if not facts.versions:
        return "is in no record"
    if facts.end is None:
        return "has no end"
    return "is on no bookie" if not facts.replicas else "was made by nobody"


def _write_sets(facts: Facts, end: int) -> Iterator[tuple[int, list[str]]]:
    """Yield each entry up to *end* with the bookies that should hold it."""
    assert facts.created is not None
    size, quorum = facts.created.ensemble_size, facts.created.write_quorum
    looked_at = max(replica.at for replica in facts.replicas.values())
    # Copies may be moved later, while everything is read back.
    before = [version for version in facts.versions if version.at <= looked_at]
    fragments = (before or facts.versions)[-1].fragments
    starts = [fragment.first_entry for fragment in fragments] + [end + 1]
    for fragment, (start, stop) in zip(fragments, itertools.pairwise(starts), strict=True):
        for entry in range(start, stop):
            yield entry, [fragment.bookies[(entry + i) % size] for i in range(quorum)]


def _check_entry(facts: Facts, entry: int, bookies: list[str]) -> Missing:
    expected = facts.known(entry)
    held = {name: replica.entries.get(entry) for name, replica in facts.replicas.items()}
    if expected is None or expected not in held.values():
        yield 6 if entry in facts.acked else 5, entry, "no bookie holds it"
        return
    for bookie in bookies:
        if held.get(bookie) != expected:
            yield _invariant(facts, entry), entry, _difference(bookie, held.get(bookie))


def _invariant(facts: Facts, entry: int) -> int:
    assert facts.created is not None
    anyone = facts.created.ack_quorum == facts.created.write_quorum
    return 2 if anyone and entry in facts.served else 5


def _difference(bookie: str, held: int | None) -> str:
    what = "lacks it" if held is None else f"holds {held:x} instead"
    return f"{bookie} is listed for it and {what}"
