"""One lane as a reader sees it: its messages in order, as far as they have arrived.

    source ──put──► queue ──peek──► ranges of messages ──take──► reader
       (a task)   (bounded)      (opened, cut to start and end)

A task runs the lane's source (source.py, compacted_source.py), which waits while the queue is
full. The reader never waits here: it peeks and takes. The live edge, gaps, a failure and the end
stand in the queue between the entries, so each is noticed at its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import trio

from ledger_client.errors import Gap, LedgerError, MessagesLost
from ledger_client.topics.messages import MessageBatch, MessageRange
from ledger_client.topics.positions import UNKNOWN, LaneRef, Place
from ledger_client.topics.reading.source import Edge, Entries, Put
from ledger_client.topics.times import Time

BATCHES_MAX = 2
"""Batches of entries in the queue of one lane, beside what its source reads ahead."""


class Source(Protocol):
    """Reads a lane: RawSource, ReverseSource or CompactedSource."""

    async def run(self, put: Put) -> None:
        """Put everything up to the end, then return. Raises LedgerError when reading fails."""


class LaneBounds(NamedTuple):
    """Limits of a cursor, beside the place at which it begins."""

    since: Time | None = None
    """a time that no message had yet when reading began; earlier messages are left out"""
    until: Time | None = None
    """the time before which it ends"""
    end: Place | None = None
    """the place at which it ends; in reverse at the lane's beginning"""


class _Ended(NamedTuple):
    """Marks the end: the source has put everything."""


class LaneCursor:
    """The messages of one lane from *place* on, or back from it.

    Args:
        lane: the lane to read.
        source: reads it, once run() is started.
        place: where it begins.
        notify: called when there is something to take.
        name: the lane's name when reading began.
        bounds: where it ends.
        backward: read in reverse.
        gap: the gap at which it begins, if the requested place is gone.
    """

    def __init__(
        self,
        lane: LaneRef,
        source: Source,
        place: Place,
        *,
        notify: Callable[[], None],
        name: str = "",
        bounds: LaneBounds,
        backward: bool = False,
        gap: Gap | None = None,
    ) -> None:
        self.lane = lane
        self.name = name
        self.place = place
        """After the messages that were taken; in reverse before them."""
        self.since = bounds.since
        self.ended = False
        self.caught_up = False
        """Everything that was there when reading began was taken."""
        self.failed = False
        """The source ended with an error, which was raised."""
        self._scope = trio.CancelScope()
        self._source = source
        self._notify = notify
        self._until = bounds.until
        self._end = bounds.end
        self._backward = backward
        self._start = place
        self._queue: deque[Entries | LedgerError | Edge | _Ended] = deque(
            [] if gap is None else [gap]
        )
        self._room = trio.Event()
        self._waiting_since: float | None = None
        self._edge_queued = False
        self._edge_version = UNKNOWN
        self._ranges: deque[MessageRange] = deque()
        self._entries: Entries | None = None
        """The entries that are being opened."""
        self._index = 0
        """Index of the next of these entries."""

    @property
    def rank(self) -> tuple[int, str, LaneRef]:
        """Orders messages of equal event times: by topic, lane name, partition and lane."""
        return self.lane.topic_index, self.name, self.lane

    @property
    def waiting_since(self) -> float | None:
        """Trio's time since when there is nothing to read, not even at the bookies."""
        return None if self._ranges or self._entries or self._queue else self._waiting_since

    @property
    def read_to(self) -> int:
        """All entries before this version were taken, were left out, or are gone."""
        at_edge = self._edge_version if self.waiting_since is not None else UNKNOWN
        return max(self.place.version, at_edge)

    # --- the task ----------------------------------------------------------------------

    async def run(self) -> None:
        """Read the lane into the queue until its end, a failure, or close()."""
        with self._scope:
            try:
                await self._source.run(self._put)
            except LedgerError as failure:
                await self._append(failure)
            else:
                await self._append(_Ended())

    def close(self) -> None:
        """Cancel the task; messages that have arrived can still be taken."""
        self._scope.cancel()

    async def _put(self, item: Entries | Gap | Edge) -> None:
        if not isinstance(item, Edge):
            await self._append(item)
            return
        if self._waiting_since is None or item.version > self._edge_version:
            self._notify()
        if self._waiting_since is None:
            self._waiting_since = trio.current_time()
        self._edge_version = max(self._edge_version, item.version)
        if not self._edge_queued:
            self._edge_queued = True
            self._queue.append(item)

    async def _append(self, item: Entries | LedgerError | _Ended) -> None:
        while len(self._queue) >= BATCHES_MAX:
            self._room = trio.Event()
            await self._room.wait()
        self._waiting_since = None
        self._queue.append(item)
        self._notify()

    # --- the reader --------------------------------------------------------------------

    def peek(self) -> MessageRange | None:
        """Return the next messages, `None` if they have not arrived or the lane has ended.

        Raises:
            Gap: entries are missing here. Raised once; the next call goes on after them.
            MessagesLost: the next entry is damaged. Raised at each call.
            LedgerError: reading failed. Then *failed* is set: open a new cursor.
        """
        while not self._ranges:
            if self.ended:
                self.caught_up = True
                return None
            if self._entries is not None:
                self._open_next(self._entries)
            elif not self._take_item():
                return None
        return self._ranges[0]

    def peek_on(self) -> MessageRange | None:
        """As peek(), of the entries that peek() has begun; `None` also where peek() would raise."""
        try:
            while not self._ranges and self._entries is not None and not self.ended:
                self._open_next(self._entries)
        except MessagesLost:
            return None
        return self._ranges[0] if self._ranges else None

    def take(self, taken: MessageRange) -> MessageRange:
        """Take the messages that peek() returned, or only the first of them."""
        whole = self._ranges.popleft()
        if self._backward:
            if taken.start > whole.start:
                self._ranges.appendleft(MessageRange(whole.batch, whole.start, taken.start))
            self.place = taken.before
        else:
            if taken.stop < whole.stop:
                self._ranges.appendleft(MessageRange(whole.batch, taken.stop, whole.stop))
            self.place = taken.after
        return taken

    def give_back(self, unused: MessageRange) -> None:
        """Take back the end of the last range taken; it is returned again."""
        self._ranges.appendleft(unused)
        self.place = unused.after if self._backward else unused.before

    def _take_item(self) -> bool:
        """Take the next item of the queue; False if there is none yet."""
        if not self._queue:
            return False
        item = self._queue.popleft()
        self._room.set()
        if isinstance(item, LedgerError):
            self.failed = not isinstance(item, Gap)
            raise item
        if isinstance(item, Edge):
            self.caught_up = True
        elif isinstance(item, _Ended):
            self.ended = True
        else:
            self._entries = item
            self._index = len(item.batch) - 1 if self._backward else 0
        return True

    # --- opening entries ---------------------------------------------------------------

    def _open_next(self, entries: Entries) -> None:
        """Decode the next entry, and queue the ranges of it that are to be read."""
        opened = entries.open(self.lane, self._index)
        ranges: list[MessageRange] = []
        if opened.batch is not None:
            cut = self._cut_back if self._backward else self._cut
            ranges = cut(opened.batch, opened.kept)
        if ranges:
            self._ranges.extend(ranges)
        elif not self.ended:
            self.place = opened.before if self._backward else opened.after
        self._index += -1 if self._backward else 1
        if not 0 <= self._index < len(entries.batch):
            self._entries = None

    def _cut(self, batch: MessageBatch, kept: list[tuple[int, int]]) -> list[MessageRange]:
        """Return the kept ranges of a batch, cut to those between start and end."""
        ranges: list[MessageRange] = []
        for each in kept:
            if self.ended:
                break
            start, stop = self._within_bounds(batch, *each)
            if start < stop:
                ranges.append(MessageRange(batch, start, stop))
        return ranges

    def _within_bounds(self, batch: MessageBatch, start: int, stop: int) -> tuple[int, int]:
        start = max(start, batch.count_before(self._start))
        if self.since is not None:
            reached = self.since.reached_by(batch.header)
            start = max(start, self.since.index_in(batch)) if reached else stop
            if start >= stop:
                return start, stop
            self.since = None
        if self._until is not None and self._until.reached_by(batch.header):
            reached_at = self._until.index_in(batch, start)
            if reached_at < stop:
                stop, self.ended = reached_at, True
        if self._end is not None and batch.reach(stop) >= self._end.at:
            stop = min(stop, batch.count_before(self._end))
            self.ended = True
        return start, stop

    def _cut_back(self, batch: MessageBatch, kept: list[tuple[int, int]]) -> list[MessageRange]:
        ranges: list[MessageRange] = []
        for start, stop in reversed(kept):
            last = min(stop, batch.count_before(self._start))
            first = start
            if self._end is not None and batch.before(0).at <= self._end.at:
                first = max(start, batch.count_before(self._end))
                self.ended = True
            if first < last:
                ranges.append(MessageRange(batch, first, last))
        return ranges
