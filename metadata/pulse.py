"""How a watch learns of other processes' changes: one of the waiting tasks polls.

However many tasks wait, the store is asked once in an interval, by whichever came
first; the others wait for it. When that one is cancelled or fails, the next takes
over. When nobody waits, nobody asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

INTERVAL_S = 0.05


class Pulse:
    """Tells waiting tasks when the revision that *read* returns has risen."""

    def __init__(self, read: Callable[[], Awaitable[int]]) -> None:
        self._read = read
        self._revision = 0
        self._turn: trio.Event | None = None

    async def wait_past(self, revision: int) -> None:
        """Return when the store's revision is greater than *revision*.

        Raises what *read* raises.
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
