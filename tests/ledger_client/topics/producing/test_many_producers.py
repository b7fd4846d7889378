"""Producers that one client opens at once, at a metadata store that is slower than they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from fake_bookie import FakeBookie
from memory_cluster import memory_cluster
from slow_store import SlowStore
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.background import Background
from ledger_client.ledgers.ledgers import OPENINGS_MAX
from ledger_client.topics.context import TopicContext
from ledger_client.topics.producing.producer import Producer
from ledger_client.wire.stores import BookieStore
from metadata.address import Address
from metadata.calls import Grant, NextId

PARTITIONS = 4


class Rig:
    """A client whose metadata calls go through one bookie to a slow store."""

    def __init__(self, client: Client, bookie: FakeBookie, store: SlowStore) -> None:
        self.client = client
        self.bookie = bookie
        self.store = store
        self.failures: list[Exception] = []
        self._left = 0
        self._over = trio.Event()

    async def open_at_once(self, producers: int, *, each_s: float) -> None:
        """Open lanes until each has a message, at *each_s* for a call of the store."""
        topics = [f"shop/t{number}" for number in range(producers)]
        for topic in topics:
            await self.client.topics.create(topic, partitions=PARTITIONS)
        self.bookie.requests.clear()
        self.store.each_s = each_s
        self._left = producers
        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(self._produce, topic)

    async def _produce(self, topic: str) -> None:
        try:
            async with self.client.producer(topic) as producer:
                async with trio.open_nursery() as sending:
                    for partition in range(PARTITIONS):
                        sending.start_soon(_send, producer, partition)
                self._note_end()
                await self._over.wait()
        except Exception as failure:  # noqa: BLE001 - the test looks at them
            self.failures.append(failure)
            self._note_end()

    def _note_end(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.store.each_s = 0
            self._over.set()


async def _send(producer: Producer, partition: int) -> None:
    await producer.send(b"x", partition=partition)


@asynccontextmanager
async def opened(nursery: trio.Nursery) -> AsyncIterator[Rig]:
    behind = SlowStore()
    bookie = FakeBookie(behind)

    async def dial(_host: str, _port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return await bookie.dial(nursery)

    async with (
        memory_cluster(bookies=3) as cluster,
        BookieStore.open([Address("bookie", 1)], open_stream=dial) as store,
        Background() as background,
    ):
        behind.bookies = cluster.store.bookies
        context = TopicContext(
            store, background, open_stream=cluster.open_stream, chance=cluster.chance
        )
        yield Rig(Client(context), bookie, behind)


@pytest.mark.parametrize(
    ("producers", "each_s"),
    [(50, 0.02), pytest.param(300, 0.01, marks=[pytest.mark.slow, pytest.mark.long])],
)
async def test_the_queue_of_a_client_that_opens_much_is_no_outage(
    nursery: trio.Nursery, autojump_clock: MockClock, producers: int, each_s: float
) -> None:
    async with opened(nursery) as rig:
        await rig.open_at_once(producers, each_s=each_s)
        assert rig.failures == []


async def test_a_client_opens_so_many_lanes_at_a_time(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with opened(nursery) as rig:
        await rig.open_at_once(30, each_s=0.001)
        assert rig.failures == []
        kinds = [type(request) for request in rig.bookie.requests]
        assert kinds.count(Grant) == 30 * PARTITIONS
        assert kinds[: kinds.index(NextId)].count(Grant) <= OPENINGS_MAX < 30 * PARTITIONS
