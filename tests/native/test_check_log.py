"""A check of a log beside everything else that goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import StoreRig, entries

from native.store import Extent, Stop, scan_index


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[StoreRig]:
    rig = StoreRig(tmp_path / "ledgers")
    yield rig
    rig.close()


def fill(rig: StoreRig, ledgers: int, size: int) -> None:
    rig.flush({i: entries(i, range(20), size) for i in range(ledgers)})
    rig.roll()


def test_a_check_keeps_its_pace(rig: StoreRig) -> None:
    fill(rig, 40, 2000)
    begun = time.monotonic()
    checked = rig.store.check_log(1, bytes_per_s=8_000_000)
    assert time.monotonic() - begun > checked / 8_000_000 - 0.01


def test_a_check_stops_when_it_is_told_to(rig: StoreRig) -> None:
    fill(rig, 100, 2000)
    stop = Stop()
    timer = threading.Timer(0.05, stop.set)
    timer.start()
    assert rig.store.check_log(1, bytes_per_s=1_000_000, stop=stop) < rig.store.logs()[0].live // 2
    timer.join()


def test_flushes_reads_and_compaction_go_on_during_a_check(rig: StoreRig) -> None:
    """The log that is checked is rewritten and deleted under way: nothing is amiss then."""
    fill(rig, 60, 5000)
    stop = Stop()
    checker = threading.Thread(  # in five minutes, but for stop
        target=lambda: rig.store.check_log(1, bytes_per_s=1000, stop=stop)
    )
    checker.start()
    for turn in range(5):
        rig.flush({turn: entries(turn, range(20, 40))})
    rig.store.compact(1)
    rig.check()
    assert checker.is_alive()
    stop.set()
    checker.join()
    assert rig.store.take_damage() == []


@pytest.mark.parametrize(("deleted", "told"), [(3, True), (2, False)])
def test_a_damaged_page_is_told_though_extents_move_during_a_check(
    tmp_path: Path, deleted: int, told: bool
) -> None:
    """Only what became of the page's own extent matters."""
    for bytes_per_s in (1_000_000, 200_000, 50_000):  # a busy host may miss the moment
        rig = StoreRig(tmp_path / f"{bytes_per_s}")
        page = with_damaged_page(rig)
        is_between = delete_during_check(rig, deleted, bytes_per_s)
        damages = [(d.offset, d.ledger_id) for d in rig.store.take_damage()]
        rig.close()
        if is_between:
            assert damages == ([(page, 2)] if told else [])
            return
    pytest.fail("no ledger was deleted before the damaged page was read")


def with_damaged_page(rig: StoreRig) -> int:
    """Fill a log with a large ledger 1, and break the page of ledger 2; return the page's place."""
    rig.flush({1: entries(1, range(200), 5000), 2: entries(2, [0, 1]), 3: entries(3, [0])})
    rig.roll()
    index = rig.path("00000001.index")
    page = next(
        found.page_offset
        for found in scan_index(index)
        if isinstance(found, Extent) and found.ledger_id == 2
    )
    content = bytearray(index.read_bytes())
    content[page] ^= 1
    index.write_bytes(content)
    rig.reopen()
    return page


def delete_during_check(rig: StoreRig, ledger_id: int, bytes_per_s: int) -> bool:
    """Delete a ledger while ledger 1, the first one, is checked; return False if it was not."""
    checker = threading.Thread(target=lambda: rig.store.check_log(1, bytes_per_s=bytes_per_s))
    checker.start()
    while rig.store.stats().index_reads == 0 and checker.is_alive():
        time.sleep(0.001)
    rig.store.delete_ledger(ledger_id)
    is_between = rig.store.stats().index_reads == 1 and checker.is_alive()
    checker.join()
    return is_between


def test_ledgers_by_the_thousand_are_all_checked(rig: StoreRig) -> None:
    rig.flush({i: entries(i, range(2)) for i in range(1500)})
    assert rig.store.check_log(1) == rig.store.logs()[0].live
    assert rig.store.take_damage() == []
