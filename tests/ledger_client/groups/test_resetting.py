"""Where a group can be reset to: places that exist, in each lane."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import BadTopic, Client, Message, MessageId
from metadata.groups.rows import PROGRESS

ORDERS = "shop/orders"
BILLS = "shop/bills"
GROUP = "billing"


@asynccontextmanager
async def shop(partitions: int = 1) -> AsyncIterator[tuple[MemoryCluster, Client]]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1")
        await client.topics.create(ORDERS, partitions)
        yield cluster, client


async def sent(client: Client, count: int, partition: int = 0) -> list[MessageId]:
    """Send messages, each in an entry of its own, into one ledger, which is then closed."""
    async with client.producer(ORDERS) as producer:
        return [await producer.send(b"%d" % i, partition=partition) for i in range(count)]


async def read(client: Client) -> list[Message]:
    """Consume what is there for the group, and commit it."""
    found: list[Message] = []
    async with client.consumer(ORDERS, group=GROUP, start="earliest") as consumer:
        while messages := await consumer.poll(wait_s=5):
            found += messages
    return found


def progress(cluster: MemoryCluster) -> dict[str, object]:
    return {k: v for k, v in cluster.store.values.items() if k.startswith(PROGRESS)}


async def refused(cluster: MemoryCluster, client: Client, to: MessageId, reason: str) -> None:
    """A reset to a place that is none is refused in one line, and changes nothing."""
    before = progress(cluster)
    for dry_run in (True, False):
        with pytest.raises(BadTopic, match=reason) as told:
            await client.groups.reset(GROUP, to, dry_run=dry_run)
        assert "\n" not in str(told.value)
    assert progress(cluster) == before


# --- ledgers of others ---------------------------------------------------------------------


async def test_a_message_of_another_partition_or_topic_is_no_place_in_this_one(
    autojump_clock: MockClock,
) -> None:
    async with shop(2) as (cluster, client):
        await client.topics.create(BILLS, 1)
        async with client.producer(BILLS) as producer:
            bill = await producer.send(b"bill")
        first, second = [(await sent(client, 3, partition))[-1] for partition in (0, 1)]
        assert bill.ledger_id < first.ledger_id < second.ledger_id
        assert len(await read(client)) == 6
        for strange in (first, bill, second._replace(ledger_id=0)):
            to = strange._replace(partition=1)
            await refused(cluster, client, to, f"no ledger {strange.ledger_id} there")
        to = second._replace(partition=0)
        await refused(cluster, client, to, f"no ledger {second.ledger_id} there")


async def test_a_message_that_was_removed_is_the_first_message_of_its_lane(
    autojump_clock: MockClock,
) -> None:
    """A ledger of another partition is not, though it is as old."""
    async with shop(2) as (cluster, client):
        removed = [(await sent(client, 3, partition))[0] for partition in (0, 1)]
        assert len(await read(client)) == 6
        await client.topics.purge(ORDERS, partition=1)
        left = await sent(client, 2, 1)
        assert len(await read(client)) == 2
        await refused(cluster, client, removed[0]._replace(partition=1), "no ledger")
        await client.groups.reset(GROUP, removed[1])
        assert [message.id for message in await read(client)] == left


async def test_ledgers_of_other_partitions_are_not_among_those_that_were_deleted(
    autojump_clock: MockClock,
) -> None:
    """Their ids lie between those of a lane's deleted ledgers."""
    async with shop(2) as (cluster, client):
        ids = [(await sent(client, 3, partition))[0] for partition in (0, 1, 0)]
        assert len(await read(client)) == 9
        await client.topics.truncate(ORDERS, ids[0])
        await refused(cluster, client, ids[1]._replace(partition=0), "no ledger")
        ((*_, place),) = await client.groups.reset(GROUP, ids[2])
        assert place.number == 2


async def test_a_lane_of_which_all_was_removed_is_reset_to_a_message_that_it_had(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (_, client):
        first = (await sent(client, 3))[0]
        assert len(await read(client)) == 3
        await client.topics.purge(ORDERS)
        assert await read(client) == []
        await client.groups.reset(GROUP, first)
        assert await client.groups.committed(GROUP) == ()
