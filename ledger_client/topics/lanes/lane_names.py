"""Names of lanes: each is one lane's, in each partition; a lane without one has the name "".

A producer may write the lane of a name, which is made when it is first asked for. The name
stands in a row of its own, so that a lane can be renamed while somebody writes it.
"""

from __future__ import annotations

from ledger_client.topics.errors import BadTopic
from ledger_client.topics.keeping.holdings import items_under
from metadata.errors import VersionConflict
from metadata.store import ABSENT, Check, Delete, MetadataStore, Op, Put
from metadata.topics import (
    LANE_NAMES,
    LaneName,
    TopicRecord,
    decode_lane_name,
    encode_row,
    lane_key,
    lane_name_key,
    partition_of_name,
    topic_prefix,
)

NAME_SIZE_MAX = 255
"""Bytes of a name."""


def check_lane_name(topic: str, name: str) -> None:
    """Raise BadTopic for what no lane can be called; "" is no name."""
    if not name.isprintable() or len(name.encode()) > NAME_SIZE_MAX:
        raise BadTopic(
            f"a lane's name has at most {NAME_SIZE_MAX} bytes that can be printed, not {name!a}",
            topic=topic,
        )


async def read_lane_names(store: MetadataStore, topic: TopicRecord) -> dict[tuple[int, int], str]:
    """Return the names there are, by partition and lane. Raises MetadataError."""
    names: dict[tuple[int, int], str] = {}
    for key, found in await items_under(store, topic_prefix(LANE_NAMES, topic.uid)):
        partition, name = partition_of_name(key)
        names[partition, decode_lane_name(key, found.value).lane] = name
    return names


async def find_lane(
    store: MetadataStore, topic: TopicRecord, partition: int, name: str
) -> int | None:
    """Return the lane of a name; None: there is none. Raises MetadataError."""
    key = lane_name_key(topic.uid, partition, name)
    found = await store.get(key)
    return None if found is None else decode_lane_name(key, found.value).lane


async def unnaming(store: MetadataStore, topic: TopicRecord, partition: int, lane: int) -> list[Op]:
    """Return what takes a lane's name away. Raises MetadataError."""
    names = await read_lane_names(store, topic)
    name = names.get((partition, lane))
    if name is None:
        return []
    key = lane_name_key(topic.uid, partition, name)
    found = await store.get(key)
    return [] if found is None else [Delete(key, found.version)]


async def rename_lane(
    store: MetadataStore, topic: TopicRecord, partition: int, lane: int, name: str
) -> None:
    """Give a lane that exists a name, in the place of the one it has; "": none.

    Raises:
        BadTopic: there is no such lane, or another one has the name.
        MetadataError: as every call to the store.
    """
    check_lane_name(topic.name, name)
    where = lane_key(topic.uid, partition, lane)
    while True:
        found = await store.get(where)
        if found is None:
            told = f"partition {partition} has no lane {lane}, or nothing was ever written to it"
            raise BadTopic(told, topic=topic.name)
        holder = await find_lane(store, topic, partition, name) if name else None
        if holder == lane:
            return
        if holder is not None:
            told = f"lane {holder} of partition {partition} has the name {name!r}"
            raise BadTopic(told, topic=topic.name)
        ops = await unnaming(store, topic, partition, lane)
        if name:
            key = lane_name_key(topic.uid, partition, name)
            ops.append(Put(key, encode_row(LaneName(lane)), ABSENT))
        try:
            await store.transact([*ops, Check(where, found.version)] if ops else [])
        except VersionConflict:
            continue
        return
