"""How the application waits for messages: as a member that is seen to ask for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from ledger_client.errors import LedgerError
from ledger_client.topics.reading.merging import BATCHES_PER_CHECKPOINT
from metadata.groups.rows import Wanted


class Awaited(Protocol):
    """The membership of who waits."""

    group: str
    member: str
    wanted: Wanted
    is_member: bool
    is_waiting: bool
    """the application waits for a message"""
    failure: LedgerError | None
    """what ended the membership for good"""

    def come_back(self) -> None:
        """Become a member again, in the background. Raises BadGroup if it was refused before."""


class Arrivals:
    """Wakes the application when there may be messages."""

    def __init__(self, membership: Awaited) -> None:
        self._membership = membership
        self.asked = 0
        """how often the application asked; it may not wait at all"""
        self._event = trio.Event()
        self._found = 0

    def note(self) -> None:
        """Look again whether there is a message."""
        self._event.set()

    @property
    def is_awaited(self) -> bool:
        """True while the application waits for a message."""
        return self._membership.is_waiting

    async def until(self, has_some: Callable[[], bool]) -> None:
        """Wait until *has_some* returns True, and become a member again if that was lost.

        Raises:
            LedgerError: what ended the membership for good, and what *has_some* raises.
        """
        self.asked += 1
        self._membership.is_waiting = True
        try:
            while True:
                if self._membership.failure is not None:
                    raise self._membership.failure
                if not self._membership.is_member:
                    self._membership.come_back()
                if self._event.is_set():
                    self._event = trio.Event()
                arrived = self._event
                if has_some():
                    break
                await arrived.wait()
        finally:
            self._membership.is_waiting = False
        self._found += 1
        if self._found % BATCHES_PER_CHECKPOINT == 0:
            # Let other tasks run, however much is here already; what was found is not given up.
            await trio.lowlevel.cancel_shielded_checkpoint()
