"""Bounded reads of a lane whose writer stopped or died after an acknowledgement."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Literal

import pytest
import trio
from laid_topic import TOPIC, LaidTopic, said
from leases import end_leases, grant
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import Client, Options, TopicReader
from ledger_client.errors import ReplicasUnavailable, WriterFailed
from ledger_client.topics.reading.range_plan import plan_read
from ledger_client.topics.reading.range_reader import RangeReader
from metadata.topics import WRITERS, writer_lease
from native.frame import Code, Flag, Request

Writer = Literal["stopped", "dead"]
SILENT = Options(explicit_lac_s=0.0)
"""A writer that confirms an entry with the next one alone."""
LEASE = writer_lease(7, -1, 0)


@asynccontextmanager
async def topic_of(
    writer: Writer, *, earlier: bool = False
) -> AsyncIterator[tuple[LaidTopic, Client]]:
    """A topic with two acknowledged entries; the second is not confirmed. And a reading client.

    Before their ledger, there may be an *earlier* one, which is closed.
    """
    async with (
        memory_cluster(2) as cluster,
        cluster.client(SILENT) as writing,
        cluster.client() as client,
    ):
        topic = LaidTopic(cluster, writing)
        if writer == "stopped":
            await grant(cluster.store, LEASE, "producer", ttl_s=1000)
        with suppress(WriterFailed):
            lane = topic.lane()
            if earlier:
                await lane.lay(said(["0"]), said(["1"]))
            async with lane.write(state="open") as ledger:
                await ledger.send(said(["a"]))
                await ledger.send(said(["b"]))
                yield topic, client


def is_closed(topic: LaidTopic) -> bool:
    ledger_id = topic.lanes[0].rows[0].ledger_id
    return topic.cluster.record(ledger_id).last_entry >= 0


async def values(reader: TopicReader) -> list[bytes | None]:
    return [message.value async for message in reader]


@pytest.mark.parametrize("writer", ["stopped", "dead"])
@pytest.mark.parametrize("reverse", [False, True])
async def test_a_reader_returns_the_last_acknowledged_message(
    autojump_clock: MockClock, writer: Writer, reverse: bool
) -> None:
    async with topic_of(writer) as (topic, client):
        async with client.reader(TOPIC, reverse=reverse) as reader:
            found = await values(reader)
        assert found == ([b"b", b"a"] if reverse else [b"a", b"b"])
        assert is_closed(topic) == (writer == "dead")


@pytest.mark.parametrize("writer", ["stopped", "dead"])
async def test_record_batches_have_the_last_acknowledged_message(
    autojump_clock: MockClock, writer: Writer
) -> None:
    async with topic_of(writer) as (_, client), client.reader(TOPIC) as reader:
        found = []
        async for batch in reader.read_batches():
            found += batch.column("value").to_pylist()
        assert found == [b"a", b"b"]


@pytest.mark.parametrize("writer", ["stopped", "dead"])
async def test_a_plan_for_spark_or_a_replay_has_the_last_acknowledged_message(
    autojump_clock: MockClock, writer: Writer
) -> None:
    async with topic_of(writer) as (_, client):
        plan = await plan_read(client._context, TOPIC)
        assert [(each.first_entry, each.last_entry) for each in plan.ranges] == [(0, 1)]
        found = []
        async with aclosing(RangeReader(client._context).batches(plan.ranges)) as ranges:
            async for each in ranges:
                found += [message.value for message in each.messages]
        assert found == [b"a", b"b"]


@pytest.mark.parametrize("writer", ["stopped", "dead"])
async def test_latest_lies_after_the_last_acknowledged_message(
    autojump_clock: MockClock, writer: Writer
) -> None:
    async with topic_of(writer) as (_, client), client.reader(TOPIC, start="latest") as reader:
        (place,) = reader.position()
        assert place.place[1] == 2


async def test_a_read_back_from_the_last_acknowledged_message_begins_with_it(
    autojump_clock: MockClock,
) -> None:
    async with topic_of("dead") as (topic, client):
        last = topic.lanes[0].messages[-1].id
        async with client.reader(TOPIC, start=last, reverse=True) as reader:
            assert await values(reader) == [b"b", b"a"]


async def test_a_lease_that_goes_during_the_read_has_the_lane_closed(
    autojump_clock: MockClock,
) -> None:
    async with topic_of("stopped") as (topic, client):
        for bookie in topic.cluster.bookies.values():
            bookie.delay_s = lambda _request: 0.05
        found: list[bytes | None] = []

        async def read() -> None:
            async with client.reader(TOPIC) as reader:
                found.extend(await values(reader))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(0.2)
            assert not found
            await end_leases(topic.cluster.store, LEASE)
        assert found == [b"a", b"b"]
        assert is_closed(topic)


def unreadable_when_fenced(request: Request) -> int:
    return Code.IO_ERROR if request.flags & Flag.FENCE else Code.OK


async def test_what_can_be_read_comes_before_the_error_about_the_end(
    autojump_clock: MockClock,
) -> None:
    async with topic_of("dead") as (topic, client), client.reader(TOPIC) as reader:
        for bookie in topic.cluster.bookies.values():
            bookie.read_fault = unreadable_when_fenced
        assert (await anext(reader)).value == b"a"
        with pytest.raises(ReplicasUnavailable):
            await anext(reader)
        for bookie in topic.cluster.bookies.values():
            bookie.read_fault = lambda _request: Code.OK
        assert (await anext(reader)).value == b"b"


async def test_what_lies_before_a_kept_end_can_be_read_though_the_ledger_s_own_end_is_open(
    autojump_clock: MockClock,
) -> None:
    """A cut is such an end. Nothing after it is asked for, and nobody's ledger is closed."""
    async with topic_of("dead") as (topic, client):
        for bookie in topic.cluster.bookies.values():
            bookie.read_fault = unreadable_when_fenced
        async with client.reader(TOPIC) as reader:
            assert (await anext(reader)).value == b"a"
            kept = reader.position()
        async with client.reader(TOPIC, end=kept) as reader:
            assert await values(reader) == [b"a"]
        plan = await plan_read(client._context, TOPIC, end=kept)
        assert [(each.first_entry, each.last_entry) for each in plan.ranges] == [(0, 0)]
        assert not is_closed(topic)
        with pytest.raises(ReplicasUnavailable):
            await plan_read(client._context, TOPIC)


async def test_a_plan_up_to_an_end_in_an_earlier_ledger_asks_for_nothing_after_it(
    autojump_clock: MockClock,
) -> None:
    async with topic_of("dead", earlier=True) as (topic, client):
        for bookie in topic.cluster.bookies.values():
            bookie.read_fault = unreadable_when_fenced
        for count, entries in ((1, (0, 0)), (2, (0, 1))):
            async with client.reader(TOPIC) as reader:
                for _ in range(count):
                    await anext(reader)
                kept = reader.position()
            plan = await plan_read(client._context, TOPIC, end=kept)
            assert [(each.first_entry, each.last_entry) for each in plan.ranges] == [entries]
        with pytest.raises(ReplicasUnavailable):
            await plan_read(client._context, TOPIC)


async def test_a_producer_whose_lease_alone_was_lost_goes_on_after_a_read(
    autojump_clock: MockClock,
) -> None:
    """The read closes its ledger, and it goes on in the next one."""
    async with (
        memory_cluster(3) as cluster,
        cluster.client(SILENT) as writing,
        cluster.client() as client,
    ):
        await writing.topics.create(TOPIC)
        async with writing.producer(TOPIC) as producer:
            for number in range(6):
                await producer.send(b"%d" % number)
                if number % 2:
                    await end_leases(cluster.store, WRITERS)
                async with client.reader(TOPIC) as reader:
                    assert await values(reader) == [b"%d" % each for each in range(number + 1)]
        async with client.reader(TOPIC) as reader:
            assert len(await values(reader)) == 6
