"""Entries of one lane on their way from the task that reads them to whoever takes them.

Bounded: the task waits while enough is there. What it meets on the way (the live edge,
a gap, a failure, the end) stands in the same line, so that each is noticed in its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import trio

from ledger_client.entries import EntryBatch
from ledger_client.errors import LedgerError
from ledger_client.topics.lanes.ledger_rows import Row
from ledger_client.topics.messages import Batch, open_batch
from ledger_client.topics.reading.compacted_batch import open_compacted
from ledger_client.topics.reading.holes import kept_parts
from ledger_client.topics.reading.places import LaneRef, Place
from ledger_client.topics.reading.times import place_of

BATCHES_MAX = 2


class Opened(NamedTuple):
    """An entry of a lane, and what of it is there to read."""

    batch: Batch | None
    """None: it has no messages"""
    parts: list[tuple[int, int]]
    """of its messages, from the first to before the second of each; the others were deleted"""
    before: Place
    behind: Place


class Taken(NamedTuple):
    """Consecutive entries of a ledger of the lane."""

    row: Row
    batch: EntryBatch

    def open(self, lane: LaneRef, index: int) -> Opened:
        """Open one of them. Raises BadBatch."""
        place = place_of(self.row, self.batch.first_entry + index)
        found = open_batch(lane, place, self.batch.payload(index))
        parts = []
        if found is not None:
            parts = kept_parts(self.row.ledger.removed, place.entry, 0, found.count)
        behind = place_of(self.row, place.entry + 1)
        return Opened(found, parts, place, behind)


class Survived(NamedTuple):
    """Consecutive entries of a ledger of what compaction left of the lane."""

    batch: EntryBatch
    start: Place | None = None
    """What lies before it was read already."""
    stop: Place | None = None
    """The same of what lies behind it, in reverse."""

    def open(self, lane: LaneRef, index: int) -> Opened:
        """Open one of them. Raises BadBatch."""
        stored = self.batch.ledger_id, self.batch.first_entry + index
        found = open_compacted(lane, stored, self.batch.payload(index))
        first = 0 if self.start is None else found.count_before(self.start)
        last = found.count if self.stop is None else found.count_before(self.stop)
        return Opened(found, [(first, last)], found.place, found.after(found.count))


class Edge(NamedTuple):
    """All that was there before is in front; what follows was waited for."""


class Failed(NamedTuple):
    """Reading failed here. After a Gap it goes on, else whoever reads starts it again."""

    error: LedgerError


class Ended(NamedTuple):
    """Nothing follows."""


Entries = Taken | Survived
Item = Entries | Edge | Failed | Ended


class Intake:
    """One task puts, another takes. *tell* is called when there is something to take."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self.items: deque[Item] = deque()
        self.waiting_since: float | None = None
        """Since when the lane is at its edge; None while there is more to read."""
        self._tell = tell
        self._room = trio.Event()
        self._edge_told = False

    async def put(self, item: Item) -> None:
        """Append *item*, once there is room for it."""
        while len(self.items) >= BATCHES_MAX:
            self._room = trio.Event()
            await self._room.wait()
        self.waiting_since = None
        self.items.append(item)
        self._tell()

    def mark_edge(self) -> None:
        """Say that there is nothing more to read for the moment."""
        if self.waiting_since is None:
            self.waiting_since = trio.current_time()
            self._tell()
        if not self._edge_told:
            self._edge_told = True
            self.items.append(Edge())

    def take(self) -> Item | None:
        """Return the next item, None if there is none yet."""
        if not self.items:
            return None
        item = self.items.popleft()
        self._room.set()
        return item
