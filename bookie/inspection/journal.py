"""The journal as found on disk: its files and their records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice, pairwise
from pathlib import Path

import msgspec

from bookie.inspection.files import DataFile, list_files
from native.errors import Corrupt
from native.journal import (
    DELETED,
    EXPLICIT_LAC,
    FENCE,
    GROUP,
    INCARNATION,
    KEY,
    Damage,
    End,
    JournalHeader,
    Record,
    read_header,
    scan_journal,
)

MISSING_MAX = 1000
"""A stray file may have any id; the list of gaps must not fill a running bookie's memory."""
_KINDS = {
    DELETED: "deleted",
    EXPLICIT_LAC: "explicit LAC",
    FENCE: "fence",
    GROUP: "group",
    INCARNATION: "incarnation",
    KEY: "key",
}


class JournalFile(msgspec.Struct, frozen=True):
    """One journal file.

    Attributes:
        file: id, path and allocated size.
        header: None if it is damaged, or the creation of the file was not finished.
        end: bytes in use, recorded in the header of the next file; 0 for the newest file.
        damaged: whether the header is damaged.
    """

    file: DataFile
    header: JournalHeader | None
    end: int
    damaged: bool


def list_journals(folder: Path) -> list[JournalFile]:
    """Return the journal files of *folder*, oldest first. Blocks; reads one block of each."""
    found = []
    for file in list_files(folder, "journal"):
        with suppress(FileNotFoundError):  # the running bookie deleted it meanwhile
            found.append((file, *_header(file.path)))
    journals = []
    for number, (file, header, damaged) in enumerate(found):
        following = found[number + 1][1] if number + 1 < len(found) else None
        follows = following is not None and following.previous_id == file.id
        end = following.previous_end if follows and following is not None else 0
        journals.append(JournalFile(file, header, end, damaged))
    return journals


def missing_ids(journals: Sequence[JournalFile]) -> list[int]:
    """Return the ids missing between those of *journals*, at most MISSING_MAX of them."""
    ids = (journal.file.id for journal in journals)
    missing = chain.from_iterable(range(before + 1, after) for before, after in pairwise(ids))
    return list(islice(missing, MISSING_MAX))


def read_records(
    journal: JournalFile, start: int = 0, *, groups: bool = False
) -> Iterator[Record | Damage | End]:
    """Yield the records of a journal file, from the group at offset *start* on. Blocks.

    Damages are yielded where they were found; the End comes last. Records of groups are
    omitted unless *groups* is set.
    """
    try:
        for found in scan_journal(journal.file.path, start, journal.end):
            if groups or not isinstance(found, Record) or found.entry_id != GROUP:
                yield found
    except Corrupt:
        yield Damage(journal.file.path, 0)
        yield End(0)


def kind_of(entry_id: int) -> str:
    """Return a word or two for the kind of a record with this entry id, such as "fence"."""
    return "entry" if entry_id >= 0 else _KINDS.get(entry_id, "unknown")


def _header(path: Path) -> tuple[JournalHeader | None, bool]:
    try:
        return read_header(path), False
    except Corrupt:
        return None, True
