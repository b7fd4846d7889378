"""Compaction: what is copied, what is merged, and what a crash leaves."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import StoreRig, entries
from wire import crc32c

from native.errors import Absent, Corrupt, Full
from native.faults import clear_fault, plan_fault
from native.store import Extent, LogRecord, LogUsage, Stop, scan_index, scan_log


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[StoreRig]:
    rig = StoreRig(tmp_path / "ledgers")
    yield rig
    clear_fault()
    rig.close()


def names(rig: StoreRig) -> list[str]:
    return sorted(path.name for path in rig.folder.iterdir())


def extents(rig: StoreRig, name: str) -> list[tuple[int, int, int]]:
    return [
        (e.ledger_id, e.first_entry, e.last_entry)
        for e in scan_index(rig.path(name))
        if isinstance(e, Extent)
    ]


def filled(rig: StoreRig) -> None:
    """Close a log with ledgers 1 to 4 in three flushes; ledger 2 is dead."""
    for turn in range(3):
        rig.flush({i: entries(i, range(turn * 5, turn * 5 + 5)) for i in range(1, 5)})
    rig.roll()
    rig.store.delete_ledger(2)
    del rig.model[2]


def forget(rig: StoreRig, ledger_id: int) -> None:
    """Delete a ledger again, as the engine does after each start."""
    try:
        rig.store.delete_ledger(ledger_id)
    except Absent:
        return


# --- what is copied -----------------------------------------------------------------------


def test_live_records_are_copied_in_order_and_extents_merged(rig: StoreRig) -> None:
    filled(rig)
    live = rig.store.logs()[0].live
    assert rig.store.compact(1) == live
    assert names(rig) == ["00000002.index", "00000002.log"]
    records = [r for r in scan_log(rig.path("00000002.log")) if isinstance(r, LogRecord)]
    assert [(r.ledger_id, r.entry_id) for r in records[:-1]] == [
        (ledger_id, i) for ledger_id in (1, 3, 4) for i in range(15)
    ]
    assert extents(rig, "00000002.index") == [(1, 0, 14), (3, 0, 14), (4, 0, 14)]
    rig.check()
    rig.reopen()
    rig.check()
    assert rig.damage() == []
    (log,) = rig.store.logs()
    assert (log.live, log.open, log.extents) == (live, False, 3)


def test_of_an_entry_stored_twice_the_newest_copy_is_kept(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(20), tag="old")})
    rig.flush({1: entries(1, range(5, 15, 3), tag="new")})
    rig.flush({1: entries(1, [*range(12, 30), 10**9], tag="newest")})
    rig.flush({1: entries(1, [29, 10**9 + 1], tag="last")})
    rig.roll()
    rig.store.compact(1)
    rig.check()
    records = [r for r in scan_log(rig.path("00000002.log")) if isinstance(r, LogRecord)]
    assert [r.entry_id for r in records[:-1]] == [*range(30), 10**9, 10**9 + 1]


def test_a_compacted_log_stays_as_old_as_it_was(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(10), tag="old")})
    rig.roll()
    rig.flush({1: entries(1, range(5), tag="new")})
    rig.roll()
    for log_id in (1, 3, 2):
        rig.store.compact(log_id)
        rig.check()
        rig.reopen()
        rig.check()
    assert [log.log_id for log in rig.store.logs()] == [4, 5]


def test_a_log_larger_than_an_index_block_is_copied_in_several(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(17), 1 << 21), 2: entries(2, range(17), 1 << 21)})
    rig.flush({3: entries(3, range(4))})
    rig.roll()
    assert rig.store.compact(1) == rig.store.logs()[0].live
    rig.check()
    rig.reopen()
    rig.check()


def test_a_log_without_live_bytes_is_deleted(rig: StoreRig) -> None:
    rig.flush({1: entries(1, [0])})
    with pytest.raises(Full):
        rig.store.delete_log(1)
    rig.roll()
    with pytest.raises(Full):
        rig.store.delete_log(1)
    rig.store.delete_ledger(1)
    size = sum(path.stat().st_size for path in rig.folder.iterdir())
    assert rig.store.delete_log(1) == size
    assert names(rig) == []
    with pytest.raises(FileNotFoundError):
        rig.store.delete_log(1)
    assert rig.store.stats().log_bytes == 0


def test_compacting_a_dead_log_deletes_it(rig: StoreRig) -> None:
    rig.flush({1: entries(1, [0])})
    rig.roll()
    rig.store.delete_ledger(1)
    assert rig.store.compact(1) == 0
    assert names(rig) == []


def test_records_of_a_forgotten_ledger_are_dead_until_its_log_is_rewritten(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(9)), 2: entries(2, range(5))})
    rig.roll()
    held = {row.ledger_id: row.bytes for row in rig.store.ledgers()}
    assert rig.store.stats().dead_bytes == 0
    rig.store.delete_ledger(1)
    assert (rig.store.stats().dead_bytes, rig.store.stats().live_bytes) == (held[1], held[2])
    rig.store.compact(1)
    assert (rig.store.stats().dead_bytes, rig.store.stats().live_bytes) == (0, held[2])


def test_an_open_log_is_not_compacted(rig: StoreRig) -> None:
    rig.flush({1: entries(1, [0])})
    with pytest.raises(Full):
        rig.store.compact(1)
    with pytest.raises(FileNotFoundError):
        rig.store.compact(2)


# --- damage, stop, pace -------------------------------------------------------------------


def test_a_damaged_record_keeps_the_log_and_is_reported(rig: StoreRig) -> None:
    filled(rig)
    place = rig.store.find(3, 7)
    log = rig.path("00000001.log")
    data = bytearray(log.read_bytes())
    data[place.offset + 20] ^= 1
    rig.store.close()
    log.write_bytes(data)
    rig.reopen()
    forget(rig, 2)
    with pytest.raises(Corrupt):
        rig.store.compact(1)
    assert [(d.path, d.offset) for d in rig.damage()] == [(log, place.offset)]
    assert names(rig) == ["00000001.index", "00000001.log"]
    (usage,) = rig.store.logs()
    assert usage.damaged
    assert rig.check_damaged() == 1


def test_a_stop_ends_a_copy_without_loss(rig: StoreRig) -> None:
    filled(rig)
    stop = Stop()
    stop.set()
    assert rig.store.compact(1, stop=stop) is None
    assert names(rig) == ["00000001.index", "00000001.log"]
    rig.check()


def test_a_copy_keeps_its_pace_and_can_be_stopped_meanwhile(rig: StoreRig) -> None:
    rig.flush({i: entries(i, range(2), 10_000) for i in range(50)})
    rig.roll()
    begun = time.monotonic()
    rig.store.compact(1, bytes_per_s=5_000_000)
    assert time.monotonic() - begun >= 0.19
    stop = Stop()
    threading.Timer(0.05, stop.set).start()
    assert rig.store.compact(2, bytes_per_s=1000, stop=stop) is None
    rig.check()


def test_a_ledger_deleted_meanwhile_does_not_come_back(rig: StoreRig) -> None:
    rig.flush({i: entries(i, range(2), 10_000) for i in range(50)})
    rig.roll()
    deleter = threading.Timer(0.05, rig.store.delete_ledger, [0])
    deleter.start()
    rig.store.compact(1, bytes_per_s=5_000_000)
    deleter.join()
    del rig.model[0]
    rig.check()


# --- several logs as one --------------------------------------------------------------------


def small_logs(rig: StoreRig) -> None:
    """Close logs 1 to 4, each with newer copies of some entries before, and write to log 5."""
    for number in range(4):
        first = number * 5
        rig.flush(
            {
                1: entries(1, range(first, first + 8), tag=str(number)),
                10 + number: entries(10 + number, range(3)),
                2: entries(2, [number]),
            }
        )
        rig.roll()
    rig.flush({1: entries(1, [3, 30], tag="newest")})
    rig.store.delete_ledger(2)
    del rig.model[2]


def test_several_logs_are_joined_and_the_newest_copies_kept(rig: StoreRig) -> None:
    small_logs(rig)
    rig.store.compact(1, 2, 3, 4)
    assert [name for name in names(rig) if name.endswith("log")] == ["00000005.log", "00000006.log"]
    rig.check()
    records = [r for r in scan_log(rig.path("00000006.log")) if isinstance(r, LogRecord)]
    assert [r.entry_id for r in records if r.ledger_id == 1] == list(range(23))
    assert 2 not in {r.ledger_id for r in records}
    origins = {log.log_id: log.origin for log in rig.store.logs()}
    assert origins == {5: 5, 6: 4}
    rig.reopen()
    rig.check()
    assert rig.damage() == []
    rig.roll()
    rig.store.compact(6, 5)
    rig.check()
    rig.reopen()
    rig.check()


def test_logs_that_are_no_neighbours_are_not_joined(rig: StoreRig) -> None:
    """What lies between is newer than the first of them, and would be older than the new one."""
    small_logs(rig)
    before = names(rig)
    for wrong in ((1, 3), (2, 1), (1, 1)):
        with pytest.raises(OSError) as refused:
            rig.store.compact(*wrong)
        assert refused.value.errno == errno.EINVAL
    with pytest.raises(Full):
        rig.store.compact(4, 5)
    with pytest.raises(FileNotFoundError):
        rig.store.compact(3, 9)
    assert names(rig) == before
    rig.store.compact(2)
    with pytest.raises(OSError):
        rig.store.compact(1, 3)  # the rewritten one is as old as before, and still between
    rig.store.compact(1, 6, 3)
    rig.check()


def test_a_damaged_record_keeps_all_logs_that_were_to_be_joined(rig: StoreRig) -> None:
    small_logs(rig)
    path = rig.path("00000002.log")
    data = bytearray(path.read_bytes())
    at = data.index(b"11:1::")
    data[at] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(Corrupt):
        rig.store.compact(1, 2, 3, 4)
    assert [log.log_id for log in rig.store.logs() if log.damaged] == [2]
    assert len(rig.store.logs()) == 5
    assert [(d.path.name, d.ledger_id, d.entry_id) for d in rig.damage()] == [
        ("00000002.log", 11, 1)
    ]
    rig.store.compact(3, 4)
    assert rig.check_damaged() == 1


@pytest.mark.parametrize("kept", [(), (1,), (2, 3), (4,), (1, 2, 3, 4), (2, 4)])
def test_logs_that_a_crash_left_beside_their_joined_copy_do_no_harm(
    rig: StoreRig, tmp_path: Path, kept: tuple[int, ...]
) -> None:
    small_logs(rig)
    rig.save(tmp_path / "before")
    rig.store.compact(1, 2, 3, 4)
    rig.save(tmp_path / "after")
    for log_id in kept:
        for suffix in ("log", "index"):
            name = f"{log_id:08x}.{suffix}"
            shutil.copy(tmp_path / "before" / name, tmp_path / "after" / name)
    rig.restore(tmp_path / "after", rig.mark)
    rig.reopen()
    forget(rig, 2)
    assert rig.damage() == []
    assert {log.log_id for log in rig.store.logs()} == {*kept, 5, 6} - {4}
    rig.check()
    rig.store.compact(*(log.log_id for log in by_origin(rig) if log.log_id != 5))
    rig.check()
    rig.reopen()
    rig.check()
    assert len(rig.store.logs()) == 2


def by_origin(rig: StoreRig) -> list[LogUsage]:
    return sorted(rig.store.logs(), key=lambda log: log.origin)


@pytest.mark.parametrize("site", ["log_write", "log_sync", "index_write", "index_sync"])
def test_a_join_that_fails_at_any_write_changes_nothing(rig: StoreRig, site: str) -> None:
    small_logs(rig)
    before, failures = names(rig), 0
    for nth in range(1, 20):
        plan_fault(site, nth, errno.EIO)
        try:
            rig.store.compact(*(log.log_id for log in by_origin(rig) if not log.open))
        except OSError as error:
            assert error.errno == errno.EIO
            assert names(rig) == before
            failures += 1
            rig.check()
        else:
            break
        finally:
            clear_fault()
    assert failures >= 1
    rig.check()


# --- crashes ------------------------------------------------------------------------------


def test_a_crash_at_the_begin_of_a_copy_is_no_damage(rig: StoreRig, tmp_path: Path) -> None:
    """Its header waits in memory, and a mark written meanwhile counts its id as used."""
    filled(rig)
    stop = Stop()
    copy = threading.Thread(
        target=rig.store.compact, args=(1,), kwargs={"bytes_per_s": 1, "stop": stop}
    )
    copy.start()
    while not rig.path("00000002.index").exists():
        time.sleep(0.001)
    rig.flush({7: entries(7, range(3))})
    assert rig.mark.next_log_id == 4
    rig.save(tmp_path / "crashed")
    stop.set()
    copy.join()
    rig.restore(tmp_path / "crashed", rig.mark)
    rig.reopen()
    forget(rig, 2)
    assert rig.damage() == []
    assert not rig.path("00000002.log").exists()
    rig.check()


@pytest.mark.parametrize("site", ["log_write", "log_sync", "index_write", "index_sync"])
def test_a_copy_that_fails_at_any_write_changes_nothing(rig: StoreRig, site: str) -> None:
    filled(rig)
    failures = 0
    for nth in range(1, 20):
        before = names(rig)
        plan_fault(site, nth, errno.EIO)
        try:
            rig.store.compact(rig.store.logs()[0].log_id)
        except OSError as error:
            assert error.errno == errno.EIO
            assert names(rig) == before
            failures += 1
        clear_fault()
        rig.check()
    assert failures >= 1
    rig.flush({1: entries(1, range(15, 20))})
    rig.check()


def states(rig: StoreRig, tmp_path: Path) -> list[Path]:
    """Copies of the folder as a crash would leave it, at each step of a compaction."""
    old, found = tmp_path / "old", []
    rig.save(old)
    rig.store.compact(1)
    new = tmp_path / "new"
    rig.save(new)
    output = (new / "00000002.log").read_bytes()
    index = (new / "00000002.index").read_bytes()
    opened = output[:24] + bytes(4072)
    whole = {"00000002.log": output, "00000002.index": index}
    steps: list[tuple[Path, dict[str, bytes]]] = [
        (old, {"00000002.log": b""}),
        (old, {"00000002.log": b"", "00000002.index": b""}),
        (old, {"00000002.log": bytes(4096), "00000002.index": index[:4096]}),
        (old, {"00000002.log": opened + output[4096:8192], "00000002.index": index[:4096]}),
        (old, {"00000002.log": open_header(output) + output[4096:], "00000002.index": index}),
        (old, whole),
        (new, {"00000001.dead": b"", "00000001.index": (old / "00000001.index").read_bytes()}),
        (new, {"00000001.dead": b""}),
        (new, {}),
    ]
    for number, (start, files) in enumerate(steps):
        state = tmp_path / f"state{number}"
        rig.restore(start, rig.mark)
        for name, data in files.items():
            rig.path(name).write_bytes(data)
        rig.save(state)
        found.append(state)
    return found


def open_header(data: bytes) -> bytes:
    """Return the header of an open log for the one of *data*."""
    fields = data[:24] + bytes(16)
    return (fields + crc32c(fields).to_bytes(4, "little")).ljust(4096, b"\0")


def test_a_crash_at_any_step_leaves_every_entry_once(rig: StoreRig, tmp_path: Path) -> None:
    filled(rig)
    for state in states(rig, tmp_path):
        rig.restore(state, rig.mark)
        rig.reopen()
        assert rig.damage() == [], state
        forget(rig, 2)
        rig.check()
        assert len(rig.store.logs()) == 1
        rig.store.compact(rig.store.logs()[0].log_id)
        rig.check()


def damaged_copy(
    rig: StoreRig, tmp_path: Path, kept: tuple[int, ...], *lost: tuple[int, int]
) -> None:
    """Leave logs *kept* beside their copy, which has lost its index and the records of *lost*."""
    copy = max(log.log_id for log in rig.store.logs())
    places = [rig.store.find(*entry) for entry in lost]
    assert {place.log_id for place in places} <= {copy}
    rig.save(tmp_path / "after")
    rig.restore(tmp_path / "after", rig.mark)
    for log_id in kept:
        for suffix in ("log", "index"):
            name = f"{log_id:08x}.{suffix}"
            shutil.copy(tmp_path / "before" / name, rig.path(name))
    log = rig.path(f"{copy:08x}.log")
    data = bytearray(log.read_bytes())
    for place in places:
        data[place.offset + 20] ^= 1
    log.write_bytes(data)
    log.with_suffix(".index").unlink()


def test_a_log_stays_while_its_copy_lacks_a_record(rig: StoreRig, tmp_path: Path) -> None:
    """The copy's index was built anew without it, and looks whole from then on."""
    filled(rig)
    rig.save(tmp_path / "before")
    rig.store.compact(1)
    damaged_copy(rig, tmp_path, (1,), (3, 7))
    for _ in range(3):
        rig.reopen()
        forget(rig, 2)
        assert [log.log_id for log in rig.store.logs()] == [1, 2]
        rig.check()
        rig.path("limbo").unlink(missing_ok=True)


def test_a_log_goes_once_the_index_of_its_sound_copy_is_built_anew(
    rig: StoreRig, tmp_path: Path
) -> None:
    filled(rig)
    rig.save(tmp_path / "before")
    rig.store.compact(1)
    damaged_copy(rig, tmp_path, (1,))
    for _ in range(2):
        rig.reopen()
        forget(rig, 2)
        rig.check()
    assert [log.log_id for log in rig.store.logs()] == [2]
    assert not rig.path("limbo").exists()


@pytest.mark.parametrize("kept", [(4,), (3, 4)])
def test_a_log_beside_its_damaged_copy_is_not_compacted(
    rig: StoreRig, tmp_path: Path, kept: tuple[int, ...]
) -> None:
    """The next copy would stand for both, and neither has all that the other has."""
    small_logs(rig)
    rig.save(tmp_path / "before")
    rig.store.compact(1, 2, 3, 4)
    damaged_copy(rig, tmp_path, kept, (13, 1))
    for _ in range(2):
        rig.reopen()
        forget(rig, 2)
        for log_id in (4, 6):
            with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
                rig.store.compact(log_id)
        assert {log.log_id for log in rig.store.logs()} == {*kept, 5, 6}
        rig.check()


@pytest.mark.parametrize("kept", [(4,), (3, 4)])
def test_a_log_and_its_damaged_copy_become_one(
    rig: StoreRig, tmp_path: Path, kept: tuple[int, ...]
) -> None:
    """It has what either of them has; so it stands for both after a crash, too."""
    small_logs(rig)
    rig.save(tmp_path / "before")
    rig.store.compact(1, 2, 3, 4)
    damaged_copy(rig, tmp_path, kept, (13, 1))
    rig.reopen()
    forget(rig, 2)
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        rig.store.compact(6, 4)
    rig.save(tmp_path / "pair")
    rig.store.compact(4, 6)
    rig.check()
    assert {log.log_id for log in rig.store.logs()} == {*kept[:-1], 5, 7}
    for log in (tmp_path / "pair").glob("0000000[46].*"):
        shutil.copy(log, rig.path(log.name))
    for _ in range(2):
        rig.reopen()
        forget(rig, 2)
        rig.check()
    assert {log.log_id for log in rig.store.logs()} == {*kept[:-1], 5, 7}


def test_the_log_of_an_old_mark_may_have_been_compacted_since(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(5))})
    mark = rig.mark
    rig.roll()
    for log_id in (1, 2, 3):
        rig.store.compact(log_id)
        rig.reopen(mark)
        rig.check()
        assert rig.damage() == []


# --- without memory ------------------------------------------------------------------------


@pytest.mark.parametrize("log_ids", [(1,), (1, 2, 3, 4)])
def test_a_copy_without_memory_loses_nothing(
    rig: StoreRig, tmp_path: Path, log_ids: tuple[int, ...]
) -> None:
    small_logs(rig)
    rig.save(tmp_path / "saved")
    before, failures = names(rig), 0
    for nth in range(1, 60):
        rig.restore(tmp_path / "saved", rig.mark)
        rig.reopen()
        forget(rig, 2)
        plan_fault("array", nth)
        try:
            rig.store.compact(*log_ids)
        except OSError as error:
            assert error.errno == errno.ENOMEM
            rig.check()
            assert names(rig) == before
            failures += 1
        finally:
            clear_fault()
        rig.check()
        assert [log.log_id for log in rig.store.logs() if not log.live] == []
    assert failures >= 5


def test_a_row_whose_records_are_all_left_out_goes_with_its_log(rig: StoreRig) -> None:
    """It was damaged and stored again: its ledger has nothing in the copy."""
    rig.flush({1: entries(1, range(3)), 2: entries(2, [0], tag="damaged")})
    rig.roll()
    rig.flush({2: entries(2, [0], tag="again")})
    path = rig.path("00000001.log")
    data = bytearray(path.read_bytes())
    data[data.index(b"2:0:damaged")] ^= 0xFF
    path.write_bytes(data)
    rig.store.compact(1)
    assert [(row.ledger_id, row.extents) for row in rig.store.ledgers()] == [(1, 1), (2, 1)]
    rig.check()
    rig.reopen()
    rig.check()
    assert rig.damage() == []
