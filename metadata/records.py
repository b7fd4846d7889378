"""What is stored under which key, as JSON that people can read.

key or lease             value
-----------------------  ------------------------------------------------------
ledgers/<20 digits>      LedgerRecord; ids come from the counter "ledgers"
cookies/<bookie id>      CookieRecord: which folders belong to the bookie
draining/<bookie id>     Draining: everything is to be moved off the bookie
underreplicated/<20 d.>  UnderReplicated: a ledger that wants repair, and why
bookies/<bookie id>      a lease, held while the bookie serves: BookieRecord
repairs/<20 digits>      a lease, held by who copies or moves the ledger: RepairProgress
coordinator              a lease, held by the bookie that leads: Leader

Who copies entries of a ledger to a bookie that its record does not list, or changes the
fragments of a closed ledger, or deletes a copy that is over-replicated, holds the lease
repairs/<ledger> and makes its change together with a CheckLease.

Decoders raise BadRecord, naming the key, for anything that breaks a rule stated
here; unknown fields are let pass, so that a newer version may add some.
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
LEDGER_COUNTER = "ledgers"
ENSEMBLE_SIZE_MAX = 64

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Size = Annotated[int, msgspec.Meta(ge=1, le=ENSEMBLE_SIZE_MAX)]
T = TypeVar("T")
EntryId = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]


class LedgerState(enum.Enum):
    """Where a ledger is in its life: it only moves down this list."""

    OPEN = "open"
    IN_RECOVERY = "in_recovery"
    CLOSED = "closed"


class Fragment(msgspec.Struct, frozen=True):
    """From *first_entry* on, the bookies that hold the entries, in ensemble order."""

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
    """drawn at random when the ledger is made, and never changed: tells it from another ledger
    that had or will have the same id; 0: made by who does not know of it"""

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
        """Whether this cannot be the ledger of that incarnation, although it has its id."""
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
    """bytes added a second, lately"""
    read_only: bool = False
    version: str = ""
    metrics_port: int = 0
    """0: no metrics are served"""
    limbo: bool = False
    """it may have lost records, and must not say that an entry is absent"""
    draining: bool = False
    stalled: bool = False
    """its disk hangs; it is read_only meanwhile"""
    ledgers_size: Count = 0
    """bytes of live records in its entry logs"""


class Draining(msgspec.Struct, frozen=True):
    """A bookie that is being decommissioned: it gets no new entries, others take its copies."""

    bookie_id: str
    since_ms: Count


class DamagedRun(msgspec.Struct, frozen=True):
    """Entries of a ledger whose copy on one bookie is damaged."""

    bookie_id: str
    first_entry: Count
    last_entry: Count


class UnderReplicated(msgspec.Struct, frozen=True):
    """A ledger that has, or may have, fewer sound copies than its write quorum.

    *bookies*: where copies may be missing; none: anywhere, all are to be looked at.
    *size*: payload bytes that may have to be copied, as far as known.
    """

    ledger_id: Count
    reason: Literal["bookie lost", "draining", "ensemble changed", "damaged", "limbo", "check"]
    since_ms: Count
    bookies: list[str] = []
    damaged: list[DamagedRun] = []
    size: Count = 0
    attempts: Count = 0
    last_failure: str = ""
    """why the last attempt ended without success, in one line"""


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
    """What must be found in a bookie's folders before it may start."""

    bookie_id: str
    instance_id: str
    """of the metadata store that the bookie was made for"""
    journal_folder: str
    ledger_folder: str
    cookie_id: str
    """random; made when the folders were formatted"""


LedgerMark = UnderReplicated | RepairProgress
Record = LedgerRecord | LedgerMark | BookieRecord | CookieRecord | Draining | Leader


def ledger_key(ledger_id: int) -> str:
    """Return the key of a ledger; keys order as ids do."""
    return f"{LEDGERS}{ledger_id:020d}"


def underreplicated_key(ledger_id: int) -> str:
    """Return the key that says that a ledger wants repair."""
    return f"{UNDERREPLICATED}{ledger_id:020d}"


def repair_lease(ledger_id: int) -> str:
    """Return the name of the lease of who repairs or moves a ledger."""
    return f"{REPAIRS}{ledger_id:020d}"


def draining_key(bookie_id: str) -> str:
    """Return the key that says that a bookie is being decommissioned."""
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
    """Return what is wrong with a ledger. Raises BadRecord."""
    return decode_row(key, value, UnderReplicated)


def decode_draining(key: str, value: bytes) -> Draining:
    """Return the mark of a bookie that is being decommissioned. Raises BadRecord."""
    return decode_row(key, value, Draining)


def decode_repair(name: str, value: bytes) -> RepairProgress:
    """Return how far the repair with the lease *name* is. Raises BadRecord."""
    return decode_row(name, value, RepairProgress)


def decode_leader(name: str, value: bytes) -> Leader:
    """Return who leads, by the lease *name*. Raises BadRecord."""
    return decode_row(name, value, Leader)


def decode_row(key: str, value: bytes, kind: type[T]) -> T:
    """Return the *kind* of row that is stored at *key* as JSON. Raises BadRecord."""
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise BadRecord(f"{key} is not a {kind.__name__}: {wrong}") from wrong


def _decode_password(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error as wrong:
        raise ValueError("the password is not base64") from wrong
