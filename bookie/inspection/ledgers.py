"""The state of ledgers according to the files: table, indexes, and the journal after the mark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from bookie.inspection.files import find_file, list_files
from bookie.inspection.journal import list_journals, read_records
from bookie.inspection.log import list_logs, read_index
from bookie.mark import read_mark
from native.journal import (
    DELETED,
    EXPLICIT_LAC,
    FENCE,
    INCARNATION,
    KEY,
    Damage,
    Record,
    scan_table,
)


class LedgerFacts(msgspec.Struct):
    """State of one ledger on this bookie; -1 stands for none.

    *entries*, *size* (bytes) and *extents* count what the entry logs hold; *unflushed*
    counts entries that are in the journal only.
    """

    ledger_id: int
    first_entry: int = -1
    last_entry: int = -1
    entries: int = 0
    unflushed: int = 0
    size: int = 0
    extents: int = 0
    explicit_lac: int = -1
    fenced: bool = False
    deleted: bool = False
    key: str = ""
    incarnation: int = 0
    """0 if unknown"""
    first_log: int = 0
    """entries with its id in older logs belong to an earlier ledger"""


class LedgersOnDisk(msgspec.Struct):
    """All ledgers by id, and the damages found while reading."""

    by_id: dict[int, LedgerFacts]
    damages: list[Damage]

    def of(self, ledger_id: int) -> LedgerFacts:
        """Return the state of a ledger; creates an empty one if there is none yet."""
        return self.by_id.setdefault(ledger_id, LedgerFacts(ledger_id))


def read_ledgers(journal_folder: Path, ledger_folder: Path) -> LedgersOnDisk:
    """Return all ledgers in the files. Blocks: reads table, indexes and the unflushed journal."""
    ledgers = LedgersOnDisk({}, [])
    for record in read_table(ledger_folder):
        if isinstance(record, Damage):
            ledgers.damages.append(record)
        else:
            _apply(ledgers, record)
    for log in list_logs(ledger_folder):
        for extent in read_index(log):
            if isinstance(extent, Damage):
                ledgers.damages.append(extent)
                continue
            facts = ledgers.of(extent.ledger_id)
            if log.file.id < facts.first_log:
                continue
            facts.entries += extent.entries
            facts.size += extent.log_size
            facts.extents += 1
            _reach(facts, extent.first_entry, extent.last_entry)
    for record in read_unflushed(journal_folder, ledger_folder):
        if isinstance(record, Damage):
            ledgers.damages.append(record)
        elif record.ledger_id >= 0:
            _apply(ledgers, record)
    return ledgers


def read_table(ledger_folder: Path) -> Iterator[Record | Damage]:
    """Yield the records of the ledger table that the mark names, and its damages. Blocks."""
    mark = read_mark(ledger_folder)
    if mark is None:
        tables = list_files(ledger_folder, "table")
        file = tables[-1] if tables else None
    else:
        file = find_file(ledger_folder, "table", mark.table_id)
    if file is not None:
        yield from scan_table(file.path, mark.table_end if mark else 0)
    elif mark is not None and mark.table_end:
        yield Damage(ledger_folder / f"{mark.table_id:016x}.table", 0)


def read_unflushed(journal_folder: Path, ledger_folder: Path) -> Iterator[Record | Damage]:
    """Yield the journal's records after the mark, and its damages. Blocks."""
    mark = read_mark(ledger_folder)
    for journal in list_journals(journal_folder):
        if mark is not None and journal.file.id < mark.journal_id:
            continue
        is_first = mark is not None and journal.file.id == mark.journal_id
        for found in read_records(journal, mark.journal_offset if mark and is_first else 0):
            if isinstance(found, Record | Damage):
                yield found


def _apply(ledgers: LedgersOnDisk, record: Record) -> None:
    facts = ledgers.of(record.ledger_id)
    if record.entry_id >= 0:
        facts.unflushed += 1
        _reach(facts, record.entry_id, record.entry_id)
    elif record.entry_id == FENCE:
        facts.fenced = True
    elif record.entry_id == KEY:
        facts.key = record.body[16:].hex()
        facts.deleted = False  # recovery brought it back
    elif record.entry_id == EXPLICIT_LAC:
        facts.explicit_lac = int.from_bytes(record.body[16:24], "big", signed=True)
    elif record.entry_id == DELETED:
        facts.deleted = True
    elif record.entry_id == INCARNATION:
        ledgers.by_id[record.ledger_id] = _begun(record, facts)


def _reach(facts: LedgerFacts, first: int, last: int) -> None:
    facts.first_entry = first if facts.first_entry < 0 else min(first, facts.first_entry)
    facts.last_entry = max(last, facts.last_entry)


def _begun(record: Record, before: LedgerFacts) -> LedgerFacts:
    """Return the state of a ledger that begins here; earlier state of its id is void."""
    incarnation = int.from_bytes(record.body[16:24], "big")
    first_log = int.from_bytes(record.body[24:28], "big")
    if before.incarnation == incarnation:
        return before  # this repeats the table's record
    return LedgerFacts(record.ledger_id, incarnation=incarnation, first_log=first_log)
