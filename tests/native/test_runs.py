"""Which entries of a ledger are here: memtable, entry logs, holes, overlaps, pages."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from engines import Bookie
from wire import add

from native.errors import Absent, Corrupt


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Bookie]:
    bookie = Bookie(tmp_path)
    yield bookie
    bookie.close()


def runs_of(entry_ids: Iterable[int]) -> list[tuple[int, int]]:
    """The model: maximal runs of a set of ids."""
    runs: list[tuple[int, int]] = []
    for entry_id in sorted(entry_ids):
        if runs and runs[-1][1] + 1 == entry_id:
            runs[-1] = (runs[-1][0], entry_id)
        else:
            runs.append((entry_id, entry_id))
    return runs


def store(bookie: Bookie, entry_ids: Iterable[int], ledger_id: int = 1) -> set[int]:
    ids = list(entry_ids)
    bookie.send(b"".join(add(ledger_id, entry_id, b"x") for entry_id in ids))
    while bookie.engine.commit():
        pass
    bookie.connection.take()
    return set(ids)


def pages(bookie: Bookie, count: int, after: int = -1) -> list[tuple[int, int]]:
    """All runs above *after*, asked for in pages of *count*."""
    found: list[tuple[int, int]] = []
    while page := bookie.engine.runs(1, after, count):
        assert len(page) <= count
        found += page
        after = page[-1][1]
    return found


def test_what_was_just_added_is_durable_with_the_ticket_of_what_is_gathered(
    bookie: Bookie,
) -> None:
    assert bookie.engine.synced() >= bookie.engine.gathered()
    store(bookie, range(3))
    assert bookie.engine.synced() >= bookie.engine.gathered()
    bookie.send(add(1, 3, b"x"))
    assert bookie.engine.runs(1) == [(0, 3)]
    assert bookie.engine.synced() < bookie.engine.gathered()
    while bookie.engine.commit():
        pass
    assert bookie.engine.synced() >= bookie.engine.gathered()


def test_runs_join_over_memtable_and_logs(bookie: Bookie) -> None:
    store(bookie, range(10))
    bookie.checkpoint()
    store(bookie, range(10, 20))
    bookie.engine.seal()
    store(bookie, [20, 21, 25])
    assert bookie.engine.runs(1) == [(0, 21), (25, 25)]
    bookie.flush_sealed()
    assert bookie.engine.runs(1) == [(0, 21), (25, 25)]
    bookie.crash()
    assert bookie.engine.runs(1) == [(0, 21), (25, 25)]


def test_a_run_begins_after_the_entry_that_is_named(bookie: Bookie) -> None:
    store(bookie, [*range(5), 7, 8])
    assert bookie.engine.runs(1, 2) == [(3, 4), (7, 8)]
    assert bookie.engine.runs(1, 4, 1) == [(7, 8)]
    assert bookie.engine.runs(1, 8) == []
    assert bookie.engine.runs(1, 2**63 - 1) == []
    assert bookie.engine.runs(1, -5, 1) == [(0, 4)]


@pytest.mark.parametrize("seed", range(12))
def test_any_history_agrees_with_the_model(bookie: Bookie, seed: int) -> None:
    rng = random.Random(seed)
    here: set[int] = set()
    for _ in range(rng.randrange(3, 9)):
        start, length = rng.randrange(4000), rng.randrange(1, 1500)
        step = rng.choice([1, 1, 2, 5, 40])
        ids = [i for i in range(start, start + length, step) if rng.random() < 0.97]
        if rng.random() < 0.3:
            rng.shuffle(ids)
        here |= store(bookie, ids)
        match rng.randrange(4):
            case 0:
                bookie.checkpoint()
            case 1:
                bookie.engine.seal()
            case 2:
                bookie.crash()
    expected = runs_of(here)
    for count in (1, 7, 100_000):
        if count > 1 or len(expected) < 300:
            assert pages(bookie, count) == expected
    after = rng.randrange(5000)
    assert pages(bookie, 50, after) == runs_of(i for i in here if i > after)


def test_hundreds_of_overlapping_extents_are_merged(bookie: Bookie) -> None:
    here: set[int] = set()
    for turn in range(300):
        here |= store(bookie, range(turn * 3, turn * 3 + 400, 1 + turn % 3))
        bookie.checkpoint()
    assert pages(bookie, 10) == runs_of(here)


def test_nothing_is_missed_while_it_moves_from_memory_to_disk(bookie: Bookie) -> None:
    missed: list[list[tuple[int, int]]] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            found = bookie.engine.runs(1)
            if len(found) != 1 or found[0][0] != 0:
                missed.append(found)

    store(bookie, [0])
    looker = threading.Thread(target=look)
    looker.start()
    for turn in range(40):
        store(bookie, range(turn * 10 + 1, turn * 10 + 11))
        bookie.checkpoint()
        if turn % 10 == 9:
            bookie.engine.store.compact(roll(bookie))
    over.set()
    looker.join()
    assert missed == []


def roll(bookie: Bookie) -> int:
    """Close the open log; return its id."""
    log_id = bookie.engine.store.logs()[-1].log_id
    assert bookie.mark is not None
    bookie.roll()
    return log_id


def test_sparse_extents_are_told_by_their_pages(bookie: Bookie) -> None:
    here = store(bookie, range(0, 2_000_000, 1000))
    bookie.checkpoint()
    bookie.crash()
    assert pages(bookie, 333) == runs_of(here)


def test_a_run_without_holes_costs_no_read(bookie: Bookie) -> None:
    for turn in range(4):
        store(bookie, range(turn * 3000, turn * 3000 + 3000))
        bookie.checkpoint()
    bookie.crash()
    assert bookie.engine.runs(1) == [(0, 11_999)]
    assert bookie.engine.store.stats().index_reads == 0
    assert bookie.engine.store.stats().log_reads == 0


def test_a_ledger_that_is_not_here_has_no_runs(bookie: Bookie) -> None:
    store(bookie, [0])
    bookie.checkpoint()
    with pytest.raises(Absent):
        bookie.engine.runs(2)
    with pytest.raises(Absent):
        bookie.engine.runs(-1)
    bookie.engine.delete_ledger(1, 1)
    with pytest.raises(Absent):
        bookie.engine.runs(1)


def test_a_ledger_without_entries_has_none(bookie: Bookie) -> None:
    bookie.engine.fence(1, bytes(20))
    assert bookie.engine.runs(1) == []


def test_a_damaged_page_is_told_and_noted(bookie: Bookie) -> None:
    store(bookie, range(0, 3000, 3))
    bookie.checkpoint()
    bookie.crash()
    index = bookie.ledger_folder / "00000001.index"
    data = bytearray(index.read_bytes())
    data[-200] ^= 1
    index.write_bytes(data)
    with pytest.raises(Corrupt):
        pages(bookie, 100)
    assert [(d.path, d.ledger_id) for d in bookie.engine.store.take_damage()] == [(index, 1)]
