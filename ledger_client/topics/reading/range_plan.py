"""The plan of a read: the entries of each ledger, from metadata and a few probes.

    places ──► begin and end in each lane ──► rows in between ──► ledger ranges

The plan covers what a reader with the same options would read: a time stands for its place in
each lane, and an end by time is the first message at that time after the beginning. The end is
fixed: "latest" is what is confirmed now.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Unpack

import msgspec
import trio

from ledger_client.errors import Gap, LedgerError
from ledger_client.ledgers.opener import LedgerOpener
from ledger_client.ledgers.reader import LedgerReader, settle
from ledger_client.topics.context import TopicContext
from ledger_client.topics.lanes.ledger_rows import Row, gap_after
from ledger_client.topics.messages import message_header
from ledger_client.topics.positions import LaneRef, Place, as_position, is_position
from ledger_client.topics.reading.compacted import CompactedRange
from ledger_client.topics.reading.cut_bounds import with_cuts
from ledger_client.topics.reading.lane_ranges import KnownLane
from ledger_client.topics.reading.lane_set import LaneSet, narrow
from ledger_client.topics.reading.options import ReadOptions, ReadSettings
from ledger_client.topics.reading.place_finder import PlaceFinder
from ledger_client.topics.reading.ranges import LedgerRange, RangePlan
from ledger_client.topics.reading.search import CompactedSearch, searching
from ledger_client.topics.times import TIMES
from metadata.compaction import CompactedLedger
from metadata.topics import TopicRecord

LANES_AT_ONCE = 16


async def plan_read(
    context: TopicContext,
    names: str | Sequence[str],
    *,
    closed_only: bool = False,
    whole: Collection[str] = (),
    **settings: Unpack[ReadSettings],
) -> RangePlan:
    """Return the ledger ranges of a read.

    Args:
        context: the connection.
        names: namespace/name of one topic, or of several.
        closed_only: end before the ledgers that are still being written.
        whole: topics of which *start*, a position, names every lane that there was.
        settings: ReadOptions; those for following, reading in reverse and merging have no effect.

    Raises:
        NoSuchTopic: there is no such topic.
        BadTopic: the options contradict each other, or do not suit the topics.
        BadCut: there is no such cut, or a topic is not in it.
        Gap: some of the messages were removed.
        LedgerError: a place could not be looked up.
    """
    options = ReadOptions(**settings)
    listed = [names] if isinstance(names, str) else list(names)
    topics = [(await context.catalogue.get(name))[0] for name in listed]
    options.check(topics)
    options = await with_cuts(context.catalogue, options, topics)
    opener = context.opener
    lane_set = LaneSet(catalogue=context.catalogue, opener=opener, topics=topics, options=options)
    known = await lane_set.lanes()
    chosen = narrow([each.lane for each in known], options.start, options.end)
    planner = _Planner(opener, options, closed_only=closed_only, whole=whole)
    return await planner.plan(topics, [each for each in known if each.lane in chosen])


class _LanePlan(NamedTuple):
    begin: Place
    end: Place
    ranges: list[LedgerRange]
    gaps: list[Gap]


class _Planner:
    def __init__(
        self,
        opener: LedgerOpener,
        options: ReadOptions,
        *,
        closed_only: bool,
        whole: Collection[str],
    ) -> None:
        self._opener = opener
        self._options = options
        self._closed_only = closed_only
        self._whole = whole
        self._places = PlaceFinder(opener)

    async def plan(self, topics: Sequence[TopicRecord], lanes: Sequence[KnownLane]) -> RangePlan:
        """Plan LANES_AT_ONCE lanes at a time. Raises the first failure once all have ended."""
        found: dict[LaneRef, _LanePlan] = {}
        failures: list[LedgerError] = []
        limit = trio.CapacityLimiter(LANES_AT_ONCE)

        async def look(known: KnownLane) -> None:
            async with limit:
                try:
                    found[known.lane] = await self._lane(known)
                except LedgerError as failure:
                    failures.append(failure)

        async with trio.open_nursery() as nursery:
            for known in lanes:
                nursery.start_soon(look, known)
        if failures:
            raise failures[0]
        plans = [found[known.lane] for known in lanes]
        return RangePlan(
            topics=tuple(topics),
            ranges=tuple(each for plan in plans for each in plan.ranges),
            begin=as_position({lane: plan.begin for lane, plan in found.items()}),
            end=as_position({lane: plan.end for lane, plan in found.items()}),
            gaps=tuple(gap for plan in plans for gap in plan.gaps),
        )

    async def _lane(self, known: KnownLane) -> _LanePlan:
        options, gaps = self._options, list[Gap]()
        frozen = await self._frozen_end(known)
        begin = await self._places.begin(
            known, options.begin, after=not options.inclusive, whole=self._whole
        )
        if begin.gap is not None:
            self._note(begin.gap, gaps)
        place = frozen if begin.since is not None else begin.place
        end = await self._end(known, place, frozen)
        if not self._was_confirmed(end, frozen):
            end = min(end, frozen, key=_at)
        end = max(place, end, key=_at)
        ranges = await self._ranges(known, place, end, gaps)
        return _LanePlan(place, end, ranges, gaps)

    async def _frozen_end(self, known: KnownLane) -> Place:
        """Return the place after everything that may be read, or a kept end before that.

        What was confirmed once can be read, whatever became of the ledger's writer and its end.
        """
        end = self._options.end
        if end is not None and is_position(end) and not self._closed_only:
            kept = await self._places.find(known, end, after=False)
            if kept.place.number <= known.record.current:
                return kept.place
        if self._closed_only and known.record.current >= 0:
            row = await known.rows.at(known.record.current)
            if row is not None and row.ledger.state == "open":
                return row.place(0)
        return (await self._places.find(known, "latest", after=False)).place

    async def _end(self, known: KnownLane, begin: Place, frozen: Place) -> Place:
        end, after = self._options.end, self._options.end_inclusive
        if end is None:
            return frozen
        if isinstance(end, TIMES):
            time = end.next() if after else end
            found = await self._places.find_time(known, time, begin)
            return found.place if found.exact else frozen
        found_end = await self._places.find(known, end, after=after)
        if found_end.gap is not None:
            raise found_end.gap
        return found_end.place

    def _was_confirmed(self, end: Place, frozen: Place) -> bool:
        """True if *end* is a kept position: it was confirmed, even if bookies lag now."""
        is_kept = is_position(self._options.end) and not self._closed_only
        return is_kept and end.number == frozen.number

    def _note(self, gap: Gap, gaps: list[Gap]) -> None:
        if self._options.on_gap == "raise":
            raise gap
        gaps.append(gap)

    # --- rows ------------------------------------------------------------------------

    async def _ranges(
        self, known: KnownLane, begin: Place, end: Place, gaps: list[Gap]
    ) -> list[LedgerRange]:
        """Return the range of each ledger that has messages from *begin* to *end*."""
        ranges: list[LedgerRange] = []
        if known.compacted is not None and known.compacted.holds(begin):
            ranges = await compacted_ranges(known.lane, known.compacted, self._opener, begin, end)
            begin = known.compacted.horizon
        place, number = begin, begin.number
        while place.at < end.at and number <= end.number:
            rows = [row for row in await known.rows.page(max(number, 0)) if row.readable]
            rows = [row for row in rows if row.number <= end.number]
            for row in rows:
                if row.number != number:
                    await self._skip(known, number, place, row, gaps)
                begin_here = place if row.number == place.number else row.place(0)
                found, place = await self._range(known, row, begin_here, end)
                ranges += [] if found is None else [found]
                number = row.number + 1
            if not rows:
                await self._skip(known, number, place, None, gaps)
                break
        return ranges

    async def _skip(
        self, known: KnownLane, number: int, place: Place, row: Row | None, gaps: list[Gap]
    ) -> None:
        gap = await gap_after(known.rows, number, place, row, known.record)
        if gap is not None:
            self._note(gap, gaps)

    async def _range(
        self, known: KnownLane, row: Row, begin: Place, end: Place
    ) -> tuple[LedgerRange | None, Place]:
        """Return the range of a ledger, and the place after the ledger."""
        if begin.at >= end.at:
            return None, begin
        open_here = row.ledger.state != "closed"
        if open_here:
            least = end.entry - (not end.skip) if row.number == end.number else -1
            last, size, messages = await self._look_into(known, row, least)
        else:
            last, size, messages = row.ledger.entries - 1, row.ledger.size, row.ledger.messages
        entries, stop = last + 1, -1
        after = row.place(entries)
        if row.number == end.number and end.entry <= last:
            last, stop = (end.entry, end.skip) if end.skip else (end.entry - 1, -1)
        if last < begin.entry:
            return None, after
        whole = LedgerRange(
            topic=known.lane.topic,
            uid=known.lane.uid,
            topic_index=known.lane.topic_index,
            ordered=known.lane.ordered,
            partition=known.lane.partition,
            lane=known.lane.lane,
            number=row.number,
            ledger_id=row.ledger.ledger_id,
            base_version=row.ledger.base_version,
            first_entry=0,
            last_entry=entries - 1,
            size=size,
            messages=messages,
            removed=tuple(row.ledger.removed),
            stamp=row.ledger.stamp,
        )
        return _within(whole, begin, last, stop), after

    async def _look_into(self, known: KnownLane, row: Row, least: int) -> tuple[int, int, int]:
        """Return the last entry of an open ledger, and estimates of its bytes and messages.

        Entries up to *least* are known to be confirmed.
        """
        reader = await self._opener.open(row.ledger.ledger_id, confirmed=least)
        try:
            last = reader.last_confirmed
            if least < 0:
                last = await settle(reader, known.rows.is_written)
            if last < 0:
                return last, 0, 0
            size, messages = await _sample(known.lane, row, reader, (last + 1) // 2)
            if reader.closed:
                size = reader.metadata.length // (last + 1)
            return last, size * (last + 1), messages * (last + 1)
        finally:
            reader.unwatch()


async def _sample(lane: LaneRef, row: Row, reader: LedgerReader, entry: int) -> tuple[int, int]:
    """Return the number of bytes and of messages in an entry."""
    found = await reader.read(entry, entry)
    payload = memoryview(found[0].payload)
    header = message_header(lane, row.place(entry), payload, row.ledger.stamp)
    return len(payload), 0 if header is None else header.count


def _within(whole: LedgerRange, begin: Place, last: int, stop: int) -> LedgerRange:
    """Return the range of a ledger from *begin* to entry *last*."""
    found = whole
    if last < whole.last_entry:
        found, _ = found.cut(last + 1)
    if begin.entry > found.first_entry:
        _, found = found.cut(begin.entry)
    return msgspec.structs.replace(found, skip=begin.skip, stop=stop)


def _at(place: Place) -> tuple[int, int, int]:
    return place.at


StoredPoint = tuple[int, int, int]
"""The index of a compacted ledger, an entry of it, and the number of its messages before."""


async def compacted_ranges(
    lane: LaneRef, compacted: CompactedRange, opener: LedgerOpener, begin: Place, end: Place
) -> list[LedgerRange]:
    """Return the range of each compacted ledger with messages from *begin* to before *end*.

    Raises:
        MessagesLost: a compacted ledger is gone.
        LedgerError: as reading does.
    """
    if not compacted.ledgers:
        return []
    async with searching(lane, compacted, opener) as search:
        first, last = await _find(search, compacted, begin), await _find(search, compacted, end)
    found = []
    for index, ledger in enumerate(compacted.ledgers):
        start = first if index == first[0] else (index, 0, 0)
        stop = last if index == last[0] else (index, ledger.entries, 0)
        if first[0] <= index <= last[0] and start < stop:
            found.append(_compacted_range(lane, ledger, start, stop))
    return found


async def _find(search: CompactedSearch, compacted: CompactedRange, place: Place) -> StoredPoint:
    """Return the stored point at *place*."""
    if place.at[:2] <= compacted.ledgers[0].first.at and not place.skip:
        return 0, 0, 0
    index = None
    if place.at[:2] <= compacted.ledgers[-1].last.at:
        index = await search.entry(lambda before: before.at >= place.at)
    if index is None:
        return len(compacted.ledgers), 0, 0
    batch = await search.batch(index)
    return (*search.stored(index), batch.count_before(place))


def _compacted_range(
    lane: LaneRef, ledger: CompactedLedger, start: StoredPoint, stop: StoredPoint
) -> LedgerRange:
    whole = LedgerRange(
        topic=lane.topic,
        uid=lane.uid,
        topic_index=lane.topic_index,
        ordered=lane.ordered,
        partition=lane.partition,
        lane=lane.lane,
        number=ledger.first.number,
        ledger_id=ledger.ledger_id,
        base_version=-1,
        first_entry=0,
        last_entry=ledger.entries - 1,
        size=ledger.size,
        messages=ledger.messages,
        compacted=True,
    )
    last = stop[1] if stop[2] else stop[1] - 1
    if last < whole.last_entry:
        whole, _ = whole.cut(last + 1)
    if start[1] > 0:
        _, whole = whole.cut(start[1])
    return msgspec.structs.replace(whole, skip=start[2], stop=stop[2] or -1)
