"""Entry logs and their indexes as found on disk, up to the last checkpoint.

A closed log must be sound to its end. The open log must be sound up to the mark only:
after it there may be a flush in progress, or one that a crash interrupted, which is no
damage. The same holds for a log that compaction is writing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from bookie.inspection.files import DataFile, list_files
from bookie.mark import read_mark
from native.errors import Corrupt
from native.journal import INCARNATION, Damage, Record
from native.mark import Mark
from native.store import MAP, Extent, LogRecord, read_head, scan_index, scan_log


class LogFile(msgspec.Struct, frozen=True):
    """One entry log.

    Attributes:
        file: id, path and size.
        closed: whether it is complete, so that nothing more will be written to it.
        log_end: bytes covered by the checkpoint; 0 for all of them.
        index_end: the same for its index.
        damaged: whether its header is damaged.
    """

    file: DataFile
    closed: bool
    log_end: int
    index_end: int
    damaged: bool

    @property
    def index_path(self) -> Path:
        """The path of its index; the file may be missing."""
        return self.file.path.with_suffix(".index")


def list_logs(folder: Path) -> list[LogFile]:
    """Return the entry logs of *folder*, oldest first. Blocks; reads one block of each."""
    mark = read_mark(folder)
    found = []
    for file in list_files(folder, "log"):
        with suppress(FileNotFoundError):  # a running bookie compacted it meanwhile
            found.append(_log_file(file, mark))
    return found


def read_log(log: LogFile) -> Iterator[Record | Damage]:
    """Yield the records of a log, including its ledger map, and its damages. Blocks."""
    try:
        for found in scan_log(log.file.path, log.log_end):
            if isinstance(found, LogRecord):
                yield Record(found.offset, found.ledger_id, found.entry_id, found.body)
            elif log.closed or log.log_end:
                yield Damage(found.path, found.offset)
    except Corrupt:
        yield Damage(log.file.path, 0)


def read_index(log: LogFile, *, pages: bool = False) -> Iterator[Extent | Damage]:
    """Yield the extents of a log's index and its damage; *pages* checks all pages too. Blocks."""
    try:
        for found in scan_index(log.index_path, pages=pages):
            if isinstance(found, Extent):
                yield found
            elif log.closed or found.offset < log.index_end:
                yield Damage(found.path, found.offset)
    except FileNotFoundError:
        if log.file.path.exists():  # else a running bookie compacted the log meanwhile
            yield Damage(log.index_path, 0)
    except Corrupt:
        yield Damage(log.index_path, 0)


def kind_of(record: Record) -> str:
    """Return a word or two for the kind of a record in a log, such as "entry"."""
    if record.entry_id >= 0:
        return "entry"
    return {MAP: "ledger map", INCARNATION: "incarnation"}.get(record.entry_id, "unknown")


def _log_file(file: DataFile, mark: Mark | None) -> LogFile:
    is_open = mark is not None and mark.log_id == file.id
    log_end = mark.log_end if mark is not None and is_open else 0
    index_end = mark.index_end if mark is not None and is_open else 0
    try:
        closed, damaged = read_head(file.path).closed, False
    except Corrupt:
        closed, damaged = False, True
    return LogFile(file, closed and not is_open, log_end, index_end, damaged)
