"""Reads that need the disk, off the event loop.

What a connection asks for is gathered and answered in one hop to a worker thread,
up to a bound of bytes; then the answers must find room in its outbox before the next
hop. A connection has one hop under way at most, so it never occupies all workers.
"""

from __future__ import annotations

from collections import deque

import trio

from bookie.outbox import Outbox
from native.engine import Engine, Request

# The largest response: a frame with its length word.
ANSWER_SIZE_MAX = (5 << 20) + 4
# A hop costs some 55 microseconds; with this much to do that is nothing.
_HOP_SIZE = 1 << 20
_QUEUE_MAX = 256


class DiskReads:
    """The reads of one connection that wait for the disk."""

    def __init__(
        self, engine: Engine, workers: trio.CapacityLimiter, outbox: Outbox, nursery: trio.Nursery
    ) -> None:
        self._engine = engine
        self._workers = workers
        self._outbox = outbox
        self._nursery = nursery
        self._queue: deque[Request] = deque()
        self._waiting = trio.lowlevel.ParkingLot()
        self._running = False

    @property
    def is_busy(self) -> bool:
        """Whether a read has not been answered yet."""
        return self._running

    async def put(self, request: Request) -> None:
        """Queue a read; waits while the queue is full."""
        while len(self._queue) >= _QUEUE_MAX:
            await self._waiting.park()
        self._queue.append(request)
        if not self._running:
            self._running = True
            self._nursery.start_soon(self._run)

    async def _run(self) -> None:
        while self._queue:
            await self._outbox.room()
            frames = await trio.to_thread.run_sync(self._answer, limiter=self._workers)
            self._waiting.unpark_all()
            for frame in frames:
                self._outbox.put(frame)
        self._running = False
        self._outbox.news.ring()

    def _answer(self) -> list[bytes]:
        frames: list[bytes] = []
        size = 0
        while self._queue and size < _HOP_SIZE:
            request = self._queue.popleft()
            frame = self._engine.answer(request, use_disk=True, size_max=ANSWER_SIZE_MAX)
            assert frame is not None  # only a read without the disk can be refused
            frames.append(frame)
            size += len(frame)
        return frames
