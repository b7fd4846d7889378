"""A topic on bookies in memory, and what tests of shared groups do with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

import trio
from memory_cluster import MemoryCluster, memory_cluster

from ledger_client import Client, Message
from ledger_client.groups.consumer import GroupConsumer
from metadata.groups.shares import SHARES

ORDERS = "shop/orders"


@asynccontextmanager
async def shop(partitions: int = 1) -> AsyncIterator[tuple[MemoryCluster, Client]]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1")
        await client.topics.create(ORDERS, partitions)
        yield cluster, client


async def send(client: Client, first: int, stop: int, *, keys: int = 0) -> None:
    async with client.producer(ORDERS) as producer:
        for number in range(first, stop):
            key = b"%d" % (number % keys) if keys else None
            await producer.send(b"%d" % number, key=key)


def value(message: Message) -> int:
    return int(message.value or b"")


def rows(cluster: MemoryCluster) -> list[str]:
    return [key for key in cluster.store.values if key.startswith(SHARES)]


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        for _ in count():
            if holds():
                return
            await trio.sleep(0.1)


def crash(consumer: GroupConsumer) -> None:
    """Let a consumer end without a word, as a killed process does."""
    membership = consumer._membership
    membership._heartbeats.remove(membership.pulse)
    membership.is_member = False
    consumer._shared._taking.stop()

    async def close(**_: bool) -> None:
        pass

    consumer._shared.close = close  # type: ignore[method-assign]
