"""Ledgers that take batches on while the lane is about to turn: it turns all the same."""

from __future__ import annotations

import pytest
import trio
from lane_rig import batch, make_topic, messages, rows
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client.errors import ProducerFenced
from ledger_client.ledgers.records import Reason
from ledger_client.topics.lanes.lane import open_lane
from ledger_client.topics.lanes.lane_machine import LaneMachine
from ledger_client.topics.lanes.lane_writer import LaneWriter
from metadata.records import underreplicated_key
from native.frame import Opcode, Request

TASKS = 4


class Traffic:
    """Tasks that append one batch after the other; all event times are 5."""

    def __init__(self, lane: LaneWriter) -> None:
        self.sent: list[bytes] = []
        self.is_over = False
        self._lane = lane

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for task in range(TASKS):
                nursery.start_soon(self._append, task)

    async def _append(self, task: int) -> None:
        await trio.sleep(0.01 * task)
        while not self.is_over:
            value = b"%d of %d" % (len(self.sent), task)
            await self._lane.append([batch(value, times=[5])])
            self.sent.append(value)


def slow_down(cluster: MemoryCluster) -> None:
    """Let the bookies and the store need some time: something is always under way."""
    reach = cluster.store._reach

    async def slowly() -> None:
        await trio.sleep(0.02)
        await reach()

    cluster.store._reach = slowly  # type: ignore[method-assign]
    for bookie in cluster.bookies.values():
        bookie.delay_s = lambda _request: 0.04


@pytest.mark.parametrize("order", ["none", "event-time"])
async def test_traffic_without_a_pause_does_not_keep_a_lane_from_turning(
    autojump_clock: MockClock, order: str
) -> None:
    """PS-27, PS-29: neither after an outage of the store nor where event times stay the same.

    And ledgers are not made in vain meanwhile.
    """
    async with memory_cluster(4) as cluster, cluster.client() as client:
        topic = make_topic(cluster, order=order, age_s=4.0)
        slow_down(cluster)
        async with (
            open_lane(client._context.ledgers, topic, -1) as lane,
            trio.open_nursery() as nursery,
        ):
            traffic = Traffic(lane)
            nursery.start_soon(traffic.run)
            await trio.sleep(3)
            cluster.store.available = False
            await trio.sleep(4)
            assert [row.state for row in rows(cluster)] == ["open"]
            cluster.store.available = True
            await trio.sleep(15)
            traffic.is_over = True
        known = rows(cluster)
        assert 3 <= len(known) <= 6
        assert known[-1].ledger_id <= 2 * len(known)
        assert all(row.messages > 0 for row in known[:-1])
        assert sorted(await messages(client, cluster)) == sorted(traffic.sent)


async def test_a_mark_that_is_damaged_ends_no_lane(autojump_clock: MockClock) -> None:
    """Neither of who writes it, while a slower bookie is waited for, nor of who takes it over."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster, entries=2)
        cluster.bookies["b3"].delay_s = lambda _request: 1.0
        with pytest.raises(ProducerFenced):
            async with open_lane(client._context.ledgers, topic, -1) as lane:
                damaged = rows(cluster)[0].ledger_id
                cluster.store.change(underreplicated_key(damaged), b"damaged")
                for number in range(3):
                    await lane.append([batch(str(number))])
                    await trio.sleep(1)
                async with open_lane(
                    client._context.ledgers, topic, -1, access="take-over"
                ) as taken:
                    await taken.append([batch("3")])
        assert await messages(client, cluster) == [b"%d" % number for number in range(4)]


def takes_nothing(request: Request) -> float:
    """Return the delay of a bookie that answers, but stores nothing for an hour."""
    return 3600.0 if request.opcode == Opcode.ADD else 0.0


@pytest.mark.parametrize("moment_s", [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4])
async def test_what_a_slow_bookie_lacks_is_marked_though_the_lane_ends_as_it_turns(
    autojump_clock: MockClock, moment_s: float
) -> None:
    """Whoever waits for the copies of a ledger that another one follows has none to wait for."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster, entries=2)
        slow_down(cluster)
        cluster.bookies["b3"].delay_s = takes_nothing
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            for number in range(6):
                await lane.append([batch(str(number))])
            await trio.sleep(moment_s)
            writers = [*lane._writers.values()]
        assert all(writer.failure is not None for writer in writers)
        for row in rows(cluster):
            assert row.state == "closed"
            if row.entries:
                assert underreplicated_key(row.ledger_id) in cluster.store.values


async def test_what_a_slow_bookie_lacks_is_marked_though_no_ledger_can_follow(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One was to follow, and its bookies fail as the lane has left the one before."""
    drained, ended = LaneMachine.drained, trio.Event()

    def leave(machine: LaneMachine, length: int, reason: Reason | None) -> None:
        drained(machine, length, reason)
        machine.give_up_following()
        cluster.store.available = False
        ended.set()

    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster, entries=2)
        slow_down(cluster)
        cluster.bookies["b3"].delay_s = takes_nothing
        async with open_lane(client._context.ledgers, topic, -1) as lane, trio.open_nursery() as it:
            writer = lane._writers[lane._machine.ledger.id]
            await lane.append([batch("0")])
            monkeypatch.setattr(LaneMachine, "drained", leave)
            await lane.append([batch("1")])
            await ended.wait()
            left = writer.failure
            it.start_soon(come_back, cluster)
            await lane.close()
        assert left is None and writer.failure is not None
        assert [row.state for row in rows(cluster)] == ["closed"]
        assert underreplicated_key(writer.id) in cluster.store.values


async def come_back(cluster: MemoryCluster) -> None:
    await trio.sleep(2)
    cluster.store.available = True
