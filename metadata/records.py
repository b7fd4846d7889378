"""Keys of the metadata store and their values, as readable JSON.

key or lease             value
-----------------------  ------------------------------------------------------
ledgers/<20 digits>      LedgerRecord; ids come from the counter "ledgers"
cookies/<bookie id>      CookieRecord: the folders of the bookie
instance                 id of the cluster, as text
draining/<bookie id>     Draining: the bookie is being decommissioned
underreplicated/<20 d.>  UnderReplicated: a ledger that needs repair, and why
bookies/<bookie id>      a lease, held while the bookie serves: BookieRecord
repairs/<20 digits>      a lease, held during a repair or a move: RepairProgress
coordinator              a lease, held by the bookie that leads: Leader
racks/count              RackReport: the leader's last count of ledgers on too few racks

A process that copies entries of a ledger to a bookie that its record does not list, changes the
fragments of a closed ledger, or deletes a surplus copy, must hold the lease repairs/<ledger>
and make its change together with a CheckLease.

Decoders raise BadRecord, naming the key, for a record that breaks a rule below. Unknown fields
are ignored, so that a newer version may add some.
"""

from __future__ import annotations

import binascii
import enum
import itertools
from base64 import b64decode, b64encode
from typing import Annotated, Literal, TypeVar

import msgspec

from metadata.errors import BadRecord

LEDGERS = "ledgers/"
COOKIES = "cookies/"
BOOKIES = "bookies/"
DRAINING = "draining/"
UNDERREPLICATED = "underreplicated/"
REPAIRS = "repairs/"
COORDINATOR = "coordinator"
INSTANCE = "instance"
RACKS = "racks/count"
LEDGER_COUNTER = "ledgers"
ENSEMBLE_SIZE_MAX = 64
UNREADABLE = b"unreadable: "
"""Begins what a driver returns for a record of another program that it cannot translate."""

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Size = Annotated[int, msgspec.Meta(ge=1, le=ENSEMBLE_SIZE_MAX)]
T = TypeVar("T")
EntryId = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]


class LedgerState(enum.Enum):
    """State of a ledger; it only moves down this list."""

    OPEN = "open"
    IN_RECOVERY = "in_recovery"
    CLOSED = "closed"


class Fragment(msgspec.Struct, frozen=True):
    """The bookies, in ensemble order, that hold the entries from *first_entry* on."""

    first_entry: Count
    bookies: list[str]


class LedgerRecord(msgspec.Struct, frozen=True):
    """A ledger. *last_entry* and *length* (payload bytes) hold once it is CLOSED.

    1 <= ack_quorum <= write_quorum <= ensemble_size <= 64. Fragments rise
    strictly from entry 0 on, each with ensemble_size different bookies.
    """

    ledger_id: Count
    ensemble_size: Size
    write_quorum: Size
    ack_quorum: Size
    state: LedgerState
    fragments: list[Fragment]
    last_entry: EntryId = -1
    length: Count = 0
    digest: Literal["crc32", "hmac", "crc32c", "dummy"] = "crc32c"
    password: str = ""
    created_ms: Count = 0
    custom: dict[str, str] = {}
    replication: Literal["fanout", "chain"] = "fanout"
    incarnation: Count = 0
    """random, drawn when the ledger is created and never changed, so that a reused id can be
    recognised; 0: created by a client that does not set it"""
    foreign: str = ""
    """what a BookKeeper client wrote that has no field here, to be kept (base64;
    metadata/zookeeper/ledger_metadata.py)"""

    def __post_init__(self) -> None:
        if not self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            raise ValueError("ack quorum <= write quorum <= ensemble size does not hold")
        starts = [fragment.first_entry for fragment in self.fragments]
        if not starts or starts[0] != 0 or any(b <= a for a, b in itertools.pairwise(starts)):
            raise ValueError("fragments do not rise strictly from entry 0")
        if any(len(set(f.bookies)) != self.ensemble_size for f in self.fragments):
            raise ValueError("a fragment does not name as many bookies as the ensemble has")
        _decode_password(self.password)

    def is_another(self, incarnation: int) -> bool:
        """Return True if this is another ledger with the same id."""
        return 0 not in (incarnation, self.incarnation) and incarnation != self.incarnation

    @property
    def password_bytes(self) -> bytes:
        """The password itself; the record holds it as base64."""
        return _decode_password(self.password)


class BookieRecord(msgspec.Struct, frozen=True):
    """A bookie that serves. *capacity* and *free* are bytes of its ledger folder's disk."""

    bookie_id: str
    address: str
    """host:port for clients"""
    capacity: Count
    free: Count
    load: float = 0.0
    """bytes added per second, recently"""
    read_only: bool = False
    version: str = ""
    metrics_port: int = 0
    """0: no metrics are served"""
    limbo: bool = False
    """it may have lost records, so it never answers that an entry is absent"""
    draining: bool = False
    stalled: bool = False
    """its disk hangs; it is read_only meanwhile"""
    ledgers_size: Count = 0
    """bytes of live records in its entry logs"""
    rack: str = ""
    """what it shares a switch or a power supply with; "": the rack of all that state none"""


class Draining(msgspec.Struct, frozen=True):
    """A bookie that is being decommissioned: it gets no new entries, and its copies move."""

    bookie_id: str
    since_ms: Count


class DamagedRun(msgspec.Struct, frozen=True):
    """Entries of a ledger whose copy on one bookie is damaged."""

    bookie_id: str
    first_entry: Count
    last_entry: Count


class UnderReplicated(msgspec.Struct, frozen=True):
    """A ledger that has, or may have, fewer sound copies than its write quorum.

    *bookies*: those that may lack copies; an empty list means any of them.
    *whole*: those of the ledger's bookies that, since they were named last, were found to hold all
    that they should.
    *size*: payload bytes that may have to be copied, if known.
    """

    ledger_id: Count
    reason: Literal["bookie lost", "draining", "ensemble changed", "damaged", "limbo", "check"]
    since_ms: Count
    bookies: list[str] = []
    damaged: list[DamagedRun] = []
    size: Count = 0
    attempts: Count = 0
    last_failure: str = ""
    """why the last attempt failed, in one line"""
    whole: list[str] = []


class RepairProgress(msgspec.Struct, frozen=True):
    """A repair or a move under way; sizes are payload bytes, summed over copies."""

    ledger_id: Count
    worker: str
    started_ms: Count
    size: Count = 0
    copied_size: Count = 0


class Leader(msgspec.Struct, frozen=True):
    """The bookie that hosts the coordinator."""

    bookie_id: str
    address: str
    since_ms: Count


class CookieRecord(msgspec.Struct, frozen=True):
    """The identity that a bookie's folders must have before it may start."""

    bookie_id: str
    instance_id: str
    """id of the metadata store that the bookie was made for"""
    journal_folder: str
    ledger_folder: str
    cookie_id: str
    """random; made when the folders were formatted"""


class RackReport(msgspec.Struct, frozen=True):
    """Ledgers whose copies are on fewer racks than the cluster's bookies allow."""

    checked_ms: Count
    """when the leader counted"""
    ledgers: Count = 0
    """number of ledgers then"""
    violating: Count = 0
    fragments: Count = 0
    """of the violating ledgers, those that are on too few racks"""
    examples: list[Count] = []
    """the first violating ledgers"""


LedgerMark = UnderReplicated | RepairProgress
Record = LedgerRecord | LedgerMark | BookieRecord | CookieRecord | Draining | Leader | RackReport


def ledger_key(ledger_id: int) -> str:
    """Return the key of a ledger; keys order as ids do."""
    return f"{LEDGERS}{ledger_id:020d}"


def underreplicated_key(ledger_id: int) -> str:
    """Return the key that marks a ledger for repair."""
    return f"{UNDERREPLICATED}{ledger_id:020d}"


def repair_lease(ledger_id: int) -> str:
    """Return the name of the lease for repairing or moving a ledger."""
    return f"{REPAIRS}{ledger_id:020d}"


def draining_key(bookie_id: str) -> str:
    """Return the key that marks a bookie as being decommissioned."""
    return DRAINING + bookie_id


def parse_ledger_key(key: str) -> int:
    """Return the ledger id of *key*. Raises BadRecord for another kind of key."""
    digits = key.removeprefix(LEDGERS)
    if not (
        key.startswith(LEDGERS) and len(digits) == 20 and digits.isascii() and digits.isdigit()
    ):
        raise BadRecord(f"{key!r} is not the key of a ledger")
    return int(digits)


def cookie_key(bookie_id: str) -> str:
    """Return the key of a bookie's cookie."""
    return COOKIES + bookie_id


def bookie_lease(bookie_id: str) -> str:
    """Return the name of the lease that a serving bookie holds."""
    return BOOKIES + bookie_id


def encode_password(password: bytes) -> str:
    """Return *password* as a LedgerRecord holds it."""
    return b64encode(password).decode()


def encode_record(record: Record) -> bytes:
    """Return *record* as the JSON to store."""
    return msgspec.json.encode(record)


def decode_ledger(key: str, value: bytes) -> LedgerRecord:
    """Return the ledger stored at *key*. Raises BadRecord."""
    return decode_row(key, value, LedgerRecord)


def decode_bookie(name: str, value: bytes) -> BookieRecord:
    """Return the bookie registered by the lease *name*. Raises BadRecord."""
    record = decode_row(name, value, BookieRecord)
    if name != bookie_lease(record.bookie_id):
        raise BadRecord(f"{name} is the registration of {record.bookie_id!r}")
    return record


def decode_cookie(key: str, value: bytes) -> CookieRecord:
    """Return the cookie stored at *key*. Raises BadRecord."""
    return decode_row(key, value, CookieRecord)


def decode_underreplicated(key: str, value: bytes) -> UnderReplicated:
    """Return the mark of an under-replicated ledger. Raises BadRecord."""
    return decode_row(key, value, UnderReplicated)


def decode_draining(key: str, value: bytes) -> Draining:
    """Return the mark of a bookie that is being decommissioned. Raises BadRecord."""
    return decode_row(key, value, Draining)


def decode_repair(name: str, value: bytes) -> RepairProgress:
    """Return the progress in the lease *name* of a repair. Raises BadRecord."""
    return decode_row(name, value, RepairProgress)


def decode_leader(name: str, value: bytes) -> Leader:
    """Return the leader in the lease *name*. Raises BadRecord."""
    return decode_row(name, value, Leader)


def decode_racks(key: str, value: bytes) -> RackReport:
    """Return the leader's count in the row *key*. Raises BadRecord."""
    return decode_row(key, value, RackReport)


def check_readable(key: str, value: bytes) -> None:
    """Raise BadRecord if a driver could not translate the record, which another program wrote."""
    if value.startswith(UNREADABLE):
        raise BadRecord(f"{key}: {value.removeprefix(UNREADABLE).decode()}")


def decode_row(key: str, value: bytes, kind: type[T]) -> T:
    """Return the *kind* of row that is stored at *key* as JSON. Raises BadRecord."""
    check_readable(key, value)
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise BadRecord(f"{key} is not a {kind.__name__}: {wrong}") from wrong


def _decode_password(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error as wrong:
        raise ValueError("the password is not base64") from wrong
