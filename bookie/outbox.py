"""Answers of one connection that wait to be sent, or are being made, bounded in bytes."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Self

import trio

from bookie.bell import Bell
from bookie.budget import SMALL_SIZE, Budget, Pool

# What a fast peer needs to keep its socket busy; a slow one pins no more than this
# and one frame.
ANSWERS_SIZE_MAX = 4 << 20
RESERVED_SIZE_MAX = 16 << 20
"""Held for answers that are being made, beside; exceeded by the bound of one."""
# Small answers are joined up to this size, so that one send takes many of them.
_JOINED_SIZE = 256 << 10


class Outbox:
    """A queue of response frames of one connection at *address*.

    Attributes:
        pool: of what is not sent.
        size: bytes in the queue.
        news: rings when there is something to send.
    """

    def __init__(self, budget: Budget, address: str, news: Bell) -> None:
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
        """Whether an answer of any size may be put now."""
        return self._is_short and self.pool.has_room(self._address)

    @property
    def has_some_room(self) -> bool:
        """Whether it is worth making an answer: a small one may be put at least."""
        return self._is_short and (self.size <= SMALL_SIZE or self.pool.has_room(self._address))

    @property
    def _is_short(self) -> bool:
        return self.size < ANSWERS_SIZE_MAX and self._reserved < RESERVED_SIZE_MAX

    def takes(self, size: int) -> bool:
        """Whether an answer of *size* bytes that was made may be put."""
        if self.size <= SMALL_SIZE and size <= SMALL_SIZE:
            return True
        return self.pool.has_room(self._address)

    async def room(self) -> None:
        """Wait until an answer of any size may be put."""
        while not self.has_room:
            if self._is_short:
                # One that holds nothing may have those closed that stand still.
                await self.pool.room(self._address, may_press=self.size == 0)
            else:
                await self._waiting.park()

    async def reserve(self, size: int) -> Pool:
        """Wait until an answer may be made; return the pool that holds *size* bytes for it.

        The pool of what is not sent, if it has room: then the answer may be put, whatever
        its size. Otherwise that of what is being made, and only a small answer may.
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
        """Give back what was reserved."""
        self._reserved -= size
        pool.change(self._address, -size)
        self._waiting.unpark_all()

    def put(self, frame: bytes) -> None:
        """Queue a whole response frame."""
        self._frames.append(frame)
        self.size += len(frame)
        self.pool.change(self._address, len(frame))
        self.news.ring()

    def take(self) -> bytes:
        """The next bytes to send, which leave the queue; none when it is empty."""
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
    """Room for answers while they are made; leaving the block gives it back."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._held: list[tuple[Pool, int]] = []

    async def hold(self, size: int) -> None:
        """Wait for room, and hold *size* bytes: a bound of what is made next."""
        self._held.append((await self._outbox.reserve(size), size))

    @property
    def is_express(self) -> bool:
        """Whether only a small answer is sure to be taken."""
        return any(pool is not self._outbox.pool for pool, _ in self._held)

    def put(self, frame: bytes) -> bool:
        """Queue the answer that was made, if it may be."""
        if self.is_express and not self._outbox.takes(len(frame)):
            return False
        self._outbox.put(frame)
        return True

    def release(self) -> None:
        """Give back what is held."""
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
