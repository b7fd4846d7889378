"""Starting again: what the journal holds beyond the mark."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import MIB, Bookie
from wire import add

from native.faults import clear_fault, plan_fault
from native.journal import scan_journal


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Bookie]:
    bookie = Bookie(tmp_path)
    yield bookie
    clear_fault()
    bookie.close()


@pytest.mark.parametrize("size", [0, 4095, 4096])
def test_the_journal_file_of_the_mark_was_cut_short(bookie: Bookie, size: int) -> None:
    """It was whole up to the mark once, so this is not a file that was being begun."""
    bookie.add(1, 0, b"flushed")
    bookie.checkpoint()
    bookie.add(1, 1, b"in the journal only")
    bookie.connection.close()
    bookie.engine.close()
    (path,) = bookie.journal_folder.glob("*.journal")
    path.write_bytes(path.read_bytes()[:size])
    bookie.engine, bookie.recovery = bookie._open()
    bookie.connection = bookie.engine.connect(1)
    assert bookie.recovery.limbo
    assert path in [damage.path for damage in bookie.engine.store.take_damage()]
    assert bookie.payload(1, 0) == b"flushed"


@pytest.mark.parametrize("memtable_size", [20 * MIB, 64 * MIB])
def test_entries_larger_than_a_piece_of_the_file_are_replayed(
    tmp_path: Path, memtable_size: int
) -> None:
    """Entries of all sizes that are taken come back after a crash."""
    sizes = [MIB - 100, MIB, 2 * MIB + 1, 1, 3 * MIB, 5 * MIB - 80, 100, 4 * MIB, 5 * MIB - 81]
    payloads = [bytes([i]) * size for i, size in enumerate(sizes)]
    bookie = Bookie(tmp_path, memtable_size=64 * MIB, journal_size_max=200 * MIB)
    for i, payload in enumerate(payloads):
        bookie.add(1, i, payload)
    bookie.memtable_size = memtable_size
    bookie.crash()
    assert bookie.recovery.damages == 0
    assert all(bookie.payload(1, i) == payload for i, payload in enumerate(payloads))
    bookie.close()


# --- folders that cannot be read to their ends ------------------------------------------------


def contents(bookie: Bookie) -> dict[str, bytes]:
    paths = [*bookie.journal_folder.iterdir(), *bookie.ledger_folder.iterdir()]
    return {path.name: path.read_bytes() for path in paths}


def refused_starts(bookie: Bookie) -> int:
    """Let the reading of each name fail in turn; return how many starts that made fail."""
    before = contents(bookie)
    for nth in range(1, 100):
        plan_fault("folder_read", nth)
        try:
            engine, _ = bookie._open()
        except OSError as error:
            assert error.errno == errno.EIO
            assert contents(bookie) == before
        else:
            engine.close()
            return nth - 1
        finally:
            clear_fault()
    raise AssertionError("every start failed")


def test_a_journal_folder_that_is_read_in_part_stops_the_start(bookie: Bookie) -> None:
    """Its newest file would count as absent, and its number would be given to the next one."""
    bookie.add(1, 0, b"older")
    bookie.crash()
    bookie.add(1, 1, b"newer")
    bookie.connection.close()
    bookie.engine.close()
    journal, ledgers = (
        len(list(folder.iterdir())) + 3  # itself, its parent, and the end
        for folder in (bookie.journal_folder, bookie.ledger_folder)
    )
    assert refused_starts(bookie) == journal + ledgers + journal
    bookie.engine, bookie.recovery = bookie._open()
    bookie.connection = bookie.engine.connect(1)
    assert not bookie.recovery.limbo
    assert [bookie.payload(1, i) for i in range(2)] == [b"older", b"newer"]


def test_logs_in_a_folder_that_is_read_in_part_are_no_new_bookie(bookie: Bookie) -> None:
    """Whether there are entries must be known where there is no mark."""
    bookie.add(1, 0, b"flushed")
    bookie.checkpoint()
    bookie.roll()
    bookie.connection.close()
    bookie.engine.close()
    for path in bookie.journal_folder.iterdir():
        path.unlink()
    bookie.mark = None
    plan_fault("folder_read", 4)  # behind itself, its parent and the end of the empty journal
    with pytest.raises(OSError, match="Input/output"):
        bookie._open()
    clear_fault()
    with pytest.raises(FileExistsError):
        bookie._open()


@pytest.mark.parametrize("spares", [0, 1])
def test_a_journal_file_never_takes_the_place_of_another(tmp_path: Path, spares: int) -> None:
    bookie = Bookie(tmp_path, journal_size_max=64 * 1024)
    while len(list(bookie.journal_folder.glob("*.spare"))) < spares:
        bookie.add(1, 0, b"-")
        bookie.add(1, bookie.engine.store.stats().flushes + 1, bytes(65_000))
        bookie.checkpoint()
    bookie.add(2, 0, bytes(65_000))
    newest = max(bookie.journal_folder.glob("*.journal"))
    other = newest.with_name(f"{int(newest.stem, 16) + 1:016x}.journal")
    other.write_bytes(b"of another process")
    bookie.checkpoint()
    with pytest.raises(FileExistsError):
        bookie.add(2, 1, b"in the next file")
    assert other.read_bytes() == b"of another process"
    bookie.close()


# --- blocks that cannot be read ---------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EIO, errno.ENODATA])
@pytest.mark.parametrize("nth", [2, 3, 4])
def test_an_unreadable_block_costs_its_own_entries_alone(
    bookie: Bookie, nth: int, error: int
) -> None:
    """Also in the last group: what it held was acknowledged, so it is no torn tail."""
    payloads = [b"one", b"two", b"three"]
    for i, payload in enumerate(payloads):
        bookie.add(1, i, payload)
    lost = nth - 2  # the first block is the header
    plan_fault("journal_read", nth, error)
    try:
        for _ in range(2):
            bookie.crash()
            assert bookie.recovery.limbo
            assert bookie.recovery.damages == 1
            for i in {0, 1, 2} - {lost}:
                assert bookie.payload(1, i) == payloads[i]
            assert bookie.read(1, lost)[0] != 0
    finally:
        clear_fault()
    bookie.crash()
    assert not bookie.recovery.limbo
    assert [bookie.payload(1, i) for i in range(3)] == payloads, "it can be read again"


def test_a_journal_whose_header_cannot_be_read_stops_the_start(bookie: Bookie) -> None:
    """All of its groups would be passed over, although each of them can be read."""
    bookie.add(1, 0, b"one")
    bookie.connection.close()
    bookie.engine.close()
    before = contents(bookie)
    plan_fault("journal_read", 1)
    with pytest.raises(OSError, match="Input/output"):
        bookie._open()
    clear_fault()
    assert contents(bookie) == before
    bookie.engine, bookie.recovery = bookie._open()
    bookie.connection = bookie.engine.connect(1)
    assert bookie.payload(1, 0) == b"one"


@pytest.mark.parametrize("large", [False, True])
def test_an_unreadable_block_within_the_last_group_is_damage(bookie: Bookie, large: bool) -> None:
    if large:  # read in pieces, and the next piece meanwhile
        bookie.send(b"".join(add(1, i, bytes(MIB)) for i in range(3)))
        while bookie.engine.commit():
            pass
    first = 3 if large else 0
    journal = max(bookie.journal_folder.glob("*.journal"))
    start = [found.offset for found in scan_journal(journal)][-1]  # where it ends
    start = -(-start // 4096)
    bookie.send(b"".join(add(1, first + i, bytes([i]) * 500) for i in range(50)))
    assert bookie.engine.commit()
    plan_fault("journal_read", start + 4)
    try:
        bookie.crash()
    finally:
        clear_fault()
    assert bookie.recovery.limbo
    there = [i for i in range(50) if bookie.read(1, first + i)[0] == 0]
    assert there == list(range(len(there)))
    assert 15 < len(there) < 25
    if large:
        assert bookie.payload(1, 2) == bytes(MIB)
    bookie.crash()
    assert bookie.recovery.damages == 0
    assert all(bookie.payload(1, first + i) == bytes([i]) * 500 for i in range(50))


def test_a_journal_of_which_hardly_anything_can_be_read_stops_the_start(bookie: Bookie) -> None:
    """The disk fails then, not a part of it: what is on it may come back."""
    bookie.send(b"".join(add(1, i, bytes(MIB)) for i in range(3)))
    while bookie.engine.commit():
        pass
    bookie.connection.close()
    bookie.engine.close()
    before = contents(bookie)
    plan_fault("journal_read", 10, count=300)
    try:
        with pytest.raises(OSError, match="Input/output"):
            bookie._open()
    finally:
        clear_fault()
    assert contents(bookie) == before
    bookie.engine, bookie.recovery = bookie._open()
    bookie.connection = bookie.engine.connect(1)
    assert [bookie.payload(1, i) for i in range(3)] == [bytes(MIB)] * 3


def test_a_ledger_table_that_cannot_be_read_leaves_every_ledger_fenced(bookie: Bookie) -> None:
    bookie.add(1, 0, b"flushed")
    bookie.checkpoint()
    plan_fault("table_read", 1)
    try:
        bookie.crash()
    finally:
        clear_fault()
    assert bookie.recovery.limbo
    assert [state.fenced for state in bookie.engine.ledgers()] == [True]
    assert bookie.payload(1, 0) == b"flushed"


def test_a_ledger_table_that_cannot_be_read_now_is_kept_beside_the_new_one(bookie: Bookie) -> None:
    bookie.add(1, 0, b"flushed")
    bookie.checkpoint()
    (table,) = bookie.ledger_folder.glob("*.table")
    before = table.read_bytes()
    plan_fault("table_read", 1)
    try:
        bookie.crash()
    finally:
        clear_fault()
    for ledger_id in (2, 3):
        bookie.add(ledger_id, 0, b"later")
        bookie.checkpoint()
    assert table.with_name(f"{table.name}.unread").read_bytes() == before
    assert not table.exists()
    assert len(list(bookie.ledger_folder.glob("*.table"))) == 1
    bookie.crash()
    assert not bookie.recovery.limbo
