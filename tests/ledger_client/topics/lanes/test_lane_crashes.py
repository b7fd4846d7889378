"""A writer killed at each of its calls of the store: the lane can be taken, and keeps its word."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest
import trio
from lane_history import LaneHistory, check_rows
from lane_process import HASTY, Line, Process
from lane_rig import batch, make_topic
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import LedgerError
from ledger_client.topics.lanes.lane import open_lane
from metadata.errors import MetadataUnavailable
from metadata.store import Op, Versions
from metadata.topics import TopicRecord

MESSAGES = 8


class Doomed(Line):
    """A way to the store that is cut at one of its transactions, before or after it is made."""

    def __init__(self, cluster: MemoryCluster, at: int, *, is_made: bool) -> None:
        super().__init__(cluster, 0.0)
        self.calls = 0
        self._at = at
        self._is_made = is_made

    async def transact(self, ops: Sequence[Op]) -> Versions:
        self._pass()
        self.calls += 1
        if self.calls != self._at:
            return await self._store.transact(ops)
        if self._is_made:
            await self._store.transact(ops)
        self.is_cut = True
        raise MetadataUnavailable("killed", outcome_unknown=True)


async def write(client: Client, topic: TopicRecord, history: LaneHistory) -> None:
    """Open the lane, fill some ledgers, and close it."""
    async with open_lane(
        client._context.ledgers, topic, -1, access="take-over", producer="p"
    ) as lane:
        history.open(lane)
        for number in range(MESSAGES):
            value = b"%d-%d" % (lane.epoch, number)
            history.called[lane.epoch].append(value)
            sequence = lane.last_sequence("p") + 1
            try:
                (place,) = await lane.append([batch(value, producer="p", sequence=sequence)])
            except LedgerError as failure:
                history.fail(value, failure)
                raise
            history.acknowledge(lane.epoch, value, place)


@pytest.mark.parametrize("is_made", [False, True])
@pytest.mark.parametrize(
    ("is_new", "at"),
    [*((False, at) for at in range(1, 22)), *((True, at) for at in range(1, 4))],
)
async def test_a_writer_may_be_killed_at_any_transaction(
    autojump_clock: MockClock, is_new: bool, at: int, is_made: bool
) -> None:
    """What it acknowledged is there once, no ledger is left over, versions go on.

    The claim of a new lane makes its first ledger, too.
    """
    async with memory_cluster(4) as cluster, cluster.client() as client:
        topic = make_topic(cluster, entries=2)
        history = LaneHistory()
        if not is_new:  # there is something to take over
            await write(client, topic, history)
        process = Process(cluster)
        process.line = Doomed(cluster, at, is_made=is_made)
        async with process.client(HASTY) as doomed:
            with suppress(LedgerError):
                await write(doomed, topic, history)
        assert process.line.is_cut == (at <= process.line.calls)
        await write(client, topic, history)
        check_rows(cluster, await history.check(client, cluster))


async def test_all_transactions_of_a_writer_are_tried() -> None:
    """The range of the test above reaches beyond the last one."""
    async with memory_cluster(4) as cluster:
        topic = make_topic(cluster, entries=2)
        process = Process(cluster)
        process.line = line = Doomed(cluster, 0, is_made=False)
        async with process.client(HASTY) as client:
            await write(client, topic, LaneHistory())
        assert 8 < line.calls < 21


@pytest.mark.parametrize("at", range(1, 12))
async def test_a_rival_may_come_at_any_transaction(autojump_clock: MockClock, at: int) -> None:
    """Whoever raised the epoch last has the lane; nobody else's entry is acknowledged then."""
    async with memory_cluster(4) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster, entries=2)
        history = LaneHistory()
        calls = 0
        transact = cluster.store.transact

        async def interrupted(ops: Sequence[Op]) -> Versions:
            nonlocal calls
            calls += 1
            if calls == at:
                await write(theirs, topic, history)
            return await transact(ops)

        cluster.store.transact = interrupted  # type: ignore[method-assign]
        with suppress(LedgerError):
            await write(ours, topic, history)
        cluster.store.transact = transact  # type: ignore[method-assign]
        await write(theirs, topic, history)
        check_rows(cluster, await history.check(theirs, cluster))


async def test_many_takers_at_once_leave_one_writer(autojump_clock: MockClock) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        topic = make_topic(cluster, entries=2)
        history = LaneHistory()

        async def take() -> None:
            with suppress(LedgerError):
                await write(client, topic, history)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(take)
        await write(client, topic, history)
        check_rows(cluster, await history.check(client, cluster))
