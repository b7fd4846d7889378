"""Blocks that a disk cannot read at one start, and can at the next: nothing is lost meanwhile."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from engines import Bookie
from wire import add

from native import frame
from native.faults import clear_fault, plan_fault
from native.journal import INCARNATION
from native.store import LogRecord, scan_log

COUNT = 40
BLOCK_SIZE = 4096


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Bookie]:
    """Ledger 1 in log 1, which is closed."""
    bookie = Bookie(tmp_path)
    for i in range(COUNT):
        bookie.add(1, i, payload(i))
    bookie.checkpoint()
    bookie.roll()
    yield bookie
    bookie.close()


def payload(entry_id: int) -> bytes:
    return f"entry {entry_id} ".encode() * (1 + entry_id % 7)


def put(bookie: Bookie, frames: bytes) -> None:
    """Send frames, sync, and flush."""
    bookie.send(frames)
    while bookie.engine.commit():
        pass
    bookie.checkpoint()


def spoil(path: Path, offset: int) -> None:
    """Flip all bits of a byte."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def fail_to_start(bookie: Bookie, site: str, nth: int, error_number: int = errno.EIO) -> None:
    plan_fault(site, nth, error_number)
    try:
        with pytest.raises(OSError, match="Input/output error"):
            bookie.crash()
    finally:
        clear_fault()


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENODATA, errno.EILSEQ])
@pytest.mark.parametrize("nth", [1, 2])
def test_an_index_that_cannot_be_read_now_stops_the_start(
    bookie: Bookie, nth: int, error_number: int
) -> None:
    fail_to_start(bookie, "index_read", nth, error_number)
    bookie.crash()
    assert not bookie.recovery.limbo
    assert [bookie.payload(1, i) for i in range(COUNT)] == [payload(i) for i in range(COUNT)]


@pytest.mark.parametrize("nth", [1, 2])
def test_an_index_that_cannot_be_read_now_gives_way_to_none_that_lacks_entries(
    bookie: Bookie, nth: int
) -> None:
    """Else the bookie would deny the entry whose record is damaged, though it had it."""
    place = bookie.engine.store.find(1, 5)
    spoil(bookie.ledger_folder / "00000001.log", place.offset + 40)
    index = bookie.ledger_folder / "00000001.index"
    before = index.read_bytes()
    fail_to_start(bookie, "index_read", nth)
    assert index.read_bytes() == before
    assert not (bookie.ledger_folder / "limbo").exists()
    bookie.crash()
    assert not bookie.recovery.limbo
    assert bookie.read(1, 5)[0] == frame.Code.IO_ERROR
    assert bookie.payload(1, 4) == payload(4)


@pytest.mark.parametrize("is_torn", [False, True])
def test_an_index_that_reads_otherwise_the_second_time_stops_the_start(
    bookie: Bookie, *, is_torn: bool
) -> None:
    """What was read of it is a part: the other entries would be denied."""
    bookie.add(2, 0, b"open")
    bookie.checkpoint()
    if is_torn:
        (bookie.ledger_folder / "00000002.torn").touch()
    indexes = sorted(bookie.ledger_folder.glob("*.index"))
    before = [index.read_bytes() for index in indexes]
    fail_to_start(bookie, "index_flip", 2)  # each log is looked at, and then read
    assert [index.read_bytes() for index in indexes] == before
    bookie.crash()
    assert not bookie.recovery.limbo
    assert bookie.payload(2, 0) == b"open"
    assert [bookie.payload(1, i) for i in range(COUNT)] == [payload(i) for i in range(COUNT)]


def test_an_index_that_cannot_be_read_of_a_log_that_is_lost_leads_to_limbo(bookie: Bookie) -> None:
    log = bookie.ledger_folder / "00000001.log"
    index = log.with_suffix(".index")
    log.unlink()
    plan_fault("index_read", 2)
    bookie.crash()
    clear_fault()
    assert (bookie.ledger_folder / "limbo").exists()
    assert {each.path for each in bookie.engine.store.take_damage()} == {log, index}
    assert index.exists()


@pytest.fixture
def copy(bookie: Bookie) -> Path:
    """A compacted copy of log 1, whose header is damaged: its index alone tells the origin."""
    bookie.engine.store.compact(1)
    (copy,) = bookie.ledger_folder.glob("*.log")
    assert origin(copy.with_suffix(".index")) == 1
    spoil(copy, 16)
    return copy


def origin(index: Path) -> int:
    return int.from_bytes(index.read_bytes()[16:20], "little")


def test_an_index_that_alone_tells_the_origin_gives_way_to_no_guess(
    bookie: Bookie, copy: Path
) -> None:
    """Else the copy would be newer than entries that were stored after those in it."""
    fail_to_start(bookie, "index_read", 1)
    assert origin(copy.with_suffix(".index")) == 1
    bookie.crash()
    assert [log.origin for log in bookie.engine.store.logs()] == [1]
    assert [bookie.payload(1, i) for i in range(COUNT)] == [payload(i) for i in range(COUNT)]


def test_a_log_is_no_leftover_while_nobody_can_tell_what_is_in_it(bookie: Bookie) -> None:
    """Its header is damaged, no mark knows it, and its index cannot be read."""
    mark = bookie.mark
    bookie.add(1, COUNT, payload(COUNT))
    assert bookie.engine.seal()
    assert bookie.engine.flush() is not None
    bookie.mark = mark  # the crash came before the newer one was stored
    log = bookie.ledger_folder / "00000002.log"
    spoil(log, 0)
    fail_to_start(bookie, "index_read", 1)
    assert log.exists()
    assert log.with_suffix(".index").exists()
    bookie.crash()
    assert log.exists()
    assert bookie.payload(1, COUNT) == payload(COUNT)


@pytest.fixture
def new_name(bookie: Bookie) -> int:
    """Which block of its log, from 1, says that ledger 7 is a later one of this id."""
    put(bookie, add(3, 0, bytes(2 * BLOCK_SIZE)))
    put(bookie, frame.incarnation(7, 10) + add(7, 0, b"old"))
    assert bookie.engine.renew_ledger(7, 10, 20)
    put(bookie, frame.incarnation(7, 20) + add(7, 0, b"new"))
    (old, new) = (
        each.offset // BLOCK_SIZE + 1
        for log in sorted(bookie.ledger_folder.glob("*.log"))
        for each in scan_log(log)
        if isinstance(each, LogRecord) and each.entry_id == INCARNATION
    )
    assert old != new
    return new


def lose_tables(bookie: Bookie) -> None:
    for path in bookie.ledger_folder.glob("*.table"):
        path.unlink()


def incarnation_of(bookie: Bookie, ledger_id: int) -> int:
    state = bookie.engine.ledger(ledger_id)
    assert state is not None
    return state.incarnation


def test_no_former_ledger_stands_in_for_one_whose_name_cannot_be_read(
    bookie: Bookie, new_name: int
) -> None:
    """The ledger table is lost, and logs say of which ledger of an id the entries are."""
    lose_tables(bookie)
    fail_to_start(bookie, "log_read", new_name)
    bookie.crash()
    assert incarnation_of(bookie, 7) == 20
    assert bookie.payload(7, 0) == b"new"


@pytest.mark.parametrize(("table", "known"), [("lost", 0), ("old", 0), ("whole", 20)])
def test_a_rebuild_goes_on_where_a_name_cannot_be_read(
    bookie: Bookie, new_name: int, table: str, known: int
) -> None:
    """Unless the table tells which ledger it is, nobody knows, and the bookie is in limbo."""
    if table == "lost":
        lose_tables(bookie)
    plan_fault("log_read", new_name)
    try:
        bookie.crash(searches_logs=True, table_is_whole=table == "whole")
    finally:
        clear_fault()
    assert incarnation_of(bookie, 7) == known
    assert (bookie.ledger_folder / "limbo").exists() == (known == 0)
    for _ in range(2):
        bookie.checkpoint()
        bookie.crash()
        assert incarnation_of(bookie, 7) == known
        assert bookie.payload(7, 0) == b"new"


@pytest.mark.parametrize("former", [10, 0])
@pytest.mark.parametrize("is_read", [True, False])
def test_no_former_ledger_that_was_deleted_takes_a_later_one_with_it(
    bookie: Bookie, *, former: int, is_read: bool
) -> None:
    """What the ledger table says of the later one is lost, and only a log tells of it."""
    put(bookie, (frame.incarnation(7, former) if former else b"") + add(7, 0, b"old"))
    bookie.engine.delete_ledger(7, 1, former)
    put(bookie, add(3, 0, bytes(2 * BLOCK_SIZE)))
    before = bookie.mark
    assert bookie.engine.renew_ledger(7, former, 20)
    put(bookie, frame.incarnation(7, 20) + add(7, 0, b"new"))
    assert before is not None
    assert bookie.mark is not None
    bookie.mark = msgspec.structs.replace(bookie.mark, table_end=before.table_end)
    if not is_read:
        plan_fault("log_read", 2)
    try:
        bookie.crash(searches_logs=True)
    finally:
        clear_fault()
    for _ in range(3):
        assert incarnation_of(bookie, 7) == (20 if is_read else 0)
        assert bookie.payload(7, 0) == b"new"
        bookie.checkpoint()
        bookie.crash()


def test_a_compaction_keeps_its_source_if_the_copy_s_index_cannot_be_read(bookie: Bookie) -> None:
    plan_fault("index_read", 2, count=1000)
    try:
        with pytest.raises(OSError, match="Input/output error"):
            bookie.engine.store.compact(1)
    finally:
        clear_fault()
    assert [path.stem for path in bookie.ledger_folder.glob("*.log")] == ["00000001"]
    assert [bookie.payload(1, i) for i in range(COUNT)] == [payload(i) for i in range(COUNT)]


def test_a_log_with_a_name_that_can_be_read_tells_whose_entries_it_has(bookie: Bookie) -> None:
    """The newest of its three names cannot be read, and no other log has entries of the ledger."""
    for i in range(3):
        put(bookie, (frame.incarnation(7, 10) if i == 0 else b"") + add(7, i, bytes(BLOCK_SIZE)))
    names = [
        each.offset // BLOCK_SIZE + 1
        for each in scan_log(bookie.ledger_folder / "00000002.log")
        if isinstance(each, LogRecord) and each.entry_id == INCARNATION
    ]
    assert len(names) == 3
    lose_tables(bookie)
    plan_fault("log_read", names[-1])
    bookie.crash()
    clear_fault()
    state = bookie.engine.ledger(7)
    assert state is not None
    assert state.incarnation == 10
    assert {each.path.suffix for each in bookie.engine.store.take_damage()} == {".table"}
