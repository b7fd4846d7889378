"""Names of lanes, unique within a partition; a lane without a name has the name "".

A producer may ask for a lane by name; the first time, the lane is created. A name has a row of its
own, so that a lane can be renamed while it is written.
"""

from __future__ import annotations

from ledger_client.errors import BadTopic, lane_text
from metadata.errors import VersionConflict
from metadata.store import ABSENT, Check, Delete, MetadataStore, Op, Put, pages
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
    """Raise BadTopic unless *name* can name a lane; "" is fine and means no name."""
    if not name.isprintable() or len(name.encode()) > NAME_SIZE_MAX:
        raise BadTopic(
            f"a lane name has at most {NAME_SIZE_MAX} printable bytes, not {name!a}",
            topic=topic,
        )


async def read_lane_names(store: MetadataStore, topic: TopicRecord) -> dict[tuple[int, int], str]:
    """Return all names of the topic by partition and lane. Raises MetadataError."""
    names: dict[tuple[int, int], str] = {}
    async for page in pages(store, topic_prefix(LANE_NAMES, topic.uid)):
        for key, found in page:
            partition, name = partition_of_name(key)
            names[partition, decode_lane_name(key, found.value).lane] = name
    return names


async def find_lane(
    store: MetadataStore, topic: TopicRecord, partition: int, name: str
) -> int | None:
    """Return the number of the lane with this name, if there is one. Raises MetadataError."""
    key = lane_name_key(topic.uid, partition, name)
    found = await store.get(key)
    return None if found is None else decode_lane_name(key, found.value).lane


async def unnaming(store: MetadataStore, topic: TopicRecord, partition: int, lane: int) -> list[Op]:
    """Return the operations that take a lane's name away. Raises MetadataError."""
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
    """Give an existing lane a name in the place of its old one; "" removes it.

    Raises:
        BadTopic: there is no such lane, or another one has the name.
        MetadataError: from the store.
    """
    check_lane_name(topic.name, name)
    where = lane_key(topic.uid, partition, lane)
    while True:
        found = await store.get(where)
        if found is None:
            reason = f"there is no {lane_text(partition, lane)}: nothing was ever written to it"
            raise BadTopic(reason, topic=topic.name)
        holder = await find_lane(store, topic, partition, name) if name else None
        if holder == lane:
            return
        if holder is not None:
            reason = f"{lane_text(partition, holder)} has the name {name!r}"
            raise BadTopic(reason, topic=topic.name)
        ops = await unnaming(store, topic, partition, lane)
        if name:
            key = lane_name_key(topic.uid, partition, name)
            ops.append(Put(key, encode_row(LaneName(lane)), ABSENT))
        try:
            await store.transact([*ops, Check(where, found.version)] if ops else [])
        except VersionConflict:
            continue
        return
