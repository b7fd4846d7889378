"""Rivals for one lane, killed anywhere and rolled, while bookies and the store come and go."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import get_args

import pytest
import trio
from lane_history import LaneHistory, check_rows, check_times
from lane_process import HASTY, Process, shuffle_by
from lane_rig import Stored, batch, make_topic, rows
from memory_cluster import MemoryCluster, memory_cluster
from run_seed import drawn
from trio.testing import MockClock

from ledger_client.errors import LedgerError
from ledger_client.topics.lanes.lane import open_lane
from ledger_client.topics.lanes.lane_lease import Access
from ledger_client.topics.lanes.lane_writer import LaneWriter
from metadata.topics import TopicRecord

LENGTH_S = 60.0
REST_S = 60.0


class Schedule:
    """Everything that happens, by one seed."""

    def __init__(self, cluster: MemoryCluster, topic: TopicRecord, seed: int) -> None:
        self.history = LaneHistory()
        self._cluster = cluster
        self._topic = topic
        self._chance = random.Random(seed)
        self._values = 0

    async def run(self, writers: int = 3) -> None:
        with trio.move_on_after(LENGTH_S):
            async with trio.open_nursery() as nursery:
                for number in range(writers):
                    nursery.start_soon(self._forever, self._life, f"p{number}", 3.0)
                nursery.start_soon(self._forever, self._lose_bookie, "", 4.0)
                nursery.start_soon(self._forever, self._lose_store, "", 6.0)
                nursery.start_soon(self._forever, self._meddle, "", 5.0)
                nursery.start_soon(self._forever, self._roll, "", 5.0)
                nursery.start_soon(self._forever, self._roll, "", 5.0)
        self._cluster.store.available = True
        for name in [*self._cluster.down]:
            self._cluster.revive(name)
        await trio.sleep(REST_S)

    async def _forever(
        self, act: Callable[[str], Awaitable[None]], name: str, pause_s: float
    ) -> None:
        while True:
            await trio.sleep(self._chance.uniform(0, pause_s))
            await act(name)

    # --- writers -------------------------------------------------------------------------

    async def _life(self, name: str) -> None:
        """One process, which is killed, cut off for a while, or ends by itself."""
        process = Process(self._cluster, losses=self._chance.choice([0.0, 0.1, 0.4]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._fate, process, nursery.cancel_scope)
            await self._write(process, name)
            nursery.cancel_scope.cancel()

    async def _fate(self, process: Process, scope: trio.CancelScope) -> None:
        await trio.sleep(self._chance.uniform(0.5, 15))
        process.kill()
        await trio.sleep(self._chance.uniform(0, 8))
        if self._chance.random() < 0.5:
            process.heal()
            await trio.sleep(self._chance.uniform(0, 8))
        scope.cancel()

    async def _write(self, process: Process, name: str) -> None:
        access: Access = self._chance.choice(get_args(Access)[:3])
        try:
            async with (
                process.client() as client,
                open_lane(
                    client._context.ledgers,
                    self._topic,
                    -1,
                    access=access,
                    producer=name,
                    rolls=client._context.rolls,
                ) as lane,
            ):
                self.history.open(lane)
                async with trio.open_nursery() as nursery:
                    for _ in range(self._chance.randint(1, 20)):
                        nursery.start_soon(self._append, lane, name)
                        await trio.sleep(self._chance.choice([0, 0, 0.01, 0.3, 2.0]))
        except LedgerError:
            pass

    async def _append(self, lane: LaneWriter, name: str) -> None:
        values = [self._value(lane) for _ in range(self._chance.randint(1, 4))]
        self.history.called[lane.epoch] += values
        sequence = lane.last_sequence(name) + 1
        batches = [
            batch(value, producer=name, sequence=sequence + i, times=[self._values // 5])
            for i, value in enumerate(values)
        ]
        try:
            places = await lane.append(batches)
        except LedgerError as failure:
            for value in values:
                self.history.fail(value, failure)
            return
        for value, place in zip(values, places, strict=True):
            self.history.acknowledge(lane.epoch, value, place)

    def _value(self, lane: LaneWriter) -> bytes:
        self._values += 1
        return b"%d-%d" % (lane.epoch, self._values)

    # --- faults --------------------------------------------------------------------------

    async def _lose_bookie(self, _: str) -> None:
        up = sorted(set(self._cluster.bookies) - self._cluster.down)
        if len(up) > 2:
            name = self._chance.choice(up)
            self._cluster.kill(name)
            await trio.sleep(self._chance.uniform(0, 8))
            self._cluster.revive(name)

    async def _lose_store(self, _: str) -> None:
        self._cluster.store.available = False
        try:
            await trio.sleep(self._chance.choice([0.2, 1.0, 3.0]))
        finally:
            self._cluster.store.available = True

    async def _roll(self, _: str) -> None:
        """Have the open ledger closed, with more or less patience, or be killed meanwhile."""
        wait_s = self._chance.choice([0.5, 5.0])
        with trio.move_on_after(self._chance.choice([0.1, 1.0, 30.0])):
            async with self._cluster.client(HASTY) as client:
                try:
                    await client.topics.roll(self._topic.name, wait_s=wait_s)
                except LedgerError:
                    return

    async def _meddle(self, _: str) -> None:
        """Recover a ledger of the lane, as a repair or a reader may, be it prepared only."""
        known = rows(self._cluster)
        if known:
            row = self._chance.choice(known[-2:])
            async with self._cluster.client(HASTY) as client:
                try:
                    await client.ledgers.recover(row.ledger_id)
                except LedgerError:
                    return


@pytest.mark.parametrize("seed", drawn(range(2)))
@pytest.mark.parametrize("order", ["none", "event-time"])
async def test_a_lane_keeps_what_it_promised(
    autojump_clock: MockClock, seed: int, order: str
) -> None:
    """PS-04, PS-39, TB-02: acknowledged once each, in order; nobody else's after a takeover."""
    shuffle_by(seed)
    async with memory_cluster(5, seed=seed) as cluster:
        topic = make_topic(cluster, order=order, entries=7, age_s=20.0)
        schedule = Schedule(cluster, topic, seed)
        await schedule.run()
        async with cluster.client() as client:
            async with open_lane(client._context.ledgers, topic, -1, access="take-over") as lane:
                last = {name: lane.last_sequence(name) for name in ("p0", "p1", "p2")}
            found = await schedule.history.check(client, cluster)
            check_rows(cluster, found)
            if order == "event-time":
                check_times(cluster)
        assert schedule.history.acknowledged
        check_sequences(found, last)


def check_sequences(found: list[Stored], last: dict[str, int]) -> None:
    """The lane remembers the last number of each producer."""
    final = found[-1].state
    assert final is not None
    assert {name: final.last_sequence(name) for name in last} == last
