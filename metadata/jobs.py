"""Jobs over topics: their owner, the ledgers they pin, and the ledgers they have staged.

key or lease                                    value
----------------------------------------------  --------------------------------------
jobs/<uid>/<job id>                             a lease, held while the job runs: JobOwner
truncations/<uid>/<id>                          a lease, held while messages are deleted: empty
pins/<uid>/<job id>                             JobPins: ledgers kept while the lease lives
staged/<uid>/<job id>/<ledger id>               StagedLedger: invisible to readers
ids/<uid>/<job id>                              JobIds: ledger ids reserved for its parts
sinks/<uid>/<query>                             SinkProgress: the last batch of a stream
pointers/<uid>/<job id>                         JobPointer: shows what is too much for one change

uid and ledger id have 20 digits. The lease proves that the job lives. Its pins have a row of their
own, because a lease's value is small; without the lease, that row has no effect.

A compaction pins ledgers, then looks for truncations; a truncation takes its lease, then looks for
pins, and checks the lease in the transaction that deletes. So one of the two sees the other, and
no compaction has read messages that are deleted out of a ledger meanwhile.

One transaction creates a staged ledger and its record. The transaction that publishes the ledger
deletes the staged row, expecting its version; the one that discards it deletes row and record. So
exactly one of the two happens, even if the lease is lost meanwhile. A result that is too large for
one transaction is published by a pointer: metadata/pointers.py.

Decoders raise BadRecord, naming the key. Unknown fields are ignored.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from metadata.errors import BadRecord
from metadata.records import decode_row
from metadata.topics import Count, topic_prefix

JOBS = "jobs/"
TRUNCATIONS = "truncations/"
PINS = "pins/"
STAGED = "staged/"
IDS = "ids/"
SINKS = "sinks/"
POINTERS = "pointers/"
PINS_MAX = 100_000
"""Lanes that a job may pin; many are stored in pages (metadata/paged.py)."""
JOB_KINDS = ("compaction", "replay", "write")

JobKind = Literal["compaction", "replay", "write"]
Partition = Annotated[int, msgspec.Meta(ge=-1)]

_JOB_ID = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class JobOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The process that runs a job."""

    kind: JobKind
    topic: str
    host: str = ""
    process_id: int = 0
    since_ms: Count = 0


class PinnedLane(msgspec.Struct, frozen=True, array_like=True):
    """Keeps a lane's ledgers from *number* on."""

    partition: Partition
    lane: Count
    number: Count


class JobPins(msgspec.Struct, frozen=True, kw_only=True):
    """The ledgers that a job keeps from retention; *kind* names the job to people."""

    kind: JobKind
    lanes: Annotated[list[PinnedLane], msgspec.Meta(max_length=PINS_MAX)]


class StagedLedger(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger that will become part of a topic. Its record shows whether it is closed."""

    ledger_id: Count
    partition: Partition
    lane: int = -1
    """-1: chosen when it is published"""
    created_ms: Count = 0
    pointer: str = ""
    """the pointer that publishes it; "" for none"""


class IdRun(msgspec.Struct, frozen=True, array_like=True):
    """Ledger ids of consecutive parts of a job, *share* of them for each."""

    first_part: Count
    parts: Annotated[int, msgspec.Meta(ge=1)]
    share: Annotated[int, msgspec.Meta(ge=1)]
    first_id: Count


class JobIds(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger ids reserved for the parts of a job; both rise from run to run."""

    runs: list[IdRun]


class SinkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The last batch of a stream that the topic has."""

    batch_id: Count
    at_ms: Count = 0
    run: str = ""
    """id of the query that wrote it; "" if unknown"""
    checkpoint: str = ""
    """checkpoint location of that query; "" if unknown"""
    messages: int = -1
    """in the batch; -1 if unknown"""


class JobPointer(msgspec.Struct, frozen=True, kw_only=True):
    """Decides whether a job's result is part of the topic; see metadata/pointers.py."""

    attempt: str
    """a new one for each attempt to publish"""
    state: Literal["open", "shown", "undone"]


JobRow = JobPointer | JobOwner | JobPins | StagedLedger | JobIds | SinkProgress


def check_job_id(job_id: str) -> None:
    """Raise ValueError if *job_id* cannot be part of a key."""
    if not _JOB_ID.fullmatch(job_id):
        raise ValueError(f"{job_id!a} is not 1 to 100 letters, digits, '_', '-' or '.'")


def job_lease(uid: int, job_id: str) -> str:
    """Return the name of the lease that a running job holds."""
    return topic_prefix(JOBS, uid) + job_id


def truncation_lease(uid: int, truncation_id: str) -> str:
    """Return the name of the lease that is held while messages of a topic are deleted."""
    return topic_prefix(TRUNCATIONS, uid) + truncation_id


def pins_key(uid: int, job_id: str) -> str:
    """Return the key of a job's pins."""
    return topic_prefix(PINS, uid) + job_id


def staged_prefix(uid: int, job_id: str) -> str:
    """Return the prefix of the keys of a job's staged ledgers."""
    return f"{topic_prefix(STAGED, uid)}{job_id}/"


def staged_key(uid: int, job_id: str, ledger_id: int) -> str:
    """Return the key of a staged ledger."""
    return f"{staged_prefix(uid, job_id)}{ledger_id:020d}"


def ids_key(uid: int, job_id: str) -> str:
    """Return the key of the ledger ids that are reserved for a job."""
    return topic_prefix(IDS, uid) + job_id


def sink_key(uid: int, query: str) -> str:
    """Return the key of a stream's progress."""
    return topic_prefix(SINKS, uid) + query


def pointer_key(uid: int, job_id: str) -> str:
    """Return the key of a job's pointer."""
    return topic_prefix(POINTERS, uid) + job_id


def job_of(key: str) -> tuple[int, str]:
    """Return topic's uid and job id of any key or lease of a job. Raises BadRecord."""
    parts = key.split("/")
    uid = parts[1] if len(parts) > 2 else ""
    if not (len(uid) == 20 and uid.isascii() and uid.isdigit() and parts[2]):
        raise BadRecord(f"{key!r} names no job of a topic")
    return int(uid), parts[2]


def encode_job_row(row: JobRow) -> bytes:
    """Return *row* as the JSON to store."""
    return msgspec.json.encode(row)


def decode_job_owner(name: str, value: bytes) -> JobOwner:
    """Return the holder of the lease *name* of a job. Raises BadRecord."""
    return decode_row(name, value, JobOwner)


def decode_pins(key: str, value: bytes) -> JobPins:
    """Return a job's pins. Raises BadRecord."""
    return decode_row(key, value, JobPins)


def decode_staged(key: str, value: bytes) -> StagedLedger:
    """Return the staged ledger stored at *key*. Raises BadRecord."""
    return decode_row(key, value, StagedLedger)


def decode_pointer(key: str, value: bytes) -> JobPointer:
    """Return a job's pointer. Raises BadRecord."""
    return decode_row(key, value, JobPointer)


def decode_ids(key: str, value: bytes) -> JobIds:
    """Return the ledger ids reserved for a job. Raises BadRecord."""
    found = decode_row(key, value, JobIds)
    following = 0
    for run in found.runs:
        if run.first_part != following:
            raise BadRecord(f"{key}: the ids of part {following} are missing, or are there twice")
        following += run.parts
    return found


def decode_sink(key: str, value: bytes) -> SinkProgress:
    """Return a stream's progress. Raises BadRecord."""
    return decode_row(key, value, SinkProgress)
