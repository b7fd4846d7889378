"""Retention, purges, idle closes and a deletion beside producers, with outages, by seeds."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import trio
from leases import grant
from memory_cluster import MemoryCluster, memory_cluster
from topic_rig import ledger_ids, stored
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.housekeeping import Housekeeper, HousekeepingOptions
from ledger_client.errors import LedgerError, NoSuchTopic, TopicError
from ledger_client.topics.lanes.lane_end import close_lane
from metadata.leadership import Term
from metadata.topics import (
    LANE_LEDGERS,
    LANES,
    Retention,
    RollPolicy,
    TopicRecord,
    decode_lane_ledger,
    topic_prefix,
)

TOPIC = "shop/orders"
RUN_S = 60.0


class Storm:
    """What everybody does to one topic."""

    def __init__(self, cluster: MemoryCluster, seed: int) -> None:
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.acknowledged: dict[str, list[bytes]] = {}

    async def produce(self, name: str) -> None:
        """Write again and again, each time as a new producer of this name, sequence by sequence."""
        done = self.acknowledged[name] = []
        number = 0
        while True:
            with suppress(LedgerError):
                async with (
                    self.cluster.client() as client,
                    client.producer(TOPIC, producer_name=name, access="shared") as producer,
                ):
                    for _ in range(self.chance.randrange(1, 60)):
                        value = f"{name} {number}".encode()
                        await producer.send(value, key=name.encode(), sequence=number)
                        done.append(value)
                        number += 1
                        await trio.sleep(self.chance.random() / 10)
            await trio.sleep(self.chance.random() * 20)

    async def disturb(self) -> None:
        store = self.cluster.store
        while True:
            await trio.sleep(self.chance.random() * 10)
            store.available = False
            await trio.sleep(self.chance.random() * 2)
            store.available = True

    async def purge(self, client: Client) -> None:
        while True:
            await trio.sleep(self.chance.random() * 60)
            with suppress(LedgerError):
                await client.topics.purge(TOPIC, lane=self.chance.choice([None, 0, 1]))

    async def close_lanes(self, client: Client, topic: TopicRecord) -> None:
        while True:
            await trio.sleep(self.chance.random() * 10)
            with suppress(LedgerError):
                await close_lane(client._context.ledgers, topic, -1, self.chance.randrange(1, 3))

    async def keep_house(self, client: Client) -> None:
        options = HousekeepingOptions(interval_s=1, poll_s=1)
        term = Term(await grant(self.cluster.store, "coordinator", "me", ttl_s=86400))
        await Housekeeper(client._context, options).lead(term)


def check_rows(cluster: MemoryCluster, topic: TopicRecord) -> None:
    """Assert that each row has its ledger and each ledger its row."""
    values = cluster.store.values
    keys = stored(cluster.store, topic_prefix(LANE_LEDGERS, topic.uid))
    rows = [decode_lane_ledger(key, values[key].value) for key in keys]
    assert sorted(row.ledger_id for row in rows) == ledger_ids(cluster.store)


async def check_messages(storm: Storm, client: Client) -> None:
    """Assert that what is left of each producer is the end of what was acknowledged, once."""
    async with client.reader(TOPIC) as reader:
        left = [message.value async for message in reader]
    for name, done in storm.acknowledged.items():
        mine = [value for value in left if value is not None and value.split()[0] == name.encode()]
        expected = done[len(done) - len(mine) :] if mine else []
        # The last one may be there without its acknowledgement.
        assert mine in (expected, [*done[len(done) - len(mine) + 1 :], *mine[-1:]])


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_orphaned_lost_in_between_or_kept_twice(
    autojump_clock: MockClock, seed: int
) -> None:
    """TB-76, PS-35: whatever is taken away, what is left has no hole and no second copy."""
    async with memory_cluster(3, seed=seed) as cluster, cluster.client() as client:
        limits = {"roll": RollPolicy(entries=10), "retention": Retention(age_s=-1, size=12_000)}
        topic = await client.topics.create(TOPIC, **limits)  # type: ignore[arg-type]
        storm = Storm(cluster, seed)
        with trio.move_on_after(RUN_S):
            async with trio.open_nursery() as nursery:
                for name in ("ada", "bob", "cy"):
                    nursery.start_soon(storm.produce, name)
                nursery.start_soon(storm.disturb)
                nursery.start_soon(storm.purge, client)
                nursery.start_soon(storm.close_lanes, client, topic)
                nursery.start_soon(storm.keep_house, client)
        cluster.store.available = True
        await trio.sleep(30)  # leases run out
        for lane in range(4):
            with suppress(TopicError):
                await close_lane(client._context.ledgers, topic, -1, lane)
        assert min(len(done) for done in storm.acknowledged.values()) > 20
        check_rows(cluster, topic)
        await check_messages(storm, client)
        await client.topics.delete(TOPIC)
        assert ledger_ids(cluster.store) == []


@pytest.mark.parametrize("seed", range(4))
async def test_a_topic_deleted_beside_its_producers_leaves_nothing(
    autojump_clock: MockClock, seed: int
) -> None:
    async with memory_cluster(3, seed=seed) as cluster, cluster.client() as client:
        topic = await client.topics.create(TOPIC, roll=RollPolicy(entries=5))
        storm = Storm(cluster, seed)
        async with trio.open_nursery() as nursery:
            for name in ("ada", "bob", "cy"):
                nursery.start_soon(storm.produce, name)
            await trio.sleep(storm.chance.random() * 20)
            await client.topics.delete(TOPIC)
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        with pytest.raises(NoSuchTopic):
            await client.topics.info(TOPIC)
        assert ledger_ids(cluster.store) == []
        for kind in (LANES, LANE_LEDGERS):
            assert stored(cluster.store, topic_prefix(kind, topic.uid)) == []
