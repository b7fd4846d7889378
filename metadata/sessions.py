"""The session of this process, and the leases that live as long as it.

    grant ──► (open) ──► keep, three times in its life ──► keep …
                              │ SessionOver
                              └──► every lease is over, at once; the next grant opens another

Nothing is sent for a single lease while it is held. A lease whose grant or release had no answer
would live as long as the session, with nobody to hold it. So its name is doubted, and looked up
when the session is kept. Each name is looked up once more after its release, too: if the store was
asked twice for a grant, the later one may be made after the answer, and what was released then is
a lease that was over. A process that was paused for longer than its session learns from the first
call afterwards that the session is over, and each holder is told then. Until that call a holder may
act too late, so a change that must not happen twice carries ``lease.check`` in its own transaction.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from metadata.clock import SLEPT_S, asleep_s
from metadata.errors import (
    LeaseHeld,
    LeaseLost,
    MetadataError,
    MetadataUnavailable,
    SessionOver,
)
from metadata.store import CheckLease, Lease, MetadataStore, StoreSession

SESSION_S = 10.0
"""How long leases outlive a killed process."""
GONE_S = SESSION_S + 2.0
"""After so long they are over in every store: ZooKeeper counts in ticks, of 2 s by default."""
PART_USED = 0.85
"""Share of the session's life after which a holder that must be sure no longer is.

It is at most this share of SESSION_S. A session in ZooKeeper that lives longer may still end with
the ZooKeeper session of the bookie that keeps it: metadata/zookeeper/store.py.
"""
RETRIES = 4
"""How often a session is tried again, in the time after which it is kept, after a failure."""
RELEASE_S = 1.0
LOOKS_MAX = 4
"""How often a doubted lease is looked up; over so many calls, no request is still under way."""
ATTEMPTS_MAX = 3
"""Sessions opened for one grant; more than one if they end at once."""


class HeldLease:
    """A lease of this process, made by ProcessSession.grant().

    Attributes:
        lease: as it was granted.
        is_over: the session is over, or the lease was released or lost.
    """

    def __init__(
        self, session: ProcessSession, lease: Lease, on_over: Callable[[], None] | None
    ) -> None:
        self.lease = lease
        self.is_over = False
        self._session = session
        self._on_over = on_over
        self._scope: trio.CancelScope | None = None

    @property
    def check(self) -> CheckLease:
        """Add this to every transaction that only the holder may make."""
        return CheckLease.of(self.lease)

    @property
    def is_certain(self) -> bool:
        """True while no other process can have the lease, by this host's clocks alone."""
        return not self.is_over and self._session.is_certain

    def limit(self, scope: trio.CancelScope) -> None:
        """Cancel *scope* once the lease is over, and when that is uncertain."""
        self._scope = scope
        self.extend(self._session.until)
        if self.is_over:
            scope.cancel()

    def extend(self, until: float) -> None:
        """The session was kept: the lease lives until *until*, by trio's clock."""
        if self._scope is not None:
            self._scope.deadline = until

    def end(self) -> None:
        """The lease is over: tell its holder."""
        if self.is_over:
            return
        self.is_over = True
        if self._scope is not None:
            self._scope.cancel()
        if self._on_over is not None:
            self._on_over()

    def leave(self) -> None:
        """Do not tell the holder of the end, since it is meant."""
        self._on_over = None

    async def update(self, value: bytes) -> None:
        """Set the lease's value. Raises LeaseLost and other MetadataErrors."""
        try:
            self.lease = await self._session.store.update(self.lease, value)
        except LeaseLost:
            self._session.forget(self)
            self._session.doubt(self.lease.name, looks=1)
            self.end()
            raise

    async def release(self) -> None:
        """Give the lease back, for up to RELEASE_S, even when cancelled."""
        self._session.forget(self)
        if self.is_over:
            return
        self.is_over = True
        until = trio.current_time() + RELEASE_S
        self._session.doubt(self.lease.name)
        with suppress(MetadataError), trio.CancelScope(shield=True, deadline=until):
            await self._session.store.release(self.lease)
            self._session.doubt(self.lease.name, looks=1)


class ProcessSession:
    """One session for all leases of a process, opened when the first one is granted.

    Args:
        store: where it is.
        nursery: keeps it until cancelled; then it runs out, unless aclose() ends it.
        owner: says whose session it is. Default: host, process and a random part.
        ttl_s: its time to live.
        on_kept: called each time the session was kept; may raise MetadataUnavailable.
    """

    def __init__(
        self,
        store: MetadataStore,
        nursery: trio.Nursery,
        *,
        owner: str = "",
        ttl_s: float = SESSION_S,
        on_kept: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        self.store = store
        self.until = -1.0
        """Up to this moment, by trio's clock, the session certainly lives."""
        self._nursery = nursery
        self._owner = owner or f"{os.uname().nodename}/{os.getpid()}/{secrets.token_hex(8)}"
        self._ttl_s = ttl_s
        self._on_kept = on_kept
        self._session: StoreSession | None = None
        self._asleep_s = 0.0
        self._opening = trio.Lock()
        self._held: dict[str, HeldLease] = {}
        self._closed = False
        self._asked: Counter[str] = Counter()
        """names that grants under way ask for"""
        self._doubted: dict[str, int] = {}
        """names that may be leased without a holder, and how often they are still looked up"""

    @property
    def is_certain(self) -> bool:
        """True while the session certainly lives, by this host's clocks alone."""
        slept = asleep_s() - self._asleep_s >= SLEPT_S  # trio's clock stops meanwhile
        return self._session is not None and trio.current_time() < self.until and not slept

    async def grant(
        self,
        name: str,
        *,
        owner: str = "",
        value: bytes = b"",
        on_over: Callable[[], None] | None = None,
    ) -> HeldLease:
        """Take the lease *name*; see MetadataStore.grant.

        *on_over* is called when the lease is over, unless the holder released it.

        Raises:
            LeaseHeld: another owner has it.
            MetadataUnavailable: also if no session lives long enough.
        """
        for _ in range(ATTEMPTS_MAX):
            session = await self._current()
            try:
                lease = await self._ask(session, name, owner, value)
            except SessionOver:
                self._lose(session)
                continue
            if session is self._session:
                return self._hold(HeldLease(self, lease, on_over))
        raise MetadataUnavailable(f"no session of {self._owner} lives for long enough")

    async def _ask(self, session: StoreSession, name: str, owner: str, value: bytes) -> Lease:
        self._asked[name] += 1
        try:
            lease = await self.store.grant(name, session, owner=owner, value=value)
        except (LeaseHeld, SessionOver):
            raise
        except BaseException:  # also cancelled: it may be granted, now or a little later
            self.doubt(name)
            raise
        finally:
            self._asked[name] -= 1
            if not self._asked[name]:
                del self._asked[name]
        return lease

    async def confirm(self) -> None:
        """Keep the session now unless it certainly lives.

        If it is over, all leases are, when this returns. Raises MetadataUnavailable.
        """
        if self._session is not None and not self.is_certain:
            await self._keep_once(self._session)

    def doubt(self, name: str, *, looks: int = LOOKS_MAX) -> None:
        """Look the lease up when the session is kept, and release it if nobody holds it."""
        self._doubted[name] = looks

    async def free(self, lease: Lease) -> bool:
        """Release a lease of this session that nobody here holds; return whether it was one.

        After a cut this process itself may seem to have what it wants, until its session is kept.
        """
        held = self._held.get(lease.name)
        if self._session is None or lease.session != self._session.epoch:
            return False
        if lease.name in self._asked or (held is not None and held.lease.epoch == lease.epoch):
            return False
        await self.store.release(lease)
        return True

    def forget(self, held: HeldLease) -> None:
        """Do not tell the holder of this lease any more."""
        if self._held.get(held.lease.name) is held:
            del self._held[held.lease.name]

    async def aclose(self) -> None:
        """End the session, for up to RELEASE_S, even when cancelled. Nothing is granted later."""
        self._closed = True
        for held in self._held.values():
            held.leave()
        session = self._session
        if session is not None:
            self._lose(session)
            await self._end(session)

    async def _end(self, session: StoreSession) -> None:
        until = trio.current_time() + RELEASE_S
        with suppress(MetadataError), trio.CancelScope(shield=True, deadline=until):
            await self.store.end_session(session)

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataUnavailable(f"the session of {self._owner} was closed")

    async def _current(self) -> StoreSession:
        async with self._opening:
            self._check_open()
            if self._session is None:
                asked_at, slept_s = trio.current_time(), asleep_s()
                session = await self.store.open_session(self._owner, ttl_s=self._ttl_s)
                try:
                    self._check_open()
                except MetadataUnavailable:
                    await self._end(session)
                    raise
                self._session = session
                self._note_kept(asked_at, slept_s)
                self._nursery.start_soon(self._keep, session)
            return self._session

    def _hold(self, held: HeldLease) -> HeldLease:
        """Note the lease; a former grant of the same name in this process is over.

        Answers may come in another order than the grants were made in.
        """
        former = self._held.get(held.lease.name)
        if former is not None and former.lease.epoch > held.lease.epoch:
            held.end()
            return held
        self._held[held.lease.name] = held
        if former is not None:
            former.end()
        return held

    async def _keep(self, session: StoreSession) -> None:
        pause_s = interval_s = min(self._ttl_s, SESSION_S) / 3
        while self._session is session:
            await trio.sleep(pause_s)
            if not await self._keep_within(interval_s, session):
                pause_s = interval_s / RETRIES
                continue
            pause_s = interval_s
            with trio.move_on_after(interval_s):
                await self._look_up(session)

    async def _keep_within(self, limit_s: float, session: StoreSession) -> bool:
        """Keep the session. False: it is not over, but was not kept."""
        with suppress(MetadataError), trio.move_on_after(limit_s):
            if self._session is session:
                await self._keep_once(session)
            await self._on_kept()
            return True
        return self._session is not session

    async def _keep_once(self, session: StoreSession) -> None:
        asked_at, slept_s = trio.current_time(), asleep_s()
        try:
            await self.store.keep_session(session)
        except SessionOver:
            self._lose(session)
        else:
            if session is self._session:
                self._note_kept(asked_at, slept_s)

    async def _look_up(self, session: StoreSession) -> None:
        """Release what is doubted and has no holder. Looked up again: an answer may be late."""
        for name in list(self._doubted):
            with suppress(MetadataError), trio.move_on_after(RELEASE_S):
                for lease in await self.store.leases(name):
                    if lease.name == name and lease.session == session.epoch:
                        await self.free(lease)
                left = self._doubted.get(name, 0) - 1
                if left > 0:
                    self._doubted[name] = left
                else:
                    self._doubted.pop(name, None)

    def _note_kept(self, asked_at: float, slept_s: float) -> None:
        until = asked_at + min(self._ttl_s, SESSION_S) * PART_USED
        if until > self.until or slept_s - self._asleep_s >= SLEPT_S:
            self.until, self._asleep_s = until, slept_s
        for held in self._held.values():
            held.extend(self.until)

    def _lose(self, session: StoreSession) -> None:
        """Tell all holders that their leases are over."""
        if session is not self._session:
            return
        self._session = None
        self._doubted.clear()
        held, self._held = self._held, {}
        for each in held.values():
            each.end()
