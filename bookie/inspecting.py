"""Pages of a running bookie's journal and indexes, in reply to CALLs.

The files are read as the offline commands read them (bookie/inspection/), while other threads
write them. The records of a page, and the bytes read for it, are bounded. The next request names
the position where the last page ended, so nothing is kept here in between. A file may disappear
meanwhile: journals are deleted when no longer needed, logs when they are compacted. That is no
damage; the request fails with CallRefused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from bookie.errors import CallRefused
from bookie.inspection.journal import JournalFile, list_journals, missing_ids, read_records
from bookie.inspection.log import LogFile, list_logs, read_index
from bookie.mark import read_mark
from metadata.inspections import (
    ExtentOnBookie,
    ExtentPage,
    Indexes,
    IndexExtents,
    IndexOnBookie,
    IndexPage,
    JournalFileOnBookie,
    JournalFilePage,
    JournalRecordPage,
    JournalRecords,
    RecordOnBookie,
)
from native.journal import GROUP, Damage, End, Record

SCAN_SIZE = 16 << 20
"""Bytes of records to read for one page."""
INDEXES_PAGE = 16


class Inspector:
    """Reads the pages of one bookie. Every method blocks while it reads up to SCAN_SIZE bytes."""

    def __init__(self, journal_folder: Path, ledger_folder: Path) -> None:
        self._journal_folder = journal_folder
        self._ledger_folder = ledger_folder

    # --- journal -----------------------------------------------------------------------

    def journals(self) -> JournalFilePage:
        """Return all journal files, oldest first. One page holds them, as there are only a few."""
        mark = read_mark(self._ledger_folder)
        first_needed = mark.journal_id if mark else 0
        found = list_journals(self._journal_folder)
        return JournalFilePage(
            [
                JournalFileOnBookie(
                    each.file.id,
                    each.file.size,
                    each.end,
                    each.file.id >= first_needed,
                    each.damaged,
                )
                for each in found
            ],
            missing_ids(found),
        )

    def journal_records(self, request: JournalRecords) -> JournalRecordPage:
        """Return the next records of a journal file. Raises CallRefused if the file is gone."""
        journal = self._journal(request.file_id)
        try:
            return _journal_page(request, read_records(journal, request.group, groups=True))
        except FileNotFoundError as gone:
            raise _gone("journal file", f"{request.file_id:016x}") from gone

    def _journal(self, file_id: int) -> JournalFile:
        for journal in list_journals(self._journal_folder):
            if journal.file.id == file_id:
                return journal
        raise _gone("journal file", f"{file_id:016x}")

    # --- indexes -----------------------------------------------------------------------

    def indexes(self, request: Indexes) -> IndexPage:
        """Return the totals of the next indexes, of logs with ids above request.after."""
        rows: list[IndexOnBookie] = []
        left = SCAN_SIZE
        for log in list_logs(self._ledger_folder):
            if log.file.id > request.after and len(rows) < INDEXES_PAGE and left > 0:
                row = _summed(log)
                if row is not None:
                    rows.append(row)
                    left -= row.size
        return IndexPage(rows)

    def extents(self, request: IndexExtents) -> ExtentPage:
        """Return the next extents of a log's index. Raises CallRefused if the log is gone."""
        log = next((x for x in list_logs(self._ledger_folder) if x.file.id == request.log_id), None)
        if log is None:
            raise _gone("entry log", f"{request.log_id:08x}")
        page = ExtentPage([], [], request.after, is_last=True)
        damages: list[int] = []
        for found in read_index(log):
            if isinstance(found, Damage):
                damages.append(found.offset)
                continue
            if found.offset <= page.after or request.ledger_id not in {None, found.ledger_id}:
                continue
            if len(page.extents) == request.count:
                return ExtentPage(page.extents, [], page.extents[-1].offset, is_last=False)
            page.extents.append(ExtentOnBookie(*msgspec.structs.astuple(found)))
        if damages and not log.file.path.exists():
            raise _gone("entry log", f"{request.log_id:08x}")
        return ExtentPage(page.extents, damages, request.after, is_last=True)


def _journal_page(
    request: JournalRecords, found: Iterator[Record | Damage | End]
) -> JournalRecordPage:
    records: list[RecordOnBookie] = []
    damages: list[int] = []
    group, seen, left = request.group, 0, SCAN_SIZE
    for each in found:
        if isinstance(each, End):
            return JournalRecordPage(records, damages, group, seen, each.offset)
        if isinstance(each, Record) and each.entry_id == GROUP:
            if left <= 0:  # here, between groups, the next page can begin without reading more
                return JournalRecordPage(records, damages, each.offset, 0)
            group, seen = each.offset, 0
        seen += 1
        if group == request.group and seen <= request.skip:
            continue
        if isinstance(each, Damage):
            damages.append(each.offset)
        else:
            left -= len(each.body)
            if _is_wanted(request, each):
                found_here = (each.offset, each.ledger_id, each.entry_id, len(each.body))
                records.append(RecordOnBookie(*found_here))
        if len(records) + len(damages) >= request.count:
            return JournalRecordPage(records, damages, group, seen)
    return JournalRecordPage(records, damages, group, seen, 0)


def _is_wanted(request: JournalRecords, record: Record) -> bool:
    if record.entry_id == GROUP and not request.groups:
        return False
    return request.ledger_id in {None, record.ledger_id}


def _summed(log: LogFile) -> IndexOnBookie | None:
    """Return the totals of a log's index, or None if the log was deleted meanwhile."""
    extents = entries = entries_size = 0
    damages: list[int] = []
    for found in read_index(log, pages=True):
        if isinstance(found, Damage):
            damages.append(found.offset)
            continue
        extents += 1
        entries += found.entries
        entries_size += found.log_size
    try:
        size = log.index_path.stat().st_size
    except FileNotFoundError:
        if not log.file.path.exists():
            return None
        size = 0
    return IndexOnBookie(log.file.id, size, extents, entries, entries_size, damages)


def _gone(kind: str, name: str) -> CallRefused:
    return CallRefused(f"{kind} {name} is not here, or not any more: list them again")
