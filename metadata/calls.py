"""CALL messages: what a client asks a bookie outside the data path, in msgpack.

A CALL frame (native/frame.h) carries one request, its answer one reply. Both are
maps with a "type" that names the struct; a reply is the one noted beside the
request, or Failure. The ops of a transaction (metadata/store.py) are
requests of their own too. Unknown fields are let pass, so that either side may
be newer; an unknown type is answered with Failure.

Bytes of a peer are never trusted: decoding gives a valid message or BadRecord.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from metadata.errors import Attribute, BadRecord
from metadata.limits import OPS_MAX
from metadata.store import Changes, Check, CheckLease, Delete, Lease, Put
from native.mark import Mark

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Id = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
T = TypeVar("T")
PAGE_MAX = 4000
"""Records or extents of one page."""


class Message(msgspec.Struct, frozen=True, tag=True):
    """Root of requests and replies; the tag is the name of the struct."""


# --- requests to the metadata store ----------------------------------------------------


class Get(Message, frozen=True):
    """-> Found or Missing."""

    key: str


class Transact(Message, frozen=True):
    """-> Done."""

    ops: Annotated[list[Put | Delete | Check | CheckLease], msgspec.Meta(max_length=OPS_MAX)]


class ListKeys(Message, frozen=True):
    """-> KeyPage."""

    prefix: str
    after: str = ""
    limit: Count = 1000


class NextId(Message, frozen=True):
    """-> Done, with the first id."""

    counter: str
    count: Count = 1


class Grant(Message, frozen=True):
    """-> Granted."""

    name: str
    owner: str
    ttl_s: float
    value: bytes = b""


class Renew(Message, frozen=True):
    """-> Granted."""

    lease: Lease
    value: bytes | None = None


class Release(Message, frozen=True):
    """-> Done."""

    lease: Lease


class ListLeases(Message, frozen=True):
    """-> LeasePage."""

    prefix: str
    after: str = ""


class ReadClock(Message, frozen=True):
    """What is the store's time? -> StoreTime."""


class WatchSince(Message, frozen=True):
    """-> Changes, when there are some or *wait_ms* passed. Without *revision*: at once."""

    prefix: str
    revision: Count | None = None
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 0


# --- requests to the bookie itself -----------------------------------------------------


class BookieInfo(Message, frozen=True):
    """Who are you, and how are you? -> BookieStatus."""


class LedgerStates(Message, frozen=True):
    """Which ledgers with id > *after* are there, up to *count*? -> LedgerStatePage."""

    after: Id = -1
    count: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1000


class EntryLocation(Message, frozen=True):
    """Where does this entry lie? -> EntryPlace."""

    ledger_id: Count
    entry_id: Count


class JournalMark(Message, frozen=True):
    """Where does the journal stand, and where would replay start? -> JournalState."""


class Logs(Message, frozen=True):
    """Which entry logs are there? -> LogPage."""

    after: Id = -1


class CollectGarbage(Message, frozen=True):
    """Collect now, with minor or *major* compaction, and wait for the end. -> GarbageReport."""

    major: bool = False


class FlushNow(Message, frozen=True):
    """Write the memtable to the entry logs and move the mark. -> JournalState."""


class LedgerRuns(Message, frozen=True):
    """Which entries with id > *after* of a ledger are there, up to *count* runs? -> RunPage.

    Answered out of index and memtable, in limbo too, and once what is named is durable;
    that a record is sound is not checked. Refused while the ledger there is another one.
    """

    ledger_id: Count
    after: Id = -1
    count: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1000
    incarnation: Count = 0
    """which ledger is meant by the id; 0: whatever is there"""


class ScrubNow(Message, frozen=True):
    """Check every record of every entry log now, and wait for the end. -> ScrubReport."""


class JournalFiles(Message, frozen=True):
    """Which journal files are there? -> JournalFilePage."""


class JournalRecords(Message, frozen=True):
    """What stands in a journal file? -> JournalRecordPage.

    From the group at offset *group* on (0: the first), behind its first *skip* records; both as
    the page before gave them. *groups*: those that begin groups are wanted too.
    """

    file_id: Count
    group: Count = 0
    skip: Count = 0
    ledger_id: int | None = None
    groups: bool = False
    count: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = PAGE_MAX


class Indexes(Message, frozen=True):
    """What do the indexes of logs with id > *after* say in all? -> IndexPage."""

    after: Id = -1


class IndexExtents(Message, frozen=True):
    """Which extents with an offset > *after* are in the index of a log? -> ExtentPage."""

    log_id: Count
    after: Id = -1
    ledger_id: int | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = PAGE_MAX


class DiskUse(Message, frozen=True):
    """What lies on your disks, and why? -> DiskUsed."""


# --- replies ---------------------------------------------------------------------------


class Failure(Message, frozen=True):
    """The request was not done. *kind* is the name of the exception (metadata/failures.py)."""

    kind: str
    message: str
    attributes: dict[str, Attribute] = {}


class Missing(Message, frozen=True):
    """There is no such key."""


class Found(Message, frozen=True):
    """The value of a key and its version."""

    value: bytes
    version: int


class Done(Message, frozen=True):
    """The change is made. One number for each op, as MetadataStore.transact returns."""

    numbers: list[int] = []


class KeyItem(msgspec.Struct, frozen=True, array_like=True):
    """One row of a KeyPage."""

    key: str
    value: bytes
    version: int


class KeyPage(Message, frozen=True):
    """Keys in order; no items: the listing is over."""

    items: list[KeyItem]


class Granted(Message, frozen=True):
    """The lease is the caller's."""

    lease: Lease


class StoreTime(Message, frozen=True):
    """The store's time, in Unix milliseconds."""

    now_ms: Count


class LeasePage(Message, frozen=True):
    """Live leases, ordered by name."""

    leases: list[Lease]


class BookieStatus(Message, frozen=True):
    """A bookie about itself. Sizes in bytes."""

    bookie_id: str
    address: str
    state: str
    """offline, initialization, syncing or ready"""
    version: str = ""
    read_only: bool = False
    capacity: int = 0
    free: int = 0
    load: float = 0.0
    """bytes added a second, lately"""
    ledgers: int = 0
    connections: int = 0
    uptime_s: float = 0.0
    metrics_port: int = 0
    process_id: int = 0
    limbo: bool = False
    """it may have lost records, and does not deny that an entry exists"""
    draining: bool = False
    stalled: bool = False
    """its disk hangs"""
    ledgers_size: int = 0
    """bytes of live records in its entry logs"""


class LedgerOnBookie(msgspec.Struct, frozen=True):
    """What a bookie knows of one ledger; -1 stands for none."""

    ledger_id: int
    last_entry: int
    lac: int
    explicit_lac: int = -1
    fenced: bool = False
    bytes_in_logs: int = 0
    incarnation: int = 0
    """0: not known"""


class LedgerStatePage(Message, frozen=True):
    """Ledgers ordered by id; none: the listing is over."""

    ledgers: list[LedgerOnBookie]


class EntryPlace(Message, frozen=True):
    """*source*: "memtable", "log", or "absent". The rest holds for a log only."""

    source: str
    log_id: int = 0
    offset: int = 0
    size: int = 0


class JournalState(Message, frozen=True):
    """The journal's end, and the mark of the last checkpoint, if there was one."""

    journal_id: int
    journal_offset: int
    mark: Mark | None = None


class LogOnBookie(msgspec.Struct, frozen=True):
    """One entry log. Sizes in bytes."""

    log_id: int
    size: int
    live: int
    open: bool = False
    damaged: bool = False
    extents: int = 0


class LogPage(Message, frozen=True):
    """Entry logs ordered by id; none: the listing is over."""

    logs: list[LogOnBookie]


class JournalFileOnBookie(msgspec.Struct, frozen=True):
    """A journal file. Sizes in bytes; *end* is 0 for the newest one, which is written."""

    id: int
    size: int
    end: int
    needed: bool
    """it holds entries that are in no entry log yet"""
    damaged: bool = False


class JournalFilePage(Message, frozen=True):
    """All journal files, oldest first; *missing*: ids of those that were between them."""

    files: list[JournalFileOnBookie]
    missing: list[int] = []


class RecordOnBookie(msgspec.Struct, frozen=True, array_like=True):
    """A record; *entry_id* is negative for special ones, *size* that of its body."""

    offset: int
    ledger_id: int
    entry_id: int
    size: int


class JournalRecordPage(Message, frozen=True):
    """Records in file order, and offsets that are damaged.

    The next page begins at *group* and *skip*; with an *end*, which is where the records of the
    file end by now, this one is the last.
    """

    records: list[RecordOnBookie]
    damages: list[int]
    group: int
    skip: int
    end: int | None = None


class IndexOnBookie(msgspec.Struct, frozen=True):
    """The index of a log. *entries_size* is bytes of the records that it names."""

    log_id: int
    size: int
    extents: int
    entries: int
    entries_size: int
    damages: list[int] = []


class IndexPage(Message, frozen=True):
    """Indexes ordered by log; none: the listing is over."""

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


class ExtentPage(Message, frozen=True):
    """Extents in file order; the next page is after *after*. The last one has the damages."""

    extents: list[ExtentOnBookie]
    damages: list[int]
    after: int
    is_last: bool


class LogKept(msgspec.Struct, frozen=True):
    """An entry log that a collection left, and why. Sizes in bytes."""

    log_id: int
    size: int
    live: int
    reason: str


class GarbageReport(Message, frozen=True):
    """What a collection did. Sizes in bytes.

    *ledgers_deleted* are gone from the metadata; *ledgers_moved_away* have all their copies
    on other bookies.
    """

    ledgers_deleted: int = 0
    logs_deleted: int = 0
    logs_compacted: int = 0
    freed_size: int = 0
    copied_size: int = 0
    kept: list[LogKept] = []
    ledgers_moved_away: int = 0


class RunPage(Message, frozen=True):
    """Rising (first, last) of entries that follow each other without a gap.

    None: there are no more, or the ledger is not known there.
    """

    runs: list[tuple[int, int]]


class DamagedPlace(msgspec.Struct, frozen=True):
    """Where bytes were found wrong. -1 stands for a ledger or entry not known."""

    file: str
    offset: int
    ledger_id: int = -1
    entry_id: int = -1


class ScrubReport(Message, frozen=True):
    """What a check of all entry logs found. *checked_size* is bytes of records.

    The first 1000 damaged places are named; *damaged_count* counts all.
    """

    checked_size: int
    damaged: list[DamagedPlace] = []
    damaged_count: int = 0


class FilesOnDisk(msgspec.Struct, frozen=True):
    """Files of one kind. *size* is their length, *allocated* what they take, as du counts it."""

    kind: str
    """log, index, journal, deleted, table, metadata, folder or other"""
    count: int
    size: int
    allocated: int


class DiskUsed(Message, frozen=True):
    """All files of a bookie, each counted once. Sizes in bytes.

    *live* and *dead* are bytes of records in entry logs: those of the ledgers that LedgerStates
    tells, and those of ledgers that were given up, in logs that are not rewritten yet.
    *unflushed* is in the memtable, and on disk in the journal alone.
    """

    files: list[FilesOnDisk]
    live: int = 0
    dead: int = 0
    unflushed: int = 0


# --- the two unions ----------------------------------------------------------------------

MetadataRequest = (
    Get
    | Put
    | Delete
    | Transact
    | ListKeys
    | NextId
    | Grant
    | Renew
    | Release
    | ListLeases
    | ReadClock
    | WatchSince
)
BookieRequest = (
    BookieInfo
    | LedgerStates
    | EntryLocation
    | JournalMark
    | Logs
    | CollectGarbage
    | FlushNow
    | LedgerRuns
    | ScrubNow
    | DiskUse
    | JournalFiles
    | JournalRecords
    | Indexes
    | IndexExtents
)
Request = MetadataRequest | BookieRequest
MetadataReply = (
    Found | Missing | Done | KeyPage | Granted | LeasePage | StoreTime | Changes | Failure
)
BookieReply = (
    BookieStatus
    | LedgerStatePage
    | EntryPlace
    | JournalState
    | LogPage
    | GarbageReport
    | RunPage
    | ScrubReport
    | DiskUsed
    | JournalFilePage
    | JournalRecordPage
    | IndexPage
    | ExtentPage
    | Failure
)
Reply = MetadataReply | BookieReply

_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode_request(request: Request) -> bytes:
    """Return the body of the CALL frame that asks for *request*."""
    return _encoder.encode(request)


def encode_reply(reply: Reply) -> bytes:
    """Return the body of the CALL response."""
    return _encoder.encode(reply)


def decode_request(body: bytes) -> Request:
    """Return the request in *body*. Raises BadRecord for anything else."""
    return _decode(_request_decoder, body)


def decode_reply(body: bytes | memoryview) -> Reply:
    """Return the reply in *body*. Raises BadRecord for anything else."""
    return _decode(_reply_decoder, body)


def _decode(decoder: msgspec.msgpack.Decoder[T], body: bytes | memoryview) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise BadRecord(f"not a message of a call: {wrong}") from wrong
