from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from topic_rig import begun, lay_lane, ledger_ids, row, stored

from ledger_client import Client
from ledger_client.errors import LedgerError, NoSuchTopic
from ledger_client.topics.retention.removal import Deletion
from metadata.records import ledger_key
from metadata.topics import LANE_LEDGERS, LANES, TOPICS, LaneLedger, TopicRecord, topic_prefix


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(3) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected


async def laid(cluster: MemoryCluster, client: Client, name: str, first: int) -> TopicRecord:
    """Make a topic of two partitions, 60 ledgers each."""
    topic = await client._context.catalogue.create(TopicRecord(name=name, uid=0, partitions=2))
    for partition in (0, 1):
        start = first + 100 * partition
        rows = [row(0, ledger_id=start + n) for n in range(60)]
        await lay_lane(cluster.store, topic, rows, partition=partition)
    return topic


async def test_a_topic_goes_with_all_that_it_holds_and_nothing_else(
    cluster: MemoryCluster, client: Client
) -> None:
    topic = await laid(cluster, client, "shop/orders", 1000)
    other = await laid(cluster, client, "shop/returns", 2000)
    counted: list[int] = []
    await client.topics.delete("shop/orders", on_removed=counted.append)
    assert sum(counted) == 120
    assert [topic.name for topic in await client.topics.list()] == ["shop/returns"]
    assert len(ledger_ids(cluster.store)) == 120
    assert min(ledger_ids(cluster.store)) == 2000
    keys = stored(cluster.store, LANES) + stored(cluster.store, LANE_LEDGERS)
    assert not [key for key in keys if f"/{topic.uid:020d}/" in key]
    assert len([key for key in keys if f"/{other.uid:020d}/" in key]) == 122
    with pytest.raises(NoSuchTopic):
        await client.topics.delete("shop/orders")


async def test_whoever_writes_is_ended(cluster: MemoryCluster, client: Client) -> None:
    topic = await client._context.catalogue.create(TopicRecord(name="shop/orders", uid=0))
    async with cluster.client() as other:
        writing = other.ledgers.create(3, 3, 2)
        writer = await writing.__aenter__()
        await writer.append(b"one")
        found = cluster.store.values[ledger_key(writer.id)]
        await lay_lane(cluster.store, topic, [begun(0, ledger_id=writer.id)])
        cluster.store.change(ledger_key(writer.id), found.value)
        await client.topics.delete("shop/orders")
        with pytest.raises(LedgerError, match="fenced by another client"):
            await writer.append(b"two")
        with pytest.raises(LedgerError):
            await writing.__aexit__(None, None, None)
    assert ledger_ids(cluster.store) == []


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5, 6, 8, 10, 12, 14])
async def test_cut_short_anywhere_the_deletion_can_be_ended_by_anybody(
    cluster: MemoryCluster, client: Client, calls: int
) -> None:
    topic = await laid(cluster, client, "shop/orders", 1000)
    await client._context.catalogue.mark_deleting("shop/orders")
    left = calls
    reach = cluster.store._reach

    async def fail() -> None:
        nonlocal left
        left -= 1
        cluster.store.available = left > 0
        await reach()

    cluster.store._reach = fail  # type: ignore[method-assign]
    with suppress(LedgerError):
        await Deletion(client._context.ledgers, client._context.catalogue, topic).run()
    cluster.store._reach = reach  # type: ignore[method-assign]
    cluster.store.available = True
    rows = len(stored(cluster.store, LANE_LEDGERS))
    assert rows == len(ledger_ids(cluster.store))
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(
                Deletion(client._context.ledgers, client._context.catalogue, topic).run
            )
    assert ledger_ids(cluster.store) == []
    assert stored(cluster.store, TOPICS) + stored(cluster.store, LANES) == []


async def test_a_name_is_free_again_when_its_deletion_was_left_half(
    cluster: MemoryCluster, client: Client
) -> None:
    old = await laid(cluster, client, "shop/orders", 1000)
    await client._context.catalogue.mark_deleting("shop/orders")
    new = await client.topics.create("shop/orders")
    assert new.uid > old.uid
    assert ledger_ids(cluster.store) == []


async def test_a_damaged_row_does_not_keep_its_topic(
    cluster: MemoryCluster, client: Client
) -> None:
    topic = await client._context.catalogue.create(TopicRecord(name="shop/orders", uid=0))
    await lay_lane(cluster.store, topic, [row(0), LaneLedger(ledger_id=101, state="prepared")])
    prefix = topic_prefix(LANE_LEDGERS, topic.uid)
    cluster.store.change(stored(cluster.store, prefix)[0], b"{")
    await client.topics.delete("shop/orders")
    assert stored(cluster.store, prefix) == []
    assert ledger_ids(cluster.store) == [100]
