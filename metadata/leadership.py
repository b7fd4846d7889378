"""Leader election: candidates campaign for a lease; a term lasts as long as one holds it.

    campaign ──► grant ──► term: lead(term) beside the renewals ──► over ──► campaign

The lease's holder leads, and renews the lease three times in its lifetime. The term ends early, by
the holder's own clock, so that two rarely lead at once. A holder that was paused may wake up and
act before it notices; that does no harm, because each of its changes carries ``term.check`` in
its own transaction.

A killed leader is replaced within 4/3 of its lease's lifetime. A leader that stops releases the
lease and is replaced within 1/3 of it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn

import trio

from metadata.errors import LeaseHeld, LeaseLost, MetadataError, MetadataUnavailable
from metadata.store import CheckLease, Lease, MetadataStore

TTL_S = 3.0
PART_USED = 0.9
"""Share of a lease's lifetime after which a term without a renewal ends."""
RELEASE_S = 1.0


class Term:
    """One leader's time in office: its lease, and the check that protects its changes."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease

    @property
    def check(self) -> CheckLease:
        """Add this to every transaction that only the leader may make."""
        return CheckLease.of(self.lease)


class Leadership:
    """A candidate for the lease *name*.

    Args:
        store: the store of the lease.
        name: name of the lease.
        owner: identifies this run of this process, and no other.
        value: returns the lease's value; called when a term begins.
        ttl_s: lifetime of the lease after the last renewal.
    """

    def __init__(
        self,
        store: MetadataStore,
        name: str,
        owner: str,
        *,
        value: Callable[[], bytes],
        ttl_s: float = TTL_S,
    ) -> None:
        self._store = store
        self._name = name
        self._owner = owner
        self._value = value
        self._ttl_s = ttl_s

    async def run(self, lead: Callable[[Term], Awaitable[None]]) -> NoReturn:
        """Campaign until cancelled; in each term run *lead*, which is cancelled at its end.

        A term also ends if *lead* returns or raises LeaseLost for this lease. Any other
        exception of *lead* ends the campaign, as a group.

        Raises:
            MetadataError: the store refuses a request; while it is down the campaign continues.
        """
        while True:
            asked_at = trio.current_time()
            lease = await self._ask()
            if lease is not None:
                await self._serve(lease, asked_at, lead)
            await trio.sleep(self._ttl_s / 3 * random.uniform(0.8, 1.0))

    async def _ask(self) -> Lease | None:
        """Return a new grant, or None while another candidate leads or the store is down."""
        try:
            held = await holder(self._store, self._name)
            if held is not None and held.owner != self._owner:
                return None  # read first, because a refused grant costs a transaction
            return await self._store.grant(
                self._name, self._owner, ttl_s=self._ttl_s, value=self._value()
            )
        except (LeaseHeld, MetadataUnavailable):
            return None

    async def _serve(
        self, lease: Lease, asked_at: float, lead: Callable[[Term], Awaitable[None]]
    ) -> None:
        try:
            with trio.CancelScope(deadline=self._until(asked_at)) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep, lease, scope)
                    await lead(Term(lease))
                    nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # Before 3.12 this takes plain functions only.
            _, others = group.split(lambda error: self._says_over(error))
            if others is not None:
                raise others from None
        finally:
            await self._release(lease)

    async def _keep(self, lease: Lease, scope: trio.CancelScope) -> None:
        """Renew until the lease is lost, moving the end of *scope*."""
        while True:
            await trio.sleep(self._ttl_s / 3)
            asked_at = trio.current_time()
            try:
                await self._store.renew(lease)
            except MetadataUnavailable:
                continue
            scope.deadline = self._until(asked_at)

    async def _release(self, lease: Lease) -> None:
        """Release the lease so that the next candidate leads at once."""
        until = trio.current_time() + RELEASE_S
        with suppress(MetadataError), trio.CancelScope(shield=True, deadline=until):
            await self._store.release(lease)

    def _until(self, asked_at: float) -> float:
        return asked_at + self._ttl_s * PART_USED

    def _says_over(self, error: BaseException) -> bool:
        return isinstance(error, LeaseLost) and error.name == self._name


async def holder(store: MetadataStore, name: str) -> Lease | None:
    """Return the live lease *name*, or None if nobody holds it. Raises MetadataUnavailable."""
    leases = await store.leases(name)
    return next((lease for lease in leases if lease.name == name), None)
