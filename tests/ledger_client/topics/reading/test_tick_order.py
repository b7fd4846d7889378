"""Messages of several lanes in the order of their timestamps, released by ticks: without I/O."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
import trio
from batches import Sent, columns_of
from hypothesis import given, settings, strategies as st
from replaced import replaced

from ledger_client.errors import MessagesLost
from ledger_client.figures import Figures
from ledger_client.topics.messages import MergedBatch, open_batch
from ledger_client.topics.positions import EARLIEST, LaneRef, Place
from ledger_client.topics.reading import tick_order
from ledger_client.topics.reading.cursor import LaneBounds, LaneCursor
from ledger_client.topics.reading.merging import MergedLanes
from ledger_client.topics.reading.options import ReadOptions
from ledger_client.topics.reading.source import Edge, OpenedEntry, Put
from ledger_client.topics.reading.tick_order import BATCH_ROWS, TIMESTAMP_MAX, TickOrder
from ledger_client.topics.ticks import Tick
from native import batch as native_batch

LANES_MAX = 4


def lane_of(index: int, *, topics: int = 1) -> LaneRef:
    topic = index % topics
    return LaneRef(topic, index // 2, index % 2, f"shop/t{topic}", topic, ordered=False)


class Entries(NamedTuple):
    """Consecutive entries of a lane, each a list of timestamps."""

    batch: Sequence[Sequence[int]]
    first: int

    def open(self, lane: LaneRef, index: int) -> OpenedEntry:
        version = self.first + index
        place = Place(0, version, 0, 7, version)
        sent = [Sent(b"%d" % time, timestamp=time) for time in self.batch[index]]
        payload = native_batch.encode(columns_of(sent), 0, len(sent))
        found = open_batch(lane, place, memoryview(payload), 0)
        after = place._replace(entry=version + 1, version=version + 1)
        return OpenedEntry(found, [(0, len(sent))], place, after)


class Nothing:
    """The entries are put by hand."""

    async def run(self, put: Put) -> None:
        await trio.sleep_forever()


class Reading:
    """A reader of lanes whose entries and ticks arrive one by one, by hand."""

    def __init__(
        self,
        nursery: trio.Nursery,
        lanes: Sequence[Sequence[Sequence[int]]],
        *,
        topics: int = 1,
        places: dict[LaneRef, Place] | None = None,
        last: int = TIMESTAMP_MAX,
    ) -> None:
        self.lanes = {lane_of(index, topics=topics): each for index, each in enumerate(lanes)}
        self.cursors: dict[LaneRef, LaneCursor] = {}
        self.wanted: set[int] = set()
        self.order = TickOrder(topics, wants=self.wanted.add, last=last)
        self.merged = MergedLanes(ReadOptions(order="timestamp"), nursery, Figures())
        self.merged.begin(self.open, [], self.order)  # type: ignore[arg-type]  # lanes alone
        self._places = places or {}
        self._arrived: dict[LaneRef, int] = {}

    def open(self, lane: LaneRef) -> LaneCursor:
        place = self._places.get(lane, EARLIEST)
        cursor = LaneCursor(lane, Nothing(), place, notify=lambda: None, bounds=LaneBounds())
        self.cursors[lane] = cursor
        return cursor

    def know(self, lane: LaneRef) -> None:
        """Begin to read a lane."""
        if lane not in self.cursors:
            self.merged.add(lane)  # type: ignore[arg-type]  # open() takes lanes

    def know_all(self) -> None:
        for lane in self.lanes:
            self.know(lane)

    async def arrive(self, lane: LaneRef, count: int) -> bool:
        """Let the next entries of a lane arrive, or the news that there are none; False if full."""
        cursor = self.cursors[lane]
        if len(cursor._queue) > 1:
            return False
        first = self._arrived.get(lane, max(cursor.place.entry, 0))
        found = self.lanes[lane][first : first + count]
        if found:
            await cursor._put(Entries(found, first))  # type: ignore[arg-type]  # as they are opened
        else:
            await cursor._put(Edge(first))
        self._arrived[lane] = first + len(found)
        return True

    async def arrive_all(self) -> None:
        self.know_all()
        for lane in self.lanes:
            await self.arrive(lane, 1000)
            await self.arrive(lane, 1)

    def take_all(self) -> list[list[int]]:
        found = []
        while (batch := self.merged.take()) is not None:
            found.append(times(batch))
        return found


def times(batch: MergedBatch) -> list[int]:
    return [int(message.value or b"") for message in batch.messages()]


def covers_at(
    reading: Reading, timestamp: int, topic: int = 0, more: int = 0
) -> dict[tuple[int, int], int]:
    """The places before which all messages up to a timestamp lie."""
    covers = {}
    for lane, entries in reading.lanes.items():
        before = sum(entry[0] <= timestamp for entry in entries)
        if before and lane.topic_index == topic:
            covers[lane.partition, lane.lane] = min(before + more, len(entries))
    return covers


def stored(reading: Reading, timestamp: int, topic: int = 0, more: int = 0) -> Tick:
    return Tick(timestamp, covers_at(reading, timestamp, topic, more), timestamp)


def cut(stamps: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Cut the timestamps of a lane into entries."""
    found, rest = [], list(stamps)
    for size in sizes:
        found.append(rest[:size])
        rest = rest[size:]
    return [each for each in [*found, rest] if each]


class Trial:
    """A reader to which everything happens in any order, and what it got."""

    def __init__(
        self,
        nursery: trio.Nursery,
        lanes: Sequence[Sequence[Sequence[int]]],
        *,
        ticks: Sequence[int],
        topics: int,
        more: int,
        seed: int,
    ) -> None:
        self.batches: list[list[int]] = []
        self._nursery = nursery
        self._lanes = lanes
        self._ticks = ticks
        self._topics = topics
        self._more = more
        self._chance = random.Random(seed)
        self._added = [0] * topics
        self.reading = Reading(nursery, lanes, topics=topics)

    @property
    def released(self) -> list[int]:
        return [time for batch in self.batches for time in batch]

    async def step(self) -> None:
        steps = [self._know, self._arrive, self._tick, self._take, self._resume]
        (step,) = self._chance.choices(steps, [2, 8, 2, 7, 1])
        await step()

    async def finish(self) -> None:
        """Let everything arrive, and take it."""
        for topic in range(self._topics):
            while self._added[topic] < len(self._ticks):
                self._add(topic)
        for _ in range(200):
            self.reading.know_all()
            for lane in self.reading.lanes:
                await self.reading.arrive(lane, 1)
            self.batches += self.reading.take_all()

    async def _know(self) -> None:
        self.reading.know(self._chance.choice([*self.reading.lanes]))

    async def _arrive(self) -> None:
        if known := [*self.reading.cursors]:
            await self.reading.arrive(self._chance.choice(known), self._chance.randint(1, 3))

    async def _tick(self) -> None:
        topic = self._chance.randrange(self._topics)
        if self._added[topic] < len(self._ticks):
            self._add(topic)

    def _add(self, topic: int) -> None:
        tick = self._ticks[self._added[topic]]
        self.reading.order.add(topic, stored(self.reading, tick, topic, self._more))
        self._added[topic] += 1

    async def _take(self) -> None:
        batch = self.reading.merged.take()
        if batch is None:
            return
        found = times(batch)
        assert found[-1] <= self._ticks[min(self._added) - 1]
        assert batch.tick_before < found[0]
        keep = self._chance.choice([len(found), self._chance.randint(0, len(found))])
        self.reading.merged.give_back(batch, len(found) - keep)
        self.batches.append(found[:keep])

    async def _resume(self) -> None:
        """Go on with another reader from the position of this one."""
        known, places = [*self.reading.cursors], self.reading.merged.places(None, 0)
        self.reading = Reading(self._nursery, self._lanes, topics=self._topics, places=places)
        for lane in known:
            self.reading.know(lane)
        released = self.released
        self._added = [bisect_right(self._ticks, max(released, default=0))] * self._topics


@settings(max_examples=100)
@given(
    owners=st.lists(st.integers(0, LANES_MAX - 1), max_size=30),
    sizes=st.lists(st.integers(1, 5), max_size=10),
    ticks=st.sets(st.integers(0, 31)),
    more=st.integers(0, 2),
    topics=st.integers(1, 2),
    seed=st.integers(0, 1 << 32),
)
def test_whatever_comes_when_the_order_is_that_of_timestamps_cut_at_ticks(
    owners: list[int], sizes: list[int], ticks: set[int], more: int, topics: int, seed: int
) -> None:
    """MV-16, MV-20, MV-23, MV-40, MV-41: also after messages were given back, and resumed."""
    stamps = [[10 * i for i, o in enumerate(owners, 1) if o == each] for each in range(LANES_MAX)]
    points = sorted({*(10 * tick + 5 for tick in ticks), 10 * len(owners) + 5})

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            lanes = [cut(lane, sizes) for lane in stamps]
            trial = Trial(nursery, lanes, ticks=points, topics=topics, more=more, seed=seed)
            for _ in range(400):
                await trial.step()
            await trial.finish()
            assert trial.released == sorted(time for lane in stamps for time in lane)
            for batch in trial.batches:
                assert len({bisect_right(points, time) for time in batch}) <= 1
            nursery.cancel_scope.cancel()

    trio.run(run)


@asynccontextmanager
async def reading_of(
    lanes: Sequence[Sequence[Sequence[int]]], *, topics: int = 1
) -> AsyncIterator[Reading]:
    async with trio.open_nursery() as nursery:
        reading = Reading(nursery, lanes, topics=topics)
        reading.know_all()
        yield reading
        nursery.cancel_scope.cancel()


async def test_a_message_in_flight_holds_back_the_tick_and_what_is_later_waits() -> None:
    """MV-17: timestamp 110 of one producer has arrived, 80 of another is still in flight."""
    async with reading_of([[[80], [120]], [[110]]]) as reading:
        one, two = reading.lanes
        await reading.arrive(two, 1)
        reading.order.add(0, Tick(70, {}, 0))  # nothing up to 70 was sent
        assert reading.take_all() == []
        reading.order.add(0, stored(reading, 115))
        assert reading.take_all() == []  # 80 lies before the place that the tick covers
        await reading.arrive(one, 1)
        assert reading.take_all() == [[80, 110]]
        assert reading.order.tick == 115
        await reading.arrive(one, 1)
        assert reading.take_all() == []  # 120 is above the tick
        reading.order.add(0, stored(reading, 125))
        assert reading.take_all() == [[120]]


async def test_a_tick_is_reached_when_all_of_it_was_taken() -> None:
    """MV-20: then everything up to it was consumed, and it is safe to depend on that."""
    async with reading_of([[[10], [30]], [[20]]]) as reading:
        reading.order.add(0, stored(reading, 25))
        reading.order.add(0, stored(reading, 35))
        await reading.arrive_all()
        first = reading.merged.take()
        assert first is not None
        assert (times(first), first.tick_before, first.tick) == ([10, 20], 0, 25)
        assert reading.order.tick == 25
        reading.merged.give_back(first, 1)
        assert reading.order.tick == 0
        assert reading.take_all() == [[20], [30]]
        assert reading.order.tick == 35


async def test_a_lane_that_a_tick_covers_is_waited_for_until_it_is_read_or_left_out() -> None:
    async with trio.open_nursery() as nursery:
        reading = Reading(nursery, [[[10]], [[20]], [[30]]])
        one, two, three = reading.lanes
        reading.know(one)
        await reading.arrive(one, 1)
        reading.order.add(0, stored(reading, 35))
        assert reading.take_all() == []
        assert reading.order.unknown(0) == {
            (two.partition, two.lane),
            (three.partition, three.lane),
        }
        assert reading.wanted == {0}
        reading.order.leave_out(0, {(three.partition, three.lane)})
        assert reading.take_all() == []
        reading.know(two)
        await reading.arrive(two, 1)
        assert reading.take_all() == [[10, 20]]
        nursery.cancel_scope.cancel()


async def test_entries_that_are_gone_are_not_waited_for() -> None:
    """Retention removed all ledgers of a lane: its source is at its edge, after what is missing."""
    async with reading_of([[[10]], [[20]]]) as reading:
        one, two = reading.lanes
        reading.order.add(0, stored(reading, 25))
        await reading.arrive(one, 1)
        await reading.cursors[two]._put(Edge(0))
        assert reading.take_all() == []
        await reading.cursors[two]._put(Edge(1))
        assert reading.take_all() == [[10]]


async def test_messages_after_the_next_one_of_a_paused_lane_wait_with_it() -> None:
    async with reading_of([[[10], [40]], [], [[20], [30]]]) as reading:
        reading.order.add(0, stored(reading, 45))
        reading.merged.pause([0])
        await reading.arrive_all()
        assert reading.take_all() == []
        reading.merged.pause([1])
        reading.merged.resume([0])
        assert reading.take_all() == [[10]]
        reading.merged.resume(None)
        assert reading.take_all() == [[20, 30, 40]]


async def test_equal_timestamps_come_by_topic_partition_and_lane() -> None:
    """Only jobs write them."""
    async with reading_of([[[10, 10]], [[10, 10]], [[5, 10, 15]]]) as reading:
        reading.order.add(0, stored(reading, 20))
        await reading.arrive_all()
        batch = reading.merged.take()
        assert batch is not None
        assert times(batch) == [5, 10, 10, 10, 10, 10, 15]
        where = [(message.id.partition, message.lane) for message in batch.messages()]
        assert where == [(1, 0), (0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0)]


async def test_an_idle_tick_lets_other_topics_go_on_and_cuts_nothing() -> None:
    """MV-45: what only the leader's memory has must not show in the order of a replay."""
    async with reading_of([[[10], [30]], [[20]]], topics=2) as reading:
        await reading.arrive_all()
        reading.order.add(0, stored(reading, 35))
        assert reading.take_all() == []
        assert reading.order.needed(1) == 35
        reading.order.add(1, stored(reading, 22, 1))
        assert reading.take_all() == [[10, 20]]
        assert reading.order.needed(1) == 35
        reading.order.add(1, Tick(27, covers_at(reading, 22, 1), 22))
        assert reading.take_all() == []
        reading.order.add(1, Tick(36, covers_at(reading, 22, 1), 22))
        assert reading.take_all() == [[30]]
        assert reading.order.needed(0) is None


async def test_an_idle_tick_does_not_cut_what_a_stored_tick_of_another_topic_has() -> None:
    async with reading_of([[[10], [30]], []], topics=2) as reading:
        await reading.arrive_all()
        reading.order.add(0, stored(reading, 35))
        reading.order.add(1, Tick(27, {}, 0))
        assert reading.take_all() == []
        reading.order.add(1, Tick(36, {}, 0))
        assert reading.take_all() == [[10, 30]]


async def test_reading_ends_at_the_last_timestamp() -> None:
    async with trio.open_nursery() as nursery:
        reading = Reading(nursery, [[[10], [20], [30]]], last=20)
        await reading.arrive_all()
        reading.order.add(0, stored(reading, 25))
        assert reading.take_all() == [[10, 20]]
        assert reading.order.ended
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("late", [[[10], [5]], [[10], [5, 20]], [[10], [0]], [[30, 20]]])
async def test_timestamps_that_go_back_are_named_and_not_released(late: list[list[int]]) -> None:
    """Invariants 8 and 9: a message that a tick did not cover must not slip in behind it."""
    async with reading_of([late, [[40]]]) as reading:
        reading.order.add(0, Tick(12, {(0, 0): 1}, 12))
        reading.order.add(0, Tick(50, {(0, 0): 2, (0, 1): 1}, 50))
        await reading.arrive_all()
        with pytest.raises(MessagesLost, match="timestamp"):
            while reading.merged.take() is not None:
                pass


async def test_a_long_stretch_comes_in_batches_of_bounded_size() -> None:
    lanes = [[[*range(i, i + 4000)] for i in range(1, 20_000, 4000)], [[30_000]]]
    async with reading_of(lanes) as reading:
        reading.order.add(0, stored(reading, 40_000))
        await reading.arrive_all()
        found = reading.take_all()
        assert max(map(len, found)) <= BATCH_ROWS + 4000
        assert [time for batch in found for time in batch] == [*range(1, 20_001), 30_000]


def test_waiting_ticks_have_a_bounded_number_of_covers() -> None:
    """One always has room, however many lanes it covers."""
    order = TickOrder(1, wants=lambda _topic: None)
    covers = dict.fromkeys(((0, lane) for lane in range(4)), 1)
    with replaced(tick_order, "COVERS_MAX", 10):
        for timestamp in range(1, 4):
            assert order.has_room(0)
            order.add(0, Tick(timestamp, covers, timestamp))
        assert not order.has_room(0)
    with replaced(tick_order, "COVERS_MAX", 1):
        order = TickOrder(1, wants=lambda _topic: None)
        assert order.has_room(0)
