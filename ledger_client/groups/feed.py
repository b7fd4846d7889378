"""The messages of those partitions of a topic that a member has, which change while it reads.

A partition is added with the places at which its lanes begin, and dropped with the places that
were reached. The other partitions never stop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import trio

from ledger_client.background import Background
from ledger_client.errors import BadTopic, Gap, LedgerError, lane_text
from ledger_client.groups.sources import Kept
from ledger_client.topics.context import TopicContext
from ledger_client.topics.messages import MergedBatch, MessageRange
from ledger_client.topics.positions import EARLIEST, LanePlace, LaneRef, Place, Places, Position
from ledger_client.topics.reading.lane_ranges import KnownLane, LaneRange, LaneStart
from ledger_client.topics.reading.lane_set import LaneSet, new_lane
from ledger_client.topics.reading.merging import MergedLanes
from ledger_client.topics.reading.options import ReadOptions, Start
from ledger_client.topics.reading.topic_watch import TopicWatch
from metadata.topics import TopicRecord

NO_PARTITION = -2
"""Before all partitions: the only one of a topic without partitions is -1."""


class LaneSpan(NamedTuple):
    """A lane from its first message that is left to behind its last one."""

    lane: LaneRef
    begin: Place
    end: Place


class FoundLanes(NamedTuple):
    """What is known of a topic's lanes when partitions are added."""

    lanes: Sequence[KnownLane]
    first: int = 0
    """by timestamp: no tick up to this one matters to them"""
    looks: int = 0
    """how often the topic was looked at before they were listed"""


class OrderOfTicks(Protocol):
    """The order of timestamps in a feed; FeedTicks has the details."""

    held: set[int]

    async def first(self, added: Mapping[int, Places], lanes: Sequence[KnownLane]) -> int:
        """Return a timestamp up to which no tick matters. Raises LedgerError."""

    def begin(self, first: int) -> None:
        """Begin the order anew, with ticks later than *first*."""

    def end(self) -> None:
        """Bring no more ticks."""


OpenTicks = Callable[
    [
        TopicContext,
        TopicRecord,
        MergedLanes,
        LaneSet,
        Collection[int],
        trio.Nursery,
        Callable[[], None],
    ],
    OrderOfTicks,
]
"""Makes a FeedTicks."""


class TopicFeed:
    """One topic, as far as a member reads it. run() must run meanwhile.

    Args:
        context: the client's.
        topic: its record.
        options: how to read; partitions, start and end do not count.
        nursery: for the tasks that read lanes.
        on_arrival: called when there may be something to take.
        open_ticks: by timestamp, in one order of all partitions; `None` for any order.
    """

    def __init__(
        self,
        context: TopicContext,
        topic: TopicRecord,
        options: ReadOptions,
        nursery: trio.Nursery,
        on_arrival: Callable[[], None],
        *,
        open_ticks: OpenTicks | None = None,
    ) -> None:
        self.topic = topic
        self.newest = NO_PARTITION
        """the last of all partitions that were ever added"""
        self._context = context
        self._partitions: list[int] = []
        self._scope = trio.CancelScope()
        self._options = options
        self._on_arrival = on_arrival
        self._merged = MergedLanes(options, nursery, context.figures, now_ms=context.clock.now_ms)
        self._lanes = LaneSet(
            catalogue=context.catalogue,
            opener=context.opener.sharing(options.read_ahead_size, 1),
            topics=[topic],
            options=options,
            notify=self._notify,
        )
        self._watch = TopicWatch(self._lanes.store, topic, self._look)
        self._lanes.watches.append(self._watch)
        self._merged.begin(self._lanes.cursor, [])
        self._taken: MergedBatch | None = None
        self._outage = trio.Event()
        """set while a lane is to be opened again later"""
        self._ticks: OrderOfTicks | None = None
        if open_ticks is not None:
            self._ticks = open_ticks(
                context,
                topic,
                self._merged,
                self._lanes,
                self._partitions,
                nursery,
                on_arrival,
            )

    async def run(self) -> None:
        """Notice new ledgers and lanes, until end(); take() raises what went wrong."""
        try:
            with self._scope:
                async with Background() as nursery:
                    nursery.start_soon(self._try_again)
                    await self._watch.run()
        except LedgerError as failure:
            self._merged.fail(failure)
            self._on_arrival()
        finally:
            self._merged.uncount()

    async def begin(self, partitions: Collection[int], start: Start) -> dict[int, Places]:
        """Return the places that *start* stands for, in the lanes of each partition.

        Raises:
            LedgerError: they could not be looked up.
        """
        lanes = [each for each in await self.known() if each.lane.partition in partitions]
        found: dict[int, dict[int, Place]] = {partition: {} for partition in partitions}
        for known, begin in zip(lanes, await self._lanes.find(lanes, start), strict=True):
            found[known.lane.partition][known.lane.lane] = begin.place
        return {**found}

    async def spans(self) -> list[LaneSpan]:
        """Return the lanes of all partitions, with their first and last places.

        Raises:
            LedgerError: they could not be looked up.
        """
        known = await self.known()
        ends = await self._lanes.find(known, "latest")
        spans: list[LaneSpan] = []
        for each, end in zip(known, ends, strict=True):
            first = await each.rows.first_from(0)
            begin = EARLIEST if first is None else first.place(0)
            spans.append(LaneSpan(each.lane, begin, end.place))
        return spans

    async def check(self, places: Mapping[int, Places]) -> None:
        """Raise BadTopic for a place behind the end of its lane, its ledger or its entry.

        A place before the first message that is left is allowed: what reads it gets a Gap. Of
        places that were reached already, only those within an entry are looked up. Each look
        costs a few calls, and the read of that entry.

        Raises:
            LedgerError: a place could not be looked up.
        """
        reached = {(ref.partition, ref.lane): place for ref, place in self.places().items()}
        ahead: dict[tuple[int, int], Place] = {}
        within: dict[tuple[int, int], Place] = {}
        for partition, lanes in places.items():
            for lane, place in lanes.items():
                here = reached.get((partition, lane), EARLIEST)
                if here.at < place.at:
                    ahead[partition, lane] = place
                elif here.at != place.at and not self._is_at_hand(partition, lane, place):
                    within[partition, lane] = place
        if ahead or within:
            await self._look_at(ahead, within)

    def _is_at_hand(self, partition: int, lane: int, place: Place) -> bool:
        """Return True for the begin of an entry, and places within one that was taken last."""
        if not place.skip:
            return True
        for batch in (each.batch for each in (self._taken.ranges if self._taken else ())):
            is_same = (batch.lane.partition, batch.lane.lane) == (partition, lane)
            if is_same and batch.place.at == place._replace(skip=0).at:
                return place.skip <= batch.count
        return False

    async def _look_at(
        self, ahead: Mapping[tuple[int, int], Place], within: Mapping[tuple[int, int], Place]
    ) -> None:
        """Raise BadTopic for places that are none; only those *ahead* may be behind an end."""
        known = {(each.lane.partition, each.lane.lane): each for each in await self.known()}
        wanted = {**ahead, **within}
        if missing := next((at for at in wanted if at not in known), None):
            raise BadTopic(f"there is no {lane_text(*missing)}", topic=self.topic.name)
        ends = await self._lanes.find([known[at] for at in ahead], "latest")
        for (at, place), end in zip(ahead.items(), ends, strict=True):
            if end.place.at < place.at:
                reason = f"a place behind the end of {lane_text(*at)}: {place}"
                raise BadTopic(reason, topic=self.topic.name)
        named = (LanePlace(self.topic.name, self.topic.uid, *at, wanted[at]) for at in wanted)
        await self._lanes.find([known[at] for at in wanted], Position(named), exact=True)

    async def known(self) -> Sequence[KnownLane]:
        """Return the lanes of all partitions. Raises LedgerError."""
        return await self._lanes.lanes_of(0)

    async def look_up(self, places: Mapping[int, Places]) -> FoundLanes:
        """Return what is to be known before these partitions are read. Raises LedgerError."""
        looks = self._watch.looks
        lanes = await self.known()
        first = 0 if self._ticks is None else await self._ticks.first(places, lanes)
        return FoundLanes(lanes, first, looks)

    def move(self, moved: Mapping[int, Places], found: FoundLanes) -> None:
        """Go on from other places in these partitions, which are read already."""
        self._merged.drop(moved)
        self._add(moved, found)

    async def add(self, added: Mapping[int, Places]) -> None:
        """Read these partitions, too. Raises LedgerError; then nothing was added."""
        self._add(added, await self.look_up(added))

    def hold(self, partitions: Iterable[int]) -> None:
        """By timestamp, hand out nothing until these partitions are added, or dropped."""
        if self._ticks is not None:
            self._ticks.held |= {*partitions}

    def _add(self, added: Mapping[int, Places], found: FoundLanes) -> None:
        is_more = any(each not in added for each in self._partitions)
        for known in found.lanes:
            lane = known.lane
            if lane.partition in added and not self._merged.reads(lane):
                place = added[lane.partition].get(lane.lane, EARLIEST)
                self._merged.add(LaneRange(known, LaneStart(place)))
        self._partitions += [each for each in added if each not in self._partitions]
        self.newest = max(self.newest, *added) if added else self.newest
        if self._ticks is not None and added:
            self._ticks.held -= added.keys()
            first = found.first
            if is_more and self._taken is not None:
                first = min(first, self._taken.tick_before)
            self._ticks.begin(first)
        if found.looks != self._watch.looks:  # a lane may have appeared after they were listed
            self._watch.look_again()
        self._on_arrival()

    async def read(self, partition: int, lane: int, begin: Place, end: Place) -> Kept:
        """Return the messages that are there between two places of a lane.

        Raises:
            LedgerError: as reading does.
        """
        arrived = trio.Event()
        lanes = LaneSet(
            catalogue=self._context.catalogue,
            opener=self._context.opener,
            topics=[self.topic],
            options=ReadOptions(partitions=[partition], lanes=[lane]),
            notify=lambda: arrived.set(),
        )
        found: list[MessageRange] = []
        gap: Gap | None = None
        known = [each for each in await lanes.lanes_of(0) if each.lane.lane == lane]
        if not known:
            reason = f"there is no lane {lane} in partition {partition}"
            raise BadTopic(reason, topic=self.topic.name)
        async with Background() as nursery:
            cursor = lanes.cursor(LaneRange(known[0], LaneStart(begin), end, True))
            nursery.start_soon(cursor.run)
            while not cursor.ended:
                arrived = trio.Event()
                try:
                    while (here := cursor.peek()) is not None:
                        found.append(cursor.take(here))
                    if not cursor.ended:
                        await arrived.wait()
                except Gap as removed:
                    gap = gap or removed
        return Kept(found, gap, await known[0].rows.removals() if gap is not None else ())

    def drop(self, partitions: Collection[int]) -> None:
        """Read these partitions no longer; none of them is paused any more."""
        self.stop(partitions)
        self._merged.resume(partitions)

    def stop(self, partitions: Collection[int]) -> None:
        """Read these partitions no longer, until they are added again."""
        self._partitions[:] = [each for each in self._partitions if each not in partitions]
        if self._ticks is not None:
            self._ticks.held -= {*partitions}
        self._merged.drop(partitions)

    @property
    def is_over(self) -> bool:
        """True after end()."""
        return self._scope.cancel_called

    def end(self) -> None:
        """Read nothing any more."""
        self._scope.cancel()
        if self._ticks is not None:
            self._ticks.end()
        self.drop(list(self._partitions))

    def take(self) -> MergedBatch | None:
        """Return the next messages if they have arrived. Raises as TopicReader.next_messages()."""
        if self.is_over or (self._ticks is not None and self._ticks.held):
            return None
        batch = self._merged.take()
        self._taken = batch or self._taken
        if self._merged.again_at < math.inf:
            self._outage.set()
        return batch

    def give_back(self, batch: MergedBatch, count: int) -> None:
        """Take back the last *count* messages of the batch that was taken last."""
        if self._taken is not None:
            batch = batch._replace(tick=self._taken.tick, tick_before=self._taken.tick_before)
        self._merged.give_back(batch, count)

    def places(self) -> dict[LaneRef, Place]:
        """Return the place in each lane after the messages that were taken."""
        return self._merged.places(None, 0)

    def pause(self, partitions: Iterable[int]) -> None:
        """Hand out nothing of these partitions."""
        self._merged.pause(partitions)

    def resume(self, partitions: Iterable[int]) -> None:
        """Hand out these partitions again."""
        self._merged.resume(partitions)
        self._on_arrival()

    async def _try_again(self) -> None:
        """Have lanes looked at again whose bookies or metadata were away, after a pause."""
        while True:
            await self._outage.wait()
            self._outage = trio.Event()
            if (again_at := self._merged.again_at) < math.inf:
                await trio.sleep_until(again_at)
                self._on_arrival()

    async def _look(self) -> None:
        """Read the lanes that appeared in partitions that are read already."""
        for known in await self.known():
            lane = known.lane
            if lane.partition in self._partitions and not self._merged.reads(lane):
                self._merged.add(new_lane(known, "earliest"))
                self._on_arrival()

    def _notify(self) -> None:
        self._merged.notify()
        self._on_arrival()
