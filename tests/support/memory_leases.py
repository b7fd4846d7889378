"""Sessions and leases in memory, by the rules of metadata/store.py."""

from __future__ import annotations

from collections.abc import Callable

from metadata.errors import LeaseHeld, LeaseLost, SessionOver
from metadata.store import CheckLease, Lease, Leases, StoreSession


class MemoryLeases:
    """Names and who holds them. *record_change* returns the next revision."""

    def __init__(self, clock_ms: Callable[[], int], record_change: Callable[[str], int]) -> None:
        self._clock_ms = clock_ms
        self._record_change = record_change
        self._over_ms: dict[StoreSession, int] = {}
        self._held: dict[str, tuple[Lease, StoreSession]] = {}

    def next_over_ms(self) -> int | None:
        """Return when the next session is over unless it is kept."""
        return min(self._over_ms.values(), default=None)

    def sweep(self) -> None:
        """Forget sessions whose time has run out, and note each of their leases as a change."""
        now_ms = self._clock_ms()
        for session in [each for each, over_ms in self._over_ms.items() if over_ms <= now_ms]:
            self.end(session)

    def open(self, owner: str, ttl_s: float) -> StoreSession:
        self.sweep()
        session = StoreSession(owner, self._record_change("sessions"), ttl_s)
        self._over_ms[session] = self._clock_ms() + round(ttl_s * 1000)
        return session

    def keep(self, session: StoreSession) -> None:
        self._check_session(session)
        self._over_ms[session] = self._clock_ms() + round(session.ttl_s * 1000)

    def end(self, session: StoreSession) -> None:
        self._over_ms.pop(session, None)
        for name in [name for name, (_, of) in self._held.items() if of == session]:
            del self._held[name]
            self._record_change(name)

    def end_all(self) -> None:
        for session in list(self._over_ms):
            self.end(session)

    def grant(self, name: str, session: StoreSession, owner: str, value: bytes) -> Lease:
        self._check_session(session)
        held = self._held.get(name)
        if held is not None and held[0].owner != owner:
            left_s = self._left_s(held[1])
            raise LeaseHeld(name=name, owner=held[0].owner, expires_in_s=left_s)
        epoch = self._record_change(name)
        lease = Lease(name, owner, epoch, value, self._left_s(session), session.epoch)
        self._held[name] = lease, session
        return lease

    def update(self, lease: Lease, value: bytes) -> Lease:
        self.check(CheckLease.of(lease))
        held, session = self._held[lease.name]
        if value != held.value:
            self._record_change(lease.name)
        left_s = self._left_s(session)
        updated = Lease(held.name, held.owner, held.epoch, value, left_s, held.session)
        self._held[lease.name] = updated, session
        return updated

    def release(self, lease: Lease) -> None:
        held = self._held.get(lease.name)
        if held is not None and (held[0].owner, held[0].epoch) == (lease.owner, lease.epoch):
            del self._held[lease.name]
            self._record_change(lease.name)

    def check(self, op: CheckLease) -> int:
        """Return the epoch. Raises LeaseLost when the lease is over."""
        self.sweep()
        held = self._held.get(op.name)
        if held is None or (held[0].owner, held[0].epoch) != (op.owner, op.epoch):
            raise LeaseLost(name=op.name, owner=op.owner, epoch=op.epoch)
        return op.epoch

    def live(self, prefix: str) -> Leases:
        """Return the live leases under *prefix*, in no particular order."""
        self.sweep()
        return [
            Lease(name, lease.owner, lease.epoch, lease.value, self._left_s(of), of.epoch)
            for name, (lease, of) in self._held.items()
            if name.startswith(prefix)
        ]

    def _check_session(self, session: StoreSession) -> None:
        self.sweep()
        if session not in self._over_ms:
            raise SessionOver(owner=session.owner, epoch=session.epoch)

    def _left_s(self, session: StoreSession) -> float:
        return (self._over_ms[session] - self._clock_ms()) / 1000
