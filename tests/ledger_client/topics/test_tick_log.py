"""The stored ticks of a topic: leaders in turn append, readers follow, old ledgers go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from replaced import replaced
from trio.testing import MockClock

from ledger_client.errors import LedgerError, MessagesLost, NotEnoughBookies
from ledger_client.topics import tick_follower, tick_log
from ledger_client.topics.context import TopicContext
from ledger_client.topics.tick_follower import TickFollower, tick_rows
from ledger_client.topics.tick_log import TickLog
from metadata.errors import LeaseLost
from metadata.store import CheckLease
from metadata.time.ticker import NO_TICK, StoredTick
from metadata.topics import TopicRecord

ORDERS = "shop/orders"
LANE = (-1, 0)


class Stored:
    """A topic, and leaders that store its ticks."""

    def __init__(self, cluster: MemoryCluster, context: TopicContext, topic: TopicRecord) -> None:
        self.cluster = cluster
        self.context = context
        self.topic = topic

    async def term(self) -> CheckLease:
        """Return the check of the next leader's term; that of the former one is over."""
        store = self.context.store
        for lease in await store.leases("lead"):
            await store.release(lease)
        session = await store.open_session("leader", ttl_s=1000)
        return CheckLease.of(await store.grant("lead", session, value=b""))

    def log(self, check: CheckLease) -> TickLog:
        return TickLog(self.context, self.topic.uid, ORDERS, check)

    async def ticks(self, count: int, *, after: int = 0) -> list[int]:
        follower = TickFollower(self.context, self.topic, after=after)
        found: list[int] = []
        while len(found) < count:
            for tick in await follower.read():
                assert tick.covers == {LANE: tick.timestamp}
                found.append(tick.timestamp)
        follower.close()
        return found

    async def copies(self) -> list[int]:
        """Return how many copies each ledger has."""
        rows = await tick_rows(self.context, self.topic.uid)
        return [self.cluster.record(row.ledger_id).write_quorum for _, row in rows]

    async def afters(self) -> list[int]:
        return [row.after for _, row in await tick_rows(self.context, self.topic.uid)]


@asynccontextmanager
async def stored(**settings: int) -> AsyncIterator[Stored]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leading = cluster.lead("b1")  # such a topic is made by the cluster's time
        await client.topics.create(ORDERS, timesync=True, **settings)  # type: ignore[arg-type]
        leading.cancel()
        await trio.sleep(2)
        async with cluster.context() as context:
            yield Stored(cluster, context, (await context.catalogue.get(ORDERS))[0])


async def append(log: TickLog, *timestamps: int) -> None:
    for timestamp in timestamps:
        await log.append(timestamp, {LANE: timestamp})


async def test_ticks_come_back_over_rolls_from_any_place(autojump_clock: MockClock) -> None:
    with replaced(tick_log, "ROLL_ENTRIES", 3), replaced(tick_log, "WHOLE_EVERY", 2):
        async with stored() as topic:
            log = topic.log(await topic.term())
            assert await log.begin() == NO_TICK
            await append(log, *range(10, 110, 10))
            assert await topic.ticks(10) == list(range(10, 110, 10))
            assert await topic.afters() == [0, 30, 60, 90]
            assert await topic.ticks(6, after=40) == list(range(50, 110, 10))
            assert await topic.ticks(4, after=60) == list(range(70, 110, 10))


async def test_a_leader_that_was_followed_by_another_stores_no_tick_any_more(
    autojump_clock: MockClock,
) -> None:
    """MV-43: readers see one sequence, in which ticks rise."""
    async with stored() as topic:
        former = topic.log(await topic.term())
        await former.begin()
        await append(former, 10, 20)
        log = topic.log(await topic.term())
        assert await log.begin() == StoredTick(20, {LANE: 20})
        with pytest.raises(LedgerError):
            await append(former, 25)
        await append(log, 30)
        assert await topic.ticks(3) == [10, 20, 30]
        again = topic.log(await topic.term())
        with pytest.raises((LedgerError, LeaseLost)), replaced(tick_log, "ROLL_ENTRIES", 1):
            await append(log, 40)
        assert await again.begin() == StoredTick(30, {LANE: 30})


async def test_ticks_go_on_in_their_ledger_while_no_other_is_possible(
    autojump_clock: MockClock,
) -> None:
    with replaced(tick_log, "ROLL_ENTRIES", 2), replaced(tick_log, "ROLL_AGAIN_ENTRIES", 3):
        async with stored(replication=3, ack_quorum=2) as topic:
            log = topic.log(await topic.term())
            await log.begin()
            await append(log, 10)
            topic.cluster.kill("b3")
            await append(log, 20, 30, 40)
            topic.cluster.revive("b3")
            await trio.sleep(10)
            await append(log, 50, 60, 70)
            assert await topic.afters() == [0, 50]
            assert await topic.copies() == [3, 3]
            assert await topic.ticks(7) == list(range(10, 80, 10))


async def test_a_new_leader_has_ticks_with_as_many_copies_as_can_be_had(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """They are as durable at first as with all copies; the next ledger has those again, soon."""
    with replaced(tick_log, "ROLL_AGAIN_ENTRIES", 2):
        async with stored(replication=3, ack_quorum=2) as topic:
            topic.cluster.kill("b1")
            log = topic.log(await topic.term())
            await log.begin()
            await append(log, 10, 20, 30)
            assert await topic.copies() == [2]
            topic.cluster.revive("b1")
            await trio.sleep(10)
            await append(log, 40, 50, 60, 70, 80)
            assert await topic.copies() == [2, 3]
            assert await topic.ticks(8) == list(range(10, 90, 10))
        assert f"ticks of {ORDERS} have 2 copies: " in caplog.text


async def test_there_are_no_ticks_that_a_single_loss_would_undo(autojump_clock: MockClock) -> None:
    async with stored(replication=3, ack_quorum=2) as topic:
        topic.cluster.kill("b1")
        topic.cluster.kill("b2")
        log = topic.log(await topic.term())
        await log.begin()
        with pytest.raises(NotEnoughBookies):
            await append(log, 10)


async def test_tick_ledgers_below_the_oldest_message_go_and_the_last_stays(
    autojump_clock: MockClock,
) -> None:
    with replaced(tick_log, "ROLL_ENTRIES", 2):
        async with stored() as topic:
            log = topic.log(await topic.term())
            await log.begin()
            await append(log, 10, 20, 30, 40, 50)
            assert await topic.afters() == [0, 20, 40]
            await log.trim(20)
            assert await topic.afters() == [0, 20, 40]
            await log.trim(21)
            assert await topic.afters() == [20, 40]
            assert await topic.ticks(3) == [30, 40, 50]
            await log.trim(1000)
            assert await topic.afters() == [40]
            await append(log, 60)
            assert await topic.ticks(2) == [50, 60]


async def test_the_ticks_of_one_read_have_a_bounded_number_of_covers(
    autojump_clock: MockClock,
) -> None:
    """A follower that catches up does not have thousands of ticks of thousands of lanes at once."""
    async with stored() as topic:
        log = topic.log(await topic.term())
        await log.begin()
        for timestamp in range(10, 310, 10):
            await log.append(timestamp, {(0, lane): timestamp for lane in range(4)})
        found: list[int] = []
        with replaced(tick_follower, "COVERS_MAX", 10):
            follower = TickFollower(topic.context, topic.topic)
            while len(found) < 30:
                ticks = await follower.read()
                assert len(ticks) <= 3
                for tick in ticks:
                    assert tick.covers == {(0, lane): tick.timestamp for lane in range(4)}
                    found.append(tick.timestamp)
        assert found == list(range(10, 310, 10))


async def test_no_tick_comes_after_one_that_cannot_be_read(autojump_clock: MockClock) -> None:
    """The next ones name only what changed: without it they would cover too little."""
    async with stored() as topic:
        log = topic.log(await topic.term())
        await log.begin()
        await append(log, 10, 20)
        with replaced(tick_log, "entry_of", lambda *_args, **_options: b"nothing"):
            await append(log, 30)
        await append(log, 40)
        follower = TickFollower(topic.context, topic.topic)
        assert [tick.timestamp for tick in await follower.read()] == [10, 20]
        for _ in range(2):
            with pytest.raises(MessagesLost):
                await follower.read()
