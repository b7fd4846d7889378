from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from topic_rig import HOUR_MS, begun, lay_lane, ledger_ids, row, stored

from ledger_client import Client
from ledger_client.errors import MetadataUnavailable, NoSuchTopic
from ledger_client.topics.retention.removal import planned_purge, remove_ledgers
from ledger_client.topics.times import EventTime, PublishTime, Timestamp
from metadata.errors import LeaseLost
from metadata.records import ledger_key
from metadata.store import CheckLease, Versioned
from metadata.topics import LANE_LEDGERS, TopicRecord


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(1) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected


@pytest.fixture
async def topic(cluster: MemoryCluster, client: Client) -> TopicRecord:
    """Two lanes: ledgers 100 to 103 and 110 to 111, each with one that is written."""
    made = await client._context.catalogue.create(TopicRecord(name="shop/orders", uid=0))
    await lay_lane(cluster.store, made, [row(0), row(1), row(2), begun(3)], written=True)
    await lay_lane(cluster.store, made, [row(10), begun(11)], lane=1, written=True)
    return made


async def test_a_purge_takes_rows_and_ledgers_that_are_wholly_before(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    """TB-75, TB-76, BK-22: while writers run, and nothing of theirs is touched."""
    purged = await client.topics.purge("shop/orders", before=EventTime(2500))
    assert [fate.ledger.ledger_id for fate in purged.removed] == [100, 101]
    assert (purged.messages, purged.size) == (20, 2000)
    assert [(fate.lane, fate.ledger.ledger_id) for fate in purged.kept] == [(0, 102), (1, 110)]
    assert ledger_ids(cluster.store) == [102, 103, 110, 111]
    assert len(stored(cluster.store, LANE_LEDGERS)) == 4
    found = await client.topics.explain("shop/orders")
    assert found.extent.first_event_time == 2000  # the purge's time lies in this ledger


async def test_without_a_time_everything_that_is_closed_goes(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    """TB-75: clear."""
    counted: list[int] = []
    await client.topics.purge("shop/orders", on_removed=counted.append)
    assert ledger_ids(cluster.store) == [103, 111]
    assert sum(counted) == 4


async def test_a_purge_keeps_to_its_partition_and_lane(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    """TB-55: older data go in that space only."""
    await client.topics.purge("shop/orders", partition=0)
    assert len(ledger_ids(cluster.store)) == 6
    await client.topics.purge("shop/orders", lane=1)
    assert ledger_ids(cluster.store) == [100, 101, 102, 103, 111]
    await client.topics.purge("shop/orders", partition=-1, before=Timestamp(100))
    assert ledger_ids(cluster.store) == [101, 102, 103, 111]


async def test_a_dry_run_only_tells(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    planned = await client.topics.purge("shop/orders", before=PublishTime(HOUR_MS), dry_run=True)
    assert [fate.ledger.ledger_id for fate in planned.removed] == [100]
    assert len(ledger_ids(cluster.store)) == 6


async def test_a_topic_that_is_not_there_is_not_purged(client: Client) -> None:
    with pytest.raises(NoSuchTopic, match="quire topic create shop/none"):
        await client.topics.purge("shop/none")


async def test_many_ledgers_go_in_order_and_in_few_transactions(
    cluster: MemoryCluster, client: Client
) -> None:
    topic = await client._context.catalogue.create(TopicRecord(name="shop/many", uid=0))
    await lay_lane(cluster.store, topic, [row(n) for n in range(100)])
    gone: list[str] = []
    cluster.store.on_change = lambda key, value: None if value else gone.append(key)
    counted: list[int] = []
    await client.topics.purge("shop/many", on_removed=counted.append)
    assert counted == [40, 40, 20]
    rows = [key for key in gone if key.startswith(LANE_LEDGERS)]
    assert rows == sorted(rows)
    assert ledger_ids(cluster.store) == []


async def test_two_purges_at_once_remove_each_ledger_once(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    counted: list[int] = []

    async def run() -> None:
        purged = await client.topics.purge("shop/orders")
        counted.append(len(purged.removed))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        nursery.start_soon(run)
    assert sum(counted) == 4
    assert ledger_ids(cluster.store) == [103, 111]


async def test_a_repair_that_changes_a_ledgers_record_meanwhile_does_not_bring_it_back(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    store, ledger = cluster.store, ledger_key(100)
    _, planned, _ = await planned_purge(client._context.catalogue, "shop/orders", EventTime(1000))
    reads = 0
    get = store.get

    async def rival(key: str) -> Versioned | None:
        nonlocal reads
        found = await get(key)
        if key == ledger and reads == 0:
            reads += 1
            store.change(key, store.values[key].value)
        return found

    store.get = rival  # type: ignore[method-assign]
    removed = await remove_ledgers(client._context.catalogue, topic.uid, planned.removed)
    assert len(removed) == 1
    assert ledger not in store.values
    assert reads == 1


async def test_a_ledger_that_somebody_deleted_leaves_its_row_to_go(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    await client.ledgers.delete(100)
    await client.topics.purge("shop/orders", before=EventTime(2000))
    assert ledger_ids(cluster.store) == [102, 103, 110, 111]
    assert len(stored(cluster.store, LANE_LEDGERS)) == 4


async def test_who_leads_no_more_removes_nothing(
    cluster: MemoryCluster, client: Client, topic: TopicRecord
) -> None:
    _, planned, _ = await planned_purge(
        client._context.catalogue, "shop/orders", PublishTime(9 * HOUR_MS)
    )
    over = CheckLease("coordinator", "me", 1)
    with pytest.raises(LeaseLost):
        await remove_ledgers(client._context.catalogue, topic.uid, planned.removed, checks=[over])
    assert len(ledger_ids(cluster.store)) == 6


@pytest.mark.parametrize("calls", range(1, 12))
async def test_cut_short_anywhere_a_row_is_there_with_its_ledger_or_neither_is(
    cluster: MemoryCluster, client: Client, topic: TopicRecord, calls: int
) -> None:
    left = calls
    check = cluster.store._reach  # every call of the store passes here

    async def fail() -> None:
        nonlocal left
        left -= 1
        cluster.store.available = left > 0
        await check()

    cluster.store._reach = fail  # type: ignore[method-assign]
    with suppress(MetadataUnavailable):
        await client.topics.purge("shop/orders")
    cluster.store._reach = check  # type: ignore[method-assign]
    cluster.store.available = True
    lanes = (await client.topics.explain("shop/orders")).lanes
    rows = [fate.ledger.ledger_id for lane in lanes for fate in lane.ledgers]
    assert sorted(rows) == ledger_ids(cluster.store)
