"""A replay in parts: its possible cuts, and the copy of one part by a worker.

    part: marks of all lanes ──► merged ──► routed ──► a staged ledger of each partition

A cut is a place in every lane such that all messages before it precede all messages after it in
the order of the replay:

order               cut at
------------------  ---------------------------------------------------------------------
one lane            any entry
timestamp           a timestamp: before the first message of each lane with it or a later one
event-time          a time: before the first message of each lane with that time or a later one
time                the same, by the time of entries (source.py)
arrival             nowhere: the turn depends on every entry before

The time is chosen by looking at a few entries, evenly spaced in bytes, so that parts have about
the wanted size. Its place in a lane is found by bisection, which assumes rising times. Where
a clock was set back, that is wrong: the worker checks every time it reads against the end of its
part, and reports the first violation. Such a part is not shown, and is cut elsewhere (rounds.py).

The parts in order are the sequence that a single process would have sent, in each partition of
the target too. Nothing a worker writes is visible until its part is shown.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import NamedTuple

import msgspec

from ledger_client.jobs.replay.columns import indexes_of, shares_of
from ledger_client.jobs.replay.log import WHOLE, sent_of
from ledger_client.jobs.replay.source import mark_of, open_source, place_of, position_of, time_of
from ledger_client.jobs.staging.job import JobStage, SealedLedger
from ledger_client.jobs.staging.staged_writer import JobPart, open_staged_writer
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.ledgers.reader import LedgerReader
from ledger_client.topics.context import TopicContext
from ledger_client.topics.lanes.ledger_rows import LedgerRows
from ledger_client.topics.messages import MergedBatch, message_header
from ledger_client.topics.positions import LaneRef, Place
from ledger_client.topics.reading.range_plan import plan_read
from ledger_client.topics.reading.ranges import LedgerRange
from ledger_client.topics.reading.search import TimeSearch
from ledger_client.topics.times import AnyTime, EntryTime, EventTime, Timestamp, entry_ms
from metadata.replays import LaneMark, Order, SentChecksum
from metadata.topics import TopicRecord
from native.batch import BatchHeader
from native.checksum import Checksum


class PartPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a replay. Plain values, can be pickled."""

    index: int
    """number of the part in its round; parts are shown in this order"""
    begin: list[LaneMark]
    end: list[LaneMark]
    until: int | None = None
    """time of the cut at its end, in the unit of the order: all messages must be before it; `None`
    if the cut does not depend on times"""


class PartResult(msgspec.Struct, frozen=True, kw_only=True):
    """The staged ledgers of a part with their checksums. Plain values, can be pickled."""

    index: int
    ledgers: list[SealedLedger] = []
    sent: list[SentChecksum] = []
    """checksums by partition of the target, and of all messages"""
    bytes: int = 0
    passed: int | None = None
    """a time that is not before the cut, which is therefore wrong; the part is not shown"""


class PartWork(msgspec.Struct, frozen=True, kw_only=True):
    """The values that all parts of a round share. Can be pickled."""

    topics: Sequence[TopicRecord]
    order: Order
    stage: JobStage
    run: str
    partitions: int
    one_to_one: bool
    keep_ids: bool


async def copy_part(
    source: TopicContext, target: Ledgers, work: PartWork, plan: PartPlan, *, attempt: int = 0
) -> PartResult:
    """Stage the messages of a part.

    Memory holds one chunk of the source and what is not acknowledged, however large the part is.

    Raises:
        LedgerError: as reading, and as StagedWriter.write().
    """
    from ledger_client.jobs.replay.columns import CopiedColumns, with_ids  # pyarrow

    indexes = indexes_of(work.partitions)
    watch = _TimeWatch(work.order, plan.until)
    sums: dict[int, Checksum] = {WHOLE: Checksum()}
    size = 0
    part = JobPart(index=plan.index, attempt=attempt)
    async with (
        open_staged_writer(target, work.stage, part=part, producer=work.run) as writer,
        open_source(
            source, work.topics, work.order, begin=plan.begin, end=plan.end, watch=watch.see
        ) as lanes,
    ):
        while (chunk := await lanes.chunk()) is not None:
            if watch.passed is not None:
                return PartResult(index=plan.index, passed=watch.passed)
            batch = chunk.record_batch()
            given = CopiedColumns(with_ids(batch) if work.keep_ids else batch)
            columns = given.columns
            sums[WHOLE] = sums[WHOLE].add(columns)
            for index, rows in shares_of(batch, columns, indexes, one_to_one=work.one_to_one):
                sums[index] = sums.get(index, Checksum()).add(columns, rows)
                await writer.write(index, columns, rows)
            size += given.size
        ledgers = await writer.finish()
    return PartResult(index=plan.index, ledgers=ledgers, sent=sent_of(sums), bytes=size)


class _TimeWatch:
    """Checks the times of a part's messages against the cut at its end."""

    def __init__(self, order: Order, until: int | None) -> None:
        self.passed: int | None = None
        self._order = order
        self._until = until

    def see(self, run: MergedBatch) -> None:
        """Check the last time of each range in a merged batch."""
        if self._until is None or self.passed is not None:
            return
        for messages in run.ranges:
            if self._order == "event-time":
                last = messages.batch.rising_times[messages.stop - 1]
            elif self._order == "timestamp":
                last = messages.batch.rising_timestamps[messages.stop - 1]
            else:
                last = time_of(messages)
            if last >= self._until:
                self.passed = last
                return


LOOKS = 32
"""Approximate number of entries looked at for each part."""
HEADERS_MAX = 8
"""Consecutive entries tried until one has messages."""
Marks = Mapping[tuple[int, int, int], LaneMark]
Cut = tuple[int | None, Marks]
"""A time, or `None` if it does not matter, and its place in each lane."""


class Look(NamedTuple):
    """The time of an entry, and its distance in bytes from the entry looked at before."""

    time: float
    ahead: int


class Planner:
    """Cuts the rest of a replay into parts. Made by open_planner()."""

    def __init__(
        self,
        context: TopicContext,
        order: Order,
        end: Sequence[LaneMark],
        ranges: Mapping[LaneRef, Sequence[LedgerRange]],
    ) -> None:
        self._context = context
        self._order = order
        self._end = _by_lane(end)
        self._ranges = ranges
        self._opener = context.opener

    async def parts(
        self, reached: Sequence[LaneMark], *, count: int, size: int, above: int | None = None
    ) -> list[PartPlan]:
        """Return up to *count* parts after *reached*; an empty list means the end.

        Args:
            reached: a place in each lane.
            count: maximum number of parts, at least 1.
            size: approximate bytes of a part.
            above: cut only at times later than this.

        Raises:
            LedgerError: an entry could not be read.
        """
        begin = _by_lane(reached)
        left = [lane for lane in self._ranges if self._is_left(lane, begin)]
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
        """Return cuts of the only lane with messages left."""
        cuts: list[Cut] = []
        for ledger_range, entry, _ in _steps(self._ranges[lane], place_of(begin[_key(lane)]), size):
            if len(cuts) == count:
                break
            place = ledger_range.place(entry)
            cuts.append((None, {**self._end, _key(lane): mark_of(lane, place)}))
        return cuts

    async def _cuts_by_time(
        self, lanes: Sequence[LaneRef], begin: Marks, count: int, size: int, above: int | None
    ) -> list[Cut]:
        """Return cuts of several lanes, from the times of entries one step apart in each."""
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
        """Yield the times of entries about *step* bytes apart."""
        reader: LedgerReader | None = None
        opened: LedgerRange | None = None
        try:
            for ledger_range, entry, ahead in _steps(self._ranges[lane], place, step):
                if reader is None or opened is not ledger_range:
                    if reader is not None:
                        reader.unwatch()
                    reader = await self._opener.open(
                        ledger_range.ledger_id, confirmed=ledger_range.last_entry
                    )
                    opened = ledger_range
                time = await self._time(ledger_range, reader, entry)
                if time is not None:
                    yield Look(time, ahead)
        finally:
            if reader is not None:
                reader.unwatch()

    async def _time(
        self, ledger_range: LedgerRange, reader: LedgerReader, entry: int
    ) -> int | None:
        """Return the time of an entry, or of one of the next HEADERS_MAX."""
        for each in range(entry, min(entry + HEADERS_MAX, ledger_range.last_entry + 1)):
            found = await reader.read(each, each)
            payload = memoryview(found[0].payload)
            place, stamp = ledger_range.place(each), ledger_range.stamp
            header = message_header(ledger_range.lane_ref, place, payload, stamp)
            if header is None:
                continue
            time = self._time_of(header)
            if time is not None:
                return time
        return None

    def _time_of(self, header: BatchHeader) -> int | None:
        if self._order == "event-time":
            return header.event_time_max
        return header.last_timestamp if self._order == "timestamp" else entry_ms(header)

    async def _marks(self, lanes: Sequence[LaneRef], begin: Marks, time: int) -> Marks:
        """Return the place of a time in each lane, from *begin* on."""
        found = {
            _key(lane): mark_of(lane, await self._find(lane, place_of(begin[_key(lane)]), time))
            for lane in lanes
        }
        return {**begin, **found}

    async def _find(self, lane: LaneRef, begin: Place, time: int) -> Place:
        end = place_of(self._end[_key(lane)])
        if begin.at >= end.at:
            return begin
        timeout_s = self._context.options.metadata_timeout_s
        rows = LedgerRows(self._context.store, lane, timeout_s=timeout_s)
        point: AnyTime = EntryTime(time)
        if self._order != "time":
            point = EventTime(time) if self._order == "event-time" else Timestamp(time)
        found = await TimeSearch(lane, rows, self._opener).find(point, start=begin)
        return found.place if found.exact and found.place.at < end.at else end


async def open_planner(
    context: TopicContext,
    topics: Sequence[TopicRecord],
    order: Order,
    *,
    begin: Sequence[LaneMark],
    end: Sequence[LaneMark],
) -> Planner:
    """Return a planner for the replay of *topics* from *begin* to *end*.

    It keeps a few hundred bytes for each ledger in between. Raises as plan_read().
    """
    ranges: dict[LaneRef, list[LedgerRange]] = {}
    if begin:
        plan = await plan_read(
            context,
            [topic.name for topic in topics],
            start=position_of(topics, begin),
            end=position_of(topics, end),
            on_gap="skip",  # the reader of the part raises
        )
        for ledger_range in plan.ranges:
            ranges.setdefault(ledger_range.lane_ref, []).append(ledger_range)
    return Planner(context, order, end, ranges)


def _steps(
    ranges: Sequence[LedgerRange], begin: Place, step: int
) -> Iterator[tuple[LedgerRange, int, int]]:
    """Yield entries about *step* bytes apart, the first one that far after *begin*.

    Each comes with the bytes since the one before.
    """
    passed = 0
    for ledger_range in ranges:
        at = ledger_range.first_entry
        if ledger_range.number == begin.number:
            at = max(at, begin.entry + (begin.skip > 0))
        if ledger_range.number < begin.number or at > ledger_range.last_entry:
            continue
        size = max(ledger_range.size // ledger_range.entries, 1)
        while (ahead := max(-(-(step - passed) // size), 0)) <= ledger_range.last_entry - at:
            at += ahead
            yield ledger_range, at, passed + ahead * size
            passed = 0
        passed += (ledger_range.last_entry + 1 - at) * size


async def _next(looks: AsyncGenerator[Look, None]) -> Look:
    """Return the next look, or one at time infinity if there is none."""
    async for look in looks:
        return look
    return Look(math.inf, 0)


def _by_lane(marks: Sequence[LaneMark]) -> Marks:
    return {(mark.topic, mark.partition, mark.lane): mark for mark in marks}


def _key(lane: LaneRef) -> tuple[int, int, int]:
    return lane.topic_index, lane.partition, lane.lane
