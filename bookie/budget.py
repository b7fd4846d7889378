"""The memory that all connections together may hold: unsynced, unsent, unfinished."""

from __future__ import annotations

import trio


class Budget:
    """Counts bytes held for peers; beyond *bytes_max* nothing more is read from them.

    A frame that is not whole occupies memory too. If every connection stopped in the
    middle of one, none would ever be given back; so the connection that began its
    frame first may always go on, and what is held exceeds the limit by one frame.

    Attributes:
        held: bytes held at present.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._unfinished: dict[int, None] = {}
        self._waiting = trio.lowlevel.ParkingLot()
        self.held = 0

    @property
    def is_spent(self) -> bool:
        """Whether more is held than the limit."""
        return self.held > self._bytes_max

    def change(self, size: int) -> None:
        """Hold *size* bytes more; less when it is negative."""
        self.held += size
        if not self.is_spent:
            self._waiting.unpark_all()

    def mark_unfinished(self, token: int, unfinished: bool) -> None:
        """Note that a connection holds a part of a frame, or does so no longer."""
        if unfinished:
            self._unfinished.setdefault(token)
        elif token in self._unfinished:
            del self._unfinished[token]
            self._waiting.unpark_all()

    async def room(self, token: int | None = None) -> None:
        """Wait until the connection may bring more."""
        while self.is_spent and not self._is_first(token):
            await self._waiting.park()

    def _is_first(self, token: int | None) -> bool:
        return token is not None and next(iter(self._unfinished), None) == token
