"""Replays: source range, target and progress.

key or lease       value
-----------------  ---------------------------------------------------------------
replays/<name>     a lease, held by the process that runs the replay, and
                   ReplayRecord: its arguments, and its target's confirmed progress
sinks/<uid>/<run>  ReplayMark, beside the target topic: the workers' progress

The record is written when the replay begins, and again after its target acknowledged. So the
target has what the record says and perhaps a little more; the target's own state decides (the
sequence numbers of this run's producer, the files it has, or the mark). The transaction that
publishes the workers' messages also writes the mark. After the run a small mark stays until the
topic is deleted, because a process that was paused would take a missing mark for a new run.

Decoders raise BadRecord, naming the key. Unknown fields are ignored.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from metadata.errors import BadRecord
from metadata.records import decode_row
from metadata.topics import Count

REPLAYS = "replays/"
PARTS_MAX = 48_000
"""Positions of lanes (two of each) and parts of the target in one record, which is stored often; a
large one is stored in pages (metadata/paged.py)."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")

Order = Literal["event-time", "timestamp", "time", "arrival"]
Engine = Literal["process", "workers"]
Word = Annotated[int, msgspec.Meta(ge=0)]  # up to 2**64 - 1


class LaneMark(msgspec.Struct, frozen=True, array_like=True):
    """A position in a lane: after the first *skip* messages of an entry."""

    topic: int
    """index among the sources"""
    partition: int
    lane: int
    number: int
    """number of the ledger in its lane; -1 for the start of the lane"""
    entry: int = 0
    skip: int = 0
    ledger_id: int = -1
    version: int = -1
    clock: int = 0
    """state of the replay's order for the lane"""


class SourceTopic(msgspec.Struct, frozen=True):
    """A source topic of a replay."""

    name: str
    uid: Count


class SentChecksum(msgspec.Struct, frozen=True, array_like=True):
    """Checksum of the messages sent to one part of the target, such as a partition."""

    part: int
    count: Count = 0
    total: Word = 0
    chain: Word = 0


class ReplayRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A replay. *order* is how messages of several lanes are merged."""

    name: str
    run: str
    """id of this run; a new run under the same name has another"""
    sources: list[SourceTopic]
    order: Order
    engine: Engine = "process"
    """one process sends everything, or many workers send parts"""
    range_text: str = msgspec.field(name="asked")
    """the range and the filters, as requested"""
    target: str
    """the target, as requested"""
    target_uid: int = -1
    """uid of the target, if it is a topic"""
    target_partitions: int = 0
    one_to_one: bool = False
    """each message keeps its partition number"""
    entries: Count = 0
    """estimate of the range"""
    end: list[LaneMark]
    """the end of each lane, after its last message; it does not move"""
    reached: list[LaneMark]
    """the position after the last message that the target has for certain"""
    sent: list[SentChecksum] = []
    """checksums of the messages sent so far"""
    bytes: Count = 0
    """total size of their values and keys"""
    state: Literal["running", "done"] = "running"
    started_ms: Count = 0
    updated_ms: Count = 0


class ReplayMark(msgspec.Struct, frozen=True, kw_only=True):
    """What workers have published of a replay; the fields are those of ReplayRecord."""

    batch_id: Count
    """rounds"""
    at_ms: Count = 0
    reached: list[LaneMark] = []
    sent: list[SentChecksum] = []
    bytes: Count = 0
    over: bool = False
    """the run is over or was restarted, so nothing more of it is published"""


def replay_key(name: str) -> str:
    """Return the key of a replay, and the name of its lease. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!a} is not 1 to 200 letters, digits, '_', '-' or '.'")
    return REPLAYS + name


def encode_replay(record: ReplayRecord) -> bytes:
    """Return *record* as the JSON to store."""
    return msgspec.json.encode(record)


def decode_replay(key: str, value: bytes) -> ReplayRecord:
    """Return the replay stored at *key*. Raises BadRecord."""
    record = decode_row(key, value, ReplayRecord)
    marks = {(mark.topic, mark.partition, mark.lane) for mark in record.end}
    if {(mark.topic, mark.partition, mark.lane) for mark in record.reached} != marks:
        raise BadRecord(f"{key}: its start and end positions name different lanes")
    return record


def encode_mark(mark: ReplayMark) -> bytes:
    """Return *mark* as the JSON to store."""
    return msgspec.json.encode(mark)


def decode_mark(key: str, value: bytes) -> ReplayMark:
    """Return the mark stored at *key*. Raises BadRecord."""
    return decode_row(key, value, ReplayMark)
