"""Rolling, the mark, and flushes that fail."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from stores import StoreRig, entries

from native.errors import Absent, Full
from native.faults import clear_fault, plan_fault

BLOCK = 4096


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[StoreRig]:
    rig = StoreRig(tmp_path / "ledgers")
    yield rig
    clear_fault()
    rig.close()


# --- rolling ------------------------------------------------------------------------------


def test_a_log_that_is_full_is_closed_within_a_flush(tmp_path: Path) -> None:
    rig = StoreRig(tmp_path / "ledgers", log_size_max=40_000)
    for turn in range(4):
        rig.flush({i: entries(i, range(turn * 40, turn * 40 + 40), 200) for i in range(5)})
    logs = rig.store.logs()
    assert len(logs) > 4
    assert [log.open for log in logs] == [False] * (len(logs) - 1) + [True]
    assert all(log.size <= 40_000 + 2 * BLOCK for log in logs)
    assert rig.mark.log_id == logs[-1].log_id
    assert rig.mark.next_log_id == logs[-1].log_id + 1
    rig.check()
    rig.reopen()
    rig.check()
    assert rig.damage() == []
    rig.close()


def test_an_entry_larger_than_a_log_has_a_log_of_its_own(tmp_path: Path) -> None:
    rig = StoreRig(tmp_path / "ledgers", log_size_max=8192)
    rig.flush({1: entries(1, range(3), 20_000)})
    assert len(rig.store.logs()) == 3
    rig.check()
    rig.close()


# --- the mark -----------------------------------------------------------------------------


def test_what_lies_beyond_the_mark_is_cut_off(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(5))})
    mark, model = rig.mark, {1: dict(rig.model[1])}
    rig.flush({1: entries(1, range(5, 9)), 2: entries(2, [0])})
    rig.reopen(mark)
    rig.mark, rig.model = mark, model
    rig.check()
    assert rig.read(2, 0) is Absent
    assert rig.damage() == []
    rig.flush({1: entries(1, range(5, 7), tag="again")})
    rig.reopen()
    rig.check()


def test_a_log_closed_beyond_the_mark_is_cut_and_open_again(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(5))})
    mark, model = rig.mark, {1: dict(rig.model[1])}
    rig.flush({1: entries(1, range(5, 9))})
    rig.roll()
    rig.reopen(mark)
    rig.mark, rig.model = mark, model
    rig.check()
    assert [log.open for log in rig.store.logs()] == [True]
    rig.flush({1: entries(1, range(5, 7))})
    rig.reopen()
    rig.check()
    assert rig.damage() == []


def test_logs_begun_beyond_the_mark_are_deleted_unless_they_are_closed(tmp_path: Path) -> None:
    rig = StoreRig(tmp_path / "ledgers", log_size_max=20_000)
    rig.flush({1: entries(1, range(10), 200)})
    mark = rig.mark
    rig.flush({1: entries(1, range(10, 300), 200)})
    ids = [log.log_id for log in rig.store.logs()]
    rig.reopen(mark)
    assert [log.log_id for log in rig.store.logs()] == ids[:-1]
    assert rig.damage() == []
    rig.mark = mark
    rig.flush({1: entries(1, range(10, 300), 200)})
    assert rig.store.logs()[-1].log_id > ids[-1]
    rig.check()
    rig.reopen()
    rig.check()
    rig.close()


def test_a_folder_that_is_read_in_part_stops_the_opening(rig: StoreRig) -> None:
    """A log that is not listed would count as deleted: its entries would be gone."""
    rig.flush({1: entries(1, range(5))})
    rig.roll()
    rig.flush({1: entries(1, range(5, 9))})
    rig.store.close()
    before = {path: path.read_bytes() for path in rig.folder.iterdir()}
    names = len(before) + 3  # itself, its parent, and the end
    for nth in range(1, names + 1):
        plan_fault("folder_read", nth)
        with pytest.raises(OSError) as failed:
            rig.reopen()
        assert failed.value.errno == errno.EIO
        assert {path: path.read_bytes() for path in rig.folder.iterdir()} == before
    rig.store = rig._open(rig.mark)
    rig.check()
    assert rig.damage() == []


def test_files_of_others_are_left_alone(rig: StoreRig) -> None:
    names = ["0000000000000001.table", "lastMark", "readme.log", "1.log"]
    for name in names:
        rig.path(name).write_bytes(b"x")
    rig.flush({1: entries(1, [0])})
    rig.reopen()
    rig.check()
    assert all(rig.path(name).read_bytes() == b"x" for name in names)


def test_leftovers_of_a_deletion_or_a_rebuild_are_cleared_away(rig: StoreRig) -> None:
    rig.flush({1: entries(1, [0])})
    rig.roll()
    rig.flush({2: entries(2, [0])})
    rig.store.close()
    rig.path("00000001.log").rename(rig.path("00000001.dead"))
    rig.path("00000002.index.tmp").write_bytes(b"half")
    rig.reopen()
    assert sorted(p.name for p in rig.folder.iterdir()) == ["00000002.index", "00000002.log"]
    assert rig.damage() == []


# --- faults -------------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["log_write", "log_sync", "index_write", "index_sync"])
def test_a_failed_flush_shows_nothing_and_is_the_last(rig: StoreRig, site: str) -> None:
    rig.flush({1: entries(1, range(3))})
    held = dict(rig.model[1])
    plan_fault(site, 1, errno.EIO)
    with pytest.raises(OSError) as failure:
        rig.flush({1: entries(1, range(3, 6)), 2: entries(2, [0])})
    assert failure.value.errno == errno.EIO
    assert rig.read(1, 3) is Absent
    assert rig.read(2, 0) is Absent
    for again in (rig.store.flush_begin, lambda: rig.store.roll(rig.mark)):
        with pytest.raises(OSError) as failure:
            again()
        assert failure.value.errno == errno.EIO
    rig.model = {1: held}
    rig.check()
    rig.reopen()
    rig.check()
    rig.flush({2: entries(2, [0])})
    rig.check()
    assert rig.damage() == []


@pytest.mark.parametrize("site", ["log_write", "log_sync", "index_write", "index_sync"])
def test_a_failed_roll_at_any_write_leaves_a_sound_store(tmp_path: Path, site: str) -> None:
    for nth in range(1, 9):
        rig = StoreRig(tmp_path / f"{site}{nth}", log_size_max=30_000)
        rig.flush({1: entries(1, range(50), 200)})
        mark, held = rig.mark, dict(rig.model[1])
        plan_fault(site, nth, errno.ENOSPC)
        try:
            rig.flush({1: entries(1, range(50, 400), 200)})
        except OSError as error:
            assert error.errno == errno.ENOSPC
        clear_fault()
        rig.reopen(mark)
        rig.mark, rig.model = mark, {1: held}
        assert {i: rig.read(1, i) for i in held} == held
        assert rig.damage() == []
        rig.flush({1: entries(1, range(50, 400), 200)})
        rig.check()
        rig.reopen()
        rig.check()
        rig.close()


def test_the_log_that_the_durable_mark_names_stays_until_the_next_mark_is(rig: StoreRig) -> None:
    """A start from the older mark would report it as lost, and be in limbo."""
    rig.flush({1: entries(1, range(5))})
    durable = rig.mark
    rig.store.delete_ledger(1)
    rig.store.roll(durable)
    with pytest.raises(Full):
        rig.store.delete_log(1)
    with pytest.raises(Full):
        rig.store.compact(1)
    assert [log.open for log in rig.store.logs()] == [True]
    rig.reopen(durable)
    assert rig.damage() == []
    rig.store.delete_ledger(1)
    newer = rig.store.roll(durable)
    with pytest.raises(Full):
        rig.store.delete_log(1)
    rig.store.marked(newer)
    assert [log.open for log in rig.store.logs()] == [False]
    assert rig.store.delete_log(1) > 0
    rig.reopen(newer)
    assert rig.damage() == []


def test_an_index_that_was_begun_and_whose_log_has_no_name_is_a_leftover(rig: StoreRig) -> None:
    """Both names are made before one sync, so a power cut may leave either of them alone."""
    rig.flush({1: entries(1, range(5))})
    rig.path("00000009.index").write_bytes(b"")
    rig.path("0000000a.index").write_bytes(bytes(BLOCK))
    rig.reopen(msgspec.structs.replace(rig.mark, next_log_id=20))
    assert rig.damage() == []
    assert sorted(p.name for p in rig.folder.iterdir()) == ["00000001.index", "00000001.log"]
