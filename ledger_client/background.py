"""Background tasks: for the length of a block, while there is work, or at given times.

A nursery wraps an error of its body in an exception group, because it cannot know that the body
matters more than the tasks. Here the tasks serve the block, so an error of the block leaves
unwrapped, after the tasks ended. An error of a task still ends the block, as a group.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Awaitable, Callable
from types import TracebackType

import trio


class Background:
    """``async with Background() as nursery``: tasks that end with the block."""

    def __init__(self) -> None:
        self._manager = trio.open_nursery()
        self._nursery: trio.Nursery | None = None

    async def __aenter__(self) -> trio.Nursery:
        self._nursery = await self._manager.__aenter__()
        return self._nursery

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._nursery is not None
        failed = self._nursery.cancel_scope.cancel_called
        self._nursery.cancel_scope.cancel()
        if failed:  # a task crashed: its error, not the cancellation it caused, must get out
            await self._manager.__aexit__(kind, error, trace)
        else:
            await self._manager.__aexit__(None, None, None)


class OnDemand:
    """A task that exists while there is something for it to do.

    *work* returns when nothing is left; start() runs it again when there is. It
    must not wait between finding nothing left and returning.
    """

    def __init__(self, nursery: trio.Nursery, work: Callable[[], Awaitable[None]]) -> None:
        self._nursery = nursery
        self._work = work
        self._running = False

    def start(self) -> None:
        """Begin in the scheduler's next turn, unless it is running."""
        if not self._running:
            self._running = True
            self._nursery.start_soon(self._run)

    async def _run(self) -> None:
        try:
            await self._work()
        finally:
            self._running = False


class Alarms:
    """Calls back at given times, from one task that exists while an alarm is set.

    With thousands of writers, a task for each of them costs more than writing the entries.
    """

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
