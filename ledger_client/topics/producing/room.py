"""How much a producer may hold of what is not acknowledged: bytes, first come first served."""

from __future__ import annotations

from collections import deque

import trio


class Room:
    """*size* bytes to share. A message larger than that gets in when nothing else is there."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._used = 0
        self._waiting: deque[_Turn] = deque()

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        return self._used

    def take(self, size: int) -> bool:
        """Take *size* bytes if they are free and nobody waits for his turn."""
        if self._waiting or not self._fits(size):
            return False
        self._used += size
        return True

    async def wait(self, size: int) -> None:
        """Return when *size* bytes are taken. Cancelled, none are."""
        turn = _Turn(size)
        self._waiting.append(turn)
        try:
            await turn.granted.wait()
        except trio.Cancelled:
            if turn.granted.is_set():
                self.release(size)
            else:
                self._waiting.remove(turn)
                self._grant()  # who is next may need less
            raise

    def release(self, size: int) -> None:
        """Give *size* bytes back, and to those who wait what fits."""
        self._used -= size
        self._grant()

    def open_wide(self) -> None:
        """Let everybody in who waits: the producer takes nothing any more and will say so."""
        while self._waiting:
            self._admit()

    def _fits(self, size: int) -> bool:
        return not self._used or self._used + size <= self.size

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0].size):
            self._admit()

    def _admit(self) -> None:
        turn = self._waiting.popleft()
        self._used += turn.size
        turn.granted.set()


class _Turn:
    def __init__(self, size: int) -> None:
        self.size = size
        self.granted = trio.Event()
