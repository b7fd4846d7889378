from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from topic_rig import HOUR_MS, begun, lay_lane, ledger_ids, row
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.housekeeping import Housekeeper, HousekeepingOptions
from ledger_client.cluster.observer import Removals, TopicFigures
from ledger_client.errors import LedgerError
from ledger_client.ledgers.ledgers import Ledgers
from metadata.errors import LeaseLost
from metadata.leadership import Term
from metadata.topics import Retention, RollPolicy, TopicRecord, lane_ledger_key, topic_key

OPTIONS = HousekeepingOptions(interval_s=10, poll_s=1)
NOW_MS = 100 * HOUR_MS
DAY = Retention(age_s=86400)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(1) as running:
        running.store.wall_ms = lambda: NOW_MS
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected


class Rig:
    """A housekeeper of a store whose clock says NOW_MS, and what it asked to have closed."""

    def __init__(self, client: Client) -> None:
        self.figures = TopicFigures()
        self.closed: list[tuple[str, int, int]] = []
        self.failing: set[int] = set()
        self.keeper = Housekeeper(
            client._context,
            OPTIONS,
            figures=self.figures,
            close_lane=self.close_lane,
        )

    async def close_lane(
        self, _client: Ledgers, topic: TopicRecord, partition: int, lane: int
    ) -> None:
        await trio.lowlevel.checkpoint()
        if lane in self.failing:
            raise LedgerError("no bookie answers")
        self.closed.append((topic.name, partition, lane))


@pytest.fixture
def rig(client: Client) -> Rig:
    return Rig(client)


async def elected(cluster: MemoryCluster, owner: str = "me") -> Term:
    return Term(await cluster.store.grant("coordinator", owner, ttl_s=3600))


@asynccontextmanager
async def leading(cluster: MemoryCluster, rig: Rig) -> AsyncIterator[None]:
    term = await elected(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.keeper.lead, term)
        yield
        nursery.cancel_scope.cancel()


async def made(client: Client, name: str = "s/t", **fields: object) -> TopicRecord:
    return await client._context.catalogue.create(TopicRecord(name=name, uid=0, **fields))  # type: ignore[arg-type]


async def test_what_is_over_its_limits_goes_by_itself(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client, rig: Rig
) -> None:
    """PS-35, TD-07: nobody does anything for it."""
    old = await made(client, "s/old", retention=DAY)
    kept = await made(client, "s/kept", retention=Retention(age_s=-1))
    small = await made(client, "s/small", retention=Retention(age_s=-1, size=1500))
    await lay_lane(cluster.store, old, [row(0), row(98), begun(99)])
    await lay_lane(cluster.store, kept, [row(100), begun(101)])
    await lay_lane(cluster.store, small, [row(110), row(111), begun(112)])
    async with leading(cluster, rig):
        await trio.sleep(1)
        assert ledger_ids(cluster.store) == [198, 199, 200, 201, 211, 212]


async def test_what_topics_hold_and_what_retention_took_is_told(
    cluster: MemoryCluster, client: Client, rig: Rig
) -> None:
    topic = await made(client, retention=DAY)
    await lay_lane(cluster.store, topic, [row(98), begun(99)])
    term = await elected(cluster)
    await rig.keeper.look_after_all(term)
    assert rig.figures.seen["s/t"].ledgers["closed"] == 1
    await lay_lane(cluster.store, topic, [row(0), row(98), begun(99)])
    await rig.keeper.look_after_all(term)
    assert rig.figures.removed["s/t"] == Removals(1, 1000)


async def test_a_lane_that_nobody_writes_is_closed(
    cluster: MemoryCluster, client: Client, rig: Rig
) -> None:
    """PS-07: however young it is, so that what a writer that is gone left can be read, and go."""
    topic = await made(client, roll=RollPolicy(age_s=0), retention=Retention(age_s=-1))
    await lay_lane(cluster.store, topic, [begun(99)], lane=0)
    await lay_lane(cluster.store, topic, [begun(98)], lane=1, written=True)
    await lay_lane(cluster.store, topic, [row(1)], lane=2)
    term = await elected(cluster)
    await rig.keeper.look_after_all(term)
    assert rig.closed == []  # its writer may be about to take its lease again
    await rig.keeper.look_after_all(term)
    assert rig.closed == [("s/t", -1, 0)]


async def test_a_lane_that_cannot_be_closed_does_not_keep_the_others(
    cluster: MemoryCluster, client: Client, rig: Rig
) -> None:
    topic = await made(client)
    for lane in range(3):
        await lay_lane(cluster.store, topic, [begun(lane)], lane=lane)
    rig.failing = {1}
    term = await elected(cluster)
    for _ in range(2):
        await rig.keeper.look_after_all(term)
    assert [lane for _, _, lane in rig.closed] == [0, 2]


async def test_a_deletion_that_was_left_half_is_ended(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client, rig: Rig
) -> None:
    topic = await made(client)
    await lay_lane(cluster.store, topic, [row(0), row(1)])
    await client._context.catalogue.mark_deleting("s/t")
    async with leading(cluster, rig):
        await trio.sleep(5)
        assert len(ledger_ids(cluster.store)) == 2  # whoever began it may be at it
        await trio.sleep(10)
    assert ledger_ids(cluster.store) == []
    assert await client._context.catalogue.find("s/t") is None


async def test_a_damaged_row_or_topic_keeps_no_other_topic(
    cluster: MemoryCluster, client: Client, rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    bad = await made(client, "s/a", retention=DAY)
    good = await made(client, "s/c", retention=DAY)
    await lay_lane(cluster.store, bad, [row(0)])
    await lay_lane(cluster.store, good, [row(1)])
    cluster.store.change(lane_ledger_key(bad.uid, -1, 0, 0), b"{")
    cluster.store.change(topic_key("s/b"), b"{")
    term = await elected(cluster)
    for _ in range(3):
        await rig.keeper.look_after_all(term)
    assert ledger_ids(cluster.store) == [100]
    assert len(caplog.messages) == 2  # each is told once


async def test_a_leader_whose_time_is_over_removes_nothing(
    cluster: MemoryCluster, client: Client, rig: Rig
) -> None:
    topic = await made(client, retention=DAY)
    await lay_lane(cluster.store, topic, [row(0)])
    term = await elected(cluster)
    await cluster.store.release(term.lease)
    with pytest.raises(LeaseLost):
        await rig.keeper.look_after_all(term)
    assert ledger_ids(cluster.store) == [100]


async def test_while_the_store_is_away_it_waits(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client, rig: Rig
) -> None:
    topic = await made(client, retention=DAY)
    await lay_lane(cluster.store, topic, [row(0)])
    term = await elected(cluster)
    cluster.store.available = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.keeper.lead, term)
        await trio.sleep(60)
        cluster.store.available = True
        await trio.sleep(11)
        assert ledger_ids(cluster.store) == []
        nursery.cancel_scope.cancel()
