"""Followers while all bookies are away: they wait, and go on."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Literal, cast

import pytest
import trio
import trio.lowlevel
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import (
    Client,
    Message,
    MetadataUnavailable,
    Options,
    ReplicasUnavailable,
    Retryable,
)
from ledger_client.figures import Figures
from ledger_client.topics.messages import MergedBatch
from ledger_client.topics.positions import EARLIEST, LaneRef
from ledger_client.topics.reading.cursor import LaneCursor
from ledger_client.topics.reading.lane_ranges import KnownLane, LaneRange, LaneStart
from ledger_client.topics.reading.merging import Arrival, MergedLanes
from ledger_client.topics.reading.options import Order, ReadOptions
from ledger_client.topics.reading.outages import Outages, TickOutage
from metadata.topics import RollPolicy

TOPIC = "shop/orders"
QUICK = Options(read_timeout_s=2.0, append_timeout_s=200.0, replace_timeout_s=200.0)
BOOKIES = ("b1", "b2", "b3")


class FailedCursor:
    """Of a lane whose bookies are away."""

    lane = LaneRef(0, 0, 0, TOPIC, 1, ordered=False)
    place = EARLIEST
    failed = True
    caught_up = False
    since: float | None = None
    waiting_since: float | None = None
    rank = (0,)

    async def run(self) -> None:
        """Fail at once."""

    def close(self) -> None:
        pass


class FailsOnce(Arrival):
    has_failed = False

    def next_batch(self, cursors: object, paused: object) -> MergedBatch | None:
        if self.has_failed:
            return None
        self.has_failed = True
        raise ReplicasUnavailable(ledger_id=1, entry_id=0, reasons={})


def drop(merged: MergedLanes) -> None:
    merged.drop([FailedCursor.lane.partition])


def begin_elsewhere(merged: MergedLanes) -> None:
    merged.begin(lambda _: cast(LaneCursor, FailedCursor()), [])


async def lose_all(cluster: MemoryCluster) -> None:
    for name in BOOKIES:
        cluster.kill(name)
    await trio.lowlevel.checkpoint()


def revive_all(cluster: MemoryCluster) -> None:
    for name in BOOKIES:
        cluster.revive(name)


@pytest.mark.parametrize("order", ["arrival", "event-time", "timestamp"])
async def test_a_follower_waits_for_its_bookies_and_goes_on(
    order: Order, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """However long they are away; each message comes once, in order."""
    caplog.set_level(logging.INFO, logger="ledger_client.topics.reading.outages")
    found: list[Message] = []
    async with memory_cluster(3) as cluster, cluster.client(options=QUICK) as client:
        cluster.lead("b1", has_ticks=True)
        await client.topics.create(
            TOPIC,
            partitions=2,
            order="event-time" if order == "event-time" else "none",
            timesync=order == "timestamp",
            roll=RollPolicy(entries=4),
        )

        async def follow(follower: Client) -> None:
            async with follower.reader(TOPIC, follow=True, order=order) as reader:
                async for message in reader:
                    found.append(message)
                    if len(found) == 20:
                        return

        async with trio.open_nursery() as nursery, client.producer(TOPIC) as producer:

            async def send(first: int) -> None:
                for number in range(first, first + 10):
                    await producer.send(b"%d" % number, partition=number % 2, event_time=number)

            nursery.start_soon(follow, client)
            await send(0)
            await trio.sleep(5)
            await lose_all(cluster)
            await trio.sleep(150)  # an entry cannot be read for as long
            assert len(found) <= 10
            revive_all(cluster)
            await send(10)
    for partition in (0, 1):
        mine = [int(m.value or b"") for m in found if m.id.partition == partition]
        assert mine == list(range(partition, 20, 2))
    told = [record.getMessage() for record in caplog.records]
    assert any("cannot be followed, and" in line for line in told)
    assert any("followed again, after" in line for line in told)
    if order == "timestamp":
        assert any("its ticks cannot be followed" in line for line in told)
        assert any("its ticks are followed again" in line for line in told)


@pytest.mark.parametrize("mode", ["exclusive", "shared", "key-shared"])
async def test_a_member_of_a_group_waits_for_its_bookies_and_goes_on(
    mode: Literal["exclusive", "shared", "key-shared"], autojump_clock: MockClock
) -> None:
    """Though nothing else happens that would wake it."""
    found: list[int] = []
    async with memory_cluster(3) as cluster, cluster.client(options=QUICK) as client:
        cluster.lead("b1")
        await client.topics.create(TOPIC, partitions=2)
        async with client.producer(TOPIC) as producer:
            for number in range(4):
                await producer.send(b"%d" % number, partition=number % 2)
        async with (
            cluster.client(options=QUICK) as own,
            own.consumer(TOPIC, group="g", mode=mode, start="earliest") as consumer,
            trio.open_nursery() as nursery,
        ):
            await lose_all(cluster)

            async def revive() -> None:
                await trio.sleep(6)  # it remains a member for twice as long
                revive_all(cluster)

            nursery.start_soon(revive)
            with trio.fail_after(60):
                while len(found) < 4:
                    found.append(int((await anext(consumer)).value or b""))
    assert sorted(found) == [0, 1, 2, 3]


async def test_a_lane_that_is_being_opened_again_wakes_its_reader_only_when_that_ends(
    mock_clock: MockClock,
) -> None:
    outages, cursor = Outages(None, Figures()), FailedCursor()
    failure = ReplicasUnavailable(ledger_id=1, entry_id=0, reasons={})
    pauses: list[float] = []
    for _ in range(6):
        assert outages.wait_out(failure, [cursor])
        pauses.append(outages.wake_at - trio.current_time())
        assert not outages.is_due(cursor)
        mock_clock.jump(pauses[-1])
        assert outages.is_due(cursor)
        outages.begin(cursor.lane)
        assert outages.wake_at == math.inf
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


@pytest.mark.parametrize("leave", [drop, begin_elsewhere])
async def test_an_outage_of_a_lane_that_is_not_read_any_more_wakes_nobody(
    leave: Callable[[MergedLanes], None], nursery: trio.Nursery
) -> None:
    """It would for ever, as nothing opens that lane again."""
    merged = MergedLanes(ReadOptions(follow=True), nursery, Figures())
    known = cast(KnownLane, SimpleNamespace(lane=FailedCursor.lane))
    chosen = LaneRange(known, LaneStart(EARLIEST))
    merged.begin(lambda _: cast(LaneCursor, FailedCursor()), [chosen], FailsOnce())
    assert merged.take() is None
    assert merged.again_at < math.inf
    leave(merged)
    assert merged.again_at == math.inf


async def test_a_follower_may_give_up(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client(options=QUICK) as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"one")
            async with client.reader(TOPIC, follow=True, give_up_s=30.0) as reader:
                assert (await anext(reader)).value == b"one"
                await lose_all(cluster)
                began = trio.current_time()
                with pytest.raises(ReplicasUnavailable):
                    await anext(reader)
                assert trio.current_time() - began >= 30.0
                revive_all(cluster)
                await producer.send(b"two")
                assert (await anext(reader)).value == b"two"


async def test_a_follower_by_timestamp_may_give_up(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client(options=QUICK) as client:
        cluster.lead("b1", has_ticks=True)
        await client.topics.create(TOPIC, timesync=True)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"one")
            async with client.reader(
                TOPIC, follow=True, order="timestamp", give_up_s=30.0
            ) as reader:
                assert (await anext(reader)).value == b"one"
                await lose_all(cluster)
                began = trio.current_time()
                with pytest.raises(Retryable):
                    await anext(reader)
                assert trio.current_time() - began >= 30.0
                revive_all(cluster)
                await producer.send(b"two")
                assert (await anext(reader)).value == b"two"


async def test_an_outage_of_ticks_ends_once_every_call_is_answered(mock_clock: MockClock) -> None:
    figures = Figures()
    outage = TickOutage(TOPIC, 30.0, figures)
    failure = MetadataUnavailable("nobody leads")
    assert outage.wait_out("newest", failure)
    mock_clock.jump(20)
    assert outage.wait_out("read", failure)
    outage.note_end("newest")
    mock_clock.jump(20)
    assert outage.wait_out("newest", failure)
    assert figures.reading(TOPIC).outages == 1
    mock_clock.jump(11)
    assert not outage.wait_out("read", failure)
    assert outage.wait_out("read", failure)
    assert figures.reading(TOPIC).outages == 2
    assert not TickOutage(TOPIC, 0.0, figures).wait_out("read", failure)


async def test_a_reader_with_an_end_fails_as_ever(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client(options=QUICK) as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % n * 1000 for n in range(9)])
        async with client.reader(TOPIC) as reader:
            await lose_all(cluster)
            with pytest.raises(ReplicasUnavailable):
                async for _ in reader:
                    pass


async def test_a_follower_waits_for_bookies_and_metadata_that_are_away_together(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """However they come back: no message is lost or repeated, and one outage is counted."""
    caplog.set_level(logging.INFO, logger="ledger_client.topics.reading.outages")
    found: list[int] = []
    async with (
        memory_cluster(3) as cluster,
        cluster.client(options=QUICK) as client,
        cluster.client(options=QUICK) as other,
    ):
        await client.topics.create(TOPIC, roll=RollPolicy(entries=4))

        async def follow() -> None:
            async with other.reader(TOPIC, follow=True) as reader:
                async for message in reader:
                    found.append(int(message.value or b""))
                    if len(found) == 20:
                        return

        async with trio.open_nursery() as nursery, client.producer(TOPIC) as producer:
            nursery.start_soon(follow)
            for number in range(10):
                await producer.send(b"%d" % number)
            await trio.sleep(5)
            assert found == list(range(10))
            cluster.store.available = False
            await lose_all(cluster)
            await trio.sleep(600)
            assert other._context.figures.reading(TOPIC).outages == 1
            cluster.store.available = True
            revive_all(cluster)
            for number in range(10, 20):
                await producer.send(b"%d" % number)
        assert found == list(range(20))
        assert other._context.figures.reading(TOPIC).outages == 1
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "cannot be followed, and is tried again" in told[0]
    assert "is followed again, after" in told[1]


async def test_outages_are_counted(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client(options=QUICK) as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer, client.reader(TOPIC, follow=True) as reader:
            await producer.send(b"one")
            await anext(reader)
            await lose_all(cluster)
            with trio.move_on_after(60):
                await anext(reader)
            revive_all(cluster)
            await producer.send(b"two")
            assert (await anext(reader)).value == b"two"
        assert client._context.figures.reading(TOPIC).outages == 1
