"""The store: what was flushed is read, one entry at a time and in runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import MIB, NO_MARK, StoreRig, entries, framed

from native.errors import Absent, Corrupt
from native.store import Place, Store

BLOCK = 4096


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[StoreRig]:
    rig = StoreRig(tmp_path / "ledgers")
    yield rig
    rig.close()


# --- what is stored is read ---------------------------------------------------------------


def test_nothing_is_seen_before_the_flush_commits(rig: StoreRig) -> None:
    rig.store.flush_begin()
    rig.store.flush_ledger(1, entries(1, [0]))
    assert rig.read(1, 0) is Absent
    rig.mark = rig.store.flush_commit(rig.mark)
    assert rig.read(1, 0) == entries(1, [0])[0]


def test_an_empty_flush_leaves_the_mark(rig: StoreRig) -> None:
    rig.flush({})
    assert rig.mark == NO_MARK.__class__(0, 0, 0, 1, 0, 0, 0, 0)
    rig.flush({1: entries(1, [0])})
    before = rig.mark
    rig.flush({})
    assert rig.mark == before


@pytest.mark.parametrize(
    "ids",
    [
        range(10),
        range(0, 3000, 3),
        range(0, 100_000, 1000),
        [7],
        [0, 1, 2, 10**12, 10**12 + 1],
        [2**63 - 2],
    ],
)
def test_entries_with_gaps_are_read_back(rig: StoreRig, ids: list[int]) -> None:
    rig.flush({3: entries(3, ids), 9: entries(9, ids)})
    rig.check()
    rig.reopen()
    rig.check()


def test_flushes_in_descending_order_are_read_back(rig: StoreRig) -> None:
    for start in range(90, -1, -10):
        rig.flush({1: entries(1, range(start, start + 10))})
    rig.check()
    assert rig.store.read_run(1, 0)[0] == 100


def test_sizes_from_none_to_the_greatest(rig: StoreRig) -> None:
    sizes = [0, 1, 4064, 4065, 65_536, 2 * MIB + 17, 5 * MIB - 64]
    held = {i: entries(1, [i], size)[i] for i, size in enumerate(sizes)}
    rig.flush({1: held})
    rig.check()
    assert rig.read_run(1, 0, size_max=6 * MIB) == framed(held.values())


def test_an_entry_stored_twice_is_read_as_last_written(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(20), tag="old")})
    rig.flush({1: entries(1, [3, 7, 8], tag="new")})
    rig.flush({1: entries(1, range(6, 12), tag="newest")})
    rig.check()
    rig.roll()
    rig.flush({1: entries(1, [0, 7, 19], tag="other log")})
    rig.check()
    rig.reopen()
    rig.check()


def test_a_store_knows_its_ledgers(rig: StoreRig) -> None:
    rig.flush({i: entries(i, [i, i + 1]) for i in range(5, 50, 5)})
    rig.flush({10: entries(10, [2])})
    assert [row.ledger_id for row in rig.store.ledgers(after=5, count=3)] == [10, 15, 20]
    (row,) = rig.store.ledgers(after=9, count=1)
    size = sum(len(body) + 8 for body in rig.model[10].values())
    assert (row.first_entry, row.last_entry, row.entries, row.bytes, row.extents) == (
        2,
        11,
        3,
        size,
        2,
    )
    with pytest.raises(Absent):
        rig.store.last(11)


def test_find_tells_the_place_without_reading_the_log(rig: StoreRig) -> None:
    rig.flush({1: entries(1, [0, 1])})
    size = len(rig.model[1][0]) + 8
    assert rig.store.find(1, 1) == Place(1, BLOCK + size, size)
    assert rig.store.stats().log_reads == 0
    with pytest.raises(Absent):
        rig.store.find(1, 2)


# --- runs ---------------------------------------------------------------------------------


def test_a_run_ends_at_the_last_id_the_count_and_the_gap(rig: StoreRig) -> None:
    held = entries(1, [*range(10), *range(12, 20)])
    rig.flush({1: held})
    for last_id, count_max, count in ((4, 99, 5), (99, 3, 3), (99, 99, 10), (0, 1, 1)):
        got = rig.store.read_run(1, 0, last_id=last_id, count_max=count_max)
        assert got == (count, framed(held[i] for i in range(count)))
    for start, error in ((10, Absent), (20, Absent)):
        with pytest.raises(error):
            rig.store.read_run(1, start)
    with pytest.raises(Absent):
        rig.store.read_run(2, 0)


def test_a_run_takes_as_many_entries_as_fit(rig: StoreRig) -> None:
    held = entries(1, range(8), 100)
    rig.flush({1: held})
    ends = [0]
    for body in held.values():
        ends.append(ends[-1] + 4 + len(body))
    for size_max in range(1, ends[-1] + 9):
        count = sum(end <= size_max for end in ends) - 1
        got = rig.store.read_run(1, 0, size_max=size_max)
        assert got == (count, framed(held[i] for i in range(count))), size_max


def test_a_run_crosses_extents_logs_and_pages(rig: StoreRig) -> None:
    for start in range(0, 9000, 3000):
        rig.flush({1: entries(1, range(start, start + 3000)), 2: entries(2, [start])})
        rig.roll()
    assert rig.store.read_run(1, 0)[0] == 9000
    rig.check()
    reads = rig.store.stats().log_reads
    rig.store.read_run(1, 0)
    assert rig.store.stats().log_reads - reads < 15


def test_a_run_over_entries_stored_twice_takes_the_newest(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(0, 100, 2), tag="even")})
    rig.flush({1: entries(1, range(1, 100, 2), tag="odd")})
    rig.flush({1: entries(1, range(40, 60), tag="again")})
    rig.check()
    assert rig.store.read_run(1, 0)[0] == 100


def test_a_run_ends_before_damage_and_reports_it_when_it_comes_first(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(9))})
    place = rig.store.find(1, 5)
    log = rig.path("00000001.log")
    data = bytearray(log.read_bytes())
    data[place.offset + 30] ^= 4
    rig.store.close()
    log.write_bytes(data)
    rig.reopen()
    assert rig.store.read_run(1, 2) == (3, framed(rig.model[1][i] for i in (2, 3, 4)))
    with pytest.raises(Corrupt):
        rig.store.read_run(1, 5)
    assert rig.store.read_run(1, 6)[0] == 3
    (damage,) = rig.damage()
    assert (damage.path, damage.offset) == (log, place.offset)
    assert (damage.ledger_id, damage.entry_id) == (1, 5)
    assert rig.damage() == []
    assert rig.store.stats().damaged == 1


def test_the_number_of_open_files_is_bounded(rig: StoreRig) -> None:
    for i in range(150):
        rig.flush({i: entries(i, [0])})
        rig.roll()
    rig.check()
    rig.check()
    mine = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    assert sum(str(rig.folder) in str(path.readlink()) for path in mine) <= 256


def test_a_second_binding_borrows_the_store(rig: StoreRig) -> None:
    rig.flush({1: entries(1, [0])})
    borrowed = Store.wrap(rig.store._pointer)
    assert borrowed.read(1, 0) == rig.model[1][0]
    borrowed.close()
    rig.check()
