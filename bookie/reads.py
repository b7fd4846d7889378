"""Reads that need the disk, off the event loop.

Reads of a connection are gathered and answered in one hop to a worker thread, up to a bound of
bytes that is reserved first. A connection has at most one hop under way, so it never occupies
all workers.
"""

from __future__ import annotations

from collections import deque

import trio

from bookie.outbox import Outbox, Reservation
from native.engine import Engine, Request

# The largest response: a frame with its length word.
ANSWER_SIZE_MAX = (5 << 20) + 4
# A hop costs some 55 microseconds, which is negligible for this many bytes.
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
        """True while a read is not answered yet."""
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
            with Reservation(self._outbox) as room:
                await room.hold(_HOP_SIZE + ANSWER_SIZE_MAX)
                # Only a small response is sure to be queued, so make one at a time.
                hop_size = 1 if room.is_express else _HOP_SIZE
                answers = await trio.to_thread.run_sync(
                    self._answer, hop_size, limiter=self._workers
                )
                while answers and room.put(answers[0][1]):
                    answers.popleft()
            self._waiting.unpark_all()
            if answers:  # made again once there is memory
                self._queue.extendleft(request for request, _ in reversed(answers))
                answers.clear()
                await self._outbox.room()
        self._running = False
        self._outbox.news.set()

    def _answer(self, hop_size: int) -> deque[tuple[Request, bytes]]:
        answers: deque[tuple[Request, bytes]] = deque()
        size = 0
        while self._queue and size < hop_size:
            request = self._queue.popleft()
            frame = self._engine.answer(request, use_disk=True, size_max=ANSWER_SIZE_MAX)
            assert frame is not None  # only a read without the disk can be refused
            answers.append((request, frame))
            size += len(frame)
        return answers
