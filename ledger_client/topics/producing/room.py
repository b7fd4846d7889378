"""Room for messages that are not acknowledged: bounded, and shared by a producer's partitions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio


class RoomTurn:
    """A place in the queue for room.

    Attributes:
        is_granted: it has its room now.
    """

    __slots__ = ("is_granted", "size", "wake")

    def __init__(self, size: int, wake: Callable[[], object]) -> None:
        self.size = size
        self.wake = wake
        self.is_granted = False


class Room:
    """Bounds the bytes of a producer's unacknowledged messages; first come, first served.

    A message larger than *size* gets in when nothing else is there. A task that must wait queues
    a turn, and its callable is called once it has the room.

    Attributes:
        size: bytes to share.
        used: bytes that are taken.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._turns: deque[RoomTurn] = deque()

    def take(self, size: int) -> bool:
        """Take *size* bytes if they are free and no turn waits."""
        if self._turns or (self.used and self.used + size > self.size):
            return False
        self.used += size
        return True

    def queue(self, size: int, wake: Callable[[], object]) -> RoomTurn:
        """Wait for *size* bytes; *wake* is called once they are taken."""
        turn = RoomTurn(size, wake)
        self._turns.append(turn)
        return turn

    def withdraw(self, turn: RoomTurn) -> None:
        """Drop a turn whose task was cancelled, and free its room if it was granted."""
        if turn.is_granted:
            self.release(turn.size)
        else:
            self._turns.remove(turn)
            self._grant()  # the next turn may need less

    def release(self, size: int) -> None:
        """Give *size* bytes back, and grant the waiting turns that fit, in order."""
        self.used -= size
        if self._turns:
            self._grant()

    def open_wide(self) -> None:
        """Grant every turn: the producer accepts nothing any more, and will refuse each."""
        while self._turns:
            self._admit()

    def _grant(self) -> None:
        while self._turns and (not self.used or self.used + self._turns[0].size <= self.size):
            self._admit()

    def _admit(self) -> None:
        turn = self._turns.popleft()
        self.used += turn.size
        turn.is_granted = True
        turn.wake()


async def wait_for_room(room: Room, size: int) -> None:
    """Return when *size* bytes of room are taken. Cancelled, none are."""
    granted = trio.Event()
    turn = room.queue(size, granted.set)
    try:
        await granted.wait()
    except trio.Cancelled:
        room.withdraw(turn)
        raise
