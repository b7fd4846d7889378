"""Background tasks: for the length of a block, while there is work, or at given times.

A nursery wraps an error of its body in an exception group, because it cannot know that the body
matters more than the tasks. Here the tasks serve the block, so an error of the block leaves
unwrapped, after the tasks ended. An error of a task still ends the block, as a group.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Generic, TypeVar

import trio

from ledger_client.errors import Busy

T = TypeVar("T")


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


class OneTaker:
    """``with taker:`` around a wait for the next item, which one task or thread may do at a time.

    A second one would wait for ever for what wakes the first, or take items out of their order.

    Args:
        what: is taken from; named in the error.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        """Raises Busy inside the block of another."""
        if not self._lock.acquire(blocking=False):
            raise Busy(
                f"another task or thread is taking from this {self._what}; "
                "take from it in one at a time, or open one for each"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Turns:
    """Lets one task at a time do something about a name. Names that nobody uses are forgotten."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Wait for the turn, and have it for the block."""
        turn = self._turns.setdefault(name, _Turn())
        try:
            async with turn.lock:
                yield
        finally:
            if not turn.lock.locked():  # else somebody has it now, who waited
                self._turns.pop(name, None)

    async def share(self, name: str, work: Callable[[], Awaitable[T]], other: T) -> T:
        """Do *work*, or return *other* if another task began and ended it meanwhile.

        So tasks that ask while it is done share the next time it is done.
        """
        turn = self._turns.setdefault(name, _Turn())
        asked = turn.begun
        async with self.of(name):
            if turn.ended > asked:
                return other
            turn.begun = number = turn.begun + 1
            result = await work()
            turn.ended = number
            return result


class Rounds:
    """Work in rounds, one at a time: a round serves all tasks that asked before it began."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._begun = self._done = 0
        self._over: trio.Event | None = None
        """set at the end of the round that is under way"""

    async def share(self) -> None:
        """Return once a round that began after this call has ended well.

        A task that waits begins the next round. An error of that round is raised to it alone; the
        others begin another one.
        """
        asked = self._begun
        while self._done <= asked:
            if self._over is None:
                await self._lead()
            else:
                await self._over.wait()

    async def _lead(self) -> None:
        over = self._over = trio.Event()
        try:
            await trio.lowlevel.checkpoint()  # those whom the last round served may ask again
            self._begun += 1
            number = self._begun
            await self._work()
            self._done = number
        finally:
            self._over = None
            over.set()


class SharedCall(Generic[T]):
    """A call whose result is for all tasks that asked before it began, as is its error."""

    def __init__(self, call: Callable[[], Awaitable[T]]) -> None:
        self._call = call
        self._lock = trio.Lock()
        self._next: _Asked[T] | None = None
        """the tasks for which no call has begun"""

    async def ask(self) -> T:
        """Return the result of a call that began after this one.

        The first of the tasks makes the call. If it is cancelled, the next one makes it anew.
        """
        mine = self._next = self._next or _Asked()
        async with self._lock:
            if not mine.result and mine.error is None:
                if self._next is mine:
                    self._next = None
                try:
                    mine.result.append(await self._call())
                except Exception as error:  # noqa: BLE001  # raised below, to all of them
                    mine.error = error
        if mine.error is not None:
            raise mine.error.with_traceback(None)
        return mine.result[0]


class _Asked(Generic[T]):
    """The tasks of one call."""

    def __init__(self) -> None:
        self.result: list[T] = []
        self.error: Exception | None = None


class _Turn:
    """The turns about one name; how often shared work was begun, and which ended last."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.begun = self.ended = 0


class Places:
    """Lets *count_max* tasks at a time work at something; the others wait for a place, in order.

    A task that waits for anything else leaves its place to the next one meanwhile.
    """

    def __init__(self, count_max: int) -> None:
        self._free = count_max
        self._waiting: OrderedDict[trio.Event, None] = OrderedDict()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Place]:
        """Have a place for the block, or until it is left."""
        await self._take(comes_back=False)
        place = Place(self)
        try:
            yield place
        finally:
            place.leave()

    async def _take(self, *, comes_back: bool) -> None:
        await trio.lowlevel.checkpoint()
        if self._free:
            self._free -= 1
            return
        given = trio.Event()
        self._waiting[given] = None
        if comes_back:  # what was begun is finished first
            self._waiting.move_to_end(given, last=False)
        try:
            await given.wait()
        except trio.Cancelled:
            if given.is_set():
                self._give()
            else:
                del self._waiting[given]
            raise

    def _give(self) -> None:
        if self._waiting:
            given, _ = self._waiting.popitem(last=False)
            given.set()
        else:
            self._free += 1


class Place:
    """A place that a task has, until it leaves it."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._is_taken = True

    def leave(self) -> None:
        """Give the place up; harmless if that was done."""
        if self._is_taken:
            self._is_taken = False
            self._places._give()

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Give the place up for the block, and wait for one afterwards, ahead of new tasks.

        After an error in the block there is none.
        """
        self.leave()
        yield
        await self._places._take(comes_back=True)
        self._is_taken = True


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
