"""Where a replay can be cut into parts that are merged by themselves.

A cut is a place in every lane, so that all messages in front of it come before all messages
behind it in the order of the replay:

order               cut at
------------------  ---------------------------------------------------------------------
one lane            any entry
event-time          a time: before the first message of each lane that has it or a later one
time                the same, by the time of entries (order.py)
arrival             nowhere: whose turn it is depends on every entry before

The time is chosen by looks at few entries, evenly by bytes, so that a part has about as many
bytes as wanted. Its place in a lane is found by halving, which takes times as rising. Where a
clock was set back they do not rise, and the place may be too late: then the worker that reads
the part sees a time that is not before the cut (parts.py), and it is cut elsewhere. What comes
at the place was looked at here: it has the time, or a later one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import NamedTuple

from ledger_client.reader import LedgerReader
from ledger_client.replay.parts import PartPlan
from ledger_client.replay.source import mark_of, place_of, position_of
from ledger_client.topics.client import TopicClient
from ledger_client.topics.lanes.ledger_rows import LedgerRows
from ledger_client.topics.messages import message_header
from ledger_client.topics.reading.places import LaneRef, Place
from ledger_client.topics.reading.span_plan import plan_spans
from ledger_client.topics.reading.spans import Span
from ledger_client.topics.reading.times import EntryTime, EventTime, TimeSearch, entry_ms
from metadata.replays import LaneMark, Order
from metadata.topics import TopicRecord

LOOKS = 32
"""At entries, for each part, about."""
HEADERS_MAX = 8
"""Entries in a row that are looked at for one with messages."""
Marks = Mapping[tuple[int, int, int], LaneMark]
Cut = tuple[int | None, Marks]
"""A time, None where it does not matter, and its place in each lane."""


class Look(NamedTuple):
    """The time of an entry of a lane, and how many bytes behind the last one looked at it is."""

    time: float
    ahead: int


class Planner:
    """Cuts what is left of a replay into parts. Made by open_planner()."""

    def __init__(
        self,
        client: TopicClient,
        order: Order,
        end: Sequence[LaneMark],
        spans: Mapping[LaneRef, Sequence[Span]],
    ) -> None:
        self._client = client
        self._order = order
        self._end = _by_lane(end)
        self._spans = spans
        self._opener = client.ledger_opener()

    async def parts(
        self, reached: Sequence[LaneMark], *, count: int, size: int, above: int | None = None
    ) -> list[PartPlan]:
        """Return the next parts behind *reached*, *count* at most; none: that is the end.

        Args:
            reached: a place in each lane.
            count: of parts, at least 1.
            size: bytes of a part, about.
            above: cut only at later times.

        Raises:
            LedgerError: an entry could not be looked at.
        """
        begin = _by_lane(reached)
        left = [lane for lane in self._spans if self._is_left(lane, begin)]
        if not left:
            return []
        if len(left) == 1:
            cuts = self._cuts_of(left[0], begin, count, size)
        elif self._order == "arrival":
            cuts = []
        else:
            cuts = await self._cuts_by_time(left, begin, count, size, above)
        if len(cuts) < count:
            cuts.append((None, self._end))
        parts: list[PartPlan] = []
        for until, end in cuts:
            first = parts[-1].end if parts else list(begin.values())
            parts.append(
                PartPlan(index=len(parts), begin=first, end=list(end.values()), until=until)
            )
        return parts

    def _is_left(self, lane: LaneRef, begin: Marks) -> bool:
        key = _key(lane)
        return place_of(begin[key]).at < place_of(self._end[key]).at

    def _cuts_of(self, lane: LaneRef, begin: Marks, count: int, size: int) -> list[Cut]:
        """Return cuts of the only lane that something is left of."""
        cuts: list[Cut] = []
        for span, entry, _ in _steps(self._spans[lane], place_of(begin[_key(lane)]), size):
            if len(cuts) == count:
                break
            place = span.place(entry)
            cuts.append((None, {**self._end, _key(lane): mark_of(lane, place)}))
        return cuts

    async def _cuts_by_time(
        self, lanes: Sequence[LaneRef], begin: Marks, count: int, size: int, above: int | None
    ) -> list[Cut]:
        """Return cuts of several lanes, by the times of what lies a step apart in each."""
        cuts: list[Cut] = []
        step, passed, last = max(size // LOOKS, 1), 0, above
        async with AsyncExitStack() as stack:
            looks: list[AsyncGenerator[Look, None]] = []
            for lane in lanes:
                look = self._looks(lane, place_of(begin[_key(lane)]), step)
                looks.append(await stack.enter_async_context(aclosing(look)))
            following = [(await _next(look), number) for number, look in enumerate(looks)]
            heapq.heapify(following)
            while len(cuts) < count and following[0][0].time < math.inf:
                (time, ahead), number = following[0]
                heapq.heapreplace(following, (await _next(looks[number]), number))
                passed += ahead
                if passed >= size and (last is None or time > last):
                    last = int(time)
                    cuts.append((last, await self._marks(lanes, begin, last)))
                    begin, passed = cuts[-1][1], 0
        return cuts

    async def _looks(self, lane: LaneRef, place: Place, step: int) -> AsyncGenerator[Look, None]:
        """Yield the times of entries so many bytes apart."""
        reader: LedgerReader | None = None
        opened: Span | None = None
        try:
            for span, entry, ahead in _steps(self._spans[lane], place, step):
                if reader is None or opened is not span:
                    if reader is not None:
                        reader.close()
                    reader, opened = await self._opener.open(span.ledger_id), span
                    reader.trust(span.last_entry)
                time = await self._time(span, reader, entry)
                if time is not None:
                    yield Look(time, ahead)
        finally:
            if reader is not None:
                reader.close()

    async def _time(self, span: Span, reader: LedgerReader, entry: int) -> int | None:
        """Return the time of an entry, or of one soon behind it."""
        for each in range(entry, min(entry + HEADERS_MAX, span.last_entry + 1)):
            found = await reader.read(each, each)
            payload = memoryview(found[0].payload)
            header = message_header(span.lane_ref, span.place(each), payload)
            if header is None:
                continue
            time = header.event_time_max if self._order == "event-time" else entry_ms(header)
            if time is not None:
                return time
        return None

    async def _marks(self, lanes: Sequence[LaneRef], begin: Marks, time: int) -> Marks:
        """Return where a time is in each lane, from *begin* on."""
        found = {
            _key(lane): mark_of(lane, await self._find(lane, place_of(begin[_key(lane)]), time))
            for lane in lanes
        }
        return {**begin, **found}

    async def _find(self, lane: LaneRef, begin: Place, time: int) -> Place:
        end = place_of(self._end[_key(lane)])
        if begin.at >= end.at:
            return begin
        timeout_s = self._client.options.metadata_timeout_s
        rows = LedgerRows(self._client.store, lane, timeout_s=timeout_s)
        point = EventTime(time) if self._order == "event-time" else EntryTime(time)
        found = await TimeSearch(lane, rows, self._opener).find(point, start=begin)
        return found.place if found.exact and found.place.at < end.at else end


async def open_planner(
    client: TopicClient,
    topics: Sequence[TopicRecord],
    order: Order,
    *,
    begin: Sequence[LaneMark],
    end: Sequence[LaneMark],
) -> Planner:
    """Return what cuts a replay of *topics* from *begin* to *end*.

    Keeps a few hundred bytes of each ledger in between. Raises as plan_spans().
    """
    spans: dict[LaneRef, list[Span]] = {}
    if begin:
        plan = await plan_spans(
            client,
            [topic.name for topic in topics],
            start=position_of(topics, begin),
            end=position_of(topics, end),
            on_gap="skip",  # who reads the part decides
        )
        for span in plan.spans:
            spans.setdefault(span.lane_ref, []).append(span)
    return Planner(client, order, end, spans)


def _steps(spans: Sequence[Span], begin: Place, step: int) -> Iterator[tuple[Span, int, int]]:
    """Yield entries about *step* bytes apart, the first one so far behind *begin*.

    With each come the bytes since the one before.
    """
    passed = 0
    for span in spans:
        at = span.first_entry
        if span.number == begin.number:
            at = max(at, begin.entry + (begin.skip > 0))
        if span.number < begin.number or at > span.last_entry:
            continue
        size = max(span.size // span.entries, 1)
        while (ahead := max(-(-(step - passed) // size), 0)) <= span.last_entry - at:
            at += ahead
            yield span, at, passed + ahead * size
            passed = 0
        passed += (span.last_entry + 1 - at) * size


async def _next(looks: AsyncGenerator[Look, None]) -> Look:
    """Return the next one; at infinity: there is none."""
    async for look in looks:
        return look
    return Look(math.inf, 0)


def _by_lane(marks: Sequence[LaneMark]) -> Marks:
    return {(mark.topic, mark.partition, mark.lane): mark for mark in marks}


def _key(lane: LaneRef) -> tuple[int, int, int]:
    return lane.topic_index, lane.partition, lane.lane
