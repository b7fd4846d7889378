"""Replays: which range goes where, and how far it is.

key or lease       value
-----------------  ---------------------------------------------------------------
replays/<name>     a lease, held by the process that runs the replay, and
                   ReplayRecord: what it is, and what is surely in its target
sinks/<uid>/<run>  ReplayMark, beside the target topic: how far workers are

The record is put when the replay begins, and behind what its target acknowledged: so what
the target has is that and perhaps a little more, and the target decides (its numbers of
the producer of this run, the files that it has, or the mark). A mark is put by the transaction
that shows what workers wrote. When the run is over it stays, small, until the topic goes: a
process that was paused would take a mark that is gone for one that was never put.

Decoders raise BadRecord, naming the key; unknown fields are let pass.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from metadata.errors import BadRecord
from metadata.records import decode_row
from metadata.topics import Count

REPLAYS = "replays/"
PARTS_MAX = 12_000
"""Places of lanes, two of each, and parts of the target that fit a record: it has a bound."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")

Order = Literal["event-time", "time", "arrival"]
Engine = Literal["process", "workers"]
Word = Annotated[int, msgspec.Meta(ge=0)]  # up to 2**64 - 1


class LaneMark(msgspec.Struct, frozen=True, array_like=True):
    """A place in a lane: before the message behind *skip* others of an entry."""

    topic: int
    """which of the sources"""
    partition: int
    lane: int
    number: int
    """of the ledger in its lane; -1: before whatever is there first"""
    entry: int = 0
    skip: int = 0
    ledger_id: int = -1
    version: int = -1
    clock: int = 0
    """what the order of the replay keeps of the lane"""


class SourceTopic(msgspec.Struct, frozen=True):
    """A topic that is replayed."""

    name: str
    uid: Count


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """What went to a part of the target, such as a partition: its checksum."""

    part: int
    count: Count = 0
    total: Word = 0
    chain: Word = 0


class ReplayRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A replay. *order* is how messages of several lanes are merged."""

    name: str
    run: str
    """of this run from its beginning; another one for the same name has another"""
    sources: list[SourceTopic]
    order: Order
    engine: Engine = "process"
    """one process sends it, or many workers do parts of it"""
    asked: str
    """the range and what else decides on what is replayed, as it was asked for"""
    target: str
    """where to, as it was asked for"""
    target_uid: int = -1
    """of a topic"""
    target_partitions: int = 0
    one_to_one: bool = False
    """each message stays in the partition of its number"""
    entries: Count = 0
    """of the range, nearly"""
    end: list[LaneMark]
    """behind the last message of each lane: it does not move"""
    reached: list[LaneMark]
    """behind what is surely in the target"""
    sent: list[Sent] = []
    """that much"""
    bytes: Count = 0
    """of values and keys"""
    state: Literal["running", "done"] = "running"
    started_ms: Count = 0
    updated_ms: Count = 0


class ReplayMark(msgspec.Struct, frozen=True, kw_only=True):
    """What workers have shown of a replay: fields as those of ReplayRecord."""

    batch_id: Count
    """rounds"""
    at_ms: Count = 0
    reached: list[LaneMark] = []
    sent: list[Sent] = []
    bytes: Count = 0
    over: bool = False
    """the run is done, or was begun anew: nothing of it is shown any more"""


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
        raise BadRecord(f"{key}: its two places of each lane are not of the same lanes")
    return record


def encode_mark(mark: ReplayMark) -> bytes:
    """Return *mark* as the JSON to store."""
    return msgspec.json.encode(mark)


def decode_mark(key: str, value: bytes) -> ReplayMark:
    """Return the mark stored at *key*. Raises BadRecord."""
    return decode_row(key, value, ReplayMark)
