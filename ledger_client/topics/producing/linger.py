"""When a batch that does not fill is sealed: a while after its first message.

One task for all batches of a producer. All wait equally long, so the one that began
first is due first.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import trio

from ledger_client.background import OnDemand
from ledger_client.topics.producing.batching import Batch


class Gathering(Protocol):
    """Where batches are gathered, one at a time."""

    @property
    def gathering(self) -> Batch | None:
        """The batch that takes messages now."""

    def seal(self) -> None:
        """Let the batch that is gathered be sent; nothing happens without one."""


class Linger:
    """Seals batches *delay_s* after they were begun."""

    def __init__(self, nursery: trio.Nursery, delay_s: float) -> None:
        self._delay_s = delay_s
        self._due: deque[tuple[float, Gathering, Batch]] = deque()
        self._timer = OnDemand(nursery, self._run)

    def begin(self, owner: Gathering, batch: Batch) -> None:
        """*owner* gathers *batch* from now on."""
        self._due.append((trio.current_time() + self._delay_s, owner, batch))
        self._timer.start()

    async def _run(self) -> None:
        while self._due:
            due, owner, batch = self._due[0]
            if owner.gathering is batch:
                await trio.sleep_until(due)
            self._due.popleft()
            if owner.gathering is batch:
                owner.seal()
