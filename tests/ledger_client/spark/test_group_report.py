"""What a query commits to its group, on bookies in memory and without Spark."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.spark.group_report import COMMIT_S, RETRY_S, GroupReport
from ledger_client.spark.options import NewOffset, offset_of, parse_options
from metadata.groups.calls import GroupReply, GroupRequest
from metadata.groups.coordinator import Coordinator

ORDERS = "shop/orders"
OPTIONS = {"topic": ORDERS, "group": "spark"}


@asynccontextmanager
async def shop(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[MemoryCluster, Client]]:
    monkeypatch.setattr("ledger_client.spark.group_report.time.monotonic", trio.current_time)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1")
        await client.topics.create(ORDERS)
        async with client.producer(ORDERS) as producer:
            await producer.send(b"x")
        yield cluster, client


async def offset(client: Client, *, at_end: bool = True) -> NewOffset:
    async with client.reader(ORDERS, start="earliest") as reader:
        if at_end:
            async for _ in reader:
                pass
        places = reader.position()
    return offset_of(places, {ORDERS: places[0].uid})


async def test_a_new_query_begins_where_the_group_is_unless_its_options_say_where(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the group may go back."""
    async with shop(monkeypatch) as (_, client):
        context, end = client._context, await offset(client)
        report = GroupReport("spark")
        assert await report.start(parse_options(OPTIONS), context) is None
        await report.commit(end, context)
        there = await client.groups.committed("spark")
        assert await GroupReport("spark").start(parse_options(OPTIONS), context) == there
        again, first = GroupReport("spark"), await offset(client, at_end=False)
        named = parse_options({**OPTIONS, "startingIds": "earliest"})
        assert await again.start(named, context) == "earliest"
        await again.commit(first, context)
        assert await client.groups.committed("spark") != there
        await again.commit(end, context)
        await again.commit(first, context)  # a late call of Spark
        assert await client.groups.committed("spark") == there


async def test_an_offset_is_committed_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks for news every ten milliseconds."""
    async with shop(monkeypatch) as (_, client):
        report, end = GroupReport("spark"), await offset(client)
        assert report.is_due(end)
        await report.commit(end, client._context)
        assert not report.is_due(end)
        assert report.is_due(await offset(client, at_end=False))


async def test_while_the_group_has_members_the_query_warns_once_and_goes_on(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with shop(monkeypatch) as (_, client):
        report, context = GroupReport("spark"), client._context
        first, end = await offset(client, at_end=False), await offset(client)
        async with client.consumer(ORDERS, group="spark", auto_commit_s=None):
            await trio.sleep(5)
            before = await client.groups.committed("spark")
            await report.commit(first, context)
            assert not report.is_due(first)
            await trio.sleep(RETRY_S)
            assert report.is_due(first)
            await report.commit(first, context)
            assert await client.groups.committed("spark") == before
        warned = [each for each in caplog.records if "is not committed" in each.getMessage()]
        assert len(warned) == 1
        assert "has members" in warned[0].getMessage()
        await trio.sleep(RETRY_S)
        assert report.is_due(end)
        await report.commit(end, context)
        assert [lane.lag for lane in await client.groups.lag("spark")] == [0]


class Silent(Coordinator):
    """A leader that never answers."""

    async def answer(self, request: GroupRequest) -> GroupReply:
        await trio.sleep_forever()


async def test_without_a_leader_a_commit_does_not_hold_up_the_query(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(monkeypatch) as (cluster, client):
        await trio.sleep(1)
        cluster.bookies["b1"].coordinator = Silent(cluster.store)
        report, end = GroupReport("spark"), await offset(client)
        began = trio.current_time()
        await report.commit(end, client._context)
        assert trio.current_time() - began <= COMMIT_S + 0.1
        assert not report.is_due(end)
