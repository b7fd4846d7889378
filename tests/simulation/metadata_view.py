"""The metadata store as one machine sees it: late, away, and silent about outcomes.

While the store is away a call fails before it had an effect, or after: then the caller
is told that the outcome is unknown. A call of a dead machine has no effect; one that was
made before its machine froze may have it. If hints are lost, everything may have changed a while
later, as after a lost connection.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import trio
from machines import Machine
from troubles import HINTS_LOST

from metadata.errors import MetadataUnavailable
from metadata.store import (
    Changes,
    Lease,
    Leases,
    MetadataStore,
    Op,
    Page,
    StoreSession,
    Versioned,
    Versions,
)
from metadata.watch import PollSource, Watches

_PATIENCE_S = 1.0
_LOST_SHARE = 0.2
"""of the answers with hints loses some of them"""
_LOST_S_MAX = 2.0
T = TypeVar("T")


class Outages:
    """Whom the store does not answer, and how likely it does what it was asked all the same."""

    def __init__(
        self, chance: random.Random, hints: random.Random | None, happened: Counter[str]
    ) -> None:
        self.chance = chance
        self.hints = hints
        """which hints are lost; `None` for none"""
        self.happened = happened
        self.away_from: set[str] = set()
        self.done_share = 0.5
        self.delay_s_max = 0.01


class MetadataView:
    """A MetadataStore for one machine. MetadataStore says what each call does.

    Attributes:
        store: what the process that runs now has opened.
    """

    def __init__(self, store: MetadataStore, machine: Machine, outages: Outages) -> None:
        self.store = store
        self._machine = machine
        self._outages = outages
        self._unsure_at = math.inf
        """when it is told that everything may have changed"""
        self.watches = Watches(PollSource(self))

    async def get(self, key: str) -> Versioned | None:
        return await self._ask(lambda: self.store.get(key))

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> int:
        return await self._change(lambda: self.store.put(key, value, expected=expected))

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        await self._change(lambda: self.store.delete(key, expected=expected))

    async def transact(self, ops: Sequence[Op]) -> Versions:
        return await self._change(lambda: self.store.transact(ops))

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        return await self._ask(lambda: self.store.list(prefix, after=after, limit=limit))

    async def next_id(self, counter: str, count: int = 1) -> int:
        return await self._change(lambda: self.store.next_id(counter, count))

    async def now_ms(self) -> int:
        return await self._ask(self.store.now_ms)

    async def open_session(self, owner: str, *, ttl_s: float) -> StoreSession:
        return await self._change(lambda: self.store.open_session(owner, ttl_s=ttl_s))

    async def keep_session(self, session: StoreSession) -> None:
        await self._change(lambda: self.store.keep_session(session))

    async def end_session(self, session: StoreSession) -> None:
        await self._change(lambda: self.store.end_session(session))

    async def grant(
        self, name: str, session: StoreSession, *, owner: str = "", value: bytes = b""
    ) -> Lease:
        return await self._change(lambda: self.store.grant(name, session, owner=owner, value=value))

    async def update(self, lease: Lease, value: bytes) -> Lease:
        return await self._change(lambda: self.store.update(lease, value))

    async def release(self, lease: Lease) -> None:
        await self._change(lambda: self.store.release(lease))

    async def leases(self, prefix: str, *, after: str = "") -> Leases:
        return await self._ask(lambda: self.store.leases(prefix, after=after))

    @property
    def is_cut_off(self) -> bool:
        return self.store.is_cut_off

    async def changes(
        self, prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> Changes:
        wait_s = max(0.0, min(wait_s, self._unsure_at - trio.current_time()))
        found = await self._ask(lambda: self.store.changes(prefix, since=since, wait_s=wait_s))
        if trio.current_time() >= self._unsure_at:
            self._unsure_at = math.inf
            return Changes(found.revision, [], everything=True)
        return self._lose_some(found)

    def _lose_some(self, found: Changes) -> Changes:
        chance = self._outages.hints
        if chance is None or not found.keys or chance.random() >= _LOST_SHARE:
            return found
        self._outages.happened[HINTS_LOST] += 1
        self._unsure_at = min(self._unsure_at, trio.current_time() + _LOST_S_MAX * chance.random())
        kept = [key for key in found.keys if chance.random() < 0.5]
        return Changes(found.revision, kept, everything=found.everything)

    def watch(self, prefix: str) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[str]]:
        return self.watches.watch(prefix)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    # --- the way there and back --------------------------------------------------------

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        await self._travel(changes=False)
        return await call()

    async def _change(self, call: Callable[[], Awaitable[T]]) -> T:
        if await self._travel(changes=True):
            await call()
            await trio.sleep(_PATIENCE_S)
            raise MetadataUnavailable("the store is away", outcome_unknown=True)
        result = await call()
        await trio.lowlevel.checkpoint()
        if not self._machine.alive:
            raise MetadataUnavailable(f"{self._machine.name} was killed", outcome_unknown=True)
        return result

    async def _travel(self, *, changes: bool) -> bool:
        """Get to the store, or fail; True: the call is made and its answer is lost."""
        self._check_alive()
        chance = self._outages.chance
        if chance.random() < 0.2:
            await trio.sleep(self._outages.delay_s_max * chance.random())
            self._check_alive()
        if self._machine.name not in self._outages.away_from:
            return False
        if changes and chance.random() < self._outages.done_share:
            return True
        await trio.sleep(_PATIENCE_S * chance.random())
        # Whoever waited long may find that the store is told of the change after all.
        raise MetadataUnavailable("the store is away", outcome_unknown=False)

    def _check_alive(self) -> None:
        if not self._machine.alive:
            raise MetadataUnavailable(f"{self._machine.name} was killed")
