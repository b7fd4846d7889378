"""Leases in memory, by the rules of metadata/store.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from metadata.errors import LeaseHeld, LeaseLost
from metadata.store import CheckLease, Lease, Leases


class Held(NamedTuple):
    """A lease, when it was renewed, and for how long it lasts from then."""

    lease: Lease
    renewed_ms: int
    ttl_ms: int

    @property
    def over_ms(self) -> int:
        return self.renewed_ms + self.ttl_ms


class MemoryLeases:
    """Names and who holds them. *record_change* returns the next revision."""

    def __init__(self, clock_ms: Callable[[], int], record_change: Callable[[str], int]) -> None:
        self._clock_ms = clock_ms
        self._record_change = record_change
        self._held: dict[str, Held] = {}

    def next_over_ms(self) -> int | None:
        """Return when the next lease is over unless it is renewed."""
        return min((held.over_ms for held in self._held.values()), default=None)

    def sweep(self) -> None:
        """Forget leases whose time has run out, and note each as a change."""
        now_ms = self._clock_ms()
        over = [name for name, held in self._held.items() if held.over_ms <= now_ms]
        for name in over:
            del self._held[name]
            self._record_change(name)

    def grant(self, name: str, owner: str, ttl_ms: int, value: bytes) -> Lease:
        self.sweep()
        held = self._held.get(name)
        if held is not None and held.lease.owner != owner:
            left_s = (held.over_ms - self._clock_ms()) / 1000
            raise LeaseHeld(name=name, owner=held.lease.owner, expires_in_s=left_s)
        lease = Lease(name, owner, self._record_change(name), value, ttl_ms / 1000)
        self._held[name] = Held(lease, self._clock_ms(), ttl_ms)
        return lease

    def renew(self, lease: Lease, value: bytes | None) -> Lease:
        self.check(CheckLease.of(lease))
        held = self._held[lease.name]
        new_value = held.lease.value if value is None else value
        if new_value != held.lease.value:
            self._record_change(lease.name)
        renewed = Lease(lease.name, lease.owner, lease.epoch, new_value, held.ttl_ms / 1000)
        self._held[lease.name] = Held(renewed, self._clock_ms(), held.ttl_ms)
        return renewed

    def release(self, lease: Lease) -> None:
        held = self._held.get(lease.name)
        if held is not None and (held.lease.owner, held.lease.epoch) == (lease.owner, lease.epoch):
            del self._held[lease.name]
            self._record_change(lease.name)

    def check(self, op: CheckLease) -> int:
        """Return the epoch. Raises LeaseLost when the lease is over."""
        self.sweep()
        held = self._held.get(op.name)
        if held is None or (held.lease.owner, held.lease.epoch) != (op.owner, op.epoch):
            raise LeaseLost(name=op.name, owner=op.owner, epoch=op.epoch)
        return op.epoch

    def live(self, prefix: str) -> Leases:
        """Return the live leases under *prefix*, in no particular order."""
        self.sweep()
        now_ms = self._clock_ms()
        return [
            Lease(name, lease.owner, lease.epoch, lease.value, (over_ms - now_ms) / 1000)
            for name, held in self._held.items()
            if name.startswith(prefix)
            for lease, over_ms in [(held.lease, held.over_ms)]
        ]
