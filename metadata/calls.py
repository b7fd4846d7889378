"""CALL messages: requests to a bookie outside the data path, in msgpack.

A CALL frame (native/frame.h) carries one request, and its response one reply. Both are maps with
a "type" that names the struct. The reply is the one noted at the request, or Failure. The ops of a
transaction (metadata/store.py) are requests too. Unknown fields are ignored, so that either
side may be newer; an unknown type is answered with Failure.

A peer's bytes are never trusted: decoding returns a valid message or raises BadRecord.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from metadata.errors import Attribute, BadRecord
from metadata.groups.calls import GroupReply, GroupRequest
from metadata.inspections import InspectionReply, InspectionRequest
from metadata.store import OPS_MAX, Changes, Check, CheckLease, Delete, Lease, Put, StoreSession
from metadata.time.calls import TimeReply, TimeRequest
from native.mark import Mark

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Id = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
T = TypeVar("T")
WATCHED_AT_ONCE_MAX = 4096
"""Prefixes in one request to watch them."""


class CallMessage(msgspec.Struct, frozen=True, tag=True):
    """Root of requests and replies; the tag on the wire is the name of the struct."""


# --- requests to the metadata store ----------------------------------------------------


class Get(CallMessage, frozen=True):
    """Read the value of a key. -> Found or Missing."""

    key: str


class Transact(CallMessage, frozen=True):
    """Do all ops or none. -> Done."""

    ops: Annotated[list[Put | Delete | Check | CheckLease], msgspec.Meta(max_length=OPS_MAX)]


class ListKeys(CallMessage, frozen=True):
    """List keys under *prefix* that are greater than *after*. -> KeyPage."""

    prefix: str
    after: str = ""
    limit: Count = 1000


class NextId(CallMessage, frozen=True):
    """Take *count* fresh ids of a counter. -> Done, with the first id."""

    counter: str
    count: Count = 1


class OpenSession(CallMessage, frozen=True):
    """Open a session. -> SessionOpened."""

    owner: str
    ttl_s: float


class KeepSession(CallMessage, frozen=True):
    """Let a session live for its full time from now on. -> Done."""

    session: StoreSession


class EndSession(CallMessage, frozen=True):
    """End a session and its leases, if it is not over already. -> Done."""

    session: StoreSession


class Grant(CallMessage, frozen=True):
    """Take a lease, with a new epoch. -> Granted."""

    name: str
    session: StoreSession
    owner: str = ""
    value: bytes = b""


class Update(CallMessage, frozen=True):
    """Set the value of a lease. -> Granted."""

    lease: Lease
    value: bytes


class Release(CallMessage, frozen=True):
    """End a lease, if it is not over already. -> Done."""

    lease: Lease


class ListLeases(CallMessage, frozen=True):
    """List live leases under *prefix* with names above *after*. -> LeasePage."""

    prefix: str
    after: str = ""


class ReadClock(CallMessage, frozen=True):
    """Read the store's time. -> StoreTime."""


class WatchSince(CallMessage, frozen=True):
    """Wait for changes. -> Changes, once there are some or *wait_ms* passed.

    Without *revision*, the reply comes at once.
    """

    prefix: str
    revision: Count | None = None
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 0


class WatchPrefixes(CallMessage, frozen=True):
    """Report changes under these prefixes to AwaitHints of this connection. -> Changes.

    The reply lists no keys: changes after its revision will be reported. With *since*, those
    after that revision are too, for a client that was connected elsewhere.
    """

    add: Annotated[list[str], msgspec.Meta(max_length=WATCHED_AT_ONCE_MAX)] = []
    drop: Annotated[list[str], msgspec.Meta(max_length=WATCHED_AT_ONCE_MAX)] = []
    """no more of these, as far as they are watched"""
    since: Count | None = None


class AwaitHints(CallMessage, frozen=True):
    """Wait for changes under the watched prefixes of this connection. -> Changes.

    It comes once there are some, or *wait_ms* passed. A key that equals a prefix means that
    anything under it may have changed. A second call ends the wait of the first.
    """

    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 0


# --- requests to the bookie itself -----------------------------------------------------


class BookieInfo(CallMessage, frozen=True):
    """Identity and state of the bookie. -> BookieStatus."""


class LedgerStates(CallMessage, frozen=True):
    """List up to *count* ledgers with id > *after*. -> LedgerStatePage."""

    after: Id = -1
    count: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1000


class EntryLocation(CallMessage, frozen=True):
    """Locate an entry on disk or in memory. -> EntryPlace."""

    ledger_id: Count
    entry_id: Count


class JournalMark(CallMessage, frozen=True):
    """Read the journal's end, and the mark where replay would start. -> JournalState."""


class Logs(CallMessage, frozen=True):
    """List entry logs with id > *after*. -> LogPage."""

    after: Id = -1


class CollectGarbage(CallMessage, frozen=True):
    """Collect garbage, with minor or *major* compaction; replies at its end. -> GarbageReport."""

    major: bool = False


class FlushNow(CallMessage, frozen=True):
    """Flush the memtable to the entry logs and move the mark. -> JournalState."""


class LedgerRuns(CallMessage, frozen=True):
    """List a ledger's entries with id > *after*, in up to *count* runs. -> RunPage.

    Answered from index and memtable, in limbo too, once the listed entries are durable. Records
    are not checked for damage. Refused if the bookie has another incarnation of the ledger.
    """

    ledger_id: Count
    after: Id = -1
    count: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1000
    incarnation: Count = 0
    """incarnation of the ledger; 0 for any"""


class ForgetUnknown(CallMessage, frozen=True):
    """Forget a closed ledger here, if its incarnation is unknown. -> Forgotten.

    Nobody can read it here any more: see bookie/incarnations.py. Ask this once all its entries
    were read elsewhere. Afterwards it is here as *incarnation*, empty and fenced, durably. Refused
    unless the bookie is in limbo, and the metadata have the ledger as this incarnation, closed.
    """

    ledger_id: Count
    incarnation: Count
    dry_run: bool = False
    """only say whether there is something to forget"""


class ScrubNow(CallMessage, frozen=True):
    """Check every record of every entry log now; replies at the end. -> ScrubReport."""


class FollowedLedger(msgspec.Struct, frozen=True, array_like=True):
    """A ledger, and the last confirmed entry that the client knows, -1 for none."""

    ledger_id: Count
    known_lac: Id


class AwaitLedgers(CallMessage, frozen=True):
    """Follow ledgers on this connection, and wait for news of any of them. -> LedgersMoved.

    It comes once the last confirmed entry of one is greater than the known one, or a ledger is
    fenced, or *wait_ms* passed. A second call ends the wait of the first, without ids. A ledger
    that this bookie does not have is not followed.
    """

    add: Annotated[list[FollowedLedger], msgspec.Meta(max_length=WATCHED_AT_ONCE_MAX)] = []
    drop: Annotated[list[Count], msgspec.Meta(max_length=WATCHED_AT_ONCE_MAX)] = []
    """follow these no longer, as far as they are followed"""
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 0


class DiskUse(CallMessage, frozen=True):
    """Measure the files on the bookie's disks, by kind. -> DiskUsed."""


# --- replies ---------------------------------------------------------------------------


class Failure(CallMessage, frozen=True):
    """The request was not done. *kind* is the name of the exception (metadata/failures.py)."""

    kind: str
    message: str
    attributes: dict[str, Attribute] = {}


class Missing(CallMessage, frozen=True):
    """The key of a Get does not exist."""


class Found(CallMessage, frozen=True):
    """The value of a key and its version."""

    value: bytes
    version: int


class Done(CallMessage, frozen=True):
    """The change is made; one number for each op, as MetadataStore.transact returns."""

    numbers: list[int] = []


class KeyItem(msgspec.Struct, frozen=True, array_like=True):
    """One row of a KeyPage, with the version of the key's last change."""

    key: str
    value: bytes
    version: int


class KeyPage(CallMessage, frozen=True):
    """Keys in order; an empty page means the end."""

    items: list[KeyItem]


class SessionOpened(CallMessage, frozen=True):
    """A new session."""

    session: StoreSession


class Granted(CallMessage, frozen=True):
    """The caller holds the lease, with this epoch."""

    lease: Lease


class StoreTime(CallMessage, frozen=True):
    """The store's time, in Unix milliseconds."""

    now_ms: Count


class LeasePage(CallMessage, frozen=True):
    """Live leases, ordered by name; an empty page means the end."""

    leases: list[Lease]


class BookieStatus(CallMessage, frozen=True):
    """A bookie's identity and state. Sizes in bytes."""

    bookie_id: str
    address: str
    state: str
    """offline, initialization, syncing or ready"""
    version: str = ""
    read_only: bool = False
    capacity: int = 0
    free: int = 0
    load: float = 0.0
    """bytes added per second, recently"""
    ledgers: int = 0
    connections: int = 0
    uptime_s: float = 0.0
    metrics_port: int = 0
    process_id: int = 0
    limbo: bool = False
    """it may have lost records, so it never answers that an entry is absent"""
    draining: bool = False
    stalled: bool = False
    """its disk hangs"""
    ledgers_size: int = 0
    """bytes of live records in its entry logs"""


class LedgerOnBookie(msgspec.Struct, frozen=True):
    """One ledger on a bookie; -1 means none."""

    ledger_id: int
    last_entry: int
    lac: int
    explicit_lac: int = -1
    fenced: bool = False
    bytes_in_logs: int = 0
    incarnation: int = 0
    """0: unknown"""


class LedgerStatePage(CallMessage, frozen=True):
    """Ledgers ordered by id; an empty page means the end."""

    ledgers: list[LedgerOnBookie]


class EntryPlace(CallMessage, frozen=True):
    """*source*: "memtable", "log", or "absent". The other fields are for a log only."""

    source: str
    log_id: int = 0
    offset: int = 0
    size: int = 0


class JournalState(CallMessage, frozen=True):
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


class LogPage(CallMessage, frozen=True):
    """Entry logs ordered by id; an empty page means the end."""

    logs: list[LogOnBookie]


class LogKept(msgspec.Struct, frozen=True):
    """An entry log that a collection kept, with the reason. Sizes in bytes."""

    log_id: int
    size: int
    live: int
    reason: str


class GarbageReport(CallMessage, frozen=True):
    """Result of a garbage collection. Sizes in bytes.

    *ledgers_deleted* counts ledgers deleted from metadata, *ledgers_moved_away* those with all
    copies on other bookies.
    """

    ledgers_deleted: int = 0
    logs_deleted: int = 0
    logs_compacted: int = 0
    freed_size: int = 0
    copied_size: int = 0
    kept: list[LogKept] = []
    ledgers_moved_away: int = 0


class LedgersMoved(CallMessage, frozen=True):
    """Ledgers with news. They are followed no longer."""

    ledger_ids: list[int]


class RunPage(CallMessage, frozen=True):
    """Runs of entries without a gap, as rising (first, last) pairs.

    An empty page means the end, or that the bookie does not have the ledger.
    """

    runs: list[tuple[int, int]]


class Forgotten(CallMessage, frozen=True):
    """The answer to ForgetUnknown. *was_here*: something was forgotten, or would be."""

    was_here: bool


class DamagedPlace(msgspec.Struct, frozen=True):
    """Position of damaged bytes. -1: unknown ledger or entry.

    *last_entry*: if entries after *entry_id* are damaged, too, the last of them; otherwise -1.
    """

    file: str
    offset: int
    ledger_id: int = -1
    entry_id: int = -1
    last_entry: int = -1


class ScrubReport(CallMessage, frozen=True):
    """Result of a check of all entry logs. *checked_size*: bytes of records.

    Lists the first 1000 damaged places. *damaged_count* counts all damaged records and index pages.
    """

    checked_size: int
    damaged: list[DamagedPlace] = []
    damaged_count: int = 0


class FilesOnDisk(msgspec.Struct, frozen=True):
    """Files of one kind. *size*: their length; *allocated*: disk space, as du counts it."""

    kind: str
    """log, index, journal, deleted, table, metadata, folder or other"""
    count: int
    size: int
    allocated: int


class DiskUsed(CallMessage, frozen=True):
    """All files of a bookie, each counted once. Sizes in bytes.

    *live* and *dead* are bytes of records in entry logs: of the ledgers that LedgerStates lists,
    and of deleted ledgers, in logs that are not rewritten yet. *unflushed* is in the memtable,
    and on disk in the journal only.
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
    | OpenSession
    | KeepSession
    | EndSession
    | Grant
    | Update
    | Release
    | ListLeases
    | ReadClock
    | WatchSince
)
HintRequest = WatchPrefixes | AwaitHints
BookieRequest = (
    BookieInfo
    | LedgerStates
    | EntryLocation
    | JournalMark
    | Logs
    | CollectGarbage
    | FlushNow
    | LedgerRuns
    | ForgetUnknown
    | AwaitLedgers
    | ScrubNow
    | DiskUse
    | InspectionRequest
    | GroupRequest
    | TimeRequest
)
Request = MetadataRequest | HintRequest | BookieRequest
MetadataReply = (
    Found
    | Missing
    | Done
    | KeyPage
    | SessionOpened
    | Granted
    | LeasePage
    | StoreTime
    | Changes
    | Failure
)
BookieReply = (
    BookieStatus
    | LedgerStatePage
    | EntryPlace
    | JournalState
    | LogPage
    | GarbageReport
    | RunPage
    | Forgotten
    | LedgersMoved
    | ScrubReport
    | DiskUsed
    | InspectionReply
    | GroupReply
    | TimeReply
    | Failure
)
Reply = MetadataReply | BookieReply

_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode_request(request: Request) -> bytes:
    """Return the body of the CALL frame for *request*."""
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


def expect(reply: Reply, kind: type[T]) -> T:
    """Return *reply* if it is a *kind*. Raises BadRecord for one of another kind."""
    if isinstance(reply, kind):
        return reply
    raise BadRecord(f"the bookie answered {type(reply).__name__}, not {kind.__name__}")


def _decode(decoder: msgspec.msgpack.Decoder[T], body: bytes | memoryview) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise BadRecord(f"not a message of a call: {wrong}") from wrong
