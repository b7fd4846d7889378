"""Reading journal files and ledger tables, as journal.h and table.h lay them out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from native._core import ffi, lib
from native.cdata import CData
from native.errors import Corrupt, check, raise_for

GROUP = lib.BK_RECORD_GROUP
KEY = lib.BK_RECORD_KEY
FENCE = lib.BK_RECORD_FENCE
EXPLICIT_LAC = lib.BK_RECORD_EXPLICIT_LAC
DELETED = lib.BK_RECORD_DELETED
INCARNATION = lib.BK_RECORD_INCARNATION


class Record(msgspec.Struct, frozen=True):
    """One record. *entry_id* is negative for special ones; *offset* is in the file."""

    offset: int
    ledger_id: int
    entry_id: int
    body: bytes


class Damage(msgspec.Struct, frozen=True):
    """A place in *path* that is not sound; reading went on after it."""

    path: Path
    offset: int


class End(msgspec.Struct, frozen=True):
    """Where the records of a file end."""

    offset: int


class JournalHeader(msgspec.Struct, frozen=True):
    """The first block of a journal file; *previous_end* is that file's last byte."""

    file_id: int
    previous_id: int
    previous_end: int


def _open(path: Path, start: int, end: int) -> CData:
    """Return the scan, or `None` for a file whose creation was interrupted."""
    out = ffi.new("bk_journal_scan **")
    result = lib.bk_journal_scan_open(os.fsencode(path), start, end, out)
    if result == lib.BK_END:
        return None
    check(result, f"journal file {path}")
    return out[0]


def read_header(path: Path) -> JournalHeader | None:
    """Return the header of a journal file, or `None` if its creation was interrupted.

    Raises:
        Corrupt: the header is damaged.
    """
    scan = _open(path, 0, 0)
    if scan is None:
        return None
    numbers = ffi.new("uint64_t[3]")
    lib.bk_journal_scan_header(scan, numbers, numbers + 1, numbers + 2)
    lib.bk_journal_scan_close(scan)
    return JournalHeader(*ffi.unpack(numbers, 3))


def scan_journal(path: Path, start: int = 0, end: int = 0) -> Iterator[Record | Damage | End]:
    """Yield the records of one journal file, group records included; blocks.

    Args:
        path: the file; its name carries the file id.
        start: begin at the group at this offset; 0 for the first.
        end: the end of the file, from the next file's header; 0 for the newest file, whose torn
            tail is not damage.

    Yields:
        Records and damages in file order; the End last.

    Raises:
        Corrupt: the header is damaged.
    """
    scan = _open(path, start, end)
    if scan is None:
        yield End(0)
        return
    record = ffi.new("bk_record *")
    try:
        while True:
            result = lib.bk_journal_scan_next(scan, record)
            if result == lib.BK_OK:
                yield _record(record)
            elif result == lib.BK_CORRUPT:
                yield Damage(path, record.offset)
            elif result == lib.BK_END:
                yield End(record.offset)
                return
            else:
                raise_for(result, f"journal file {path}")
    finally:
        lib.bk_journal_scan_close(scan)


def scan_table(path: Path, end: int = 0) -> Iterator[Record | Damage]:
    """Yield the records of a ledger table up to *end* (0: all); damage ends it."""
    out = ffi.new("bk_table_scan **")
    check(lib.bk_table_scan_open(os.fsencode(path), end, out), f"ledger table {path}")
    record = ffi.new("bk_record *")
    try:
        while True:
            result = lib.bk_table_scan_next(out[0], record)
            if result == lib.BK_END:
                return
            if result == lib.BK_CORRUPT:
                yield Damage(path, record.offset)
                return
            if result != lib.BK_OK:
                raise_for(result, f"ledger table {path}")
            yield _record(record)
    finally:
        lib.bk_table_scan_close(out[0])


def _record(raw: CData) -> Record:
    return Record(
        raw.offset, raw.ledger_id, raw.entry_id, bytes(ffi.buffer(raw.body, raw.body_size))
    )


__all__ = [
    "DELETED",
    "EXPLICIT_LAC",
    "FENCE",
    "GROUP",
    "INCARNATION",
    "KEY",
    "Corrupt",
    "Damage",
    "End",
    "JournalHeader",
    "Record",
    "read_header",
    "scan_journal",
    "scan_table",
]
