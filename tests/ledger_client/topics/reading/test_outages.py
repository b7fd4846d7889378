"""Followers while all bookies are away: they wait, and go on."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.lowlevel
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client, Message, Options, ReplicasUnavailable
from metadata.topics import RollPolicy

TOPIC = "shop/orders"
QUICK = Options(read_timeout_s=2.0, append_timeout_s=200.0, replace_timeout_s=200.0)
BOOKIES = ("b1", "b2", "b3")


async def lose_all(cluster: MemoryCluster) -> None:
    for name in BOOKIES:
        cluster.kill(name)
    await trio.lowlevel.checkpoint()


def revive_all(cluster: MemoryCluster) -> None:
    for name in BOOKIES:
        cluster.revive(name)


@pytest.mark.parametrize("order", ["arrival", "event-time"])
async def test_a_follower_waits_for_its_bookies_and_goes_on(
    order: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """However long they are away; each message comes once, in order."""
    caplog.set_level(logging.INFO, logger="ledger_client.topics.reading.outages")
    found: list[Message] = []
    async with memory_cluster(3) as cluster, cluster.client(options=QUICK) as client:
        ordered = order == "event-time"
        await client.topics.create(
            TOPIC,
            partitions=2,
            order="event-time" if ordered else "none",
            roll=RollPolicy(entries=4),
        )

        async def follow(follower: Client) -> None:
            async with follower.reader(
                TOPIC, follow=True, order="event-time" if ordered else "arrival"
            ) as reader:
                async for message in reader:
                    found.append(message)
                    if len(found) == 20:
                        return

        async with trio.open_nursery() as nursery, client.producer(TOPIC) as producer:

            async def send(first: int) -> None:
                for number in range(first, first + 10):
                    await producer.send(b"%d" % number, partition=number % 2, event_time=number)

            nursery.start_soon(follow, client)
            await send(0)
            await trio.sleep(5)
            await lose_all(cluster)
            await trio.sleep(600)  # an entry cannot be read for as long
            assert len(found) <= 10
            revive_all(cluster)
            await send(10)
    for partition in (0, 1):
        mine = [int(m.value or b"") for m in found if m.id.partition == partition]
        assert mine == list(range(partition, 20, 2))
    told = [record.getMessage() for record in caplog.records]
    assert any("cannot be followed, and is tried again" in line for line in told)
    assert any("is followed again, after" in line for line in told)


async def test_a_follower_may_give_up(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client(options=QUICK) as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"one")
            async with client.reader(TOPIC, follow=True, give_up_s=30.0) as reader:
                assert (await anext(reader)).value == b"one"
                await lose_all(cluster)
                began = trio.current_time()
                with pytest.raises(ReplicasUnavailable):
                    await anext(reader)
                assert trio.current_time() - began >= 30.0
                revive_all(cluster)
                await producer.send(b"two")
                assert (await anext(reader)).value == b"two"


async def test_a_reader_with_an_end_fails_as_ever(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client(options=QUICK) as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % n * 1000 for n in range(9)])
        async with client.reader(TOPIC) as reader:
            await lose_all(cluster)
            with pytest.raises(ReplicasUnavailable):
                async for _ in reader:
                    pass


async def test_outages_are_counted(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client(options=QUICK) as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer, client.reader(TOPIC, follow=True) as reader:
            await producer.send(b"one")
            await anext(reader)
            await lose_all(cluster)
            with trio.move_on_after(60):
                await anext(reader)
            revive_all(cluster)
            await producer.send(b"two")
            assert (await anext(reader)).value == b"two"
        assert client._context.figures.reading(TOPIC).outages == 1
