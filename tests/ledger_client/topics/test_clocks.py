"""Hosts whose wall clocks are hours off: nothing is forgotten, kept or removed by them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from itertools import product

import pytest
import trio
from leases import grant
from memory_cluster import MemoryCluster, memory_cluster
from topic_rig import ledger_ids
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.housekeeping import Housekeeper, HousekeepingOptions
from ledger_client.topics.lanes.lane_state import IDLE_S
from metadata.leadership import Term
from metadata.topics import Retention

TOPIC = "shop/orders"
HOUR_S = 3600
START_MS = 1_700_000_000_000
OFF = [8 * HOUR_S, -8 * HOUR_S]


class HostClock:
    """The wall clock of the hosts, as many seconds off as a test says."""

    off_s = 0

    def __call__(self) -> int:
        return (START_MS + round((trio.current_time() + self.off_s) * 1000)) * 1_000_000


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> HostClock:
    clock = HostClock()
    monkeypatch.setattr(time, "time_ns", clock)
    monkeypatch.setattr(time, "time", lambda: clock() / 1e9)
    return clock


@pytest.fixture
async def cluster(host: HostClock) -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(1) as running:
        running.store.wall_ms = lambda: START_MS + round(trio.current_time() * 1000)
        yield running


async def send(client: Client, name: str, *numbers: int) -> list[int]:
    """Send numbers as one producer; return the ledger of each, -1 for a duplicate."""
    async with client.producer(TOPIC, producer_name=name, access="exclusive") as producer:
        return [
            (await producer.send(b"%s%d" % (name.encode(), n), sequence=n)).ledger_id
            for n in numbers
        ]


# --- numbers of producers -----------------------------------------------------------------


@pytest.mark.parametrize("off_s", OFF)
async def test_a_producer_whose_clock_is_off_makes_a_lane_forget_nobody(
    autojump_clock: MockClock, cluster: MemoryCluster, host: HostClock, off_s: int
) -> None:
    """PS-39: what the others sent is known for six hours by the store's time."""
    async with cluster.client() as ours, cluster.client() as theirs:
        await ours.topics.create(TOPIC)
        host.off_s = off_s
        await send(theirs, "q", 0)
        host.off_s = 0
        await send(ours, "p", 0, 1, 2)
        host.off_s = off_s
        await send(theirs, "q", 1)
        host.off_s = 0
        assert await send(ours, "p", 2, 1) == [-1, -1]
        assert await send(theirs, "q", 1, 0) == [-1, -1]
        await trio.sleep(IDLE_S + 60)
        await send(theirs, "q", 2)
        assert -1 not in await send(ours, "p", 0)


async def test_a_clock_that_is_set_while_a_lane_is_written_changes_nothing(
    autojump_clock: MockClock, cluster: MemoryCluster, host: HostClock
) -> None:
    async with cluster.client() as client:
        await client.topics.create(TOPIC)
        await send(client, "p", 0, 1)
        async with client.producer(TOPIC, producer_name="q", access="exclusive") as producer:
            for number, off_s in enumerate([0, *OFF, 0, 24 * HOUR_S]):
                host.off_s = off_s
                await producer.send(b"q", sequence=number)
                await trio.sleep(130)  # the lane's state is told again
        assert await send(client, "p", 1, 0) == [-1, -1]


# --- when a message was published ---------------------------------------------------------


@pytest.mark.parametrize("off_s", OFF)
async def test_a_message_is_published_at_the_stores_time(
    autojump_clock: MockClock, cluster: MemoryCluster, host: HostClock, off_s: int
) -> None:
    """Else it would hold back, or hide, what others publish after it."""
    async with cluster.client() as client:
        await client.topics.create(TOPIC)
        host.off_s = off_s
        async with client.producer(TOPIC) as producer:
            await producer.send(b"one")
            await trio.sleep(100)
            await producer.send_many([b"two"])
        async with client.reader(TOPIC) as reader:
            times = [message.publish_time async for message in reader]
        assert [round((at - START_MS) / 1000) for at in times] == [0, 100]
        topic = await client.topics.info(TOPIC)
        assert abs(topic.created_ms - START_MS) < 1000


# --- what is removed ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("writer_s", "leader_s"), [(0, 0), *product(OFF, [0]), *product([0], OFF), OFF]
)
async def test_retention_removes_what_is_old_by_the_stores_time(
    autojump_clock: MockClock,
    cluster: MemoryCluster,
    host: HostClock,
    writer_s: int,
    leader_s: int,
) -> None:
    """Neither the clock of who closed a ledger nor the leader's makes it older or younger."""
    async with cluster.client() as writer, cluster.client() as leader:
        await leader.topics.create(TOPIC, retention=Retention(age_s=4 * HOUR_S))
        host.off_s = writer_s
        async with writer.producer(TOPIC) as producer:
            await producer.send(b"one")
        host.off_s = leader_s
        keeper = Housekeeper(leader._context, HousekeepingOptions())
        term = Term(await grant(cluster.store, "coordinator", "me", ttl_s=86400))
        await trio.sleep(4 * HOUR_S - 60)
        await keeper.look_after_all(term)
        assert len(ledger_ids(cluster.store)) == 1
        found = await leader.topics.explain(TOPIC)
        assert [fate.reason for fate in found.lanes[0].ledgers] == ["young"]
        await trio.sleep(120)
        await keeper.look_after_all(term)
        assert ledger_ids(cluster.store) == []
