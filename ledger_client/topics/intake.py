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
from ledger_client.topics.ledger_rows import Row

BATCHES_MAX = 2


class Taken(NamedTuple):
    """Consecutive entries of a ledger of the lane."""

    row: Row
    batch: EntryBatch


class Edge(NamedTuple):
    """All that was there before is in front; what follows was waited for."""


class Failed(NamedTuple):
    """Reading failed here. After a Gap it goes on, else whoever reads starts it again."""

    error: LedgerError


class Ended(NamedTuple):
    """Nothing follows."""


Item = Taken | Edge | Failed | Ended


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
