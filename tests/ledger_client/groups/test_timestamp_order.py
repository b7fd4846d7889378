"""Members of groups that get their messages in the order of timestamps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from group_rig import ORDERS
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import BadGroup, Client, Message, NoSuchTopic, Producer
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.options import TopicPartition

PARTITIONS = 4


@asynccontextmanager
async def shop(partitions: int = PARTITIONS) -> AsyncIterator[tuple[MemoryCluster, Client]]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1", has_ticks=True)
        await client.topics.create(ORDERS, partitions, timesync=True)
        yield cluster, client


@asynccontextmanager
async def producers(client: Client, count: int = 2) -> AsyncIterator[list[Producer]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(client.producer(ORDERS)) for _ in range(count)]


async def send(
    producers: Sequence[Producer], first: int, stop: int, *, pause_s: float = 0.01
) -> None:
    for number in range(first, stop):
        producer = producers[number % len(producers)]
        await producer.send(b"%d" % number, key=b"%d" % (number * 7))
        await trio.sleep(pause_s)


async def rest(consumer: GroupConsumer) -> list[Message]:
    messages: list[Message] = []
    while found := await consumer.poll(wait_s=5):
        messages += found
    return messages


def numbers(messages: Sequence[Message]) -> list[int]:
    return [int(message.value or b"") for message in messages]


def rises(messages: Sequence[Message]) -> bool:
    stamps = [message.timestamp for message in messages]
    return stamps == sorted(stamps)


async def test_a_member_gets_all_partitions_in_one_order(autojump_clock: MockClock) -> None:
    """MV-16, MV-40: by iteration, in lists and in batches, as the messages come and later."""
    async with shop() as (_, client), producers(client) as two:
        live: list[Message] = []

        async def follow() -> None:
            async with client.consumer(
                ORDERS, group="live", start="earliest", order="timestamp"
            ) as consumer:
                async for message in consumer:
                    live.append(message)
                    if len(live) == 60:
                        return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await send(two, 0, 60, pause_s=0.03)
        assert numbers(live) == list(range(60))
        async with client.consumer(
            ORDERS, group="later", start="earliest", order="timestamp"
        ) as consumer:
            assert numbers(await rest(consumer)) == list(range(60))
        async with client.consumer(
            ORDERS, group="arrow", start="earliest", order="timestamp"
        ) as consumer:
            rows: list[bytes] = []
            while batches := await consumer.poll_batches(wait_s=5, messages_max=7):
                assert sum(batch.num_rows for batch in batches) <= 7
                for batch in batches:
                    rows += batch.column("value").to_pylist()
        assert [int(row) for row in rows] == list(range(60))


async def test_no_call_returns_messages_of_both_sides_of_a_tick(autojump_clock: MockClock) -> None:
    """MV-23: what calls return is the same on each replay, however late they come."""
    async with shop() as (_, client), producers(client) as two:
        await send(two, 0, 60, pause_s=0.03)
        await trio.sleep(3)
        cuts: list[list[int]] = []
        for group in ("one", "two"):
            async with client.consumer(
                ORDERS, group=group, start="earliest", order="timestamp"
            ) as consumer:
                found: list[int] = []
                while messages := await consumer.poll(wait_s=5):
                    found.append(len(messages))
                cuts.append(found)
        async with client.consumer(
            ORDERS, group="arrow", start="earliest", order="timestamp"
        ) as consumer:
            found = []
            while batches := await consumer.poll_batches(wait_s=5):
                found.append(sum(batch.num_rows for batch in batches))
            cuts.append(found)
        assert cuts[0] == cuts[1] == cuts[2]
        assert len(cuts[0]) > 5


async def test_a_group_goes_on_from_its_commits_in_the_same_order(
    autojump_clock: MockClock,
) -> None:
    """MV-41: nothing comes again and nothing is left out, whoever commits where."""
    async with shop() as (_, client), producers(client) as two:
        await send(two, 0, 50)
        got: list[int] = []
        while len(got) < 50:
            async with client.consumer(
                ORDERS, group="g", start="earliest", order="timestamp", auto_commit_s=None
            ) as consumer:
                with trio.fail_after(30):
                    while not (messages := await consumer.poll(messages_max=7)):
                        pass
                    got += numbers(messages)
                    await consumer.commit()
                    await consumer.poll(messages_max=3)  # not committed: it comes again
        assert got == list(range(50))


async def test_a_rebalance_loses_nothing_and_each_assignment_is_in_order(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (_, client), producers(client) as two:
        stretches: list[list[Message]] = []
        seen: set[int] = set()
        ended = trio.Event()

        async def consume(name: str, stop: trio.Event) -> None:
            mine: list[Message] = []

            def assigned(_parts: Sequence[TopicPartition]) -> None:
                nonlocal mine
                mine = []
                stretches.append(mine)

            async with client.consumer(
                ORDERS,
                group="g",
                member=name,
                start="earliest",
                order="timestamp",
                auto_commit_s=0.5,
                on_assigned=assigned,
            ) as consumer:
                while not stop.is_set():
                    for message in await consumer.poll(wait_s=0.2, messages_max=3):
                        mine.append(message)
                        seen.add(int(message.value or b""))
                    if len(seen) == 300:
                        ended.set()

        leave = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume, "a", ended)
            await send(two, 0, 100)
            nursery.start_soon(consume, "b", leave)
            await send(two, 100, 200)
            await trio.sleep(5)
            leave.set()
            await send(two, 200, 300)
            with trio.fail_after(120):
                await ended.wait()
        assert seen == set(range(300))
        assert len(stretches) >= 3
        assert all(rises(stretch) for stretch in stretches)
        assert sum(map(len, stretches)) >= 300


async def test_seek_and_pause_are_exact_to_the_message(autojump_clock: MockClock) -> None:
    async with shop(2) as (_, client), producers(client) as two:
        await send(two, 0, 30)
        async with client.consumer(
            ORDERS, group="g", start="earliest", order="timestamp"
        ) as consumer:
            got = numbers([await anext(consumer) for _ in range(10)])
            position = consumer.position()
            got += numbers([await anext(consumer) for _ in range(5)])
            consumer.pause([TopicPartition(ORDERS, 0)])
            held = await rest(consumer)  # those before the next one of the paused partition
            assert all(message.id.partition == 1 for message in held)
            consumer.resume()
            got += numbers([*held, *await rest(consumer)])
            assert got == list(range(30))
            await consumer.seek(position)
            assert numbers(await rest(consumer)) == list(range(10, 30))


async def test_what_is_taken_back_comes_again_before_all_that_is_later(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (_, client), producers(client) as two:
        await send(two, 0, 40)
        async with client.consumer(
            ORDERS, group="g", start="earliest", order="timestamp"
        ) as consumer:
            got: list[int] = []
            while len(got) < 40:
                found = numbers(await consumer.poll(wait_s=5, messages_max=4))
                assert found
                consumer.take_back()
                again = numbers(await consumer.poll(wait_s=5, messages_max=2))
                assert again == found[: len(again)]
                got += again
            assert got == list(range(40))


async def test_what_has_no_order_by_timestamp_is_refused(autojump_clock: MockClock) -> None:
    async with shop(1) as (_, client):
        await client.topics.create("shop/plain")
        for topics, settings, reason in (
            (ORDERS, {"mode": "shared"}, "mode exclusive"),
            (ORDERS, {"mode": "key-shared"}, "mode exclusive"),
            (ORDERS, {"with_meta": True}, "with_meta"),
            ("shop/plain", {}, "without timesync"),
            (ORDERS, {"order": "event-time"}, "is none of arrival, timestamp"),
        ):
            with pytest.raises(BadGroup, match=reason):
                async with client.consumer(
                    topics, **{"group": "g", "order": "timestamp"} | settings
                ):
                    pass
        async with client.consumer("shop/*", group="g", order="timestamp") as consumer:
            with pytest.raises(BadGroup, match="shop/plain is without timesync"):
                await consumer.poll(wait_s=5)


async def test_a_topic_that_is_deleted_leaves_the_others_in_order(
    autojump_clock: MockClock,
) -> None:
    async with shop(2) as (_, client):
        await client.topics.create("shop/returns", timesync=True)
        async with client.consumer(
            [ORDERS, "shop/returns"], group="g", start="earliest", order="timestamp"
        ) as consumer:
            async with producers(client) as two:
                await send(two, 0, 10)
            assert numbers(await rest(consumer)) == list(range(10))
            await client.topics.delete("shop/returns", force=True)
            with pytest.raises(NoSuchTopic), trio.fail_after(30):
                while True:
                    await consumer.poll(wait_s=1)
            async with producers(client) as two:
                await send(two, 10, 20)
            assert numbers(await rest(consumer)) == list(range(10, 20))


async def test_partitions_that_are_added_join_the_order(autojump_clock: MockClock) -> None:
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="g", start="earliest", order="timestamp") as consumer,
    ):
        async with producers(client) as two:
            await send(two, 0, 10)
        assert numbers(await rest(consumer)) == list(range(10))
        await client.topics.alter(ORDERS, partitions=4)
        async with producers(client) as two:
            await send(two, 10, 60)
        found = await rest(consumer)
        assert sorted(numbers(found)) == list(range(10, 60))
        assert {message.id.partition for message in found} == {0, 1, 2, 3}
