"""What a topic can be, and what of it can be altered. Pure: nobody is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

import msgspec

from ledger_client.topics.errors import BadTopic
from metadata.topics import Retention, RollPolicy, Schema, TopicRecord

REPLICATION = 2
Compression = Literal["none", "zstd", "lz4"]
Order = Literal["none", "event-time"]


class TopicChanges(TypedDict, total=False):
    """What TopicClient.alter_topic takes."""

    partitions: int
    replication: int
    ack_quorum: int
    compression: Compression
    roll: RollPolicy
    retention: Retention
    schema: Schema
    properties: Mapping[str, str]


class TopicSettings(TopicChanges, total=False):
    """What TopicClient.create_topic takes."""

    order: Order


class Alteration(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be altered; None: nothing of it.

    Replication, quorum and limits hold for ledgers that are begun afterwards. The order of
    a topic stays: what is written cannot be sorted anew.
    """

    partitions: int | None = None
    replication: int | None = None
    ack_quorum: int | None = None
    compression: Compression | None = None
    roll: RollPolicy | None = None
    retention: Retention | None = None
    schema: Schema | None = None
    properties: dict[str, str] | None = None


def altered(record: TopicRecord, alteration: Alteration) -> TopicRecord:
    """Return *record* with what is to be altered.

    Raises:
        BadTopic: partitions cannot become fewer, nor can a topic without partitions get
            some; or a value cannot be.
    """
    changes = {
        name: value
        for name, value in msgspec.structs.asdict(alteration).items()
        if value is not None
    }
    if alteration.replication is not None and alteration.ack_quorum is None:
        changes["ack_quorum"] = majority(alteration.replication)
    _check_partitions(record, alteration.partitions)
    return checked(record.name, msgspec.structs.asdict(record) | changes)


def checked(name: str, fields: dict[str, object]) -> TopicRecord:
    """Return the topic that has these fields. Raises BadTopic, naming what cannot be."""
    try:
        # As it is stored: what cannot be read back, such as an infinite age, is refused.
        return msgspec.json.decode(msgspec.json.encode(fields), type=TopicRecord)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as wrong:
        raise BadTopic(_told(str(wrong)), topic=name) from wrong


def majority(replication: int) -> int:
    """Return how many of so many bookies acknowledge an entry, where nobody says it."""
    return replication // 2 + 1


def _check_partitions(record: TopicRecord, partitions: int | None) -> None:
    if partitions is None or partitions == record.partitions:
        return
    if record.partitions == 0:
        raise BadTopic("it is not partitioned, and stays so", topic=record.name)
    if partitions < record.partitions:
        told = f"it has {record.partitions} partitions, which cannot become fewer"
        raise BadTopic(told, topic=record.name)


def _told(message: str) -> str:
    """Turn "Expected `int` >= 1 - at `$.roll.size`" into "roll.size: expected int >= 1"."""
    what, at, where = message.replace("`", "").partition(" - at $.")
    return f"{where}: {what[:1].lower()}{what[1:]}" if at else message
