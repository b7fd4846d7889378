"""Reads by Spark as of a moment, on bookies in memory and without Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from memory_cluster import memory_cluster
from staged_rig import rows, write_job
from trio.testing import MockClock

from ledger_client import Client, MetadataUnavailable, SparkError
from ledger_client.spark.options import parse_options
from ledger_client.spark.source import plan_batch
from ledger_client.topics.reading.range_reader import RangeReader
from ledger_client.topics.reading.ranges import RangePlan
from metadata.time.timestamps import utc_of

ORDERS = "shop/orders"


@asynccontextmanager
async def shop() -> AsyncIterator[Client]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1", has_ticks=True)
        await client.topics.create(ORDERS, 2, timesync=True)
        yield client


async def planned(client: Client, as_of: object, **options: str) -> RangePlan:
    given = parse_options({"topic": ORDERS, "asOf": str(as_of), **options})
    return await plan_batch(given, client._context)


async def values(client: Client, plan: RangePlan) -> list[str]:
    """What the plan's tasks read, by timestamp."""
    found: list[tuple[int, str]] = []
    async for each in RangeReader(client._context).batches(plan.ranges):
        found += [(m.timestamp, (m.value or b"").decode()) for m in each.messages]
    return [value for _, value in sorted(found)]


async def send(client: Client, *texts: str) -> None:
    async with client.producer(ORDERS) as producer:
        for text in texts:
            await producer.send(text.encode(), key=text.encode())


async def test_a_read_as_of_a_moment_has_the_same_rows_whenever_it_is_done(
    autojump_clock: MockClock,
) -> None:
    """MV-04, D-02: what a job showed is there as a whole, or not at all."""
    async with shop() as client:
        moments = [(await client.timestamps.allocate()).first]
        wanted: list[list[str]] = [[]]
        for number in range(4):
            if number == 2:
                parts = {0: rows("j0", "j1"), 1: rows("j2")}
                await write_job(client._context.ledgers, ORDERS, parts)
                sent = ["j0", "j1", "j2"]
            else:
                sent = [f"{number}{letter}" for letter in "abcdef"]
                await send(client, *sent)
            wanted.append(wanted[-1] + sent)
            moments.append((await client.timestamps.allocate()).first)
        for moment, expected in zip(moments, wanted, strict=True):
            plan = await planned(client, moment)
            assert await values(client, plan) == expected
            assert all(0 < each.messages <= len(expected) for each in plan.ranges)
        async with client.reader(ORDERS, order="timestamp") as reader:
            stamps = {m.value: m.timestamp async for m in reader}
        inside = await values(client, await planned(client, stamps[b"1c"]))
        assert inside == wanted[2][:9]
        shown = stamps[b"j0"]
        assert await values(client, await planned(client, shown - 1)) == wanted[2]
        assert await values(client, await planned(client, shown)) == wanted[3]
        last = utc_of(moments[-1]) + timedelta(milliseconds=1)
        await send(client, "later")
        assert await values(client, await planned(client, last.isoformat())) == wanted[4]


async def test_ledgers_that_are_later_than_the_moment_are_not_read(
    autojump_clock: MockClock,
) -> None:
    """They are left out by their rows."""
    async with shop() as client:
        await send(client, "a")
        moment = (await client.timestamps.allocate()).first
        for _ in range(5):
            await send(client, "b")
        plan = await planned(client, moment)
        assert len(plan.ranges) == 1
        assert await values(client, plan) == ["a"]


async def test_a_moment_in_the_future_or_of_no_order_is_refused(autojump_clock: MockClock) -> None:
    async with shop() as client:
        await send(client, "a")
        now = (await client.timestamps.allocate()).first
        with pytest.raises(SparkError, match=r"'asOf': timestamp .* is in the future"):
            await planned(client, now + (60_000 << 18))
        for given in ({"endingTime": "5"}, {"compacted": "true"}):
            with pytest.raises(SparkError, match="'asOf'"):
                await planned(client, now, **given)
        with pytest.raises(SparkError, match="'asOf': 'soon' is no point of time"):
            await planned(client, "soon")
        await client.topics.create("shop/plain")
        with pytest.raises(SparkError, match="'asOf': topic shop/plain is without timesync"):
            await plan_batch(
                parse_options({"topic": "shop/plain", "asOf": str(now)}), client._context
            )


async def test_without_ticks_it_fails_in_time(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1")
        await client.topics.create(ORDERS, timesync=True)
        await send(client, "a")
        now = (await client.timestamps.allocate()).first
        with pytest.raises(MetadataUnavailable):
            await planned(client, now)
