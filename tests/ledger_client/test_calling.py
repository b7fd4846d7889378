from __future__ import annotations

import pytest
import trio
from memory_cluster import memory_cluster
from repair_rig import lay_out
from trio.testing import MockClock

from ledger_client.errors import BookieUnavailable
from metadata.calls import LedgerRuns, RunPage


async def test_a_bookie_is_asked_by_its_name(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        lay_out(cluster, [(0, "b1")], {"b1": [(0, 3), (6, 9)]})
        assert await client.call("b1", LedgerRuns(1)) == RunPage([(0, 3), (6, 9)])
        assert await client.call("b1", LedgerRuns(2)) == RunPage([])


async def test_a_bookie_that_is_not_there_is_unavailable(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        with pytest.raises(BookieUnavailable):
            await client.call("b2", LedgerRuns(1))
        cluster.kill("b1")
        with pytest.raises(BookieUnavailable):
            await client.call("b1", LedgerRuns(1))


async def test_a_bookie_that_says_nothing_is_unavailable_after_a_while(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.call("b1", LedgerRuns(1))
        cluster.bookies["b1"].answering = False
        began = trio.current_time()
        with pytest.raises(BookieUnavailable, match="within 3 s"):
            await client.call("b1", LedgerRuns(1), timeout_s=3.0)
        assert trio.current_time() == pytest.approx(began + 3)
