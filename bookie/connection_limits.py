"""Limits of the number of connections, in all and for one address.

A pending connection has not logged in or has sent nothing yet. Pending connections have a limit of
their own, so they take no place of served ones. One too many closes another: the oldest one of
the address that has most. A served connection keeps its place; one address may have three
quarters of them, so that it cannot keep all others out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from bookie.errors import BookieError

_PENDING_MIN = 16
_PENDING_PART = 4


class TooManyConnections(BookieError):
    """This connection is closed because there are too many."""


def pending_max_of(served_max: int) -> int:
    """Return the limit of pending connections beside *served_max* served ones."""
    return max(_PENDING_MIN, served_max // _PENDING_PART)


class ConnectionLimits:
    """Counts connections.

    Attributes:
        served: number of served connections.
    """

    def __init__(self, served_max: int) -> None:
        self._served_max = served_max
        self._address_max = served_max - served_max // 4
        self._pending_max = pending_max_of(served_max)
        self._pending: dict[int, tuple[str, trio.CancelScope]] = {}
        self._pending_by_address: Counter[str] = Counter()
        self._served: Counter[str] = Counter()
        self.served = 0

    @property
    def pending(self) -> int:
        """Number of connections that have not logged in or sent nothing yet."""
        return len(self._pending)

    @contextmanager
    def admit(self, token: int, address: str) -> Iterator[None]:
        """Count a pending connection during the block.

        Raises:
            TooManyConnections: too many are served, or a newer pending one took the place.
        """
        self._check(address)
        if len(self._pending) >= self._pending_max:
            self._close_oldest()
        with trio.CancelScope() as scope:
            self._pending[token] = (address, scope)
            self._pending_by_address[address] += 1
            try:
                yield
            finally:
                self._forget_pending(token)
        if scope.cancelled_caught:
            raise TooManyConnections("a newer connection took its place before the login")

    @contextmanager
    def serve(self, address: str) -> Iterator[None]:
        """Count a served connection during the block. Raises TooManyConnections."""
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
            raise TooManyConnections(f"{self.served} connections are served, which is the limit")
        if self._served[address] >= self._address_max:
            raise TooManyConnections(
                f"{address} has {self._address_max} connections, which is its limit"
            )

    def _close_oldest(self) -> None:
        most = max(self._pending_by_address.values())
        for token, (address, scope) in self._pending.items():
            if self._pending_by_address[address] == most:
                scope.cancel()
                self._forget_pending(token)
                return

    def _forget_pending(self, token: int) -> None:
        found = self._pending.pop(token, None)
        if found is not None:
            _decrement(self._pending_by_address, found[0])


def _decrement(counts: Counter[str], address: str) -> None:
    counts[address] -= 1
    if counts[address] <= 0:
        del counts[address]
