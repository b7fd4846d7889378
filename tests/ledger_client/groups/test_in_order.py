"""What is handed out counts as consumed once the next is asked for, as objects or as Arrow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Literal

import pyarrow as pa
import pytest
import trio
from group_rig import ORDERS, nothing_more, send, shop, take
from trio.testing import MockClock

from ledger_client import Busy, NoSuchTopic, TopicEvent
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.progress import Progress
from ledger_client.topics.arrow import SCHEMA
from ledger_client.topics.positions import Places
from metadata.groups.assignment import Part


def values_of(batches: list[pa.RecordBatch]) -> list[int]:
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def entries(consumer: GroupConsumer) -> list[tuple[int, int, int]]:
    return [each.place.at for each in consumer.committed()]


async def test_messages_come_as_arrow_batches_of_their_topic(autojump_clock: MockClock) -> None:
    """The columns are those of a plain reader."""
    async with shop(2) as (_, client):
        await client.topics.create("shop/refunds")
        await send(client, 0, 30)
        await send(client, 30, 40, "shop/refunds")
        async with (
            client.consumer("shop/*", group="billing", start="earliest") as consumer,
            client.reader(ORDERS) as reader,
        ):
            await trio.sleep(5)
            batches = await consumer.poll_batches()
            assert sorted(values_of(batches)) == list(range(40))
            for batch in batches:
                topic = batch.schema.metadata[b"topic"].decode()
                assert (topic == ORDERS) == (values_of([batch])[0] < 30)
                assert batch.schema.equals(SCHEMA)
            plain = [batch async for batch in reader.read_batches()]
            assert plain[0].schema.equals(batches[0].schema)
            assert await consumer.poll_batches(wait_s=5) == []


async def test_neighbouring_batches_are_joined(autojump_clock: MockClock) -> None:
    async with shop(1) as (_, client):
        await send(client, 0, 30)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            await trio.sleep(5)
            (batch,) = await consumer.poll_batches()
            assert batch.num_rows == 30


@pytest.mark.parametrize("rows", [1, 7, 30, 100])
async def test_no_more_rows_come_than_were_asked_for(autojump_clock: MockClock, rows: int) -> None:
    """The rest comes with the next call, and mixes with messages as objects."""
    async with shop(1) as (_, client):
        async with client.producer(ORDERS) as producer:
            await producer.send_many([b"%d" % number for number in range(50)])
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            await trio.sleep(5)
            assert await take(consumer, 3) == [0, 1, 2]
            got = values_of(await consumer.poll_batches(messages_max=rows))
            assert got == list(range(3, 3 + len(got)))
            assert len(got) == min(rows, 47)
            more = await consumer.poll(messages_max=2, wait_s=3)
            got += [int(message.value or b"") for message in more]
            while batches := await consumer.poll_batches(messages_max=rows, wait_s=3):
                assert sum(batch.num_rows for batch in batches) <= rows
                got += values_of(batches)
            assert got == list(range(3, 50))
            assert await nothing_more(consumer)


async def test_arrow_batches_count_as_consumed_once_the_next_is_asked_for(
    autojump_clock: MockClock,
) -> None:
    """TD-17, TD-20: what the application still works on is not committed by itself."""
    async with shop(1) as (_, client):
        async with client.producer(ORDERS) as producer:
            await producer.send_many([b"%d" % number for number in range(10)])
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=1
        ) as consumer:
            await trio.sleep(5)
            assert values_of(await consumer.poll_batches(messages_max=4)) == [0, 1, 2, 3]
            await trio.sleep(3)
            assert [at[2] for at in entries(consumer)] in ([], [0])
            assert values_of(await consumer.poll_batches(messages_max=3)) == [4, 5, 6]
            await trio.sleep(3)
            assert [at[2] for at in entries(consumer)] == [4]
            await consumer.commit()
            assert [at[2] for at in entries(consumer)] == [7]
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert values_of(await consumer.poll_batches(wait_s=5)) == [7, 8, 9]


async def test_polled_messages_count_as_consumed_once_the_next_one_is_iterated_to(
    autojump_clock: MockClock,
) -> None:
    """TD-17: as once poll() is called again."""
    async with shop(1) as (_, client):
        async with client.producer(ORDERS) as producer:
            await producer.send_many([b"%d" % number for number in range(10)])
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=1
        ) as consumer:
            assert len(await consumer.poll(wait_s=5, messages_max=4)) == 4
            for committed in (4, 5):
                await anext(consumer)
                await trio.sleep(3)
                assert [at[2] for at in entries(consumer)] == [committed]


async def test_what_is_given_up_is_committed_for_the_last_time_by_that(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """TD-17: a commit that begins beside it would come too late, and be refused."""
    commit = Progress.commit
    began: list[int] = []

    async def commit_late(self: Progress, places: Mapping[Part, Places]) -> None:
        began.append(len(places))
        if len(began) == 1:
            nursery.start_soon(first._delivery.commit_consumed)
            await trio.testing.wait_all_tasks_blocked()
        elif len(places) == 2:
            await trio.sleep(3)
        await commit(self, places)

    monkeypatch.setattr(Progress, "commit", commit_late)
    async with shop(2) as (_, client), trio.open_nursery() as nursery:
        await send(client, 0, 20)
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=300
        ) as first:
            await trio.sleep(3)
            assert sorted(await take(first, 20)) == list(range(20))
            nursery.start_soon(first.poll)
            async with client.consumer(ORDERS, group="billing") as second:
                await trio.sleep(20)
                assert len(first.assignment()) == len(second.assignment()) == 1
                assert began[:2] == [1, 1]
        nursery.cancel_scope.cancel()
    assert "not committed" not in caplog.text


async def test_a_poll_ends_with_4096_messages_or_after_a_second(
    autojump_clock: MockClock,
) -> None:
    """TD-52: by default; a failure or a change of topics ends it, too."""
    async with shop(1) as (_, client):
        async with client.producer(ORDERS) as producer:
            await producer.send_many([b"%d" % number for number in range(5000)])
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert len(await consumer.poll(wait_s=math.inf)) == 4096
            assert len(await consumer.poll()) == 5000 - 4096
            before = trio.current_time()
            assert await consumer.poll() == []
            assert trio.current_time() - before == pytest.approx(1.0)
            with pytest.raises(ValueError, match="0 or more"):
                await consumer.poll(wait_s=-1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(client.topics.delete, ORDERS, force=True))
                with trio.fail_after(30), pytest.raises(NoSuchTopic):
                    await consumer.poll(wait_s=math.inf)


async def test_a_message_says_where_it_is(autojump_clock: MockClock) -> None:
    """TD-66: topic, partition, position, key and value; of which kind it is, its class says."""
    async with shop(2) as (_, client):
        async with client.producer(ORDERS) as producer:
            sent = await producer.send(b"one", key=b"k", headers={"h": b"v"})
        async with client.consumer(
            ORDERS, group="billing", start="earliest", with_meta=True
        ) as consumer:
            (created,) = await consumer.poll(wait_s=5, messages_max=1)
            (message,) = await consumer.poll(wait_s=5)
            assert isinstance(created, TopicEvent)
            assert (created.kind, created.topic) == ("created", "shop/__events")
            assert not isinstance(message, TopicEvent)
            assert (message.topic, message.id, message.id.partition) == (
                ORDERS,
                sent,
                sent.partition,
            )
            assert (message.key, message.value, message.headers) == (b"k", b"one", {"h": b"v"})
            assert message.version >= 0


async def test_a_backlog_comes_in_large_reads_and_then_nobody_asks(
    autojump_clock: MockClock,
) -> None:
    """TD-12, TD-27: a consumer without news rests, and what is written comes at once."""
    async with shop(1) as (cluster, client):
        await send(client, 0, 1000)
        bookies = list(cluster.bookies.values())
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            before = sum(len(bookie.requests) for bookie in bookies)
            assert await take(consumer, 1000) == list(range(1000))
            assert sum(len(bookie.requests) for bookie in bookies) - before < 100
            assert await nothing_more(consumer, wait_s=60)
            before = sum(len(bookie.requests) for bookie in bookies)
            assert await nothing_more(consumer, wait_s=60)
            assert sum(len(bookie.requests) for bookie in bookies) - before < 100
            async with client.producer(ORDERS) as producer:
                await producer.send(b"1000")
                at = trio.current_time()
                assert await take(consumer, 1) == [1000]
                assert trio.current_time() - at < 0.1


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_a_second_task_that_asks_a_consumer_is_refused(
    autojump_clock: MockClock, mode: Literal["exclusive", "shared"]
) -> None:
    """Its call does not count what the first task has as consumed."""
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", start="earliest", mode=mode) as consumer,
        trio.open_nursery() as nursery,
    ):
        found: list[int] = []

        async def ask() -> None:
            found.extend(int(m.value or b"") for m in await consumer.poll(wait_s=60))

        await trio.sleep(5)
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Busy, match="this consumer"):
            await consumer.poll()
        with pytest.raises(Busy):
            await anext(aiter(consumer))
        if mode == "exclusive":
            with pytest.raises(Busy):
                await consumer.poll_batches()
        await send(client, 0, 1)
        await trio.sleep(5)
        assert found == [0]
