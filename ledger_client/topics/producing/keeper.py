"""A lane held open: from when it is first needed until the producer closes.

The lane is a block (``async with``), so one task enters and leaves it. Left after a
failure, it is opened anew when it is needed again, which recovers what the failure left
behind; left for good when it is another producer's now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import NamedTuple, Protocol

import trio

from ledger_client.errors import LedgerError
from ledger_client.topics.errors import ProducerFailed
from ledger_client.topics.lanes.sealed_batch import SealedBatch
from ledger_client.topics.producing.routes import Route


class Lane(Protocol):
    """What a producer needs of a LaneWriter."""

    @property
    def lane(self) -> int:
        """Its number in the partition."""

    @property
    def epoch(self) -> int:
        """How often it was taken."""

    @property
    def last_event_time(self) -> int | None:
        """The greatest event time in it."""

    def last_sequence(self, producer: str) -> int:
        """Return the number of the producer's last message in it, -1 for none."""

    def routes(self, producer: str) -> Sequence[Route]:
        """Return what it knows of how the producer's numbers are routed."""

    def set_routes(self, producer: str, routes: Sequence[Route]) -> None:
        """Keep how they are routed; durable before a batch that is appended next."""

    async def keep_routes(self, producer: str, routes: Sequence[Route]) -> None:
        """Make durable how they are routed; then nobody has taken the lane over before.

        After any failure the lane is to be left.
        """

    async def append(self, batches: Sequence[SealedBatch]) -> list[tuple[int, int]]:
        """Make batches durable; return where they are.

        They take their places in the lane before the call waits for anything. After any
        failure the lane is to be left: what is under way fails too.
        """


OpenLane = Callable[[int, int | None], AbstractAsyncContextManager[Lane]]
"""Takes a lane of a partition; the second time the same one, by its number."""


class LaneWatcher(Protocol):
    """Who is told what becomes of a lane."""

    def lane_opened(self, lane: Lane) -> None:
        """Batches can be appended."""

    def lane_refused(self, failure: LedgerError) -> None:
        """The lane could not be opened."""

    def lane_wanted(self) -> bool:
        """Return whether something waits for a lane."""


class Opener(NamedTuple):
    """How a lane is opened: a few at a time, kept by a task of *nursery*."""

    open_lane: OpenLane
    limiter: trio.CapacityLimiter
    nursery: trio.Nursery


class LaneKeeper:
    """Keeps one lane of a partition for *watcher*.

    Attributes:
        lane: the lane, while it is open.
        failure: why it was left last, or could not be opened.
    """

    def __init__(self, partition: int, watcher: LaneWatcher, opener: Opener) -> None:
        self.lane: Lane | None = None
        self.failure: LedgerError | None = None
        self._partition = partition
        self._watcher = watcher
        self._opener = opener
        self._number: int | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._leave = trio.Event()
        self._running = False
        self._refused = 0
        self._closing_failure: LedgerError | None = None
        self._final: ProducerFailed | None = None

    def start(self) -> None:
        """Have the lane opened, if it may be."""
        if self._running:
            return
        if self._final is not None:
            self._watcher.lane_refused(self._final)
            return
        self._running = True
        self._opener.nursery.start_soon(self._run)

    async def open(self) -> Lane:
        """Wait until the lane is open; return it. Raises why it could not be opened."""
        refused = self._refused
        while self.lane is None:
            if self._final is not None:
                raise self._final.with_traceback(None)
            if self.failure is not None and self._refused > refused:
                raise self.failure.with_traceback(None)
            self.start()
            await self._changed.park()
        return self.lane

    def leave(self, lane: Lane, failure: LedgerError) -> bool:
        """Write to *lane* no more; return whether that is news."""
        self._final = self._final or final_cause(failure)
        if self.lane is not lane:
            return False
        self.lane, self.failure = None, failure
        self._leave.set()
        return True

    def end(self, reason: ProducerFailed) -> None:
        """Leave the lane for good, as soon as it can be."""
        self._final = self._final or reason
        self._leave.set()

    def abort(self, reason: ProducerFailed) -> None:
        """Append to the lane no more; the task that keeps it is about to be cancelled."""
        self.end(reason)
        self.lane = None

    async def closed(self) -> None:
        """Wait until the lane is left.

        Raises what leaving it raises, unless it was left for a failure before: that was told.
        """
        while self._running:
            await self._changed.park()
        if self._closing_failure is not None:
            raise self._closing_failure

    async def _run(self) -> None:
        try:
            await self._keep()
            while self._final is None and self._watcher.lane_wanted():
                await self._keep()
        finally:
            self.lane = None
            self._running = False
            self._changed.unpark_all()
        if self._final is not None and self._watcher.lane_wanted():
            self._watcher.lane_refused(self._final)

    async def _keep(self) -> None:
        """Open the lane, and hold it until it is to be left."""
        opened = False
        try:
            async with AsyncExitStack() as stack:
                async with self._opener.limiter:
                    opening = self._opener.open_lane(self._partition, self._number)
                    lane = await stack.enter_async_context(opening)
                opened = True
                await self._hold(lane)
        except LedgerError as failure:
            if not opened:
                self._refuse(failure)
            elif self.lane is not None:
                self._closing_failure = failure
        self.lane = None

    async def _hold(self, lane: Lane) -> None:
        self.lane, self._number, self._leave = lane, lane.lane, trio.Event()
        self._watcher.lane_opened(lane)
        self._changed.unpark_all()
        if self._final is None:
            await self._leave.wait()

    def _refuse(self, failure: LedgerError) -> None:
        self.failure = failure
        self._refused += 1
        self._final = self._final or final_cause(failure)
        self._watcher.lane_refused(failure)
        self._changed.unpark_all()


def final_cause(failure: LedgerError) -> ProducerFailed | None:
    """Return why the lane is to be left for good; None: it may be opened anew.

    Who took it over may leave the outcome of what was under way unknown, and that is
    the failure then; to open it anew would take it away from him.
    """
    for found in (failure, failure.__cause__):
        if isinstance(found, ProducerFailed):
            return found
    return None
