"""Bounds of one connection: responses queued or being made, and calls that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import trio

from bookie.budget import SMALL_SIZE, MemoryBudget, Pool
from bookie.errors import CallRefused
from bookie.events import Wakeup
from bookie.hints import HintBox
from bookie.parked import FollowedLedgers

# Enough to keep a fast peer's socket busy; a slow peer pins no more than this and one frame.
ANSWERS_SIZE_MAX = 4 << 20
RESERVED_SIZE_MAX = 16 << 20
"""Held in addition for responses that are being made; one bound may exceed it."""
# Small responses are joined up to this size for one send.
_JOINED_SIZE = 256 << 10
_PARKED_MAX = 4096
"""Calls that wait, of all connections; each is a task of some kilobytes."""


class Outbox:
    """A queue of response frames of one connection at *address*.

    Attributes:
        pool: of responses that are not sent.
        size: bytes in the queue.
        news: set when there is something to send.
    """

    def __init__(self, budget: MemoryBudget, address: str, news: Wakeup) -> None:
        self.pool = budget.unsent
        self._making = budget.making
        self._address = address
        self._frames: deque[bytes] = deque()
        self._waiting = trio.lowlevel.ParkingLot()
        self._reserved = 0
        self.size = 0
        self.news = news

    @property
    def has_room(self) -> bool:
        """True if a response of any size may be queued now."""
        return self._is_short and self.pool.has_room(self._address)

    @property
    def has_some_room(self) -> bool:
        """True if at least a small response may be queued, so that making one is worth it."""
        return self._is_short and (self.size <= SMALL_SIZE or self.pool.has_room(self._address))

    @property
    def _is_short(self) -> bool:
        return self.size < ANSWERS_SIZE_MAX and self._reserved < RESERVED_SIZE_MAX

    def takes(self, size: int) -> bool:
        """Return True if a response of *size* bytes may be queued."""
        if self.size <= SMALL_SIZE and size <= SMALL_SIZE:
            return True
        return self.pool.has_room(self._address)

    async def room(self) -> None:
        """Wait until a response of any size may be queued."""
        while not self.has_room:
            if self._is_short:
                # A connection that holds nothing may have others without progress closed.
                await self.pool.room(self._address, may_press=self.size == 0)
            else:
                await self._waiting.park()

    async def reserve(self, size: int) -> Pool:
        """Wait until a response may be made; return the pool that holds *size* bytes for it.

        If the pool of unsent responses has room, it is that one, and a response of any size may
        be queued. Otherwise it is the pool for making, and only a small one may.
        """
        while not (self.has_some_room and (self.has_room or self._making.has_room(self._address))):
            if self.has_some_room:
                await self._making.room(self._address)
            else:
                await self.room()
        pool = self.pool if self.has_room else self._making
        self._reserved += size
        pool.change(self._address, size)
        return pool

    def give_back(self, pool: Pool, size: int) -> None:
        """Release *size* bytes that reserve() took from *pool*."""
        self._reserved -= size
        pool.change(self._address, -size)
        self._waiting.unpark_all()

    def put(self, frame: bytes) -> None:
        """Queue a whole response frame; never waits, so reserve memory for it first."""
        self._frames.append(frame)
        self.size += len(frame)
        self.pool.change(self._address, len(frame))
        self.news.set()

    def take(self) -> bytes:
        """Take the next bytes to send from the queue, none if it is empty."""
        taken = [self._frames.popleft()] if self._frames else []
        size = sum(map(len, taken))
        while self._frames and size + len(self._frames[0]) <= _JOINED_SIZE:
            taken.append(self._frames.popleft())
            size += len(taken[-1])
        self.size -= size
        self.pool.change(self._address, -size)
        self._waiting.unpark_all()
        return taken[0] if len(taken) == 1 else b"".join(taken)


class Reservation:
    """Memory for responses while they are made; the end of the block releases it."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._held: list[tuple[Pool, int]] = []

    async def hold(self, size: int) -> None:
        """Wait for memory and hold *size* bytes, a bound of the next response."""
        self._held.append((await self._outbox.reserve(size), size))

    @property
    def is_express(self) -> bool:
        """True if only a small response is sure to be queued."""
        return any(pool is not self._outbox.pool for pool, _ in self._held)

    def put(self, frame: bytes) -> bool:
        """Queue the response, if that is allowed; return whether it was."""
        if self.is_express and not self._outbox.takes(len(frame)):
            return False
        self._outbox.put(frame)
        return True

    def release(self) -> None:
        """Release the memory that is held; harmless if there is none."""
        for pool, size in self._held:
            self._outbox.give_back(pool, size)
        self._held.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class ParkedCalls:
    """Counts calls that wait, up to *count_max*.

    Attributes:
        count: calls that wait now.
    """

    def __init__(self, count_max: int = _PARKED_MAX) -> None:
        self._count_max = count_max
        self.count = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count one during the block. Raises CallRefused if there are too many."""
        if self.count >= self._count_max:
            raise CallRefused(f"{self.count} calls wait already; try again later")
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


class CallRoom(Reservation):
    """Resources of one call: memory for its response, and a place among the parked calls.

    Attributes:
        may_ask_again: the call changes nothing, so a response without memory for it is dropped
            and made again later.
        hints: of the connection; None if this bookie has none.
        followed: the ledgers that the connection follows; None if it follows none here.
    """

    def __init__(
        self,
        outbox: Outbox,
        here: ParkedCalls,
        everywhere: ParkedCalls,
        hints: HintBox | None = None,
        followed: FollowedLedgers | None = None,
    ) -> None:
        super().__init__(outbox)
        self._here = here
        self._everywhere = everywhere
        self.may_ask_again = False
        self.hints = hints
        self.followed = followed

    @contextmanager
    def parked(self) -> Iterator[None]:
        """Wait during the block, with no memory held. Raises CallRefused."""
        self.release()
        with self._here.one_more(), self._everywhere.one_more():
            yield
