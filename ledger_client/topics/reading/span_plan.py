"""The plan of a read: which entries of which ledgers, from metadata and a few probes.

    places ──► begin and end in each lane ──► rows in between ──► spans

Places mean what they mean to TopicClient.topic_reader, and the plan reads what such a reader
would: a time stands for its place in each lane, and an end by time is the first message at
that time behind the beginning. The end is frozen: "latest" is what is confirmed now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import trio

from ledger_client.errors import LedgerError
from ledger_client.reader import LedgerReader
from ledger_client.topics.client import TopicClient
from ledger_client.topics.errors import Gap
from ledger_client.topics.lanes.ledger_rows import Row
from ledger_client.topics.messages import message_header
from ledger_client.topics.reading.lane_set import LaneSet
from ledger_client.topics.reading.opening import LedgerOpener, settle
from ledger_client.topics.reading.part_spans import part_spans
from ledger_client.topics.reading.places import LaneRef, Place
from ledger_client.topics.reading.read_options import Reading
from ledger_client.topics.reading.removed import gap_behind
from ledger_client.topics.reading.spans import Span, SpanPlan
from ledger_client.topics.reading.starting import (
    KnownLane,
    Start,
    Starts,
    as_position,
    is_position,
    narrow,
)
from ledger_client.topics.reading.times import TIMES, place_of
from metadata.topics import TopicRecord

LANES_AT_ONCE = 16


async def plan_spans(
    client: TopicClient,
    names: str | Sequence[str],
    *,
    start: Start | None = None,
    inclusive: bool = True,
    end: Start | None = None,
    end_inclusive: bool = True,
    partitions: Sequence[int] | None = None,
    lanes: Sequence[int | str] | None = None,
    closed_only: bool = False,
    on_gap: Literal["raise", "skip"] = "raise",
    compacted: bool = False,
) -> SpanPlan:
    """Return what is to be read of topics; settings as those of TopicClient.topic_reader.

    Args:
        client: connected to the cluster.
        names: namespace/name, one or several.
        start: where to begin; by default at the earliest.
        inclusive: whether the message, version or time that *start* names is read.
        end: where to end; by default with what is confirmed now.
        end_inclusive: whether what *end* names is read.
        partitions: only these.
        lanes: only lanes of these numbers or names.
        closed_only: end before the ledgers that are still written.
        on_gap: "skip": what was removed is passed over, and noted in the plan's *gaps*.
        compacted: of what was compacted only what that left.

    Raises:
        NoSuchTopic: there is none.
        BadTopic: what is asked for cannot be; the message says why.
        Gap: what is asked for was removed, or some of it.
        LedgerError: a place could not be looked for.
    """
    reading = Reading(
        start=start,
        inclusive=inclusive,
        end=end,
        end_inclusive=end_inclusive,
        partitions=partitions,
        lanes=lanes,
        on_gap=on_gap,
        compacted=compacted,
    )
    listed = [names] if isinstance(names, str) else list(names)
    topics = [(await client.topics.get(name))[0] for name in listed]
    reading.check(topics)
    opener = client.ledger_opener()
    lane_set = LaneSet(
        catalogue=client.topics, opener=opener, topics=topics, reading=reading, tell=lambda: None
    )
    known = await lane_set.lanes()
    chosen = narrow([each.lane for each in known], start, end)
    planner = _Planner(opener, reading, closed_only=closed_only)
    return await planner.plan(topics, [each for each in known if each.lane in chosen])


class _LanePlan(NamedTuple):
    begin: Place
    end: Place
    spans: list[Span]
    gaps: list[Gap]


class _Planner:
    def __init__(self, opener: LedgerOpener, reading: Reading, *, closed_only: bool) -> None:
        self._opener = opener
        self._reading = reading
        self._closed_only = closed_only
        self._starts = Starts(opener)

    async def plan(self, topics: Sequence[TopicRecord], lanes: Sequence[KnownLane]) -> SpanPlan:
        """Plan all lanes, some at a time; the first failure is raised."""
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
        return SpanPlan(
            topics=tuple(topics),
            spans=tuple(span for plan in plans for span in plan.spans),
            begin=as_position({lane: plan.begin for lane, plan in found.items()}),
            end=as_position({lane: plan.end for lane, plan in found.items()}),
            gaps=tuple(gap for plan in plans for gap in plan.gaps),
        )

    async def _lane(self, known: KnownLane) -> _LanePlan:
        reading, gaps = self._reading, list[Gap]()
        frozen = await self._frozen_end(known)
        begin = await self._starts.begin(known, reading.begin, behind=not reading.inclusive)
        if begin.gap is not None:
            self._note(begin.gap, gaps)
        place = frozen if begin.since is not None else begin.place
        end = await self._end(known, place, frozen)
        if not self._was_confirmed(end, frozen):
            end = min(end, frozen, key=_at)
        end = max(place, end, key=_at)
        spans = await self._spans(known, place, end, gaps)
        return _LanePlan(place, end, spans, gaps)

    async def _frozen_end(self, known: KnownLane) -> Place:
        """Return the place behind all that may be read."""
        if self._closed_only and known.record.current >= 0:
            row = await known.rows.at(known.record.current)
            if row is not None and row.ledger.state == "open":
                return place_of(row, 0)
        return (await self._starts.begin(known, "latest", behind=False)).place

    async def _end(self, known: KnownLane, begin: Place, frozen: Place) -> Place:
        end, behind = self._reading.end, self._reading.end_inclusive
        if end is None:
            return frozen
        if isinstance(end, TIMES):
            time = end.next() if behind else end
            found = await self._starts.find_time(known, time, begin)
            return found.place if found.exact else frozen
        found_end = await self._starts.begin(known, end, behind=behind)
        if found_end.gap is not None:
            raise found_end.gap
        return found_end.place

    def _was_confirmed(self, end: Place, frozen: Place) -> bool:
        """Whether *end* was kept when it was confirmed: bookies may know of less now."""
        is_kept = is_position(self._reading.end) and not self._closed_only
        return is_kept and end.number == frozen.number

    def _note(self, gap: Gap, gaps: list[Gap]) -> None:
        if self._reading.on_gap == "raise":
            raise gap
        gaps.append(gap)

    # --- rows ------------------------------------------------------------------------

    async def _spans(
        self, known: KnownLane, begin: Place, end: Place, gaps: list[Gap]
    ) -> list[Span]:
        """Return a span for each ledger from *begin* to *end* of which something is read."""
        spans: list[Span] = []
        if known.part is not None and known.part.holds(begin):
            spans = await part_spans(known.lane, known.part, self._opener, begin, end)
            begin = known.part.horizon
        place, number = begin, begin.number
        while place.at < end.at and number <= end.number:
            rows = [row for row in await known.rows.page(max(number, 0)) if row.readable]
            rows = [row for row in rows if row.number <= end.number]
            for row in rows:
                if row.number != number:
                    await self._pass(known, number, place, row, gaps)
                begin_here = place if row.number == place.number else place_of(row, 0)
                span, place = await self._span(known, row, begin_here, end)
                spans += [] if span is None else [span]
                number = row.number + 1
            if not rows:
                await self._pass(known, number, place, None, gaps)
                break
        return spans

    async def _pass(
        self, known: KnownLane, number: int, place: Place, row: Row | None, gaps: list[Gap]
    ) -> None:
        gap = await gap_behind(known.rows, number, place, row, known.record)
        if gap is not None:
            self._note(gap, gaps)

    async def _span(
        self, known: KnownLane, row: Row, begin: Place, end: Place
    ) -> tuple[Span | None, Place]:
        """Return what is read of a ledger, and the place behind it."""
        open_here = row.ledger.state != "closed"
        if open_here:
            least = end.entry - (not end.skip) if row.number == end.number else -1
            last, size, messages = await self._look_into(known.lane, row, least)
        else:
            last, size, messages = row.ledger.entries - 1, row.ledger.size, row.ledger.messages
        entries, stop = last + 1, -1
        behind = place_of(row, entries)
        if row.number == end.number and end.entry <= last:
            last, stop = (end.entry, end.skip) if end.skip else (end.entry - 1, -1)
        if last < begin.entry:
            return None, behind
        whole = Span(
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
        )
        return _within(whole, begin, last, stop), behind

    async def _look_into(self, lane: LaneRef, row: Row, least: int) -> tuple[int, int, int]:
        """Return the last entry of a ledger whose row says little; bytes and messages, guessed.

        Entries up to *least* are known to be confirmed.
        """
        reader = await self._opener.open(row.ledger.ledger_id)
        reader.trust(least)
        try:
            last = await settle(reader)
            if last < 0:
                return last, 0, 0
            size, messages = await _sample(lane, row, reader, (last + 1) // 2)
            if reader.closed:
                size = reader.metadata.length // (last + 1)
            return last, size * (last + 1), messages * (last + 1)
        finally:
            reader.close()


async def _sample(lane: LaneRef, row: Row, reader: LedgerReader, entry: int) -> tuple[int, int]:
    """Return bytes and messages of an entry."""
    found = await reader.read(entry, entry)
    payload = memoryview(found[0].payload)
    header = message_header(lane, place_of(row, entry), payload)
    return len(payload), 0 if header is None else header.count


def _within(whole: Span, begin: Place, last: int, stop: int) -> Span:
    """Return the part of a ledger from *begin* to entry *last*."""
    part = whole
    if last < whole.last_entry:
        part, _ = part.cut(last + 1)
    if begin.entry > part.first_entry:
        _, part = part.cut(begin.entry)
    return msgspec.structs.replace(part, skip=begin.skip, stop=stop)


def _at(place: Place) -> tuple[int, int, int]:
    return place.at
