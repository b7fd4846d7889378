"""A cluster in memory with a topic, and what consumers of it get."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from memory_cluster import MemoryCluster, memory_cluster

from ledger_client import Client
from ledger_client.groups.consumer import GroupConsumer

ORDERS = "shop/orders"
PARTITIONS = 4


@asynccontextmanager
async def shop(partitions: int = PARTITIONS) -> AsyncIterator[tuple[MemoryCluster, Client]]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1")
        await client.topics.create(ORDERS, partitions)
        yield cluster, client


async def send(client: Client, first: int, stop: int, topic: str = ORDERS) -> None:
    async with client.producer(topic) as producer:
        for number in range(first, stop):
            await producer.send(b"%d" % number, key=b"%d" % number)


async def take(consumer: GroupConsumer, count: int, *, wait_s: float = 20.0) -> list[int]:
    """Return the values of the next *count* messages."""
    values: list[int] = []
    with trio.fail_after(wait_s):
        async for message in consumer:
            assert message.value is not None
            values.append(int(message.value))
            if len(values) == count:
                break
    return values


async def rest(consumer: GroupConsumer) -> list[int]:
    """Return the values of all messages there are."""
    values: list[int] = []
    while messages := await consumer.poll(wait_s=3):
        values += [int(message.value or b"") for message in messages]
    return values


async def nothing_more(consumer: GroupConsumer, wait_s: float = 5.0) -> bool:
    return not await consumer.poll(wait_s=wait_s)
