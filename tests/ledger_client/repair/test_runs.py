from __future__ import annotations

from hypothesis import given, strategies as st

from ledger_client.repair.runs import Runs, common, count, run_of, striped, union, without

entries = st.sets(st.integers(0, 30))


def runs(ids: set[int]) -> Runs:
    """The runs of *ids*, the slow way."""
    found: Runs = []
    for entry_id in sorted(ids):
        if found and found[-1][1] == entry_id - 1:
            found[-1] = (found[-1][0], entry_id)
        else:
            found.append((entry_id, entry_id))
    return found


@given(entries, entries)
def test_runs_behave_as_sets_of_entries_do(a: set[int], b: set[int]) -> None:
    assert union(runs(a), runs(b)) == runs(a | b)
    assert without(runs(a), runs(b)) == runs(a - b)
    assert common(runs(a), runs(b)) == runs(a & b)
    assert count(runs(a)) == len(a)


@given(st.integers(0, 20), st.integers(-1, 40), st.integers(1, 6), st.data())
def test_a_place_of_the_ensemble_has_the_entries_whose_write_set_it_is_in(
    first: int, last: int, ensemble_size: int, data: st.DataObject
) -> None:
    write_quorum = data.draw(st.integers(1, ensemble_size))
    for index in range(ensemble_size):
        expected = {
            e
            for e in range(first, last + 1)
            if index in {(e + i) % ensemble_size for i in range(write_quorum)}
        }
        found = striped(
            first, last, index=index, ensemble_size=ensemble_size, write_quorum=write_quorum
        )
        assert union(found) == runs(expected)
        assert count(found) == len(expected)


def test_a_run_that_ends_before_it_begins_is_empty() -> None:
    assert run_of(0, -1) == []
    assert run_of(3, 3) == [(3, 3)]
