"""Polling for other processes' changes, by one of the tasks that wait.

The first task that waits reads the store after each pause, for all of them. If it is cancelled
or fails, the next one takes over. While no task waits, nothing is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

INTERVAL_S = 0.1


async def pause() -> None:
    """Wait between two reads of a store that announces nothing."""
    await trio.sleep(INTERVAL_S)


class RevisionPoll:
    """Wakes waiting tasks when the revision that *read* returns has risen.

    *pause* returns when it may have risen. One task at a time calls it, the leader; a change of
    this process meanwhile wakes the other tasks, and leaves the leader where it is.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[int]],
        pause: Callable[[], Awaitable[None]] = pause,
    ) -> None:
        self._read = read
        self._pause = pause
        self._revision = 0
        self._has_leader = False
        self._woken = trio.Event()

    async def wait_past(self, revision: int) -> None:
        """Return when the store's revision is greater than *revision*.

        Raises the exceptions of *read*.
        """
        while self._revision <= revision:
            if self._has_leader:
                await self._woken.wait()
            else:
                await self._lead()

    def advance(self, revision: int) -> None:
        """Wake tasks at once: this process made the change with *revision* itself."""
        if revision > self._revision:
            self._revision = revision
            self._wake()

    async def _lead(self) -> None:
        self._has_leader = True
        try:
            await self._pause()
            self.advance(await self._read())
        finally:
            self._has_leader = False
            self._wake()

    def _wake(self) -> None:
        self._woken.set()
        self._woken = trio.Event()
