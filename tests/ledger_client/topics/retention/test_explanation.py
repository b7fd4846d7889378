from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from leases import grant
from memory_cluster import MemoryCluster, memory_cluster
from topic_rig import begun, lay_lane, row

from ledger_client import Client
from ledger_client.errors import MetadataBroken, NoSuchTopic
from ledger_client.topics.retention.explanation import LedgerTotals
from metadata.topics import LaneOwner, Retention, TopicRecord, lane_ledger_key, writer_lease


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(1) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected


async def test_every_ledger_of_every_lane_is_told_with_its_reason(
    cluster: MemoryCluster, client: Client
) -> None:
    wanted = TopicRecord(name="s/t", uid=0, partitions=2, retention=Retention(age_s=-1))
    topic = await client._context.catalogue.create(wanted)
    await lay_lane(cluster.store, topic, [row(0), begun(1)], partition=0, written=True)
    await lay_lane(cluster.store, topic, [row(2)], partition=1, lane=3, producer="till")
    found = await client.topics.explain("s/t")
    first, second = found.lanes
    assert (first.partition, first.lane, first.owner) == (0, 0, LaneOwner(producer="p1", host="h"))
    assert [fate.reason for fate in first.ledgers] == ["unlimited", "open"]
    assert (second.partition, second.lane, second.producer) == (1, 3, "till")
    assert (second.owner, second.extent.messages) == (None, 10)
    assert (found.extent.ledgers, found.extent.messages, found.extent.size) == (3, 20, 2000)


async def test_a_topic_without_lanes_holds_nothing(client: Client) -> None:
    """TB-55: the time range is null if the space is empty."""
    await client._context.catalogue.create(TopicRecord(name="s/t", uid=0))
    found = await client.topics.explain("s/t")
    assert found.lanes == []
    assert found.extent == LedgerTotals()
    assert (found.extent.first_event_time, found.extent.last_timestamp) == (None, None)


async def test_each_lane_has_a_range_of_its_own(cluster: MemoryCluster, client: Client) -> None:
    """TB-13, TB-53, TB-55: lanes are listed with the name of their producer and their times."""
    topic = await client._context.catalogue.create(TopicRecord(name="s/t", uid=0))
    await lay_lane(cluster.store, topic, [row(0), row(1)], lane=0)
    await lay_lane(cluster.store, topic, [row(5)], lane=1, producer="till")
    await lay_lane(
        cluster.store, topic, [row(7, first_event_time=None, last_event_time=None)], lane=2
    )
    lanes = (await client.topics.explain("s/t")).lanes
    times = [(each.extent.first_event_time, each.extent.last_event_time) for each in lanes]
    assert [each.producer for each in lanes] == ["", "till", ""]
    assert times == [(0, 1999), (5000, 5999), (None, None)]
    assert (lanes[0].extent.first_timestamp, lanes[0].extent.last_timestamp) == (1, 199)


async def test_a_lease_that_says_nothing_readable_still_is_a_writer(
    cluster: MemoryCluster, client: Client
) -> None:
    topic = await client._context.catalogue.create(TopicRecord(name="s/t", uid=0))
    await lay_lane(cluster.store, topic, [begun(0)])
    await grant(cluster.store, writer_lease(topic.uid, -1, 0), "x/1", ttl_s=60, value=b"?")
    (lane,) = (await client.topics.explain("s/t")).lanes
    assert lane.owner == LaneOwner(producer="x/1")


async def test_what_cannot_be_read_is_named(cluster: MemoryCluster, client: Client) -> None:
    with pytest.raises(NoSuchTopic):
        await client.topics.explain("s/t")
    topic = await client._context.catalogue.create(TopicRecord(name="s/t", uid=0))
    cluster.store.change(lane_ledger_key(topic.uid, -1, 0, 0), b"{")
    with pytest.raises(MetadataBroken, match="is not a LaneLedger"):
        await client.topics.explain("s/t")
