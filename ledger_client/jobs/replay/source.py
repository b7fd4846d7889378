"""The messages of a replay: lanes from their marks up to a fixed end, merged into one sequence.

The places of a replay are those of plan_read(), taken once and then kept as marks. A lane that
is not among them has nothing in the range. The sequence is the same on every run:

order       what comes next
----------  ---------------------------------------------------------------------------
event-time  the message with the lowest event time, of topics ordered by it (merging.py)
timestamp   the message with the lowest timestamp, of topics with timesync
time        the entry with the lowest time: its greatest timestamp, or without one the time
            at which its producer made it. Within a lane this time never goes back: an
            earlier entry counts as of the lane's time
arrival     one entry of each lane in turn

Ties are broken by topic, partition and lane. A lane with nothing read yet is always waited for.
An order remembers one number for each lane, its clock. It is kept with the lane's mark, so that
the order resumes as it would have gone on.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import trio

from ledger_client.background import Background
from ledger_client.errors import ReplayConflict
from ledger_client.topics.context import TopicContext
from ledger_client.topics.messages import MergedBatch, Message, MessageRange
from ledger_client.topics.positions import LanePlace, LaneRef, Place, Position
from ledger_client.topics.reading.cursor import LaneCursor
from ledger_client.topics.reading.lane_ranges import LaneRange, LaneStart
from ledger_client.topics.reading.lane_set import LaneSet
from ledger_client.topics.reading.merging import EventTimes, MergeOrder
from ledger_client.topics.reading.options import ReadOptions
from ledger_client.topics.times import entry_ms
from metadata.replays import LaneMark, Order as OrderName
from metadata.time.timestamps import LOGICAL_BITS
from metadata.topics import TopicRecord

if TYPE_CHECKING:
    import pyarrow as pa

Clock = Callable[[int, MessageRange], int]
"""Returns the clock of a lane with its next entry."""


class Clocked:
    """Orders entries by the lowest clock."""

    wake_at = math.inf

    def __init__(self, clock: Clock, clocks: Mapping[LaneRef, int]) -> None:
        self._clock = clock
        self.clocks = dict(clocks)

    def next_batch(
        self, cursors: Sequence[LaneCursor], paused: frozenset[int]
    ) -> MergedBatch | None:
        """Take the next entry once every lane has one read or has ended."""
        best: tuple[int, LaneCursor, MessageRange] | None = None
        for stream in cursors:
            messages = stream.peek()
            if messages is None:
                if not stream.ended:
                    return None
                continue
            clock = self._clock(self.clocks.get(stream.lane, 0), messages)
            if best is None or clock < best[0]:
                best = clock, stream, messages
        if best is None:
            return None
        clock, stream, messages = best
        self.clocks[stream.lane] = clock
        return MergedBatch((stream.take(messages),), None)


class Timestamps:
    """By the timestamps of messages. Every lane must have them."""

    wake_at = math.inf

    def next_batch(
        self, cursors: Sequence[LaneCursor], paused: frozenset[int]
    ) -> MergedBatch | None:
        """Take the next messages of a lane once every lane has some or has ended."""
        heads: list[tuple[int, LaneRef, LaneCursor, MessageRange]] = []
        for cursor in cursors:
            here = cursor.peek()
            if here is not None:
                stamp = here.batch.rising_timestamps[here.start]
                heads.append((stamp, cursor.lane, cursor, here))
            elif not cursor.ended:
                return None
        if not heads:
            return None
        heads.sort(key=lambda head: head[:2])
        _, lane, cursor, here = heads[0]
        stop = here.stop
        if len(heads) > 1:
            bisect = bisect_right if lane < heads[1][1] else bisect_left
            stop = bisect(here.batch.rising_timestamps, heads[1][0], here.start, here.stop)
        return MergedBatch((cursor.take(MessageRange(here.batch, here.start, stop)),), None)


def new_order(name: OrderName, clocks: Mapping[LaneRef, int]) -> MergeOrder:
    """Return the order of that name, resumed with *clocks*."""
    if name == "event-time":
        return EventTimes()
    if name == "timestamp":
        return Timestamps()
    return Clocked(_time if name == "time" else _turn, clocks)


def clocks_of(order: MergeOrder) -> Mapping[LaneRef, int]:
    """Return the clock of each lane."""
    return order.clocks if isinstance(order, Clocked) else {}


def time_of(messages: MessageRange) -> int:
    """Return the time of an entry in Unix milliseconds."""
    return entry_ms(messages.batch.header)


def _time(clock: int, messages: MessageRange) -> int:
    return max(clock, time_of(messages))


def _turn(clock: int, messages: MessageRange) -> int:
    return clock + (messages.start == 0)  # the rest of an entry still belongs to its turn


NS_PER_MS = 1_000_000
CHUNK_SIZE = 16 << 20
"""Approximate bytes of a chunk; small entries are joined."""
CHUNK_ROWS = 200_000


class ReplayChunk(NamedTuple):
    """Consecutive messages of a replay, in its order."""

    runs: tuple[MergedBatch, ...]

    @property
    def rows(self) -> int:
        """The number of messages in all runs."""
        return sum(run.rows for run in self.runs)

    def record_batch(self) -> pa.RecordBatch:
        """Return the messages as one RecordBatch with arrow.SCHEMA."""
        batches = [run.record_batch() for run in self.runs]
        if len(batches) == 1:
            return batches[0]
        import pyarrow as pa

        return pa.concat_batches(batches)

    def times(self, order: OrderName) -> list[int | None]:
        """Return the time of each message by which it is merged, in nanoseconds."""
        return [time for run in self.runs for time in _times(run, order)]

    def messages(self) -> list[Message]:
        """Return one object per message, which costs more than record_batch()."""
        return [message for run in self.runs for message in run.messages()]


class ReplaySource:
    """The messages of a replay, chunk by chunk. Made by open_source()."""

    def __init__(
        self,
        order: OrderName,
        marks: Sequence[LaneMark],
        lanes: Sequence[LaneRef],
        watch: Callable[[MergedBatch], None] | None = None,
    ) -> None:
        self._watch = watch
        clocks = {lane: mark.clock for lane, mark in zip(lanes, marks, strict=True)}
        self._order = new_order(order, clocks)
        self._streams: list[LaneCursor] = []
        self._news = trio.Event()

    async def chunk(self, *, size: int = CHUNK_SIZE) -> ReplayChunk | None:
        """Return the next messages, about *size* bytes, or `None` at the end.

        Raises:
            Gap: messages of the range were removed.
            MessagesLost, LedgerError: as TopicReader.next_messages().
        """
        runs: list[MergedBatch] = []
        rows = taken = 0
        while taken < size and rows < CHUNK_ROWS and (run := await self._run()) is not None:
            runs.append(run)
            rows += run.rows
            taken += _size(run)
        await trio.lowlevel.checkpoint()  # even if everything is read ahead
        return ReplayChunk(tuple(runs)) if runs else None

    def reached(self) -> list[LaneMark]:
        """Return the place in each lane after the last chunk."""
        clocks = clocks_of(self._order)
        return [
            mark_of(stream.lane, stream.place, clocks.get(stream.lane, 0))
            for stream in self._streams
        ]

    def wake(self) -> None:
        """Wake the task that waits for messages."""
        self._news.set()

    def start(self, lanes: LaneSet, openings: Sequence[LaneRange], nursery: trio.Nursery) -> None:
        """Start reading the lanes in *nursery*."""
        for opening in openings:
            stream = lanes.cursor(opening)
            self._streams.append(stream)
            nursery.start_soon(stream.run)

    async def _run(self) -> MergedBatch | None:
        while True:
            news = self._news = trio.Event()
            run = self._order.next_batch(self._streams, frozenset())
            if run is not None or all(stream.ended for stream in self._streams):
                if run is not None and self._watch is not None:
                    self._watch(run)
                return run
            await news.wait()


@asynccontextmanager
async def open_source(
    context: TopicContext,
    topics: Sequence[TopicRecord],
    order: OrderName,
    *,
    begin: Sequence[LaneMark],
    end: Sequence[LaneMark],
    watch: Callable[[MergedBatch], None] | None = None,
) -> AsyncIterator[ReplaySource]:
    """Read from the marks *begin* to the marks *end*, of the same lanes, for the block.

    *watch* is called with each merged batch before it is returned.

    Raises:
        NoSuchTopic: a topic is gone.
        ReplayConflict: a lane is gone.
        LedgerError: the metadata store did not answer.
    """
    options, marks = ReadOptions(), sorted(begin, key=_lane_of)
    refs = [_ref(topics, mark) for mark in marks]
    source = ReplaySource(order, marks, refs, watch)
    lanes = LaneSet(
        catalogue=context.catalogue,
        opener=context.opener.sharing(options.read_ahead_size, len(marks)),
        topics=topics,
        options=options,
        notify=source.wake,
    )
    known = {each.lane: each for each in await lanes.lanes()}
    ends = {_lane_of(mark): place_of(mark) for mark in end}
    openings: list[LaneRange] = []
    for ref, mark in zip(refs, marks, strict=True):
        if ref not in known:
            raise ReplayConflict(f"{ref} was removed, and the replay needs it", topic=ref.topic)
        begin_here = LaneStart(place_of(mark))
        openings.append(LaneRange(known[ref], begin_here, ends[_lane_of(mark)], True))
    async with Background() as nursery:
        source.start(lanes, openings, nursery)
        yield source


def mark_of(lane: LaneRef, place: Place, clock: int = 0) -> LaneMark:
    """Return a place in a lane as a record stores it."""
    return LaneMark(lane.topic_index, lane.partition, lane.lane, *place, clock)


def place_of(mark: LaneMark) -> Place:
    """Return the place of a mark."""
    return Place(mark.number, mark.entry, mark.skip, mark.ledger_id, mark.version)


def position_of(topics: Sequence[TopicRecord], marks: Sequence[LaneMark]) -> Position:
    """Return marks as a position for readers and plans."""
    return Position(
        LanePlace(
            topics[mark.topic].name,
            topics[mark.topic].uid,
            mark.partition,
            mark.lane,
            place_of(mark),
        )
        for mark in marks
    )


def _size(run: MergedBatch) -> int:
    """Return the approximate bytes of a merged batch, at least 1."""
    sizes = (
        messages.batch.header.body_size * (messages.stop - messages.start) // messages.batch.count
        for messages in run.ranges
    )
    return max(sum(sizes), 1)


def _times(run: MergedBatch, order: OrderName) -> list[int | None]:
    found: list[int | None] = []
    for messages in run.ranges:
        if order == "event-time":
            found += messages.batch.event_times[messages.start : messages.stop]
        elif order == "timestamp":
            stamps = messages.batch.timestamps[messages.start : messages.stop]
            found += [(stamp >> LOGICAL_BITS) * NS_PER_MS for stamp in stamps]
        else:
            found += [time_of(messages) * NS_PER_MS] * (messages.stop - messages.start)
    return found if run.order is None else [found[place] for place in run.order]


def _lane_of(mark: LaneMark) -> tuple[int, int, int]:
    return mark.topic, mark.partition, mark.lane


def _ref(topics: Sequence[TopicRecord], mark: LaneMark) -> LaneRef:
    topic = topics[mark.topic]
    ordered = topic.order == "event-time"
    return LaneRef(mark.topic, mark.partition, mark.lane, topic.name, topic.uid, ordered)
