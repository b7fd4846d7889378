"""Topics with timesync: one order of all messages, from many producers, on bookies in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client, Message, MetadataUnavailable, Timestamp

ORDERS = "shop/orders"


@asynccontextmanager
async def shop(
    partitions: int = 0, *, is_led: bool = True
) -> AsyncIterator[tuple[MemoryCluster, Client]]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leading = cluster.lead("b1")
        await client.topics.create(ORDERS, partitions, timesync=True)
        if not is_led:
            leading.cancel()
        yield cluster, client


async def messages(client: Client, **settings: object) -> list[Message]:
    async with client.reader(ORDERS, **settings) as reader:  # type: ignore[arg-type]
        return [message async for message in reader]


async def test_what_is_sent_after_an_acknowledgement_anywhere_has_a_greater_timestamp(
    autojump_clock: MockClock,
) -> None:
    """MV-07, MV-11: producers of many clients share the cluster's time."""
    async with shop(4) as (cluster, client):
        order: list[bytes] = []
        baton = trio.Lock()

        async def produce(name: str) -> None:
            async with cluster.client() as own, own.producer(ORDERS) as producer:
                for number in range(30):
                    value = b"%s %d" % (name.encode(), number)
                    async with baton:
                        await producer.send(value)
                        order.append(value)

        async with trio.open_nursery() as nursery:
            for name in "abcd":
                nursery.start_soon(produce, name)
        found = await messages(client)
        assert [each.value for each in sorted(found, key=lambda each: each.timestamp)] == order
        assert len({each.timestamp for each in found}) == len(found) == 120


async def test_timestamps_rise_in_a_lane_and_are_read_as_objects_and_as_arrow(
    autojump_clock: MockClock,
) -> None:
    """MV-15, MV-16: increasing by producer; no relation between producers in a partition."""
    async with shop() as (_, client):
        async with client.producer(ORDERS) as one, client.producer(ORDERS) as other:
            for number in range(20):
                await one.send_many([b"%d" % number] * 50)
                await other.send(b"x")
        found = await messages(client)
        lanes = {each.lane for each in found}
        assert len(lanes) == 2
        for lane in lanes:
            stamps = [each.timestamp for each in found if each.lane == lane]
            assert all(0 < a < b for a, b in pairwise(stamps))
        async with client.reader(ORDERS) as reader:
            columns = [batch.column("timestamp") async for batch in reader.read_batches()]
        stamps = [stamp for column in columns for stamp in column.to_pylist()]
        assert sorted(stamps) == sorted(each.timestamp for each in found)


async def test_reading_begins_and_ends_at_timestamps(autojump_clock: MockClock) -> None:
    async with shop() as (_, client):
        async with client.producer(ORDERS) as producer:
            for number in range(10):
                await producer.send(b"%d" % number)
            middle = await client.timestamps.allocate()
            for number in range(10, 20):
                await producer.send(b"%d" % number)
        later = await messages(client, start=Timestamp(middle.first))
        assert [int(each.value or b"") for each in later] == list(range(10, 20))
        before = await messages(client, end=Timestamp(middle.first))
        assert [int(each.value or b"") for each in before] == list(range(10))


async def test_without_a_leader_nothing_is_sent(autojump_clock: MockClock) -> None:
    async with shop(is_led=False) as (cluster, client):
        async with client.producer(ORDERS) as producer:
            with pytest.raises(MetadataUnavailable, match="timestamps"):
                await producer.send(b"a")
            assert await messages(client) == []
            cluster.lead("b1")
            await trio.sleep(5)
            await producer.send(b"b")
        assert [each.value for each in await messages(client)] == [b"b"]


async def test_a_replay_into_a_topic_gives_its_messages_timestamps_of_their_own(
    autojump_clock: MockClock,
) -> None:
    """MV-13: those of the source stay there."""
    async with shop() as (_, client):
        await client.topics.create("shop/all", timesync=True)
        async with client.producer("shop/all") as producer:
            await producer.send_many([b"%d" % number for number in range(20)])
        between = (await client.timestamps.allocate()).first
        await client.replay("shop/all", to=ORDERS)
        found = await messages(client)
        assert [each.value for each in found] == [b"%d" % number for number in range(20)]
        stamps = [each.timestamp for each in found]
        assert all(between < a < b for a, b in pairwise(stamps))


async def test_the_setting_stays_with_the_topic(autojump_clock: MockClock) -> None:
    async with shop() as (_, client):
        assert (await client.topics.info(ORDERS)).timesync
        assert (await client.topics.alter(ORDERS, properties={"a": "b"})).timesync
