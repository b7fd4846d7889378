"""Leader election: candidates campaign for a lease; a term lasts as long as one holds it.

    campaign ──► grant ──► term: lead(term) beside the renewals ──► over ──► campaign

The lease belongs to a session of its own, which is shorter than that of the process, so that a
killed leader is soon replaced: within 4/3 of its life. The holder leads, and keeps the session
three times in its life. The term ends early, by the holder's own clock, so that two rarely lead
at once. A holder that was paused may wake up and act before it notices; that does no harm,
because each of its changes carries ``term.check`` in its own transaction.

A leader that stops ends the session and is replaced within 1/3 of its life.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn

import trio

from metadata.clock import SLEPT_S, asleep_s
from metadata.errors import (
    LeaseHeld,
    LeaseLost,
    MetadataError,
    MetadataUnavailable,
    SessionOver,
)
from metadata.sessions import PART_USED
from metadata.store import CheckLease, Lease, MetadataStore, StoreSession

TTL_S = 3.0
RELEASE_S = 1.0


class Term:
    """One leader's time in office: its lease, and the check that protects its changes."""

    def __init__(
        self, lease: Lease, *, until: float = math.inf, slept_s: float | None = None
    ) -> None:
        """*slept_s*: what asleep_s() returned before the request that *until* counts from."""
        self.lease = lease
        self.until = until
        """trio's time until which nobody else leads, by this host's clock"""
        self._slept_s = asleep_s() if slept_s is None else slept_s

    def extend(self, until: float, slept_s: float) -> None:
        """The lease was kept; the arguments are those of the constructor."""
        self.until, self._slept_s = until, slept_s

    @property
    def left_s(self) -> float:
        """Seconds for which nobody else can lead; 0 or less if that is no longer certain."""
        if asleep_s() - self._slept_s >= SLEPT_S:
            return 0.0  # trio's clock stops while the host sleeps
        return self.until - trio.current_time()

    @property
    def is_certain(self) -> bool:
        """True while nobody else can lead. What changes no row may rely on it."""
        return self.left_s > 0

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
        ttl_s: how long the lease outlives a killed leader.
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
            asked_at, slept_s = trio.current_time(), asleep_s()
            granted = await self._ask()
            if granted is not None:
                session, lease = granted
                term = Term(lease, until=self._until(asked_at), slept_s=slept_s)
                await self._serve(session, term, lead)
            await trio.sleep(self._ttl_s / 3 * random.uniform(0.8, 1.0))

    async def _ask(self) -> tuple[StoreSession, Lease] | None:
        """Return a new grant, or None while another candidate leads or the store is down."""
        try:
            held = await holder(self._store, self._name)
            if held is not None and held.owner != self._owner:
                return None  # read first, because a refused grant costs a transaction
            session = await self._store.open_session(self._owner, ttl_s=self._ttl_s)
        except MetadataUnavailable:
            return None
        try:
            lease = await self._store.grant(self._name, session, value=self._value())
        except BaseException as error:
            await self._end(session)
            if isinstance(error, LeaseHeld | SessionOver | MetadataUnavailable):
                return None
            raise
        return session, lease

    async def _serve(
        self,
        session: StoreSession,
        term: Term,
        lead: Callable[[Term], Awaitable[None]],
    ) -> None:
        try:
            with trio.CancelScope(deadline=term.until) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep, session, scope, term)
                    await lead(term)
                    nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # Before 3.12 this takes plain functions only.
            _, others = group.split(lambda error: self._says_over(error))
            if others is not None:
                raise others from None
        finally:
            await self._end(session)

    async def _keep(self, session: StoreSession, scope: trio.CancelScope, term: Term) -> None:
        """Keep the session until it is over, moving the end of *scope* and of *term*."""
        while True:
            await trio.sleep(self._ttl_s / 3)
            asked_at, slept_s = trio.current_time(), asleep_s()
            try:
                await self._store.keep_session(session)
            except MetadataUnavailable:
                continue
            except SessionOver:
                scope.cancel()
                return
            scope.deadline = self._until(asked_at)
            term.extend(scope.deadline, slept_s)

    async def _end(self, session: StoreSession) -> None:
        """End the session so that the next candidate leads at once."""
        until = trio.current_time() + RELEASE_S
        with suppress(MetadataError), trio.CancelScope(shield=True, deadline=until):
            await self._store.end_session(session)

    def _until(self, asked_at: float) -> float:
        return asked_at + self._ttl_s * PART_USED

    def _says_over(self, error: BaseException) -> bool:
        return isinstance(error, LeaseLost) and error.name == self._name


async def holder(store: MetadataStore, name: str) -> Lease | None:
    """Return the live lease *name*, or None if nobody holds it. Raises MetadataUnavailable."""
    leases = await store.leases(name)
    return next((lease for lease in leases if lease.name == name), None)
