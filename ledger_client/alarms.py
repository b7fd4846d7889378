"""One task that wakes for all the writers of a client.

A writer wants to be called a little after it went quiet, and when its oldest
entry has waited too long. With thousands of ledgers a task for each of these
costs more than writing the entries, so they share one, with a heap of times.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

import trio

from ledger_client.background import OnDemand


class Alarms:
    """Calls back at given times, from a task that exists while one is set."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()  # so that callbacks are never compared
        self._sooner = trio.Event()
        self._task = OnDemand(nursery, self._ring)

    def set(self, when: float, callback: Callable[[], None]) -> None:
        """Call *callback* at *when*, by trio's clock. It must not raise."""
        first = not self._heap or when < self._heap[0][0]
        heapq.heappush(self._heap, (when, next(self._number), callback))
        if first:
            self._sooner.set()
        self._task.start()

    async def _ring(self) -> None:
        while self._heap:
            when = self._heap[0][0]
            if when <= trio.current_time():
                _, _, callback = heapq.heappop(self._heap)
                callback()
                continue
            self._sooner = trio.Event()
            with trio.move_on_at(when):
                await self._sooner.wait()
