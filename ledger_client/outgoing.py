"""Bytes on their way to one bookie: bounded, and revocable by owner.

A writer that gives a bookie up takes back what it has queued there, so that a
bookie that stopped reading pins no memory. Buffers go out whole and in order.
"""

from __future__ import annotations

from collections import deque

import trio

CHUNK_SIZE = 256 * 1024
"""Small buffers are joined up to this size for one send."""

Buffer = bytes | bytearray | memoryview


class Outgoing:
    """The queue between the tasks that send to a bookie and its socket."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._buffers: deque[tuple[int, Buffer]] = deque()
        self._size = 0
        self._filled = trio.lowlevel.ParkingLot()
        self._drained = trio.lowlevel.ParkingLot()

    @property
    def size(self) -> int:
        """Bytes queued, with those that are being sent."""
        return self._size

    @property
    def full(self) -> bool:
        """True while senders of large data should wait."""
        return self._size >= self._size_max

    def put(self, owner: int, buffer: Buffer) -> None:
        """Queue *buffer*. Never blocks: who sends much asks ``full`` first."""
        self._buffers.append((owner, buffer))
        self._size += len(buffer)
        self._filled.unpark_all()

    async def take(self) -> Buffer:
        """Wait for something to send and return it; call sent() afterwards."""
        while not self._buffers:
            await self._filled.park()
        _, first = self._buffers.popleft()
        if not self._buffers or len(first) >= CHUNK_SIZE:
            return first
        chunk = bytearray(first)
        while self._buffers and len(chunk) + len(self._buffers[0][1]) <= CHUNK_SIZE:
            chunk += self._buffers.popleft()[1]
        return chunk

    def sent(self, size: int) -> None:
        """*size* bytes left the queue for good."""
        self._size -= size
        if not self.full:
            self._drained.unpark_all()

    def revoke(self, owner: int) -> None:
        """Drop what *owner* has queued."""
        kept = deque((who, buffer) for who, buffer in self._buffers if who != owner)
        dropped = sum(len(buffer) for who, buffer in self._buffers if who == owner)
        self._buffers = kept
        self.sent(dropped)

    def clear(self) -> None:
        """Drop everything: the connection is gone."""
        self._buffers.clear()
        self.sent(self._size)

    async def wait_room(self) -> None:
        """Wait until the queue is not full."""
        while self.full:
            await self._drained.park()
