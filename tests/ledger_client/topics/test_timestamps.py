"""Timestamps at the client: calls that are shared, leaders that change, answers that are late."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import (
    Client,
    MetadataBroken,
    MetadataUnavailable,
    Options,
    TimeRefused,
    TimestampRange,
)
from metadata.time.calls import AllotTimestamps, TimeReply, TimeRequest, TimestampsAllotted
from metadata.time.timestamps import PER_MS, first_at, utc_of


class SlowOracle:
    """Stands between a bookie's calls and its oracle."""

    def __init__(self, cluster: MemoryCluster, bookie: str) -> None:
        self.counts: list[int] = []
        self.delay_s = 0.0
        self.first: int | None = None
        keeper = cluster.bookies[bookie].timekeeper
        assert keeper is not None
        self._answer = keeper.answer
        keeper.answer = self.answer  # type: ignore[method-assign]

    async def answer(self, request: TimeRequest) -> TimeReply:
        if isinstance(request, AllotTimestamps):
            self.counts.append(request.count)
        reply = await self._answer(request)
        await trio.sleep(self.delay_s)
        if self.first is not None:
            return TimestampsAllotted(self.first, 1, 1.0)
        return reply


@asynccontextmanager
async def led(options: Options | None = None) -> AsyncIterator[tuple[MemoryCluster, Client]]:
    async with memory_cluster(3) as cluster, cluster.client(options) as client:
        cluster.lead("b1")
        await trio.sleep(1)
        yield cluster, client


async def take_into(client: Client, found: list[TimestampRange], count: int) -> None:
    found.append(await client.timestamps.allocate(count))


async def test_ranges_belong_to_their_caller_and_rise(autojump_clock: MockClock) -> None:
    """MV-08, MV-10."""
    async with led() as (_, client):
        found = [await client.timestamps.allocate(count) for count in (1, 7, 1, PER_MS, 1)]
        assert [each.count for each in found] == [1, 7, 1, PER_MS, 1]
        assert all(one.last < other.first for one, other in pairwise(found))


async def test_requests_that_wait_together_share_a_call(autojump_clock: MockClock) -> None:
    """MV-33: in the order in which they came; up to 10 000 of them, and 2**18 timestamps."""
    async with led() as (cluster, client):
        oracle = SlowOracle(cluster, "b1")
        oracle.delay_s = 0.01
        found: list[TimestampRange] = []
        async with trio.open_nursery() as nursery:
            for _ in range(12_001):
                nursery.start_soon(take_into, client, found, 1)
        assert len({each.first for each in found}) == 12_001
        assert sum(oracle.counts) == 12_001
        assert max(oracle.counts) <= 10_000
        assert len(oracle.counts) <= 3
        oracle.counts.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(take_into, client, found, PER_MS // 2 + 1)
        assert oracle.counts == [PER_MS // 2 + 1] * 4


@pytest.mark.parametrize("count", [0, -1, PER_MS + 1])
async def test_a_count_out_of_bounds_is_refused(autojump_clock: MockClock, count: int) -> None:
    async with led() as (_, client):
        with pytest.raises(ValueError, match="it may be 1 to 262144"):
            await client.timestamps.allocate(count)


async def test_a_new_leader_is_followed_and_timestamps_go_on_rising(
    autojump_clock: MockClock,
) -> None:
    """MV-31: nobody hands out timestamps in between."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        last = -1
        for name in ("b1", "b2", "b3", "b1"):
            term = cluster.lead(name)
            for _ in range(3):
                found = await client.timestamps.allocate(1000)
                assert found.first > last
                last = found.last
            term.cancel()


async def test_an_answer_that_comes_later_than_the_lease_lasts_is_dropped(
    autojump_clock: MockClock,
) -> None:
    """MV-31: another bookie may have issued greater ones by then."""
    async with led() as (cluster, client):
        oracle = SlowOracle(cluster, "b1")
        oracle.delay_s = 2.7
        found: list[TimestampRange] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_into, client, found, 1)
            await trio.sleep(2.6)
            oracle.delay_s = 0.0
        assert len(oracle.counts) == 2
        assert client._context.figures.late_timestamps == 1


async def test_without_a_leader_a_request_fails_in_time(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        began_at = trio.current_time()
        with pytest.raises(MetadataUnavailable, match="no bookie leads"):
            await client.timestamps.allocate()
        assert trio.current_time() - began_at == pytest.approx(10, abs=0.1)
        cluster.lead("b1")
        await client.timestamps.allocate()


async def test_a_request_that_was_cancelled_leaves_the_others_alone(
    autojump_clock: MockClock,
) -> None:
    async with led() as (cluster, client):
        oracle = SlowOracle(cluster, "b1")
        oracle.delay_s = 1.0
        found: list[TimestampRange] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_into, client, found, 1)
            await trio.sleep(0.1)
            nursery.start_soon(take_into, client, found, 3)
            with trio.move_on_after(0.1) as scope:
                await client.timestamps.allocate(5)
            assert scope.cancelled_caught
        assert sorted(each.count for each in found) == [1, 3]
        assert oracle.counts == [1, 3], "nothing is taken for a request that is gone"


async def test_requests_fail_when_the_client_is_closed(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, trio.open_nursery() as nursery:
        failures: list[Exception] = []

        async def take(client: Client) -> None:
            try:
                await client.timestamps.allocate()
            except MetadataUnavailable as failure:
                failures.append(failure)

        async with cluster.client() as client:
            nursery.start_soon(take, client)
            await trio.sleep(1)
        await trio.sleep(1)
        assert "the client was closed" in str(failures[0])


async def test_timestamps_that_go_back_are_not_handed_out(autojump_clock: MockClock) -> None:
    """An operator restored old metadata under a clock that is behind."""
    async with led() as (cluster, client):
        oracle = SlowOracle(cluster, "b1")
        last = (await client.timestamps.allocate()).last
        oracle.first = last
        with pytest.raises(MetadataBroken, match="timestamps went back"):
            await client.timestamps.allocate()


async def test_time_is_reset_forward_only(autojump_clock: MockClock) -> None:
    """MV-32."""
    async with led() as (_, client):
        now = utc_of((await client.timestamps.allocate()).last)
        for moment in (now - timedelta(seconds=1), now + timedelta(hours=25)):
            with pytest.raises(TimeRefused):
                await client.timestamps.reset(moment)
        moment = now + timedelta(hours=23)
        assert await client.timestamps.reset(moment) == moment
        assert (await client.timestamps.allocate()).first >= first_at(moment)
