"""Answers of one connection that wait to be sent, bounded in bytes."""

from __future__ import annotations

from collections import deque

import trio

from bookie.bell import Bell
from bookie.budget import Budget

# What a fast peer needs to keep its socket busy; a slow one pins no more than this
# and one frame.
ANSWERS_SIZE_MAX = 4 << 20
# Small answers are joined up to this size, so that one send takes many of them.
_JOINED_SIZE = 256 << 10


class Outbox:
    """A queue of response frames.

    Attributes:
        size: bytes in the queue.
        news: rings when there is something to send.
    """

    def __init__(self, budget: Budget, news: Bell) -> None:
        self._budget = budget
        self._frames: deque[bytes] = deque()
        self._waiting = trio.lowlevel.ParkingLot()
        self.size = 0
        self.news = news

    async def room(self) -> None:
        """Wait until an answer may be put. Ask before making it."""
        while self.size >= ANSWERS_SIZE_MAX or (self.size and self._budget.is_spent):
            await self._waiting.park()

    def put(self, frame: bytes) -> None:
        """Queue a whole response frame."""
        self._frames.append(frame)
        self.size += len(frame)
        self._budget.change(len(frame))
        self.news.ring()

    def take(self) -> bytes:
        """The next bytes to send, which leave the queue; none when it is empty."""
        taken = [self._frames.popleft()] if self._frames else []
        size = sum(map(len, taken))
        while self._frames and size + len(self._frames[0]) <= _JOINED_SIZE:
            taken.append(self._frames.popleft())
            size += len(taken[-1])
        self.size -= size
        self._budget.change(-size)
        self._waiting.unpark_all()
        return taken[0] if len(taken) == 1 else b"".join(taken)
