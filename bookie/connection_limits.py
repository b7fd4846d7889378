"""Limits of the number of connections, in all and for one address.

A pending connection has not logged in or has sent nothing yet. Pending connections have a limit of
their own, so they take no place of served ones. One too many closes another: the oldest one of
the address that has most.

One address may have three quarters of the served ones, so that it cannot keep all others out. At
its limit, a new one takes the place of the one that has been idle longest. At the limit of all,
it takes one of the address that has most. A connection with something pending, or used within
IDLE_S, keeps its place; if all do, the new one is refused. Addresses of the cluster's bookies
have some places more, so that clients do not keep bookies from each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from bookie.errors import BookieError

_PENDING_MIN = 16
_PENDING_PART = 4
_BOOKIES_MIN = 16
_BOOKIES_PART = 8
IDLE_S = 2.0
"""Twice the time after which our clients look whether a connection was closed before they use it
(ledger_client/wire/dialer.py)."""
LOOK_AGAIN_S = 0.25
"""An address without an idle connection is not searched for one again within this time."""


class TooManyConnections(BookieError):
    """This connection is closed because there are too many."""


def pending_max_of(served_max: int) -> int:
    """Return the limit of pending connections beside *served_max* served ones."""
    return max(_PENDING_MIN, served_max // _PENDING_PART)


def bookies_max_of(served_max: int) -> int:
    """Return how many places only bookies may have beside *served_max* for everybody."""
    return max(_BOOKIES_MIN, served_max // _BOOKIES_PART)


class Guest(Protocol):
    """A served connection."""

    @property
    def quiet_since(self) -> float:
        """When it was last used; infinity while it is being used. Costs little."""

    def is_idle(self) -> bool:
        """True if nothing is pending."""

    def leave(self) -> None:
        """Close the connection, because another takes its place."""


class ConnectionLimits:
    """Counts connections.

    Attributes:
        served: number of served connections.
        replaced: number of idle ones that were closed for others.
        is_bookie: returns True for an address of one of the cluster's bookies.
    """

    def __init__(self, served_max: int) -> None:
        self._served_max = served_max
        self._address_max = served_max - served_max // 4
        self._bookies_max = bookies_max_of(served_max)
        self._pending_max = pending_max_of(served_max)
        self._pending: dict[int, tuple[str, trio.CancelScope]] = {}
        self._pending_by_address: Counter[str] = Counter()
        self._guests: dict[str, dict[Guest, None]] = {}
        self._busy_until: dict[str, float] = {}
        """of addresses in which no guest was idle"""
        self.served = self.replaced = 0
        self.is_bookie: Callable[[str], bool] = _nobody

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
        self._find_place(address)
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
    def serve(self, address: str, guest: Guest) -> Iterator[None]:
        """Count a served connection during the block, or until it has to leave.

        Raises:
            TooManyConnections: too many are served, and none of those in question is idle.
        """
        idle = self._find_place(address)
        if idle is not None:
            self.replaced += 1
            self._forget_guest(*idle)
            idle[1].leave()
        self._guests.setdefault(address, {})[guest] = None
        self.served += 1
        try:
            yield
        finally:
            self._forget_guest(address, guest)

    def _find_place(self, address: str) -> tuple[str, Guest] | None:
        """Return whose place one more of *address* takes, None for a free one.

        Raises TooManyConnections.
        """
        count = len(self._guests.get(address, ()))
        if count < self._address_max and self.served < self._served_max:
            return None
        more = self._bookies_max if self.is_bookie(address) else 0
        if count >= self._address_max + more:
            crowded, reason = [address], f"{address} has {count} connections, which is its limit"
        elif self.served >= self._served_max + more:
            most = max(map(len, self._guests.values()))
            crowded = [each for each, guests in self._guests.items() if len(guests) == most]
            reason = f"{self.served} connections are served, which is the limit"
        else:
            return None
        idle = next(filter(None, map(self._longest_idle, crowded)), None)
        if idle is None:
            raise TooManyConnections(f"{reason}, and none is idle")
        return idle

    def _longest_idle(self, address: str) -> tuple[str, Guest] | None:
        now = trio.current_time()
        if now < self._busy_until.get(address, -math.inf):
            return None
        for guest in sorted(self._guests[address], key=lambda each: each.quiet_since):
            if guest.quiet_since > now - IDLE_S:
                break
            if guest.is_idle():
                return address, guest
        self._busy_until[address] = now + LOOK_AGAIN_S
        return None

    def _forget_guest(self, address: str, guest: Guest) -> None:
        guests = self._guests.get(address, {})
        if guest in guests:
            del guests[guest]
            self.served -= 1
        if not guests:
            self._guests.pop(address, None)
            self._busy_until.pop(address, None)

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


def _nobody(_address: str) -> bool:
    return False
