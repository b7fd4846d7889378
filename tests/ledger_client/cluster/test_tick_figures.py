"""What operators see of ticks: metrics of the leader, and warnings in its log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from replaced import replaced
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.metrics import LeaderMetrics
from ledger_client.cluster.observer import OTHERS, TOPICS_MAX, Observer, TickFigures, TopicTicks
from ledger_client.cluster.ticking import WARN_ROUNDS, WARN_S, Watch
from ledger_client.topics.lanes.lane_state import SealedBatch
from ledger_client.topics.lanes.lane_writer import LaneWriter
from ledger_client.topics.tick_follower import TickFollower
from ledger_client.topics.tick_log import tick_lag
from metadata.sessions import SESSION_S
from metadata.time.calls import LaneReport, ReportLanes

ORDERS = "shop/orders"


class Shop:
    """A led cluster with one topic, and the metrics of its leader."""

    def __init__(self, cluster: MemoryCluster, client: Client, observer: Observer) -> None:
        self.cluster = cluster
        self.client = client
        self.figures = observer.ticks
        self._registry = CollectorRegistry()
        self._registry.register(LeaderMetrics(observer))

    def value(self, name: str, topic: str = ORDERS) -> float | None:
        labels = {"topic": topic} if name.startswith("topic_") else {}
        return self._registry.get_sample_value(f"quire_{name}", labels)

    def text(self) -> str:
        return generate_latest(self._registry).decode()

    async def ticked(self) -> None:
        """Wait for a tick later than now."""
        context = self.client._context
        ticks = TickFollower(context, (await context.catalogue.get(ORDERS))[0])
        await ticks.newest((await self.client.timestamps.allocate()).first)


@asynccontextmanager
async def shop() -> AsyncIterator[Shop]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        observer = Observer(cluster.store, lost_after_s=5)
        await observer.cluster.look()
        cluster.lead("b1", has_ticks=True, figures=observer.ticks)
        await client.topics.create(ORDERS, 2, timesync=True)
        yield Shop(cluster, client, observer)


async def test_the_leader_publishes_how_far_ticks_are_behind_and_how_many_lanes_hold_them(
    autojump_clock: MockClock,
) -> None:
    """MV-36: by topic; and what it stored.

    The time is virtual, so the clock stands still, like that of a host that was set back.
    """
    async with (
        shop() as shop_,
        shop_.client.producer(ORDERS, partition=0) as slow,
        shop_.client.producer(ORDERS, partition=1) as quick,
    ):
        await slow.send(b"slow")
        await quick.send(b"quick")
        await shop_.ticked()
        lag = shop_.value("topic_tick_lag_seconds")
        assert lag is not None
        assert lag < 1
        stored = shop_.value("topic_ticks_stored_total")
        assert stored is not None
        assert stored > 0
        gate, append = trio.Event(), LaneWriter.append

        async def append_later(
            lane: LaneWriter, batches: Sequence[SealedBatch]
        ) -> list[tuple[int, int]]:
            await gate.wait()
            return await append(lane, batches)

        with replaced(LaneWriter, "append", append_later):
            ticket = slow.send_nowait(b"held")
            await trio.sleep(5)
        assert shop_.value("topic_tick_holding_lanes") == 1
        lag = shop_.value("topic_tick_lag_seconds")
        assert lag is not None
        assert lag > 4
        context = shop_.client._context
        shown = await tick_lag(context, (await context.catalogue.get(ORDERS))[0])
        assert shown.lag_s > 4
        gate.set()
        await ticket.message_id()
        await shop_.ticked()


async def test_a_topic_that_was_deleted_is_published_no_more(autojump_clock: MockClock) -> None:
    async with shop() as shop_:
        async with shop_.client.producer(ORDERS) as producer:
            await producer.send(b"one")
            await shop_.ticked()
        await shop_.client.topics.create("shop/other", timesync=True)
        await shop_.client.topics.delete(ORDERS)
        async with shop_.client.producer("shop/other") as producer:
            await producer.send(b"x")
            await trio.sleep(5)
        assert shop_.value("topic_tick_lag_seconds") is None
        assert shop_.value("topic_ticks_stored_total") is None
        assert shop_.value("topic_tick_lag_seconds", "shop/other") is not None


async def test_a_topic_whose_ticks_stand_still_is_further_behind_each_second() -> None:
    """Also while the leader hands out no timestamps."""
    now = {"lag": 1.0}
    figures = TickFigures()
    figures.add("a/a")
    figures.topics = lambda: [TopicTicks("a/a", now["lag"], 2)]
    assert figures.seen() == {"a/a": TopicTicks("a/a", 1.0, 2)}
    now["lag"] = 2.0
    assert figures.seen()["a/a"].lag_s == 2.0
    figures.clear()
    assert figures.seen() == {}


def test_many_topics_are_published_as_one_with_the_longest_lag() -> None:
    """The number of labels is bounded, and counters do not fall."""
    figures = TickFigures()
    names = [f"a/{number}" for number in range(TOPICS_MAX + 3)]
    for name in names:
        figures.add(name)
        figures.note_stored(name)
    figures.topics = lambda: [TopicTicks(name, 1.0 + n, 1) for n, name in enumerate(names)]
    seen = figures.seen()
    assert len(seen) == len(figures.stored) == TOPICS_MAX + 1
    assert seen[OTHERS] == TopicTicks(OTHERS, 3.0 + TOPICS_MAX, 3)
    assert figures.stored[OTHERS] == 3


async def test_reports_of_unknown_topics_and_former_writers_are_refused_and_counted(
    autojump_clock: MockClock,
) -> None:
    """MV-37: they do not count for ticks."""
    async with shop() as shop_, shop_.client.producer(ORDERS, partition=0) as producer:
        await producer.send(b"one")
        await shop_.ticked()
        before = shop_.value("cluster_tick_reports_refused_total")
        assert before is not None
        uid = (await shop_.client.topics.info(ORDERS)).uid
        timekeeper = shop_.cluster.bookies["b1"].timekeeper
        assert timekeeper is not None
        former = LaneReport(uid, 0, 0, 0, 1 << 62, 100)
        unknown = LaneReport(uid + 1, 0, 0, 1, 1 << 62, 100)
        await timekeeper.answer(ReportLanes([former, unknown]))
        await trio.sleep(1)
        assert shop_.value("cluster_tick_reports_refused_total") == before + 2


async def test_a_lane_that_was_closed_for_its_dead_writer_is_counted(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """MV-36: until then, it is named in the log."""

    async def nothing(*_: object) -> None:
        pass

    async with shop() as shop_:
        with replaced(LaneWriter, "close", nothing), replaced(LaneWriter, "abort", nothing):
            async with trio.open_nursery() as nursery:
                sent = trio.Event()

                async def produce() -> None:
                    async with shop_.client.producer(ORDERS, partition=1) as producer:
                        await producer.send(b"one")
                        sent.set()
                        await trio.sleep_forever()

                nursery.start_soon(produce)
                await sent.wait()
                await shop_.ticked()
                nursery.cancel_scope.cancel()
        assert shop_.value("cluster_tick_lanes_closed_total") == 0
        await trio.sleep(SESSION_S + 5)
        assert shop_.value("cluster_tick_lanes_closed_total") == 1
        warned = [text for text in caplog.messages if "ticks of shop/orders wait" in text]
        assert len(warned) == 1
        assert "lane 0 of partition 1 is open, and its writer does not report it" in warned[0]


def test_who_holds_ticks_for_two_seconds_is_warned_of_once_and_again_after_two_minutes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """MV-36: ten rounds; whoever holds them next has ten of its own."""
    watch, now = Watch(ORDERS), 0.0

    def rounds(count: int, holder: tuple[int, int] | None) -> list[str]:
        nonlocal now
        caplog.clear()
        for _ in range(count):
            watch.note(holder, f"lane {holder}", now)
            now += 0.2
        return caplog.messages

    assert rounds(WARN_ROUNDS - 1, (0, 0)) == []
    assert rounds(1, (0, 0)) == ["ticks of shop/orders wait for 2 s: lane (0, 0)"]
    assert rounds(int(WARN_S / 0.2) - 1, (0, 0)) == []
    assert rounds(2, (0, 0)) == ["ticks of shop/orders wait for 122 s: lane (0, 0)"]
    assert rounds(WARN_ROUNDS - 1, (0, 1)) == []
    assert rounds(1, None) == []
    assert rounds(WARN_ROUNDS - 1, (0, 1)) == []
    assert len(rounds(1, (0, 1))) == 1
