"""The store's time in ZooKeeper while the wall clock of a host is set."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from memory_zookeeper import MemoryConnection, MemoryEnsemble

from metadata.sessions import ProcessSession
from metadata.store import Put
from metadata.zookeeper.floors import RaisedConnection
from metadata.zookeeper.founding import find_cluster
from metadata.zookeeper.store import ZooKeeperStore, serving

HOUR_S = 3600
WALL_MS = 1_700_000_000_000


def true_ms() -> int:
    return WALL_MS + round(trio.current_time() * 1000)


@asynccontextmanager
async def store_on(
    ensemble: MemoryEnsemble, wall_ms: Callable[[], int]
) -> AsyncGenerator[ZooKeeperStore]:
    """Open a store on a host with this wall clock."""
    raised = RaisedConnection(MemoryConnection(ensemble))
    layout = await find_cluster(raised, create=True)
    store = ZooKeeperStore(raised, layout, wall_ms=wall_ms)
    async with serving(store):
        yield store


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
async def test_a_host_whose_wall_clock_is_set_loses_no_lease_and_makes_nothing_due(
    autojump_clock: trio.testing.MockClock, step_s: int
) -> None:
    off_ms = 0
    ensemble = MemoryEnsemble(true_ms)
    async with (
        store_on(ensemble, lambda: true_ms() + off_ms) as stepped,
        store_on(ensemble, true_ms) as other,
        trio.open_nursery() as nursery,
    ):
        held = await ProcessSession(stepped, nursery).grant("l")
        begin_ms = await stepped.now_ms()
        begun_at = trio.current_time()
        off_ms = step_s * 1000
        last_ms = begin_ms
        for number in range(60):
            await trio.sleep(10)
            store = other if number % 2 else stepped
            passed_ms = (trio.current_time() - begun_at) * 1000
            now_ms = await store.now_ms()
            assert last_ms <= now_ms
            assert 0.89 * passed_ms <= now_ms - begin_ms <= passed_ms + 1
            last_ms = now_ms
        assert held.is_certain
        await stepped.transact([held.check, Put("a", b"")])
        nursery.cancel_scope.cancel()
