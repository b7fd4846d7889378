"""A metadata store in memory that answers one call at a time, each after a while."""

from __future__ import annotations

import trio
from memory_store import MemoryStore


class SlowStore(MemoryStore):
    """Calls wait for each other, as they do at a bookie on a busy machine.

    Attributes:
        each_s: how long a call takes once it is its turn.
        calls_max: the most calls that were there at a time.
    """

    def __init__(self, each_s: float = 0.0) -> None:
        super().__init__()
        self.each_s = each_s
        self.calls_max = 0
        self._calls = 0
        self._turn = trio.Lock()

    async def _reach(self) -> None:
        self._calls += 1
        self.calls_max = max(self.calls_max, self._calls)
        try:
            async with self._turn:
                await trio.sleep(self.each_s)
        finally:
            self._calls -= 1
        await super()._reach()
