from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from ensemble import ensemble, new_path, one_zookeeper, shaken_ensemble
from fake_bookie import FakeBookie, Network
from lease_clock import LeaseClock
from memory_store import MemoryStore
from memory_zookeeper import MemoryConnection, MemoryEnsemble

from ledger_client.wire.stores import BookieStore
from metadata.address import Address
from metadata.sqlite import SqliteStore
from metadata.store import MetadataStore
from metadata.zookeeper.floors import RaisedConnection
from metadata.zookeeper.founding import find_cluster
from metadata.zookeeper.store import ZooKeeperStore, open_zookeeper_store, serving

__all__ = ["ensemble", "one_zookeeper", "shaken_ensemble"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


@pytest.fixture
def clock() -> LeaseClock:
    return LeaseClock()


@pytest.fixture
def wall() -> LeaseClock:
    clock = LeaseClock()
    clock.now_ms = 1_700_000_000_000
    return clock


@pytest.fixture
async def sqlite_store(
    path: Path, clock: LeaseClock, wall: LeaseClock
) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, clock_ms=clock, wall_ms=wall, boot="first")
    yield store
    await store.aclose()


IN_ZOOKEEPER = [pytest.mark.xdist_group("zookeeper")]
DRIVERS = [
    *("sqlite", "dict", "memory", "tcp", "memory of zookeeper"),
    pytest.param("zookeeper", marks=IN_ZOOKEEPER),
]


@pytest.fixture(params=DRIVERS)
async def store(
    request: pytest.FixtureRequest,
    sqlite_store: SqliteStore,
    clock: LeaseClock,
    wall: LeaseClock,
    nursery: trio.Nursery,
) -> AsyncIterator[MetadataStore]:
    if request.param == "sqlite":
        yield sqlite_store
        return
    if request.param == "dict":
        yield MemoryStore(clock_ms=clock)
        return
    if request.param == "memory of zookeeper":
        connection = RaisedConnection(MemoryConnection(MemoryEnsemble()))
        layout = await find_cluster(connection, create=True)
        cluster = ZooKeeperStore(connection, layout, clock_ms=clock, wall_ms=wall)
        async with serving(cluster):
            yield cluster
        return
    if request.param == "zookeeper":
        url = request.getfixturevalue("ensemble").url(new_path())
        async with open_zookeeper_store(url, create=True, clock_ms=clock, wall_ms=wall) as cluster:
            yield cluster
        return
    bookie = FakeBookie(sqlite_store)
    if request.param == "memory":
        network = Network(nursery, bookie)
        opening = BookieStore.open(network.addresses, open_stream=network.open_stream)
    else:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, bookie.serve, listeners)
        port = listeners[0].socket.getsockname()[1]
        opening = BookieStore.open([Address("127.0.0.1", port)])
    async with opening as remote:
        yield remote
