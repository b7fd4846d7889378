"""Several lanes as one sequence of messages: as they come, or merged by event time.

As they come: the arrived messages of one lane, then of the next, in turn.

By event time: each lane is in order, so the messages up to the lowest of the lanes' last times
are final. A lane may have more messages of that same time in its next batch, so of equal times
only those of that lane and of the lanes before it are final. The final messages are sorted at
once, by a stable sort that gets the lanes in order: equal times come by topic, lane name (lanes
without one first), partition and lane, and within a lane as they were written. In reverse, all of
that is mirrored. A lane that is renamed keeps its rank until reading begins again.

    lane 0  ──1──3──3──5──┐ arrived so far     final: 1 2 3 3 3, lane 0 up to 3 and lane 1
    lane 1  ──2──3──┤                          up to its own last time. Another 3 may follow
                                               in lane 1, so the 5 is not final

The merge waits for a lane from which nothing has arrived. But a followed lane silent for *idle_s*
stops holding back the others; its later messages come at once, after their time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import Protocol

import trio

from ledger_client.background import OneTaker
from ledger_client.errors import Gap, LedgerError, ReaderClosed
from ledger_client.figures import Figures, ReadFigures
from ledger_client.topics.messages import MergedBatch, MessageRange
from ledger_client.topics.positions import LaneRef, Place
from ledger_client.topics.reading.cursor import LaneCursor
from ledger_client.topics.reading.lane_ranges import LaneRange
from ledger_client.topics.reading.options import ReadOptions
from ledger_client.topics.reading.outages import Outages
from metadata.clock import host_wall_ms

GAPS_KEPT = 100
BATCHES_PER_CHECKPOINT = 16
OpenCursor = Callable[[LaneRange], LaneCursor]


class MergeOrder(Protocol):
    """Chooses the next messages among the lanes."""

    wake_at: float
    """trio's time at which to ask again even if nothing has arrived"""

    def next_batch(
        self, cursors: Sequence[LaneCursor], paused: frozenset[int]
    ) -> MergedBatch | None:
        """Take the next messages from *cursors*, which are sorted; `None` if more must arrive.

        Lanes of the partitions in *paused* are left alone. Raises as LaneCursor.peek().
        """


class ReadOrder(MergeOrder, Protocol):
    """The order of a reader, which can give back what it took."""

    tick: int
    """All messages up to this timestamp were taken; 0 in an order without ticks."""
    batch_rows: int
    """A batch of several entries ends with the one that reaches so many messages."""

    @property
    def ended(self) -> bool:
        """True if there are no messages after those that were taken, whatever the lanes have."""

    def take_back(self, batch: MergedBatch) -> None:
        """Note that messages of a batch were given back to their cursors."""

    def is_caught_up(self, cursors: Sequence[LaneCursor], batch: MergedBatch | None) -> bool:
        """True if all that was there when reading began was taken before *batch*, the last one."""


class _Tickless:
    """An order without ticks: it ends with its lanes."""

    tick = 0
    batch_rows = 0
    ended = False

    def take_back(self, batch: MergedBatch) -> None:
        """The cursors have everything that there is to know."""

    def is_caught_up(self, cursors: Sequence[LaneCursor], _batch: MergedBatch | None) -> bool:
        """A cursor reports its edge only after the messages before it were taken."""
        return all(cursor.caught_up for cursor in cursors)


class Arrival(_Tickless):
    """As messages come: the batches of the lanes in turn."""

    wake_at = math.inf

    def __init__(self, *, backward: bool = False) -> None:
        self._backward = backward
        self._turn = 0

    def next_batch(
        self, cursors: Sequence[LaneCursor], paused: frozenset[int]
    ) -> MergedBatch | None:
        """Take the arrived messages of the next lane, skipping lanes without any."""
        for _ in cursors:
            cursor = cursors[self._turn % len(cursors)]
            self._turn += 1
            if cursor.lane.partition not in paused and (here := cursor.peek()) is not None:
                return _merged([cursor.take(here)], self._backward)
        return None


class EventTimes(_Tickless):
    """By event time. Every lane must be ordered by it."""

    def __init__(self, *, backward: bool = False, idle_s: float = math.inf) -> None:
        self.wake_at = math.inf
        self._backward = backward
        self._idle_s = idle_s

    def next_batch(
        self, cursors: Sequence[LaneCursor], paused: frozenset[int]
    ) -> MergedBatch | None:
        """Take all messages that are final.

        The merge waits for a paused lane, too: messages after its next one wait with it.
        """
        self.wake_at = math.inf
        here: list[tuple[int, LaneCursor, MessageRange]] = []
        waits = False
        for rank, cursor in enumerate(cursors):
            first = cursor.peek()
            if first is not None and cursor.lane.partition not in paused:
                here.append((rank, cursor, first))
            elif first is not None or not (cursor.ended or self._is_idle(cursor)):
                waits = True
        if waits or not here:
            return None
        final = self._final_backward(here) if self._backward else self._final(here)
        return _merged([cursor.take(each) for cursor, each in final], self._backward)

    def _is_idle(self, cursor: LaneCursor) -> bool:
        if cursor.waiting_since is None:
            return False
        idle_at = cursor.waiting_since + self._idle_s
        if trio.current_time() >= idle_at:
            return True
        self.wake_at = min(self.wake_at, idle_at)
        return False

    def _final(
        self, here: Iterable[tuple[int, LaneCursor, MessageRange]]
    ) -> list[tuple[LaneCursor, MessageRange]]:
        last, last_rank = min(
            (each.batch.rising_times[each.stop - 1], rank) for rank, _, each in here
        )
        found = []
        for rank, cursor, each in here:
            bisect = bisect_right if rank <= last_rank else bisect_left
            stop = bisect(each.batch.rising_times, last, each.start, each.stop)
            if stop > each.start:
                found.append((cursor, MessageRange(each.batch, each.start, stop)))
        return found

    def _final_backward(
        self, here: Iterable[tuple[int, LaneCursor, MessageRange]]
    ) -> list[tuple[LaneCursor, MessageRange]]:
        first, first_rank = max(
            (each.batch.rising_times[each.start], rank) for rank, _, each in here
        )
        found = []
        for rank, cursor, each in here:
            bisect = bisect_left if rank >= first_rank else bisect_right
            start = bisect(each.batch.rising_times, first, each.start, each.stop)
            if start < each.stop:
                found.append((cursor, MessageRange(each.batch, start, each.stop)))
        return found


def _merged(ranges: list[MessageRange], backward: bool) -> MergedBatch:
    count = sum(each.stop - each.start for each in ranges)
    if len(ranges) == 1 and (count == 1 or not backward):
        return MergedBatch(tuple(ranges), None)
    order = list(range(count))
    if len(ranges) > 1:
        times = list(chain.from_iterable(r.batch.rising_times[r.start : r.stop] for r in ranges))
        order.sort(key=times.__getitem__)
    if backward:
        order.reverse()
    return MergedBatch(tuple(ranges), order)


class MergedLanes:
    """The lanes of a reader as one sequence of batches, which one task takes.

    Messages that were taken can be given back, so that seek, pause and position are exact to the
    message.
    """

    def __init__(
        self,
        options: ReadOptions,
        nursery: trio.Nursery,
        figures: Figures,
        *,
        now_ms: Callable[[], int] = host_wall_ms,
    ) -> None:
        self.gaps: list[Gap] = []
        """The last GAPS_KEPT gaps that were skipped."""
        self.order: ReadOrder = Arrival()
        """Chooses what is taken next; begin() replaces it."""
        self._options = options
        self._nursery = nursery
        self._figures = figures
        self._counted: dict[str, ReadFigures] = {}
        """by topic: where it counts as an open reader, until uncount()"""
        self._now_ms = now_ms
        self._open: OpenCursor | None = None
        self._cursors: list[LaneCursor] = []
        self._ranges: dict[LaneRef, LaneRange] = {}
        self._paused: frozenset[int] = frozenset()
        self._caught_up = trio.Event()
        self._ended = False
        self._failure: LedgerError | None = None
        self._put_off: LedgerError | None = None
        self._news = trio.Event()
        self._outages = Outages(options.give_up_s, figures)
        self._taken = 0
        self._taker = OneTaker("reader")

    # --- taking ----------------------------------------------------------------------

    async def wait(self) -> MergedBatch | None:
        """Wait for the next messages; `None` means the end.

        Raises:
            Busy: another task or thread waits for them.
            Others: as take().
        """
        with self._taker:
            self._taken += 1
            if self._taken % BATCHES_PER_CHECKPOINT == 0:
                await trio.lowlevel.checkpoint()  # let other tasks run, however much is here
            while True:
                news = self._news = trio.Event()
                batch = self.take()
                if batch is not None or self._is_over():
                    self._ended = batch is None
                    return batch
                with trio.move_on_at(min(self.order.wake_at, self._outages.wake_at)):
                    await news.wait()

    def take(self) -> MergedBatch | None:
        """Return the next messages if they have arrived.

        Raises:
            Gap: messages are missing here. The next call goes on after them.
            MessagesLost, LedgerError: the next call tries again.
        """
        while True:
            put_off, self._put_off = self._put_off, None
            if failure := self._failure or put_off:
                raise failure
            self._reopen_failed()
            try:
                batch = self.order.next_batch(self._cursors, self._paused)
            except Gap as gap:
                self._figures.reading(gap.topic).gaps += 1
                if self._options.on_gap == "raise":
                    raise
                self.gaps = [*self.gaps[1 - GAPS_KEPT :], gap]
                continue
            except LedgerError as failure:
                if not (self._options.follow and self._outages.wait_out(failure, self._cursors)):
                    raise
                continue
            self._outages.note_ends(self._cursors)
            self._note_caught_up(batch)
            if batch is not None:
                self._count(batch.ranges)
            return batch

    def put_off(self, failure: LedgerError) -> None:
        """Let the next call raise what take() raised: messages before it are handed out first."""
        self._put_off = failure

    def give_back(self, batch: MergedBatch, count: int, *, kept: int = 0) -> None:
        """Take back the last *count* messages of the batch that was taken last.

        *kept*: so many of them, the last ones, were taken back before.
        """
        cursors = {cursor.lane: cursor for cursor in self._cursors}
        found = batch.unused(count, kept=kept, backward=self._options.reverse)
        for unused in reversed(found):
            lane = unused.batch.lane
            self._figures.reading(lane.topic).given_back += unused.stop - unused.start
            cursors[lane].give_back(unused)
        if found:
            self.order.take_back(batch)

    def _count(self, ranges: Sequence[MessageRange]) -> None:
        now = self._now_ms() / 1000
        for each in ranges:
            figures = self._figures.reading(each.batch.lane.topic)
            figures.hand_out(each.stop - each.start, each.batch.header, now=now)

    def notify(self) -> None:
        """Wake wait(): there may be something to take."""
        self._news.set()

    def fail(self, failure: LedgerError) -> None:
        """Let every call raise *failure* from now on, unless it is closed already."""
        if not self.is_closed:
            self._failure = failure
        self.notify()

    def close(self) -> None:
        """Let every call raise ReaderClosed from now on, also those that wait."""
        self.fail(ReaderClosed())
        self._caught_up.set()
        self.uncount()

    def uncount(self) -> None:
        """Let it be no open reader any more in the figures."""
        for figures in self._counted.values():
            figures.readers -= 1
        self._counted = {}

    @property
    def is_closed(self) -> bool:
        """True once close() was called."""
        return isinstance(self._failure, ReaderClosed)

    @property
    def ended(self) -> bool:
        """True once wait() has told of the end."""
        return self._ended

    def check_open(self) -> None:
        """Raise ReaderClosed if it is closed."""
        if isinstance(self._failure, ReaderClosed):
            raise self._failure.with_traceback(None)

    @property
    def again_at(self) -> float:
        """Trio's time at which take() opens a lane again whose bookies were away; else infinite."""
        return self._outages.wake_at

    @property
    def tick(self) -> int:
        """All messages up to this timestamp were taken; 0 in an order without ticks."""
        return self.order.tick

    def _is_over(self) -> bool:
        if self._options.order == "timestamp":
            return self.order.ended
        if self._options.follow and self._options.end is None:
            return False
        return all(cursor.ended for cursor in self._cursors)

    # --- positions -------------------------------------------------------------------

    def places(self, batch: MergedBatch | None, count: int) -> dict[LaneRef, Place]:
        """Return the place in each lane before the last *count* messages of *batch*."""
        places = {cursor.lane: cursor.place for cursor in self._cursors}
        if batch is not None and count:
            backward = self._options.reverse
            for each in reversed(batch.last(count, backward=backward)):
                places[each.batch.lane] = each.after if backward else each.before
        return places

    def pause(self, partitions: Iterable[int]) -> None:
        """Hand out nothing of these partitions."""
        self._paused |= frozenset(partitions)

    def resume(self, partitions: Iterable[int] | None) -> None:
        """Hand out these partitions again; `None` for all."""
        self._paused -= self._paused if partitions is None else frozenset(partitions)
        self.notify()

    @property
    def caught_up(self) -> trio.Event:
        """Set when everything that was there when reading began was handed out."""
        return self._caught_up

    def _note_caught_up(self, batch: MergedBatch | None) -> None:
        if self._caught_up.is_set() or not self.order.is_caught_up(self._cursors, batch):
            return
        self._caught_up.set()
        if self._options.on_caught_up is not None:
            self._options.on_caught_up()

    # --- lanes -----------------------------------------------------------------------

    def begin(
        self,
        open_cursor: OpenCursor,
        ranges: Sequence[LaneRange],
        order: ReadOrder | None = None,
    ) -> None:
        """Read these ranges, and stop reading the former ones.

        *order*: `None` for the one that the options name, unless it needs ticks.
        """
        for cursor in self._cursors:
            cursor.close()
        self._outages.forget(self._ranges)
        self._open, self.order = open_cursor, order or _order_of(self._options)
        self._cursors, self._ranges, self._put_off = [], {}, None
        self._ended = False
        if self._caught_up.is_set():
            self._caught_up = trio.Event()
        for each in ranges:
            self._read(each)
        self.notify()

    def reads(self, lane: LaneRef) -> bool:
        """True if a lane is among those that are read."""
        return lane in self._ranges

    def add(self, chosen: LaneRange) -> None:
        """Read one more lane beside those that are read."""
        self._read(chosen)
        self.notify()

    def add_new(self, found: Iterable[LaneRange]) -> None:
        """Read those lanes that are not read yet; none if it is closed."""
        for chosen in found:
            if not self.is_closed and not self.reads(chosen.known.lane):
                self.add(chosen)

    def drop(self, partitions: Collection[int]) -> None:
        """Read these partitions no longer, without a stop for the others."""
        dropped = [each for each in self._ranges if each.partition in partitions]
        for lane in dropped:
            del self._ranges[lane]
        self._outages.forget(dropped)
        for cursor in self._cursors:
            if cursor.lane not in self._ranges:
                cursor.close()
        self._cursors = [each for each in self._cursors if each.lane in self._ranges]

    def _read(self, chosen: LaneRange) -> None:
        assert self._open is not None, "begin() comes first"
        cursor = self._open(chosen)
        if cursor.lane.topic not in self._counted:
            figures = self._counted[cursor.lane.topic] = self._figures.reading(cursor.lane.topic)
            figures.readers += 1
        self._ranges[cursor.lane] = chosen
        self._cursors = sorted([*self._cursors, cursor], key=lambda each: each.rank)
        self._nursery.start_soon(cursor.run)

    def _reopen_failed(self) -> None:
        """Open new cursors at the places of those that failed; in an outage, after a pause."""
        failed = [each for each in self._cursors if each.failed and self._outages.is_due(each)]
        for cursor in failed:
            self._outages.begin(cursor.lane)
            self._cursors.remove(cursor)
            chosen = self._ranges[cursor.lane]
            begin = chosen.begin._replace(place=cursor.place, since=cursor.since, gap=None)
            self._read(chosen._replace(begin=begin))


def _order_of(options: ReadOptions) -> ReadOrder:
    assert options.order != "timestamp", "it needs ticks"
    if options.order == "arrival":
        return Arrival(backward=options.reverse)
    idle_s = options.idle_s if options.follow else math.inf
    return EventTimes(backward=options.reverse, idle_s=idle_s)
