"""First blocks of files that the disk cannot read: what the operator hears, and a rebuild."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import rig
import v2
from engines import Bookie

import bookie.rebuild
from bookie.config import BookieConfig
from bookie.errors import BookieError
from bookie.limbo import in_limbo
from bookie.mark import read_mark, write_mark
from bookie.rebuild import rebuild
from bookie.storage import Storage
from native.digest import crc32c
from native.engine import Engine
from native.faults import clear_fault, plan_fault
from native.mark import Mark
from native.store import LogRecord, Store, read_head, scan_log

LEDGER = 3
FLUSHED = 20
ENTRIES = 40
BLOCK_SIZE = 4096
TABLE_LEDGERS = 200


@pytest.fixture(autouse=True)
def faultless() -> Iterator[None]:
    yield
    clear_fault()


@pytest.fixture
def config(tmp_path: Path) -> BookieConfig:
    """Of a bookie with entries in a log, and later ones in the journal only."""
    filled = Bookie(tmp_path)
    for first, end in ((0, FLUSHED), (FLUSHED, ENTRIES)):
        filled.send(b"".join(v2.add(LEDGER, i, payload(i)) for i in range(first, end)))
        filled.engine.commit()
        if first == 0:
            filled.checkpoint()
    filled.close()
    assert filled.mark is not None
    write_mark(filled.ledger_folder, filled.mark, None)
    return rig.settings(tmp_path)


def payload(entry_id: int) -> bytes:
    return b"payload %d" % entry_id * 20


UNREADABLE = {
    "journal_read": "journal/*.journal",
    "log_read": "ledgers/*.log",
    "index_read": "ledgers/*.index",
}


def named(folder: Path, pattern: str) -> Path:
    """The only file of that pattern."""
    (path,) = folder.glob(pattern)
    return path


@pytest.mark.parametrize("site", UNREADABLE)
async def test_a_start_names_the_file_that_cannot_be_read_and_what_to_do(
    tmp_path: Path, config: BookieConfig, site: str
) -> None:
    path = named(tmp_path, UNREADABLE[site])
    plan_fault(site, 1)
    with pytest.raises(BookieError, match=r"ddrescue.*`bookie rebuild-index`") as refused:
        await Storage.open(config, threaded=False)
    assert str(refused.value).startswith(f"{path}: the disk cannot read it")
    clear_fault()
    storage = await Storage.open(config, threaded=False)
    assert not storage.limbo.is_on
    assert storage.engine.store.read(LEDGER, 0) == v2.entry(LEDGER, 0, payload(0))
    await storage.stop()


def rebuilt(config: BookieConfig) -> None:
    """Rebuild *config*; it is in limbo from before anything is replaced until its end."""
    ledger_folder = Path(config.ledger_folder)
    done = rebuild(config, lambda _step: None)
    assert done.limbo
    assert in_limbo(ledger_folder)


def absent(config: BookieConfig, entries: int = ENTRIES) -> list[int]:
    """Open the folders, and return the entries that are not there."""
    bookie = Bookie(Path(config.data_folder), mark=read_mark(Path(config.ledger_folder)))
    try:
        return [i for i in range(entries) if bookie.read(LEDGER, i)[0]]
    finally:
        bookie.close()


def test_a_rebuild_reads_a_journal_past_its_header(config: BookieConfig) -> None:
    plan_fault("journal_read", 1)
    rebuilt(config)
    clear_fault()
    assert absent(config) == []


def test_a_rebuild_is_in_limbo_before_it_goes_on_without_a_header(
    config: BookieConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "fence_all", cut_off)
    plan_fault("journal_read", 1)
    with pytest.raises(KeyboardInterrupt):
        rebuild(config, lambda _step: None)
    assert in_limbo(Path(config.ledger_folder))


def cut_off(*_arguments: object) -> None:
    raise KeyboardInterrupt


def test_a_rebuild_goes_on_without_a_mark_that_cannot_be_read(config: BookieConfig) -> None:
    mark = Path(config.ledger_folder, "lastMark")
    mark.unlink()
    mark.symlink_to("/proc/self/mem")  # nothing is at address 0
    rebuilt(config)
    assert absent(config) == []


def test_a_rebuild_writes_a_log_s_header_anew(
    config: BookieConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = Path(config.ledger_folder).glob("*.log")
    open_store = Store.open

    def opened(folder: Path, mark: Mark | None, log_size_max: int, cache_size: int) -> Store:
        assert in_limbo(Path(config.ledger_folder))
        try:
            return open_store(folder, mark, log_size_max, cache_size)
        finally:
            clear_fault()  # a block that was written can be read

    monkeypatch.setattr(Store, "open", opened)
    plan_fault("log_read", 1)
    rebuilt(config)
    assert read_head(log).closed
    assert absent(config) == []


@pytest.mark.parametrize("site", ["journal_sync", "log_sync", "index_sync", "table_sync"])
async def test_a_sync_that_fails_is_no_file_that_cannot_be_read(
    config: BookieConfig, site: str
) -> None:
    plan_fault(site, 1)
    with pytest.raises(OSError, match="Input/output error") as failed:
        await Storage.open(config, threaded=False)
    assert failed.value.filename is None


def test_a_rebuild_ends_where_a_journal_cannot_be_synced(config: BookieConfig) -> None:
    plan_fault("journal_sync", 1)
    with pytest.raises(OSError, match="Input/output error"):
        rebuild(config, lambda _step: None)
    assert not in_limbo(Path(config.ledger_folder))


def header(magic: bytes, log_id: int, origin: int, more: int = 0) -> bytes:
    """Return the first block of a log, or of an index."""
    numbers = b"".join(each.to_bytes(4, "little") for each in (1, log_id, origin))
    fields = magic + numbers + bytes(more)
    return (fields + crc32c(fields).to_bytes(4, "little")).ljust(BLOCK_SIZE, b"\0")


@pytest.fixture
def closed(tmp_path: Path) -> BookieConfig:
    """Of a bookie whose entries are all in log 1, which is closed, and nowhere else."""
    filled = Bookie(tmp_path)
    filled.send(b"".join(v2.add(LEDGER, i, payload(i)) for i in range(3 * ENTRIES)))
    filled.engine.commit()
    filled.checkpoint()
    filled.roll()
    filled.close()
    assert filled.mark is not None
    write_mark(filled.ledger_folder, filled.mark, None)
    return rig.settings(tmp_path)


def unfinished_copy(config: BookieConfig, size: int) -> Path:
    """Leave what compaction of log 1 had written when it was cut off; return the copy's log."""
    source, copy = (Path(config.ledger_folder, f"0000000{i}.log") for i in (1, 2))
    records = [each.offset for each in scan_log(source) if isinstance(each, LogRecord)]
    cut = max((offset for offset in records if offset <= size), default=0)
    whole = header(b"QUIRELOG", 2, 1, more=20) + source.read_bytes()[BLOCK_SIZE:]
    copy.write_bytes(whole[:cut].ljust(size, b"\0"))
    copy.with_suffix(".index").write_bytes(header(b"QUIREIDX", 2, 1))
    return copy


@pytest.mark.parametrize("has_mark", [True, False])
def test_a_rebuild_takes_no_unfinished_copy_for_its_source(
    closed: BookieConfig, *, has_mark: bool
) -> None:
    """A compaction was killed before the header of its copy was in the file."""
    unfinished_copy(closed, 0)
    if not has_mark:
        Path(closed.ledger_folder, "lastMark").unlink()
    rebuild(closed, lambda _step: None)
    assert absent(closed, 3 * ENTRIES) == []


def test_a_rebuild_takes_no_copy_for_its_source_whose_header_it_reads_no_more(
    closed: BookieConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk read it when the index was built, which says whose copy it is."""
    open_store = Store.open
    unfinished_copy(closed, 2 * BLOCK_SIZE)

    def fail_once(folder: Path, mark: Mark | None, log_size_max: int, cache_size: int) -> Store:
        plan_fault("log_read", 1)
        try:
            return open_store(folder, mark, log_size_max, cache_size)
        finally:
            clear_fault()

    with monkeypatch.context() as patched:
        patched.setattr(Store, "open", fail_once)
        with pytest.raises(BookieError, match="cannot read it"):
            rebuild(closed, lambda _step: None)
    rebuild(closed, lambda _step: None)
    assert absent(closed, 3 * ENTRIES) == []


@pytest.fixture
def long_table(tmp_path: Path) -> BookieConfig:
    """Of a bookie with a ledger table of several blocks."""
    filled = Bookie(tmp_path)
    filled.send(b"".join(v2.add(each, 0, payload(each)) for each in range(TABLE_LEDGERS)))
    filled.engine.commit()
    filled.checkpoint()
    filled.close()
    assert filled.mark is not None
    write_mark(filled.ledger_folder, filled.mark, None)
    return rig.settings(tmp_path)


@pytest.mark.parametrize("step", ["_find_table", "_replay"])
def test_a_rebuild_keeps_the_ledger_table_of_which_it_reads_only_a_part(
    long_table: BookieConfig, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whether it looks for the table, or reads one that was whole when it looked."""
    folder = Path(long_table.ledger_folder)
    table = named(folder, "*.table")
    before = table.read_bytes()
    assert len(before) > 2 * BLOCK_SIZE
    work = getattr(bookie.rebuild, step)

    def fail(*arguments: object) -> object:
        plan_fault("table_read", 2)
        return work(*arguments)

    monkeypatch.setattr(bookie.rebuild, step, fail)
    assert rebuild(long_table, lambda _step: None).limbo
    clear_fault()
    assert table.with_name(f"{table.name}.unread").read_bytes() == before
    assert not table.exists()
    mark = read_mark(folder)
    assert mark is not None
    assert named(folder, "*.table").name == f"{mark.table_id:016x}.table"
    clear_fault()
    assert rebuild(long_table, lambda _step: None).ledgers == TABLE_LEDGERS


@pytest.mark.parametrize("step", ["_replay", "_leave_others", "write_mark"])
@pytest.mark.parametrize("is_read", [True, False])
def test_a_rebuild_that_is_cut_short_takes_nothing_from_the_ledger_table(
    long_table: BookieConfig, monkeypatch: pytest.MonkeyPatch, step: str, is_read: bool
) -> None:
    """Whether or not the disk reads all of it the next time."""
    folder = Path(long_table.ledger_folder)
    table = named(folder, "*.table")
    before = table.read_bytes()
    plan_fault("table_read", 2)
    monkeypatch.setattr(bookie.rebuild, step, cut_off)
    with pytest.raises(KeyboardInterrupt):
        rebuild(long_table, lambda _step: None)
    monkeypatch.undo()
    if is_read:
        clear_fault()
    rebuild(long_table, lambda _step: None)
    mark = read_mark(folder)
    assert mark is not None
    kept = [each for each in folder.glob("*.table*") if each.read_bytes()[: len(before)] == before]
    assert kept
    if is_read and step != "write_mark":
        assert named(folder, "*.table") == table
        assert f"{mark.table_id:016x}.table" == table.name
    else:
        assert kept == [table.with_name(f"{table.name}.unread")]


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_copy_of_a_ledger_table_that_is_cut_short_is_none(
    long_table: BookieConfig, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    """It may have as many ledgers as its source, and would win against it."""
    folder = Path(long_table.ledger_folder)
    table = named(folder, "*.table")
    plan_fault("table_read", 2)
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if list(folder.glob("*.part")):
            cut_off()
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", fail)
    if is_killed:
        monkeypatch.setattr(Path, "unlink", lambda *_arguments, **_options: None)
    with pytest.raises(KeyboardInterrupt):
        rebuild(long_table, lambda _step: None)
    monkeypatch.undo()
    assert named(folder, "*.table" if is_killed else "*.table*") == table
    assert stat.S_IMODE(table.stat().st_mode) == 0o600
    rebuild(long_table, lambda _step: None)
    assert stat.S_IMODE(named(folder, "*.table").stat().st_mode) == 0o600
