"""The lanes of a reader: those that exist, their beginnings and ends, and a cursor over each.

    topics ──► existing lanes ──► begin and end of each ──► cursors
                    ▲
                    └─ while following: looked up again and again (TopicWatch)

A MessageId is a place in one lane, so only that lane of its partition is read. A position, as
TopicReader.position() returned it, has a place in each lane. A time stands for the place before
the lane's first message at that time or later (search.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property, partial

import trio

from ledger_client.errors import BadTopic, LedgerError, NoSuchTopic
from ledger_client.ledgers.catalogue import translated
from ledger_client.ledgers.opener import LedgerOpener
from ledger_client.message_id import MessageId
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.lanes.lane_names import read_lane_names
from ledger_client.topics.lanes.ledger_rows import LedgerRows, lanes_of
from ledger_client.topics.positions import (
    EARLIEST,
    UNKNOWN,
    LaneRef,
    Place,
    Version,
    is_position,
)
from ledger_client.topics.reading.compacted import CompactedSets, range_of
from ledger_client.topics.reading.compacted_source import CompactedSource
from ledger_client.topics.reading.cursor import LaneBounds, LaneCursor, Source
from ledger_client.topics.reading.lane_ranges import KnownLane, LaneRange, LaneStart
from ledger_client.topics.reading.options import ReadOptions, Start
from ledger_client.topics.reading.place_finder import PlaceFinder, kept_place
from ledger_client.topics.reading.source import RawSource, ReverseSource
from ledger_client.topics.reading.topic_watch import TopicWatch
from ledger_client.topics.times import TIMES, Time
from metadata.topics import TopicRecord
from native.tick import LaneIndex

_NUMBER_MAX = (1 << 63) - 1


def new_lane(known: KnownLane, start: Start) -> LaneRange:
    """Return the range to read of a lane that appeared after reading had begun at *start*."""
    return LaneRange(known, LaneStart(EARLIEST, start if isinstance(start, TIMES) else None))


class LaneSet:
    """The lanes of some topics, as far as a reader's options choose them.

    Args:
        catalogue: looks up the topics.
        opener: opens their ledgers.
        topics: their records.
        options: the reader's.
        notify: called when a lane has something to take.
    """

    def __init__(
        self,
        *,
        catalogue: TopicCatalogue,
        opener: LedgerOpener,
        topics: Sequence[TopicRecord],
        options: ReadOptions,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = catalogue.store
        self._catalogue = catalogue
        self._opener = opener
        self._topics = topics
        self._options = options
        self._notify = notify
        self.watches: list[TopicWatch] = []
        """one watch per topic, if they are followed"""

    @property
    def opener(self) -> LedgerOpener:
        """Opens the ledgers of the lanes."""
        return self._opener

    async def ranges(self, start: Start, *, after: bool) -> list[LaneRange]:
        """Return all lanes there are, with the range of each from *start* to the options' end.

        *after*: begin after the message or time that *start* names.

        Raises:
            NoSuchTopic: one of the topics is gone.
            BadTopic: there is no such place; the message says why.
            LedgerError: as reading does.
        """
        options = self._options
        lanes = await self.lanes()
        chosen = narrow([each.lane for each in lanes], start, options.end)
        lanes = [each for each in lanes if each.lane in chosen]
        self._opener = self._opener.sharing(options.read_ahead_size, len(lanes))
        begins = await self._find(lanes, start, after=after, begins=not options.reverse)
        if options.end is None or self.until is not None:
            return [LaneRange(*pair) for pair in zip(lanes, begins, strict=True)]
        ends = await self._find(lanes, options.end, after=options.end_inclusive != options.reverse)
        for end in ends:
            if end.gap is not None:
                raise end.gap
        places = [end.place for end in ends]
        is_kept = is_position(options.end)
        return [LaneRange(*each, is_kept) for each in zip(lanes, begins, places, strict=True)]

    async def lanes(self) -> list[KnownLane]:
        """Return the chosen lanes that exist.

        Raises:
            NoSuchTopic: one of the topics is gone.
        """
        found: list[KnownLane] = []
        for index in range(len(self._topics)):
            found += await self.lanes_of(index)
        return found

    async def lanes_of(self, index: int) -> list[KnownLane]:
        """Return the chosen lanes of one topic that exist.

        Raises:
            NoSuchTopic: it is gone, or another topic has its name by now.
        """
        known, _ = await self._look(index)
        return known

    async def _look(self, index: int) -> tuple[list[KnownLane], set[LaneIndex]]:
        """Return the chosen lanes of one topic, and the others by partition and lane."""
        topic = self._topics[index]
        found, _ = await self._catalogue.get(topic.name)
        if found.uid != topic.uid:
            raise NoSuchTopic(topic.name)
        store, timeout_s = self.store, self._catalogue.timeout_s
        compacted = None
        if self._options.compacted:
            compacted = await self._compacted_sets.set_of(topic.uid)
        known: list[KnownLane] = []
        others: set[LaneIndex] = set()
        wanted = self._options.lanes
        there = await lanes_of(store, topic.uid, timeout_s=timeout_s)
        names = await self._names(topic)  # after the lanes: a lane and its name are made together
        for partition, lane, record in there:
            name = names.get((partition, lane), "")
            is_chosen = _is_among(lane, wanted) or _is_among(name, wanted)
            if not (is_chosen and _is_among(partition, self._options.partitions)):
                others.add((partition, lane))
                continue
            ordered = topic.order == "event-time"
            ref = LaneRef(index, partition, lane, topic.name, topic.uid, ordered)
            rows = LedgerRows(store, ref, timeout_s=timeout_s)
            beginning = None if compacted is None else range_of(compacted, ref)
            known.append(KnownLane(ref, rows, record, beginning, name))
        return known, others

    async def _names(self, topic: TopicRecord) -> dict[tuple[int, int], str]:
        """Return the names of lanes by partition and lane, if anything depends on them."""
        chosen = any(isinstance(each, str) for each in self._options.lanes or ())
        if not chosen and self._options.order != "event-time":
            return {}
        with translated(self._catalogue.timeout_s):
            return await read_lane_names(self.store, topic)

    async def _find(
        self,
        lanes: Sequence[KnownLane],
        start: Start,
        *,
        after: bool,
        exact: bool = False,
        begins: bool = False,
    ) -> list[LaneStart]:
        """Return the place of *start* in each lane, at which a read forward *begins*.

        All are looked up at once.
        """
        places = PlaceFinder(self._opener)
        find = places.begin if begins else places.find
        found: dict[int, LaneStart] = {}
        failures: list[LedgerError] = []

        async def look(index: int) -> None:
            try:
                found[index] = await find(lanes[index], start, after=after)
                if exact:
                    await places.check(lanes[index], found[index].place)
            except LedgerError as failure:
                failures.append(failure)

        async with trio.open_nursery() as nursery:
            for index in range(len(lanes)):
                nursery.start_soon(look, index)
        if failures:
            raise failures[0]
        return [found[index] for index in range(len(lanes))]

    async def find(
        self, lanes: Sequence[KnownLane], start: Start, *, exact: bool = False
    ) -> list[LaneStart]:
        """Return the place of *start* in each lane. Raises as ranges().

        A message or a position may lie behind the end of its lane. *exact*: then raise BadTopic.
        """
        is_named = isinstance(start, MessageId) or is_position(start)
        return await self._find(lanes, start, after=False, exact=exact and is_named)

    @cached_property
    def _compacted_sets(self) -> CompactedSets:
        return CompactedSets(self.store, timeout_s=self._catalogue.timeout_s)

    async def timestamp_before(self, ranges: Sequence[LaneRange]) -> int:
        """Return the greatest timestamp before the places at which *ranges* begin, 0 for none.

        Where it cannot be found quickly, it may be one of an earlier message.
        """
        places = PlaceFinder(self._opener)
        found = [0]

        async def look(each: LaneRange) -> None:
            with suppress(LedgerError):
                found.append(await places.timestamp_before(each.known, each.begin.place))

        async with trio.open_nursery() as nursery:
            for each in ranges:
                nursery.start_soon(look, each)
        return max(found)

    async def look(self, index: int, start: Start) -> tuple[list[LaneRange], set[LaneIndex]]:
        """Return the chosen lanes of one topic as after reading had begun at *start*, and others.

        The others are by partition and lane. Raises as lanes_of().
        """
        end = self._options.end
        found = []
        lanes, others = await self._look(index)
        for known in lanes:
            if self.takes(known.lane, start):
                chosen = new_lane(known, start)
                if is_position(end):
                    chosen = chosen._replace(end=kept_place(known.lane, end))
                found.append(chosen)
        return found, others

    def takes(self, lane: LaneRef, start: Start) -> bool:
        """True if a lane that appeared after reading had begun at *start* is read too."""
        if isinstance(self._options.end, MessageId):
            return False  # the read ends with a message of another lane
        return not isinstance(start, MessageId) or lane.partition == start.partition

    @property
    def until(self) -> Time | None:
        """The time at which every lane ends, if it is read forward."""
        end = self._options.end
        if self._options.reverse or not isinstance(end, TIMES):
            return None
        return end.next() if self._options.end_inclusive else end

    # --- cursors -----------------------------------------------------------------------

    def cursor(self, chosen: LaneRange) -> LaneCursor:
        """Return a cursor over a range of a lane. Start its run() in a task."""
        known, begin = chosen.known, chosen.begin
        end = self._end(chosen)
        return LaneCursor(
            known.lane,
            self._source(chosen, end),
            begin.place,
            notify=self._notify,
            name=known.name,
            bounds=LaneBounds(begin.since, self.until, end),
            backward=self._options.reverse,
            gap=begin.gap,
        )

    def _source(self, chosen: LaneRange, end: Place | None) -> Source:
        known, start = chosen.known, chosen.begin.place
        follow, reverse = self._options.follows_lanes, self._options.reverse
        raw = partial(
            RawSource,
            known.rows,
            self._opener,
            end=end,
            end_was_confirmed=chosen.end_was_confirmed,
            last_number=None if follow else known.record.current,
            watch=self.watches[known.lane.topic_index] if follow else None,
        )
        if self._options.compacted:
            return CompactedSource(
                known.rows,
                self._opener,
                sets=self._compacted_sets,
                compacted=known.compacted,
                start=start,
                end=end,
                raw_from=None if reverse else raw,
            )
        if reverse:
            return ReverseSource(known.rows, self._opener, start, end=end)
        return raw(start)

    def _end(self, chosen: LaneRange) -> Place | None:
        """Return the end of a lane; messages compacted later must not extend the range."""
        bounded = not (self._options.follow or self._options.reverse)
        if chosen.end is None and self._options.compacted and bounded:
            return Place(chosen.known.record.current + 1)
        return chosen.end


def _is_among(lane: int | str, wanted: Sequence[int | str] | None) -> bool:
    return wanted is None or lane in wanted


def narrow(lanes: Sequence[LaneRef], *named: object) -> list[LaneRef]:
    """Return those of *lanes* in which the starts and ends *named* can lie.

    Raises:
        BadTopic: one of them is a message that can be in several lanes, or in none; or it is
            no place.
    """
    for each in named:
        _check_place(each, lanes[0].topic if lanes else "")
    messages = [each for each in named if isinstance(each, MessageId)]
    if not messages:
        return list(lanes)
    partition = messages[0].partition
    found = [lane for lane in lanes if lane.partition == partition]
    topic = lanes[0].topic if lanes else ""
    if any(message.partition != partition for message in messages) or not found:
        listed = " and ".join(map(str, messages))
        raise BadTopic(f"{listed}: not in one partition that is read and has messages", topic=topic)
    if len(found) > 1:
        raise BadTopic(
            f"message {messages[0]} is a place in one lane, but partition {partition} has "
            f"{len(found)} lanes: name the lane, or give a position, which has a place in each",
            topic=topic,
        )
    return found


def _check_place(named: object, topic: str) -> None:
    is_known = named in (None, "earliest", "latest") or isinstance(
        named, (MessageId, Version, *TIMES)
    )
    if isinstance(named, datetime):
        raise BadTopic(
            f"{named} may be of two kinds: write EventTime(...) or PublishTime(...)", topic=topic
        )
    if not (is_known or is_position(named)):
        raise BadTopic(
            f'{named!r} is not a place; use "earliest", "latest", a MessageId, an EventTime, '
            "a Timestamp, a PublishTime, a Version, or a Position: that of position(), or "
            "Position.from_json()",
            topic=topic,
        )
    for kept in named if is_position(named) else ():
        if not all(UNKNOWN <= number <= _NUMBER_MAX for number in kept.place):
            raise BadTopic(f"{kept!r} is not a place of a lane", topic=topic)
