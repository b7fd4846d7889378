"""CALL messages that look into a bookie's files: requests, then replies (metadata/calls.py)."""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Id = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
PAGE_MAX = 4000
"""Records or extents of one page."""


class JournalFiles(msgspec.Struct, frozen=True, tag=True):
    """List all journal files, in one page. -> JournalFilePage."""


class JournalRecords(msgspec.Struct, frozen=True, tag=True):
    """List records of a journal file. -> JournalRecordPage.

    Starts at the group at offset *group* (0: the first), after its first *skip* records; both
    come from the previous page. *groups*: include the records that begin groups.
    """

    file_id: Count
    group: Count = 0
    skip: Count = 0
    ledger_id: int | None = None
    groups: bool = False
    count: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = PAGE_MAX


class Indexes(msgspec.Struct, frozen=True, tag=True):
    """Sum up the indexes of logs with id > *after*. -> IndexPage."""

    after: Id = -1


class IndexExtents(msgspec.Struct, frozen=True, tag=True):
    """List extents with offset > *after* in the index of a log. -> ExtentPage."""

    log_id: Count
    after: Id = -1
    ledger_id: int | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = PAGE_MAX


class JournalFileOnBookie(msgspec.Struct, frozen=True):
    """A journal file. Sizes in bytes; *end* is 0 for the newest, which is being written."""

    id: int
    size: int
    end: int
    needed: bool
    """it holds entries that are not in an entry log yet"""
    damaged: bool = False


class JournalFilePage(msgspec.Struct, frozen=True, tag=True):
    """All journal files, oldest first; *missing*: ids of gaps between them."""

    files: list[JournalFileOnBookie]
    missing: list[int] = []


class RecordOnBookie(msgspec.Struct, frozen=True, array_like=True):
    """A record; *entry_id* is negative for special ones, *size* that of its body."""

    offset: int
    ledger_id: int
    entry_id: int
    size: int


class JournalRecordPage(msgspec.Struct, frozen=True, tag=True):
    """Records in file order, and offsets of damage.

    The next page begins at *group* and *skip*. The last page has an *end*, the offset where the
    file's records end now.
    """

    records: list[RecordOnBookie]
    damages: list[int]
    group: int
    skip: int
    end: int | None = None


class IndexOnBookie(msgspec.Struct, frozen=True):
    """The index of a log. *entries_size*: bytes of the records that it lists."""

    log_id: int
    size: int
    extents: int
    entries: int
    entries_size: int
    damages: list[int] = []


class IndexPage(msgspec.Struct, frozen=True, tag=True):
    """Indexes ordered by log; an empty page means the end."""

    indexes: list[IndexOnBookie]


class ExtentOnBookie(msgspec.Struct, frozen=True, array_like=True):
    """A run of a ledger's entries in a log; *offset* is that of its row in the index."""

    offset: int
    ledger_id: int
    first_entry: int
    last_entry: int
    page_offset: int
    log_offset: int
    log_size: int
    entries: int
    sparse: bool


class ExtentPage(msgspec.Struct, frozen=True, tag=True):
    """Extents in file order; the next page starts after *after*. The last one lists damage."""

    extents: list[ExtentOnBookie]
    damages: list[int]
    after: int
    is_last: bool


InspectionRequest = JournalFiles | JournalRecords | Indexes | IndexExtents
InspectionReply = JournalFilePage | JournalRecordPage | IndexPage | ExtentPage
