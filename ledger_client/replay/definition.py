"""The topic that a replay goes into: as it is, or made like the one that is replayed."""

from __future__ import annotations

from collections.abc import Sequence

from ledger_client.topics.client import TopicClient
from ledger_client.topics.errors import BadTopic, NoSuchTopic, TopicExists
from metadata.replays import Order
from metadata.topics import TopicRecord

DEFINITION = ("partitions", "order", "compression", "roll", "retention", "schema", "properties")
"""What is the same in a topic that is made like another one, beside its copies."""


async def find_target(
    client: TopicClient,
    name: str,
    sources: Sequence[TopicRecord],
    *,
    with_definition: bool,
    replication: int | None = None,
) -> TopicRecord:
    """Return the topic *name*; *with_definition*: made like the sources if there is none.

    *replication*: copies of what is made; by default as many as the source has.

    Raises:
        NoSuchTopic: there is none.
        BadTopic: it is not like the sources, or these are not alike.
        NotEnoughBookies: there are fewer bookies than copies.
    """
    try:
        found = await client.topic(name)
    except NoSuchTopic as missing:
        if not with_definition:
            missing.add_note(f"or let --with-definition make it like {sources[0].name}")
            raise
        return await _make(client, name, sources, replication)
    if with_definition:
        _check_alike(found, [*sources, found])
    return found


async def _make(
    client: TopicClient, name: str, sources: Sequence[TopicRecord], replication: int | None
) -> TopicRecord:
    model = sources[0]
    _check_alike(model, sources)
    copies = replication or model.replication
    try:
        return await client.create_topic(
            name,
            model.partitions,
            replication=copies,
            ack_quorum=min(model.ack_quorum, copies),
            order=model.order,
            compression=model.compression,
            roll=model.roll,
            retention=model.retention,
            schema=model.schema,
            properties=model.properties,
        )
    except TopicExists:
        return await client.topic(name)


def _check_alike(model: TopicRecord, topics: Sequence[TopicRecord]) -> None:
    for topic in topics:
        differ = [part for part in DEFINITION if getattr(topic, part) != getattr(model, part)]
        if differ:
            told = ", ".join(
                f"{part} {getattr(model, part)!s}, not {getattr(topic, part)!s}" for part in differ
            )
            raise BadTopic(
                f"it is not defined as {topic.name} is: {told}; replay without the definition",
                topic=model.name,
            )


def check_target(
    target: TopicRecord, sources: Sequence[TopicRecord], order: Order, *, is_same_cluster: bool
) -> None:
    """Raise BadTopic for a target that cannot take these sources in this order."""
    if is_same_cluster and any(topic.uid == target.uid for topic in sources):
        raise BadTopic("a topic cannot be replayed into itself", topic=target.name)
    if target.order == "event-time" and order != "event-time":
        raise BadTopic(
            f"it is ordered by event time, and cannot take messages in order of {order}; "
            "replay topics that are ordered by event time, in that order",
            topic=target.name,
        )
