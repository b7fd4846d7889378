"""Calls that wait for something to change, and what any call may take of its connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bookie.errors import CallRefused
from bookie.outbox import Outbox, Reservation

_PARKED_MAX = 4096
"""Of all connections; a parked call is a task, some kilobytes."""


class ParkedCalls:
    """Counts calls that wait, up to *count_max*.

    Attributes:
        count: how many there are.
    """

    def __init__(self, count_max: int = _PARKED_MAX) -> None:
        self._count_max = count_max
        self.count = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count one during the block. Raises CallRefused when there are too many."""
        if self.count >= self._count_max:
            raise CallRefused(f"{self.count} calls wait already; try again later")
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


class CallRoom(Reservation):
    """What one call takes of its connection: memory for its answer, and a place to wait.

    Attributes:
        may_ask_again: the call changes nothing, so an answer for which there is no room is
            dropped, and made again when there is.
    """

    def __init__(self, outbox: Outbox, here: ParkedCalls, everywhere: ParkedCalls) -> None:
        super().__init__(outbox)
        self._here = here
        self._everywhere = everywhere
        self.may_ask_again = False

    @contextmanager
    def parked(self) -> Iterator[None]:
        """Wait during the block, with nothing held. Raises CallRefused."""
        self.release()
        with self._here.one_more(), self._everywhere.one_more():
            yield
