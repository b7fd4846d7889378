"""Where a group can be reset to: places that exist, in each lane."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import BadTopic, Client, Message, MessageId
from ledger_client.groups.exports import GroupExport
from ledger_client.topics.positions import EARLIEST, LanePlace, Position
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


# --- behind an end -------------------------------------------------------------------------


async def test_a_group_is_not_reset_behind_the_end_of_an_open_ledger(
    autojump_clock: MockClock,
) -> None:
    """What is acknowledged there later would never be delivered."""
    async with shop() as (cluster, client), client.producer(ORDERS) as producer:
        ids = [await producer.send(b"%d" % i, partition=0) for i in range(5)]
        assert len(await read(client)) == 5
        last = ids[-1]
        end = last.entry_id + 1
        for far in (5000, end + 1):
            to = last._replace(entry_id=far)
            await refused(cluster, client, to, f"is behind the end of ledger {last.ledger_id}")
        await refused(cluster, client, last._replace(entry_id=end, batch_index=1), "behind the end")
        await refused(cluster, client, last._replace(batch_index=9999), "behind the end of entry")
        ((_, _, _, _, place),) = await client.groups.reset(GROUP, last._replace(entry_id=end))
        assert (place.ledger_id, place.entry, place.skip) == (last.ledger_id, end, 0)
        later = [await producer.send(b"later", partition=0) for _ in range(5)]
        assert [message.id for message in await read(client)] == later


@pytest.mark.parametrize("index", [0, 1], ids=["a former ledger", "the last ledger"])
async def test_a_group_is_not_reset_behind_the_end_of_a_closed_ledger(
    autojump_clock: MockClock, index: int
) -> None:
    async with shop() as (cluster, client):
        last = [(await sent(client, 3))[-1] for _ in range(2)][index]
        assert len(await read(client)) == 6
        await refused(cluster, client, last._replace(entry_id=9999), "is behind the end of ledger")
        await refused(cluster, client, last._replace(batch_index=7), "is behind the end of entry")
        await refused(cluster, client, last._replace(batch_index=-5), "is no place")
        await client.groups.reset(GROUP, last)
        assert (await read(client))[0].id == last


async def test_a_group_is_reset_into_the_middle_of_a_batch_and_not_past_it(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        async with client.producer(ORDERS, linger_ms=50) as producer:
            ids = list(await producer.send_many([b"%d" % i for i in range(10)], partition=0))
        assert len({(each.ledger_id, each.entry_id) for each in ids}) == 1
        assert len(await read(client)) == 10
        await client.groups.reset(GROUP, ids[7])
        assert [message.id for message in await read(client)] == ids[7:]
        await refused(cluster, client, ids[0]._replace(batch_index=11), "behind the end of entry")
        await client.groups.reset(GROUP, ids[0]._replace(batch_index=10))
        assert await read(client) == []


async def test_a_group_is_not_reset_to_a_position_behind_the_end(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        await sent(client, 3)
        assert len(await read(client)) == 3
        (lane,) = await client.groups.committed(GROUP)
        place, before = lane.place, progress(cluster)
        for wrong in (
            place._replace(entry=place.entry + 1),
            place._replace(number=place.number + 1, ledger_id=-1, entry=1),
            place._replace(number=place.number + 9),
            place._replace(ledger_id=4711, entry=0),
            place._replace(entry=-1),
            place._replace(number=place.number + 1, ledger_id=-1, entry=-1),
        ):
            with pytest.raises(BadTopic):
                await client.groups.reset(GROUP, Position([lane._replace(place=wrong)]))
        assert progress(cluster) == before
        assert await client.groups.reset(GROUP, Position([lane])) == (lane,)


async def test_a_group_is_not_reset_behind_a_ledger_that_is_still_written(
    autojump_clock: MockClock,
) -> None:
    """What comes in it would never be delivered. Behind one that is closed is the next message."""
    async with shop() as (_, client):
        async with client.producer(ORDERS) as producer:
            await producer.send(b"0", partition=0)
            assert len(await read(client)) == 1
            (lane,) = await client.groups.committed(GROUP)
            place = lane.place._replace(number=lane.place.number + 1, entry=0, ledger_id=-1)
            following = Position([lane._replace(place=place)])
            with pytest.raises(BadTopic, match="is behind the end of"):
                await client.groups.reset(GROUP, following)
        await client.groups.reset(GROUP, following)
        later = await sent(client, 2)
        assert [message.id for message in await read(client)] == later


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
        ((*_, place),) = await client.groups.reset(GROUP, removed[1])
        assert place == EARLIEST
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
        ((*_, place),) = await client.groups.reset(GROUP, first)
        assert place == EARLIEST


# --- what is shown -------------------------------------------------------------------------


async def test_a_reset_returns_the_new_place_of_every_lane(autojump_clock: MockClock) -> None:
    """Also of topics in which the group has no progress; lanes at their beginning, too."""
    async with shop(2) as (cluster, client):
        for partition in (0, 1):
            await sent(client, 3, partition)
        assert len(await read(client)) == 6
        await client.topics.create(BILLS, 1)
        async with client.producer(BILLS) as producer:
            await producer.send(b"bill")
        for dry_run in (True, False):
            moved = await client.groups.reset(GROUP, "earliest", dry_run=dry_run)
            assert moved == tuple(
                LanePlace(ORDERS, moved[0].uid, partition, 0, EARLIEST) for partition in (0, 1)
            )
            is_there = await client.groups.committed(GROUP) == moved
            assert is_there == (not dry_run)
        (bills,) = await client.groups.reset(GROUP, "earliest", BILLS)
        assert bills == LanePlace(BILLS, bills.uid, 0, 0, EARLIEST)
        kept = GroupExport.parse((await client.groups.export(GROUP)).to_json())
        shown = await client.groups.restore(kept)
        assert [(each.topic, each.partition, each.place) for each in shown] == [
            (ORDERS, 0, EARLIEST),
            (ORDERS, 1, EARLIEST),
            (BILLS, 0, EARLIEST),
        ]
        assert len(progress(cluster)) == 3
        latest = await client.groups.reset(GROUP, "latest", ORDERS)
        assert [each.place.entry > 0 for each in latest] == [True, True]


async def test_a_position_changes_the_partitions_that_it_names_alone(
    autojump_clock: MockClock,
) -> None:
    async with shop(2) as (cluster, client):
        await client.topics.create(BILLS)
        await sent(client, 3, 0)
        await sent(client, 3, 1)
        async with client.producer(BILLS) as producer:
            await producer.send(b"x")
        async with client.consumer([ORDERS, BILLS], group=GROUP, start="earliest") as consumer:
            while await consumer.poll(wait_s=5):
                pass
        before = progress(cluster)
        (one, *_) = [each for each in await client.groups.committed(GROUP) if each.partition == 1]
        moved = one._replace(place=one.place._replace(entry=1))
        assert await client.groups.reset(GROUP, Position([moved])) == (moved,)
        after = progress(cluster)
        assert len(before) == len(after) == 3
        assert sum(before[key] != after[key] for key in before) == 1
        with pytest.raises(BadTopic, match="names nothing"):
            await client.groups.reset(GROUP, Position([moved]), [BILLS])
        assert progress(cluster) == after
