"""The index names every ledger that names a bookie, whatever the order of changes."""

from __future__ import annotations

from hypothesis import given, strategies as st

from ledger_client.cluster.repair import ledger_index
from ledger_client.cluster.repair.ledger_index import LedgerIndex
from metadata.records import Fragment, LedgerRecord, LedgerState

NAMES = ["b1", "b2", "b3"]


def record(ledger_id: int, *ensembles: list[str]) -> LedgerRecord:
    fragments = [Fragment(number, bookies) for number, bookies in enumerate(ensembles)]
    size = len(ensembles[0])
    return LedgerRecord(ledger_id, size, size, 1, LedgerState.OPEN, fragments)


@given(st.lists(st.tuples(st.integers(0, 60), st.permutations(NAMES), st.integers(0, 1))))
def test_every_ledger_that_was_noted_is_found(notes: list[tuple[int, list[str], int]]) -> None:
    index = LedgerIndex()
    named: dict[str, set[int]] = {name: set() for name in NAMES}
    for ledger_id, order, more in notes:
        fragments = [order[:1], order[1:2]][: 1 + more]
        index.note(record(ledger_id, *fragments))
        for (name,) in fragments:
            named[name].add(ledger_id)
    assert {name: index.of([name]) for name in NAMES} == {n: sorted(i) for n, i in named.items()}
    assert index.of(NAMES) == sorted(set().union(*named.values()))
    assert index.size == sum(map(len, named.values()))


def test_recent_ids_join_the_others_and_cost_eight_bytes_then() -> None:
    index = LedgerIndex()
    ids = [*range(10_000, 0, -1)]
    for ledger_id in ids:
        index.note(record(ledger_id, ["b1"]))
    assert index.of(["b1"]) == sorted(ids)
    recent = index._recent["b1"]
    assert len(recent) <= ledger_index.RECENT_MAX + len(ids) // 8
    assert len(index._base["b1"]) + len(recent) == len(ids)
