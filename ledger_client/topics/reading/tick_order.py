"""Several lanes merged by timestamp, up to each tick. Without I/O.

A tick of a topic names a timestamp T, and covers a place in each lane: every message of the topic
with a timestamp up to T lies before the place of its lane. So once each covered lane was read to
its place, or its next message is above T, all messages up to T are here. Their order is final:
by timestamp, equal ones by topic, partition and lane. Messages above T wait in their cursors.

    ticks     ──────────── 40 ──────────── 80 ──►
    lane 0    ──10──30──┤      50──70──┤           all up to 80 is here once lane 1 was read
    lane 1    ──20──────┤      60──…               to its place; until then all up to 60 is

Messages up to a tick are taken as they arrive: those up to the last timestamp that has arrived of
each lane that is not read to its place. A batch never has messages of both sides of a tick, so
what was handed out when a tick is reached is the same for everybody.

A tick may cover a lane that nobody reads yet: it was opened meanwhile. Nothing is released until
that lane is read, or known to be none of those that were chosen.

Several topics have ticks of their own. The lowest of the next tick of each is the next one of all.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from ledger_client.errors import LedgerError, MessagesLost
from ledger_client.topics.messages import MergedBatch, MessageRange
from ledger_client.topics.positions import LaneRef
from ledger_client.topics.reading.cursor import LaneCursor
from ledger_client.topics.ticks import LaneIndex, Tick

BATCH_ROWS = 8192
"""A batch ends with the entry that reaches so many messages, if not before."""
TICKS_MAX = 1024
"""Ticks of a topic that wait."""
COVERS_MAX = 100_000
"""Covers that they have, about."""
TIMESTAMP_MAX = (1 << 64) - 1


class TickSequence:
    """The ticks of one topic that were not reached yet."""

    def __init__(self) -> None:
        self.waiting: deque[Tick] = deque()
        self.covers: dict[LaneIndex, int] = {}
        """what the next tick covers, of the chosen partitions"""
        self.newest = 0
        self.unknown: set[LaneIndex] = set()
        """covered lanes that are not read"""
        self.left_out: set[LaneIndex] = set()
        """lanes that were not chosen"""


class _Head(NamedTuple):
    """The next messages of a lane; the lowest comes first."""

    first: int
    """timestamp of the first message"""
    lane: LaneRef
    cursor: LaneCursor
    here: MessageRange


class TickOrder:
    """By timestamp, up to the ticks that were added.

    Args:
        topics: the number of topics.
        wants: called with a topic's index when there is room for its ticks again, when one of its
            covered lanes is not read, and when the failure of its ticks was raised.
        partitions: those that are read, `None` for all.
        last: the greatest timestamp to release; then the order has ended.
        edge: a timestamp greater than those of all messages acknowledged before reading began.
    """

    wake_at = math.inf

    def __init__(
        self,
        topics: int,
        *,
        wants: Callable[[int], None],
        partitions: Collection[int] | None = None,
        last: int = TIMESTAMP_MAX,
        edge: int = 0,
    ) -> None:
        self.tick = 0
        self.batch_rows = BATCH_ROWS
        self._sequences = [TickSequence() for _ in range(topics)]
        self._wants = wants
        self._partitions = partitions
        self._last = last
        self._edge = edge
        self._newest = 0
        """the greatest timestamp that was taken"""
        self._reached = 0
        """the last tick that was reached, whatever was given back since"""
        self._cuts: dict[int, dict[LaneRef, int]] = {}
        """ticks that were reached, but of which messages were given back, with the version up to
        which each lane must be read again"""
        self._failures: dict[int, LedgerError] = {}
        self._checked: Sequence[LaneCursor] | None = None
        """the cursors among which all covered lanes were looked for"""

    @property
    def ended(self) -> bool:
        """True if all messages up to the last timestamp were taken."""
        return self.tick >= self._last

    def is_caught_up(self, cursors: Sequence[LaneCursor], batch: MergedBatch | None) -> bool:
        """True if all messages acknowledged before reading began were taken before *batch*."""
        return (self.tick if batch is None else batch.tick_before) >= min(self._edge, self._last)

    # --- ticks -----------------------------------------------------------------------

    def has_room(self, topic: int) -> bool:
        """True if one more tick of the topic can be added."""
        waiting = self._sequences[topic].waiting
        count = len(waiting)
        return not count or (count < TICKS_MAX and count * len(waiting[-1].covers) < COVERS_MAX)

    def add(self, topic: int, tick: Tick) -> None:
        """Add the next tick of a topic; one that is not above those before says nothing new."""
        sequence = self._sequences[topic]
        if tick.timestamp <= sequence.newest:
            return
        sequence.newest = tick.timestamp
        sequence.waiting.append(tick)
        if len(sequence.waiting) == 1:
            self._cover(sequence)

    def needed(self, topic: int) -> int | None:
        """Return the timestamp that the topic's next tick must reach, be it an idle one.

        `None` if there is no hurry: its next stored tick will do.
        """
        if self._sequences[topic].waiting:
            return None
        there = [each.waiting[0] for each in self._sequences if each.waiting]
        wanted = [tick.timestamp for tick in there if _is_stored(tick)]
        if self.tick < self._edge:
            wanted.append(self._edge)
        if self._last < TIMESTAMP_MAX:
            wanted.append(self._last)
        return min(wanted, default=None)

    def fail(self, topic: int, failure: LedgerError) -> None:
        """Let next_batch() raise it, once, when it waits for the topic."""
        self._failures[topic] = failure

    def has_failed(self, topic: int) -> bool:
        """True until the failure was raised."""
        return topic in self._failures

    def unknown(self, topic: int) -> set[LaneIndex]:
        """Return the covered lanes that are not read, each by partition and lane."""
        return self._sequences[topic].unknown

    def leave_out(self, topic: int, lanes: Collection[LaneIndex]) -> None:
        """Wait no more for these lanes, which exist and were not chosen."""
        self._sequences[topic].left_out |= {*lanes}
        self._checked = None

    def _cover(self, sequence: TickSequence) -> None:
        """Cover what the next tick covers, and all that the ticks before it did."""
        covers, chosen = sequence.covers, self._partitions
        for lane, version in sequence.waiting[0].covers.items():
            if chosen is None or lane[0] in chosen:
                covers[lane] = max(version, covers.get(lane, 0))
        self._checked = None

    def _reach(self, bound: int) -> None:
        """Note that all messages up to *bound* were taken."""
        self.tick = max(self.tick, bound)
        self._reached = max(self._reached, bound)
        self._cuts = {cut: places for cut, places in self._cuts.items() if cut > bound}
        for index, sequence in enumerate(self._sequences):
            waiting, had_room = sequence.waiting, self.has_room(index)
            while waiting and waiting[0].timestamp <= bound:
                waiting.popleft()
                if waiting:
                    self._cover(sequence)
            if not had_room and self.has_room(index):
                self._wants(index)

    # --- taking ----------------------------------------------------------------------

    def next_batch(
        self, cursors: Sequence[LaneCursor], paused: frozenset[int]
    ) -> MergedBatch | None:
        """Take the next messages up to the next tick; `None` if more must arrive.

        Messages after the next one of a paused lane wait with it.

        Raises:
            LedgerError: the ticks could not be read, or as LaneCursor.peek().
        """
        while not self.ended:
            bound = min(self._cuts) if self._cuts else self._next_tick()
            if bound is None:
                self._ask_for_ticks()
                return None
            if not self._knows_all(cursors):
                self._ask_for_lanes()
                return None
            heads = self._heads(cursors, bound)
            if heads is None:
                return None
            before, is_whole = self.tick, False
            ranges: list[MessageRange] = []
            if heads:
                is_whole = self._take(heads, bound, paused, ranges)
                if not ranges:
                    return None
            if is_whole or not heads:
                self._reach(bound)
            if ranges:
                self._newest = ranges[-1].batch.rising_timestamps[ranges[-1].stop - 1]
                return MergedBatch(tuple(ranges), None, bound, before)
        return None

    def take_back(self, batch: MergedBatch) -> None:
        """Reach the batch's tick again before any later one."""
        if batch.tick <= self._reached:
            places = self._cuts.setdefault(batch.tick, {})
            for each in batch.ranges:
                lane, after = each.batch.lane, each.after
                places[lane] = max(after.version + (after.skip > 0), places.get(lane, 0))
        self.tick = self._newest = min(self.tick, batch.tick_before)

    def _next_tick(self) -> int | None:
        """Return the next tick of all topics; `None` unless each has one that is as late.

        An idle tick only says that its topic has nothing before it. So it never cuts a batch, and
        a replay, which does not see it, is cut at the same places.
        """
        while all(sequence.waiting for sequence in self._sequences):
            here = [sequence.waiting[0] for sequence in self._sequences]
            stored = [tick.timestamp for tick in here if _is_stored(tick)]
            bound = min(stored) if stored else min(tick.timestamp for tick in here)
            if not self._drop_idle(min(bound, self._last)):
                return min(bound, self._last)
        return None

    def _drop_idle(self, bound: int) -> bool:
        """Drop ticks that are not as late as *bound*; False if there are none."""
        early = [each for each in self._sequences if each.waiting[0].timestamp < bound]
        for sequence in early:
            sequence.waiting.popleft()
            if sequence.waiting:
                self._cover(sequence)
        return bool(early)

    def _ask_for_ticks(self) -> None:
        for topic, sequence in enumerate(self._sequences):
            if not sequence.waiting:
                self._ask(topic)

    def _ask_for_lanes(self) -> None:
        for topic, sequence in enumerate(self._sequences):
            if sequence.unknown:
                self._ask(topic)

    def _ask(self, topic: int) -> None:
        """Ask for more. Raises the failure of doing so."""
        self._wants(topic)
        if (failure := self._failures.pop(topic, None)) is not None:
            raise failure

    def _knows_all(self, cursors: Sequence[LaneCursor]) -> bool:
        """True if all covered lanes are read."""
        if self._checked is not cursors:
            here = {
                (each.lane.topic_index, each.lane.partition, each.lane.lane) for each in cursors
            }
            for topic, sequence in enumerate(self._sequences):
                unread = {lane for lane in sequence.covers if (topic, *lane) not in here}
                sequence.unknown = unread - sequence.left_out
            if not any(sequence.unknown for sequence in self._sequences):
                self._checked = cursors
        return self._checked is cursors

    def _heads(self, cursors: Sequence[LaneCursor], bound: int) -> list[_Head] | None:
        """Return what has arrived of each lane up to *bound*; `None` if a lane must be read on."""
        heads = []
        for cursor in cursors:
            here = cursor.peek()
            if here is None:
                if not self._is_read(cursor, bound):
                    return None
                continue
            first = here.batch.rising_timestamps[here.start]
            if first <= self.tick or first < self._newest:
                raise here.batch.bad(f"timestamp {first} came after tick {self.tick} was reached")
            if first <= bound:
                heads.append(_Head(first, cursor.lane, cursor, here))
        heapify(heads)
        return heads

    def _is_read(self, cursor: LaneCursor, bound: int) -> bool:
        """True if nothing up to *bound* follows in a lane of which nothing has arrived."""
        if cursor.ended:
            return True
        lane = cursor.lane
        if bound in self._cuts:
            return cursor.read_to >= self._cuts[bound].get(lane, -1)
        covers = self._sequences[lane.topic_index].covers
        return max(cursor.read_to, 0) >= covers.get((lane.partition, lane.lane), 0)

    def _take(
        self, heads: list[_Head], bound: int, paused: frozenset[int], taken: list[MessageRange]
    ) -> bool:
        """Take the lowest of *heads*, then what follows it, and so on; False if more may follow."""
        rows = 0
        while heads:
            head = heads[0]
            if rows >= self.batch_rows or head.lane.partition in paused:
                return False
            here, cursor = head.here, head.cursor
            stop = _stop(head, bound, min(heads[1:3], default=None))
            taken.append(cursor.take(MessageRange(here.batch, here.start, stop)))
            rows += stop - here.start
            following = _following(head)
            if following is not None and following.first <= bound:
                heapreplace(heads, following)
            elif following is not None or self._is_read(cursor, bound):
                heappop(heads)
            else:
                return False
        return True


def _is_stored(tick: Tick) -> bool:
    return tick.stored == tick.timestamp


def _following(head: _Head) -> _Head | None:
    """Return what follows in a lane, as far as it is here and sound."""
    here = head.cursor.peek_on()
    if here is None:
        return None
    try:
        first = here.batch.rising_timestamps[here.start]
    except MessagesLost:
        return None  # peek() returns it again: it is raised when all before it was handed out
    return _Head(first, head.lane, head.cursor, here) if first >= head.first else None


def _stop(head: _Head, bound: int, other: _Head | None) -> int:
    """Return the end of the messages of *head* up to *bound* and before those of *other*."""
    stamps = head.here.batch.rising_timestamps
    start, stop = head.here.start, head.here.stop
    last = stamps[stop - 1]
    if last > bound:
        stop = bisect_right(stamps, bound, start, stop)
    if other is not None and last >= other.first:
        bisect = bisect_right if head.lane < other.lane else bisect_left
        stop = bisect(stamps, other.first, start, stop)
    return stop
