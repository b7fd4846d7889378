"""Topics as they are created: what is there already, what a producer makes, their schemas."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Literal

import pytest
import trio
from memory_cluster import memory_cluster

from ledger_client import Client
from ledger_client.errors import BadSchema, NoSuchTopic, TopicExists
from ledger_client.topics.topics import Topics, TopicSettings
from metadata.topics import Schema, decode_event


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with memory_cluster(4) as cluster, cluster.client() as connected:
        yield connected


async def values(client: Client, name: str) -> list[bytes | None]:
    async with client.reader(name) as reader:
        return [message.value async for message in reader]


async def events(client: Client) -> list[str]:
    """The kinds of the events of namespace shop."""
    async with client.reader("shop/__events") as reader:
        messages = [message async for message in reader]
    return [decode_event(str(each.key), each.value or b"").kind for each in messages]


async def test_a_topic_that_is_there_may_stay_as_it_is(client: Client) -> None:
    made = await client.topics.create("shop/t", 4, exist_ok=True)
    assert await client.topics.create("shop/t", 2, exist_ok=True) == made
    with pytest.raises(TopicExists):
        await client.topics.create("shop/t")
    assert await events(client) == ["created"]


async def test_topics_created_at_once_are_one(client: Client) -> None:
    found = []

    async def create() -> None:
        found.append(await client.topics.create("shop/t", exist_ok=True))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(create)
    assert len({topic.uid for topic in found}) == 1


async def test_a_producer_may_create_its_topic(client: Client) -> None:
    for value in (b"one", b"two"):
        async with client.producer("shop/t", create={"partitions": 2}, linger_ms=0) as producer:
            await producer.send(value, partition=0)
    assert (await client.topics.info("shop/t")).partitions == 2
    assert await values(client, "shop/t") == [b"one", b"two"]
    async with client.producer("shop/u", create=True) as producer:
        await producer.send(b"one")
    assert await values(client, "shop/u") == [b"one"]
    with pytest.raises(NoSuchTopic):
        async with client.producer("shop/v", create=False):
            pass


def test_settings_of_a_topic_to_be_created_are_those_of_create() -> None:
    given = inspect.signature(Topics.create).parameters
    assert set(TopicSettings.__annotations__) == set(given) - {"self", "name", "exist_ok"}


@pytest.mark.parametrize("kind", ["json", "avro", "protobuf"])
async def test_a_schema_that_cannot_be_read_is_refused(
    client: Client, kind: Literal["json", "avro", "protobuf"]
) -> None:
    broken = Schema(kind=kind, definition="{")
    with pytest.raises(BadSchema, match="topic shop/t: its schema cannot be read"):
        await client.topics.create("shop/t", schema=broken)
    await client.topics.create("shop/t")  # the name is free
    with pytest.raises(BadSchema):
        await client.topics.alter("shop/t", schema=broken)
    assert (await client.topics.info("shop/t")).schema == Schema()
