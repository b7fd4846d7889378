"""Reports of a client's open lanes: one message for all of them, every 200 ms."""

from __future__ import annotations

import pytest
import trio
from memory_cluster import memory_cluster
from trio.testing import MockClock

from metadata.time.calls import AllotTimestamps, ReportLanes
from metadata.time.timekeeper import Timekeeper


async def test_a_client_reports_all_its_open_lanes_in_one_message(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MV-18, MV-22: every 200 ms, and nothing once it has none."""
    reports: list[ReportLanes] = []
    answer = Timekeeper.answer

    async def note(keeper: Timekeeper, request: ReportLanes | AllotTimestamps) -> object:
        if isinstance(request, ReportLanes):
            reports.append(request)
        return await answer(keeper, request)

    monkeypatch.setattr(Timekeeper, "answer", note)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1", has_ticks=True)
        await client.topics.create("shop/orders", 3, timesync=True)
        await client.topics.create("shop/plain", 3)
        async with (
            client.producer("shop/orders") as producer,
            client.producer("shop/plain") as plain,
        ):
            for partition in range(3):
                await producer.send(b"one", partition=partition)
                await plain.send(b"one", partition=partition)
            await trio.sleep(1)
            reports.clear()
            await trio.sleep(10)
            assert 45 <= len(reports) <= 50
            for message in reports:
                lanes = [(each.partition, each.lane, each.version) for each in message.reports]
                assert sorted(lanes) == [(0, 0, 2), (1, 0, 2), (2, 0, 2)]
        await trio.sleep(1)
        reports.clear()
        await trio.sleep(5)
        assert reports == []
