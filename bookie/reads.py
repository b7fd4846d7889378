"""Reads that need the disk, off the event loop.

Reads of a connection are gathered and answered in one hop to a worker thread, up to a bound of
bytes that is reserved first. READs that came together stay together, and C answers them all. A
connection has at most one hop under way, so it never occupies all workers.
"""

from __future__ import annotations

from collections import deque

import trio

from bookie.budget import SMALL_SIZE
from bookie.outbox import Outbox, Reservation
from native.engine import Engine, Reads, Request

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
        self._gathered: list[Reads] = []
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
        self._start()

    async def put_all(self, reads: Reads) -> None:
        """Queue READs that came together; waits while such a queue is full."""
        while sum(map(len, self._gathered)) >= _QUEUE_MAX:
            await self._waiting.park()
        self._gathered.append(reads)
        self._start()

    def _start(self) -> None:
        if not self._running:
            self._running = True
            self._nursery.start_soon(self._run)

    async def _run(self) -> None:
        while self._queue or self._gathered:
            for queue, hop in ((self._queue, self._hop), (self._gathered, self._hop_gathered)):
                if not queue:
                    continue
                with Reservation(self._outbox) as room:
                    await room.hold(_HOP_SIZE + ANSWER_SIZE_MAX)
                    is_done = await hop(room)
                self._waiting.unpark_all()
                if not is_done:  # made again once there is memory
                    await self._outbox.room()
        self._running = False
        self._outbox.news.set()

    async def _hop(self, room: Reservation) -> bool:
        """Answer requests; False if there was no room for all these answers."""
        # Only a small response is sure to be queued, so make one at a time.
        hop_size = 1 if room.is_express else _HOP_SIZE
        answers = await trio.to_thread.run_sync(self._answer, hop_size, limiter=self._workers)
        while answers and room.put(answers[0][1]):
            answers.popleft()
        self._queue.extendleft(request for request, _ in reversed(answers))
        return not answers

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

    async def _hop_gathered(self, room: Reservation) -> bool:
        """Answer READs that came together; False if there was no room for these answers."""
        reads, before = Reads.joined(self._gathered), Reads.joined(self._gathered)
        self._gathered.clear()
        self._waiting.unpark_all()
        hop_size = SMALL_SIZE if room.is_express else _HOP_SIZE
        frames = await trio.to_thread.run_sync(
            self._answer_all, reads, hop_size, limiter=self._workers
        )
        is_done = room.put(frames)
        left = reads if is_done else before
        if left:
            self._gathered.insert(0, left)
        return is_done

    def _answer_all(self, reads: Reads, hop_size: int) -> bytes:
        frames = self._engine.answer_reads(reads, use_disk=True, size_max=hop_size)
        if frames:
            return frames
        return self._engine.answer_reads(reads, use_disk=True, size_max=ANSWER_SIZE_MAX)
