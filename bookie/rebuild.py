"""Rebuilds a bookie from its entry logs and journals.

Use it when the mark, the ledger table or indexes are lost or damaged. The order of the steps makes
sure that after a crash the bookie refuses to start until it is rebuilt again:

    1  put lastMark aside
    2  rebuild the index of every entry log from its records
    3  close the logs that were open, after their last sound record
    4  replay every journal file, starting from the ledger table as far as the mark names it (if
       that is lost, from the table with most ledgers), and from what the entry logs say of
       incarnations where that is newer
    5  fence every ledger, because a lost fence would let an old writer continue
    6  flush, and write the mark

If records or headers were damaged or could not be read, or journal files or a part of the ledger
table are missing, the bookie ends up in limbo (limbo.py): it no longer answers that an entry is
absent. So it does if there was no mark, because then it is unknown which journal files there were.
It enters limbo before an index without a damaged record is in place, because after that the
record's loss is invisible; before there is a table in place of the lost one; and before it goes on
without the header of a journal, or writes that of an entry log anew.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from bookie.config import BookieConfig
from bookie.durable import open_private, sync_folder
from bookie.errors import BookieError, unreadable
from bookie.inspection.files import DataFile, find_file, list_files
from bookie.limbo import enter_limbo, in_limbo, leave_limbo
from bookie.mark import drop_mark_aside, put_mark_aside, write_mark
from metadata.calls import DamagedPlace
from native.engine import Engine, Recovery
from native.errors import Corrupt, Full
from native.journal import Record, scan_table
from native.mark import Mark
from native.store import Damage, Store, rebuild_index, scan_log

FIRST_OFFSET = 4096
_LEDGERS_PAGE = 1000
_RECORD_HEADER_SIZE = 8
_CHUNK_SIZE = 1 << 20


class Rebuilt(msgspec.Struct):
    """Result of a rebuild, so far or at its end."""

    logs: int = 0
    entries: int = 0
    journal_files: int = 0
    journal_records: int = 0
    ledgers: int = 0
    limbo: bool = False
    mark: Mark | None = None
    damages: list[DamagedPlace] = []


class Step(msgspec.Struct, frozen=True):
    """Progress of a rebuild: *size* more bytes were read."""

    text: str
    size: int


def total_size(config: BookieConfig) -> int:
    """Return the number of bytes that a rebuild reads; Step.size adds up to it. Blocks."""
    logs = list_files(Path(config.ledger_folder), "log")
    journals = list_files(Path(config.journal_folder), "journal")
    return sum(file.size for file in (*logs, *journals))


def rebuild(config: BookieConfig, on_step: Callable[[Step], None]) -> Rebuilt:
    """Rebuild the bookie of *config*. Blocks until everything is read.

    The caller must hold the locks of the folders (lock.py). Safe to repeat after a crash.

    Raises:
        BookieError: there is nothing to rebuild from, or the disk cannot read a file, or reads it
            otherwise each time. The bookie does not start until it is rebuilt; nothing is lost.
        OSError: a file could not be read or written; the same.
    """
    try:
        return _rebuild(config, on_step)
    except OSError as cause:
        if told := unreadable(cause, is_rebuild=True):
            raise told from cause
        raise


def _rebuild(config: BookieConfig, on_step: Callable[[Step], None]) -> Rebuilt:
    journal_folder, ledger_folder = Path(config.journal_folder), Path(config.ledger_folder)
    logs = list_files(ledger_folder, "log")
    journals = list_files(journal_folder, "journal")
    if not logs and not journals:
        raise BookieError(f"{ledger_folder}: neither entry logs here nor journals beside it")
    done = Rebuilt(logs=len(logs), journal_files=len(journals))
    was_in_limbo = in_limbo(ledger_folder)
    former = put_mark_aside(ledger_folder)
    table = _find_table(ledger_folder, former, done)
    for log in logs:
        _rebuild_index(log, former, done)
        on_step(Step(log.path.name, log.size))
    next_log_id = max(_close_logs(config, done), former.next_log_id if former else 1)
    journal_id = _first_journal(config, journals, former, done)
    _replay(config, _starting_mark(table, journal_id, next_log_id), table, done)
    if not (done.limbo or was_in_limbo):
        leave_limbo(ledger_folder)  # the damage was in an unneeded copy
    done.limbo |= was_in_limbo
    _leave_others(ledger_folder, done)
    assert done.mark is not None
    write_mark(ledger_folder, done.mark, None)
    drop_mark_aside(ledger_folder)
    on_step(Step("journal", sum(file.size for file in journals)))
    return done


def _starting_mark(table: _Table, journal_id: int, next_log_id: int) -> Mark:
    return Mark(
        journal_id=journal_id,
        journal_offset=FIRST_OFFSET,
        log_id=0,
        next_log_id=next_log_id,
        log_end=0,
        index_end=0,
        table_end=table.end,
        table_id=table.id,
    )


# --- entry logs --------------------------------------------------------------------------


def _rebuild_index(log: DataFile, former: Mark | None, done: Rebuilt) -> None:
    fresh = log.path.with_suffix(".rebuilt")
    try:
        _build_index(log, fresh, former, done)
    finally:
        fresh.unlink(missing_ok=True)


def _build_index(log: DataFile, fresh: Path, former: Mark | None, done: Rebuilt) -> None:
    built = rebuild_index(log.path, fresh)
    done.entries += built.entries
    if built.damaged:
        # After the mark lies an interrupted flush; the journal has all its entries.
        end = former.log_end if former is not None and former.log_id == log.id else 0
        places = list(_damages_in(log, end))
        if not places and (end == 0 or built.first_damage < end):
            raise BookieError(
                f"{log.path}: damaged when it was read first, and not when it was read again; its "
                "disk is failing: copy all folders to another one, and run this again"
            )
        if places:
            enter_limbo(log.path.parent, ())
        done.damages += places
    fresh.replace(log.path.with_suffix(".index"))
    sync_folder(log.path.parent)
    log.path.with_suffix(".torn").unlink(missing_ok=True)  # of the former index


def _damages_in(log: DataFile, end: int) -> Iterator[DamagedPlace]:
    try:
        for found in scan_log(log.path, end):
            if isinstance(found, Damage):
                yield _place(found)
    except (Corrupt, OSError) as cause:
        if isinstance(cause, OSError) and cause.errno != errno.EIO:
            raise
        yield DamagedPlace(str(log.path), 0)  # in its header


def _close_logs(config: BookieConfig, done: Rebuilt) -> int:
    """Let the store close open logs; return the id of the next log."""
    folder = Path(config.ledger_folder)
    with Store.open(folder, None, config.log_size_max, config.index_cache_size) as store:
        # An unfinished copy of compaction is gone now, and its damage with it.
        done.damages = [
            place
            for place in done.damages
            if not place.file.endswith(".log") or Path(place.file).exists()
        ]
        known = {(place.file, place.offset) for place in done.damages}
        for damage in store.take_damage():
            if (str(damage.path), damage.offset) not in known:
                done.damages.append(_place(damage))
    return max((file.id for file in list_files(folder, "log")), default=0) + 1


def _place(damage: Damage) -> DamagedPlace:
    return DamagedPlace(
        str(damage.path), damage.offset, damage.ledger_id, damage.entry_id, damage.last_entry
    )


# --- ledger table and journal ------------------------------------------------------------


class _Table(NamedTuple):
    """The ledger table to start from."""

    id: int
    end: int
    is_whole: bool
    """it is what the last mark names"""


def _find_table(ledger_folder: Path, former: Mark | None, done: Rebuilt) -> _Table:
    """Return the table to start from; enter limbo if it is not what *former* names.

    A flush that ended in a power cut may have appended the beginning of a ledger that the journal
    does not have: then it would be given the entries of the former ledger of its id.
    """
    if former is None:
        done.limbo = True
    else:
        end = _sound_end(ledger_folder, former.table_id)
        if end >= former.table_end:
            return _Table(former.table_id, former.table_end, is_whole=True)
        lost = ledger_folder / f"{former.table_id:016x}.table"
        done.damages.append(DamagedPlace(str(lost), end))
    enter_limbo(ledger_folder, ())
    return _best_table(ledger_folder)


def _best_table(ledger_folder: Path) -> _Table:
    """Return the table with most ledgers, to its sound end; of equals, the newest one.

    Two tables exist if a crash interrupted the writing of a new one, which may be incomplete. What
    goes on is a copy where a file has more: the disk may be able to read that another time.
    """
    best, last_id = (0, 0, 0), 0
    for file in list_files(ledger_folder, "table"):
        ledgers, end = _measure_table(file.path)
        best = max(best, (ledgers, file.id, end))
        last_id = max(last_id, file.id)
    _, table_id, end = best
    source = find_file(ledger_folder, "table", table_id)
    if source is None or source.size <= end:
        return _Table(table_id, end, is_whole=False)
    _copy(source.path, end, ledger_folder / f"{last_id + 1:016x}.table")
    return _Table(last_id + 1, end, is_whole=False)


def _copy(source: Path, end: int, target: Path) -> None:
    """Copy the first *end* bytes; *target* is whole once it is there."""
    part = target.with_name(f"{target.name}.part")
    try:
        with source.open("rb") as old, open(part, "wb", opener=open_private) as new:
            while chunk := old.read(min(_CHUNK_SIZE, end - new.tell())):
                new.write(chunk)
            new.flush()
            os.fsync(new.fileno())
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(target.parent)


def _leave_others(ledger_folder: Path, done: Rebuilt) -> None:
    """In limbo, put tables aside that the mark will not name: they may have more than its own."""
    assert done.mark is not None
    for file in list_files(ledger_folder, "table") if done.limbo else ():
        if file.id != done.mark.table_id:
            file.path.rename(f"{file.path}.unread")
    sync_folder(ledger_folder)


def _sound_end(ledger_folder: Path, table_id: int) -> int:
    """Return where the sound part of a table ends, 0 if there is no such table."""
    table = find_file(ledger_folder, "table", table_id)
    return 0 if table is None else _measure_table(table.path)[1]


def _measure_table(path: Path) -> tuple[int, int]:
    """Return the number of ledgers in a table, and the offset where its sound part ends."""
    ledgers: set[int] = set()
    end = 0
    for found in scan_table(path):
        if isinstance(found, Record):
            ledgers.add(found.ledger_id)
            end = found.offset + _RECORD_HEADER_SIZE + len(found.body)
    return len(ledgers), end


def _first_journal(
    config: BookieConfig, journals: list[DataFile], former: Mark | None, done: Rebuilt
) -> int:
    """Return the id of the oldest journal file; create one if there is none."""
    ids = [journal.id for journal in journals]
    if former is not None and former.journal_id not in ids:
        name = f"{former.journal_id:016x}.journal"
        done.damages.append(DamagedPlace(str(Path(config.journal_folder, name)), 0))
    return ids[0] if ids else _begin_journal(config)


def _begin_journal(config: BookieConfig) -> int:
    """Create the first journal file, with an engine that has no entries."""
    journal_folder = Path(config.journal_folder)
    for spare in list_files(journal_folder, "spare"):
        spare.path.unlink()  # ids begin at 1 again, and a spare may have been one of these
    with tempfile.TemporaryDirectory(dir=config.ledger_folder) as empty:
        engine, _ = _open(config, Path(empty), None)
        engine.close()
    return list_files(journal_folder, "journal")[0].id


# --- replay --------------------------------------------------------------------------------


def _replay(config: BookieConfig, mark: Mark, table: _Table, done: Rebuilt) -> None:
    ledger_folder = Path(config.ledger_folder)
    engine, recovery = _open(config, ledger_folder, mark, table_is_whole=table.is_whole)
    with engine:
        done.journal_records = recovery.replayed_records
        done.damages += [_place(damage) for damage in engine.store.take_damage()]
        done.ledgers = _count_ledgers(engine)
        engine.fence_all()
        done.mark = _flush(engine) or mark
        done.limbo |= recovery.limbo or bool(done.damages)
        if done.limbo:
            enter_limbo(ledger_folder, done.damages)


def _open(
    config: BookieConfig, ledger_folder: Path, mark: Mark | None, *, table_is_whole: bool = False
) -> tuple[Engine, Recovery]:
    return Engine.open(
        journal_folder=Path(config.journal_folder),
        ledger_folder=ledger_folder,
        mark=mark,
        memtable_size=config.memtable_size,
        journal_size_max=config.journal_size_max,
        journal_spares=config.journal_spares,
        log_size_max=config.log_size_max,
        index_cache_size=config.index_cache_size,
        searches_logs=True,
        table_is_whole=table_is_whole,
    )


def _count_ledgers(engine: Engine) -> int:
    count, after = 0, -1
    while page := engine.ledgers(after, _LEDGERS_PAGE):
        count += len(page)
        after = page[-1].ledger_id
    return count


def _flush(engine: Engine) -> Mark | None:
    """Flush the half that replay sealed, if any, then the other one."""
    earlier = engine.flush()
    with contextlib.suppress(Full):
        engine.seal()
    return engine.flush() or earlier
