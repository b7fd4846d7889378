"""Polling for other processes' changes, by one of the tasks that wait.

The first task that waits reads the store once per interval, for all of them. If it is cancelled
or fails, the next one takes over. While no task waits, nothing is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

INTERVAL_S = 0.05


class RevisionPoll:
    """Wakes waiting tasks when the revision that *read* returns has risen."""

    def __init__(self, read: Callable[[], Awaitable[int]]) -> None:
        self._read = read
        self._revision = 0
        self._turn: trio.Event | None = None

    async def wait_past(self, revision: int) -> None:
        """Return when the store's revision is greater than *revision*.

        Raises the exceptions of *read*.
        """
        while self._revision <= revision:
            if self._turn is None:
                await self._lead()
            else:
                await self._turn.wait()

    def advance(self, revision: int) -> None:
        """Wake tasks at once: this process made the change with *revision* itself."""
        if revision > self._revision:
            self._revision = revision
            self._end_turn(self._turn)

    async def _lead(self) -> None:
        self._turn = turn = trio.Event()
        try:
            await trio.sleep(INTERVAL_S)
            self.advance(await self._read())
        finally:
            self._end_turn(turn)

    def _end_turn(self, turn: trio.Event | None) -> None:
        if turn is not None:
            turn.set()
            if self._turn is turn:
                self._turn = None
