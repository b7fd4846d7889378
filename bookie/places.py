"""Places: how many connections there may be, and whose.

A stranger is a connection that has not logged in yet, or has sent nothing yet. Strangers
have places of their own, at the door, so they take none of those that are served, and one
too many drives out another: the one that has waited longest, of the address that has most
at the door. A connection that is served keeps its place; one address has three quarters of
them, so that it cannot keep everybody else out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from bookie.errors import BookieError

_DOOR_MIN = 16
_DOOR_PART = 4


class NoPlace(BookieError):
    """There is no place for this connection; it is closed."""


def door_max_of(served_max: int) -> int:
    """Return how many strangers there may be beside *served_max* connections."""
    return max(_DOOR_MIN, served_max // _DOOR_PART)


class Places:
    """Counts connections.

    Attributes:
        served: those that are served.
    """

    def __init__(self, served_max: int) -> None:
        self._served_max = served_max
        self._address_max = served_max - served_max // 4
        self._door_max = door_max_of(served_max)
        self._door: dict[int, tuple[str, trio.CancelScope]] = {}
        self._strangers: Counter[str] = Counter()
        self._served: Counter[str] = Counter()
        self.served = 0

    @property
    def at_door(self) -> int:
        """How many strangers there are."""
        return len(self._door)

    @contextmanager
    def visit(self, token: int, address: str) -> Iterator[None]:
        """Be a stranger during the block.

        Raises:
            NoPlace: there is no place to be served, or another stranger needed this one.
        """
        self._check(address)
        if len(self._door) >= self._door_max:
            self._drive_one_out()
        with trio.CancelScope() as scope:
            self._door[token] = (address, scope)
            self._strangers[address] += 1
            try:
                yield
            finally:
                self._leave_door(token)
        if scope.cancelled_caught:
            raise NoPlace("others needed its place at the door")

    @contextmanager
    def serve(self, address: str) -> Iterator[None]:
        """Be served during the block. Raises NoPlace."""
        self._check(address)
        self._served[address] += 1
        self.served += 1
        try:
            yield
        finally:
            self.served -= 1
            _decrement(self._served, address)

    def _check(self, address: str) -> None:
        if self.served >= self._served_max:
            raise NoPlace(f"{self.served} connections are served, as many as may be")
        if self._served[address] >= self._address_max:
            raise NoPlace(f"{address} has {self._address_max} connections, as many as it may")

    def _drive_one_out(self) -> None:
        most = max(self._strangers.values())
        for token, (address, scope) in self._door.items():
            if self._strangers[address] == most:
                scope.cancel()
                self._leave_door(token)
                return

    def _leave_door(self, token: int) -> None:
        found = self._door.pop(token, None)
        if found is not None:
            _decrement(self._strangers, found[0])


def _decrement(counts: Counter[str], address: str) -> None:
    counts[address] -= 1
    if counts[address] <= 0:
        del counts[address]
