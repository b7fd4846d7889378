"""What a cluster that moved into ZooKeeper continues above, in a real one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import pytest
from ensemble import Ensemble

from metadata.zookeeper import paths
from metadata.zookeeper.connection import KazooConnection
from metadata.zookeeper.counters import Counters
from metadata.zookeeper.floors import RaisedConnection, number_at, raise_number
from metadata.zookeeper.founding import find_cluster
from metadata.zookeeper.store_clock import StoreTime
from metadata.zookeeper.url import parse_zookeeper_url
from metadata.zookeeper.znodes import Set, Stat

FAR = 1 << 61

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("zookeeper")]


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    alone = Ensemble(tmp_path_factory.mktemp("keeper"), 1)
    alone.start()
    alone.wait()
    yield alone
    alone.kill()


@asynccontextmanager
async def opened(keeper: Ensemble, path: str) -> AsyncGenerator[RaisedConnection]:
    url = parse_zookeeper_url(keeper.url(path))
    connection = RaisedConnection(KazooConnection(url, session_timeout_s=6))
    try:
        await find_cluster(connection, create=True)
        await connection.find_floor()
        yield connection
    finally:
        await connection.aclose()


async def modified(connection: RaisedConnection) -> list[int]:
    """Return the version of a node, as each way to read it shows it."""
    outcome = await connection.multi([Set(paths.SPONSORS, b"")])
    assert isinstance(outcome, list)
    stats = [each for each in outcome if isinstance(each, Stat)]
    stats += filter(None, await connection.stat([paths.SPONSORS]))
    stats += [each[1] for each in await connection.get([paths.SPONSORS]) if each]
    stats += [each[1] for each in await connection.children([paths.SPONSORS]) if each]
    assert len(stats) == 4
    return [each.modified for each in stats]


async def test_all_versions_are_above_the_floor_for_every_store(keeper: Ensemble) -> None:
    async with opened(keeper, "/versions") as connection:
        (plain,) = set(await modified(connection))
        await connection.raise_above(plain)
        assert connection.above == 0
        await connection.raise_above(FAR)
        (raised,) = set(await modified(connection))
        assert raised > FAR
        async with opened(keeper, "/versions") as other:
            (again,) = set(await modified(other))
            assert again > raised
            assert await other.newest() > again
        await connection.raise_above(FAR)
        assert min(await modified(connection)) > again


async def test_a_floor_stays_above_changes_of_the_former_store(keeper: Ensemble) -> None:
    async with opened(keeper, "/created") as connection:
        await connection.raise_above(FAR)
        (stat,) = await connection.stat([paths.FLOOR])
        assert stat is not None
        assert stat.created > (1 << 60)
        assert await number_at(connection, paths.FLOOR) == connection.above


async def test_counters_continue_above_the_floor(keeper: Ensemble) -> None:
    async with opened(keeper, "/counters") as connection:
        counters = Counters(connection)
        assert await counters.following() == {}
        assert await counters.take("topics/x", 3) == 1
        assert await counters.take("ledgers", 3) == 3  # 0 is no id, and was among the first three
        assert await counters.following() == {"ledgers": 6, "topics/x": 4}
        for _ in range(2):
            for counter in ("ledgers", "topics/x", "new"):
                await counters.raise_to(counter, 1500)
                await counters.raise_to(counter, 2)
        assert await counters.following() == {"ledgers": 1500, "new": 1500, "topics/x": 1500}
        for counter in ("ledgers", "topics/x", "new"):
            assert await counters.take(counter, 1) == 1500


async def test_the_time_continues_above_the_floor(keeper: Ensemble) -> None:
    async with opened(keeper, "/time") as connection:
        clock = StoreTime(connection, clock_ms=lambda: 0, wall_ms=lambda: 1_000_000)
        assert await clock.now_ms() == 1_000_000
        await clock.raise_to(5_000_000)
        await clock.raise_to(3)
        assert await clock.now_ms() >= 5_000_000


async def test_a_number_is_raised_and_never_lowered(keeper: Ensemble) -> None:
    async with opened(keeper, "/number") as connection:
        assert await number_at(connection, paths.CLOCK) is None
        for floor, expected in ((7, 7), (3, 7), (9, 9)):
            await raise_number(connection, paths.CLOCK, floor)
            assert await number_at(connection, paths.CLOCK) == expected
