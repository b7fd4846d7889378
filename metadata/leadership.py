"""One of many leads: a campaign for a lease, and a term for as long as it is held.

    campaign ──► grant ──► term: lead(term) beside the renewals ──► over ──► campaign

Who holds the lease leads, and renews it three times in its lifetime. The term ends
early, by the holder's own clock, so that as a rule two never lead at once. A holder
that was paused may wake up and act before it notices; nothing comes of it, because
each of its changes carries ``term.check`` in its own transaction.

A leader that is killed is replaced within its lease's lifetime and a third of it; one that
is stopped gives the lease back, and is replaced within that third.
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
"""Of a lease's lifetime: after it, a term that is not renewed is over."""
RELEASE_S = 1.0


class Term:
    """The time for which one leader leads."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease

    @property
    def check(self) -> CheckLease:
        """Put it into every transaction whose effect is the leader's alone."""
        return CheckLease.of(self.lease)


class Leadership:
    """A candidate for the lease *name*.

    Args:
        store: where the lease lives.
        name: what is led.
        owner: names this run of this process, and no other.
        value: what the lease shows of its holder, made when a term begins.
        ttl_s: how long the lease outlives a leader that was killed.
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
        """Campaign for ever; in each term run *lead*, which is cancelled when it is over.

        That *lead* returns ends a term too, and so does LeaseLost for this lease,
        raised by it. Whatever else it raises ends the campaign, as a group.

        Raises:
            MetadataError: the store refuses; while it is away the campaign goes on.
        """
        while True:
            asked_at = trio.current_time()
            lease = await self._ask()
            if lease is not None:
                await self._serve(lease, asked_at, lead)
            await trio.sleep(self._ttl_s / 3 * random.uniform(0.8, 1.0))

    async def _ask(self) -> Lease | None:
        """Return a new grant; None while somebody else leads or the store is away."""
        try:
            held = await holder(self._store, self._name)
            if held is not None and held.owner != self._owner:
                return None  # found by reading: a grant that is refused costs a transaction
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
        """Let the next one lead at once; a lease that is over is left as it is."""
        until = trio.current_time() + RELEASE_S
        with suppress(MetadataError), trio.CancelScope(shield=True, deadline=until):
            await self._store.release(lease)

    def _until(self, asked_at: float) -> float:
        return asked_at + self._ttl_s * PART_USED

    def _says_over(self, error: BaseException) -> bool:
        return isinstance(error, LeaseLost) and error.name == self._name


async def holder(store: MetadataStore, name: str) -> Lease | None:
    """Return the live lease *name*; None: nobody holds it. Raises MetadataUnavailable."""
    leases = await store.leases(name)
    return next((lease for lease in leases if lease.name == name), None)
