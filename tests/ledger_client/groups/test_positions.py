"""Positions of consumers: they name each partition, also those of which nothing was consumed yet.

Who goes back to a position gets all that came after it, and what is named without a need refuses
nothing.
"""

from __future__ import annotations

import pytest
import trio
from group_rig import ORDERS, rest, send, shop, take
from trio.testing import MockClock

from ledger_client import Client, CommitRefused
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.exports import GroupExport
from ledger_client.groups.groups import commit_read
from ledger_client.topics.positions import EARLIEST, Position


async def send_into(client: Client, partition: int, first: int, stop: int) -> None:
    async with client.producer(ORDERS) as producer:
        for number in range(first, stop):
            await producer.send(b"%d" % number, partition=partition)


async def send_into_two_lanes(client: Client, first: int, stop: int) -> None:
    """Two producers at a time have a lane each."""
    async with client.producer(ORDERS) as one, client.producer(ORDERS) as other:
        for number in range(first, stop, 2):
            await one.send(b"%d" % number, partition=0)
            await other.send(b"%d" % (number + 1), partition=0)


def idle(position: Position) -> set[int]:
    """Return the partitions that begin at their first message."""
    return {each.partition for each in position if each.place == EARLIEST}


async def polled(consumer: GroupConsumer) -> Position:
    """Return the position once the consumer has its partitions."""
    await consumer.poll(wait_s=3)
    return consumer.position()


async def test_seek_goes_back_in_partitions_that_had_handed_out_nothing(
    autojump_clock: MockClock,
) -> None:
    """TD-62: also in lanes that came later."""
    async with (
        shop(2) as (_, client),
        client.consumer(ORDERS, group="billing", start="earliest") as consumer,
    ):
        await send_into(client, 1, 0, 3)
        assert await take(consumer, 3) == [0, 1, 2]
        position = consumer.position()
        assert idle(position) == {0}
        await send_into_two_lanes(client, 3, 9)
        assert sorted(await rest(consumer)) == list(range(3, 9))
        await consumer.seek(position)
        assert sorted(await rest(consumer)) == list(range(3, 9))


@pytest.mark.parametrize("waits", [True, False])
async def test_a_commit_of_a_position_goes_back_in_every_lane_of_its_partitions(
    autojump_clock: MockClock, waits: bool
) -> None:
    """TD-61: in those of which nothing had been handed out, and in lanes that came later."""
    async with shop(2) as (_, client):
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=None
        ) as consumer:
            await send_into(client, 1, 0, 3)
            assert await take(consumer, 3) == [0, 1, 2]
            position = consumer.position()
            await send_into_two_lanes(client, 3, 9)
            assert sorted(await rest(consumer)) == list(range(3, 9))
            await consumer.commit()
            if waits:
                await consumer.commit(position)
            else:
                consumer.commit_nowait(position)
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert sorted(await rest(consumer)) == list(range(3, 9))


async def test_what_is_committed_after_a_position_counts_in_lanes_that_it_does_not_name(
    autojump_clock: MockClock,
) -> None:
    """Neither was stored yet when the other was committed."""
    async with shop(1) as (_, client):
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=None
        ) as consumer:
            position = await polled(consumer)
            await send_into_two_lanes(client, 0, 6)
            messages = await consumer.poll(wait_s=5)
            messages += await consumer.poll(wait_s=5)
            last = {each.lane: each for each in messages}
            assert sorted(last) == [0, 1]
            consumer.commit_nowait(last[0])
            consumer.commit_nowait(position)
            consumer.commit_nowait(last[1])
            first = {each.value for each in messages if each.lane == 0}
        async with client.consumer(ORDERS, group="billing") as consumer:
            again = {b"%d" % value for value in await rest(consumer)}
            assert again >= first
            assert last[1].value not in again


async def test_a_position_goes_back_in_lanes_whose_commits_wait(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (_, client):
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=None
        ) as consumer:
            position = await polled(consumer)
            await send_into_two_lanes(client, 0, 6)
            assert sorted(await rest(consumer)) == list(range(6))
            consumer.commit_nowait()
            consumer.commit_nowait(position)
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert sorted(await rest(consumer)) == list(range(6))


async def test_what_is_committed_of_nothing_is_where_a_seek_begins(
    autojump_clock: MockClock,
) -> None:
    async with (
        shop(2) as (_, client),
        client.consumer(ORDERS, group="billing", start="earliest", auto_commit_s=None) as consumer,
    ):
        await send(client, 0, 20)
        assert sorted(await rest(consumer)) == list(range(20))
        assert idle(consumer.committed()) == {0, 1}
        await consumer.seek(consumer.committed())
        assert sorted(await rest(consumer)) == list(range(20))


async def test_an_idle_partition_that_moved_refuses_neither_a_seek_nor_a_commit(
    autojump_clock: MockClock,
) -> None:
    async with (
        shop(2) as (_, client),
        client.consumer(ORDERS, group="billing", start="earliest") as first,
    ):
        before = await polled(first)
        assert idle(before) == {0, 1}
        async with client.consumer(ORDERS, group="billing", start="earliest") as second:
            await second.poll(wait_s=15)
            (kept,), (lost,) = first.assignment(), second.assignment()
            await first.commit(before)
            await send_into(client, kept.partition, 0, 3)
            assert await take(first, 3) == [0, 1, 2]
            await first.seek(before)
            assert await take(first, 3) == [0, 1, 2]
            await send_into(client, lost.partition, 3, 6)
            assert await take(second, 3) == [3, 4, 5]
            await second.commit()
            with pytest.raises(CommitRefused, match=f"partition {lost.partition} of shop"):
                await first.commit(before)
            assert idle(second.committed()) == set()


async def test_a_position_in_partitions_without_lanes_can_be_stored_by_other_programs(
    autojump_clock: MockClock,
) -> None:
    """By Groups.commit(), reset() and restore(): lane 0 need not be there."""
    async with shop(2) as (_, client):
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            begin = await polled(consumer)
        await client.groups.commit("reports", begin)
        await send(client, 0, 20)
        async with client.consumer(ORDERS, group="reports", start="latest") as consumer:
            assert sorted(await rest(consumer)) == list(range(20))
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert sorted(await rest(consumer)) == list(range(20))
        await client.groups.commit("reports", begin, goes_back=True)
        assert idle(await client.groups.committed("reports")) == {0, 1}
        await client.groups.reset("billing", begin)
        assert idle(await client.groups.committed("billing")) == {0, 1}


async def test_a_group_goes_back_to_a_position_in_a_topic_without_messages(
    autojump_clock: MockClock,
) -> None:
    async with shop(2) as (_, client):
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            begin = await polled(consumer)
        assert await client.groups.reset("billing", begin) == begin
        assert await client.groups.committed("billing") == begin
        kept = GroupExport.parse((await client.groups.export("billing")).to_json())
        await client.groups.restore(kept)
        async with client.consumer(ORDERS, group="billing", start="latest") as consumer:
            await trio.sleep(5)
            await send(client, 0, 20)
            assert sorted(await rest(consumer)) == list(range(20))


async def test_a_program_goes_back_in_lanes_that_its_position_does_not_name(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (_, client):
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            begin = await polled(consumer)
        await send_into_two_lanes(client, 0, 6)
        async with client.reader(ORDERS, start="earliest") as reader:
            async for _ in reader:
                pass
            await client.groups.commit("reports", reader.position())
        await client.groups.commit("reports", begin)
        assert idle(await client.groups.committed("reports")) == set()
        await client.groups.commit("reports", begin, goes_back=True)
        async with client.consumer(ORDERS, group="reports") as consumer:
            assert sorted(await rest(consumer)) == list(range(6))


async def test_a_reader_of_some_lanes_goes_back_in_these_alone(
    autojump_clock: MockClock,
) -> None:
    """A query of Spark that reads one lane says nothing of the others."""
    async with shop(1) as (_, client):
        await send_into_two_lanes(client, 0, 6)
        async with client.reader(ORDERS, start="earliest") as reader:
            async for _message in reader:
                pass
            first, second = reader.position()
        await client.groups.commit("spark", [first, second])
        begin = first._replace(place=EARLIEST)
        await commit_read(client.groups, "spark", [begin])
        assert await client.groups.committed("spark") == (first, second)
        await commit_read(client.groups, "spark", [begin], goes_back=True)
        assert await client.groups.committed("spark") == (begin, second)
