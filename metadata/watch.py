"""All watches of one store, served by one question at a time.

    listener ◄─┐                                             ┌─ PollSource: changes("") of a driver
    listener ◄─┤ prefixes ◄── Watches ◄── HintSource.next() ─┤
    listener ◄─┘ (PrefixTable)                               └─ a bookie: one long call

No task runs in the background. Of the tasks that wait for a hint, one leads: it asks, and passes
hints to all listeners. When it has what it waits for, another one goes on. run() leads for
listeners that no task waits for. A listener costs some hundred bytes and nothing while idle.

A question may be cancelled and asked again without losing a hint. After a failure of the store
each listener gets one hint for everything under its prefix.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn, Protocol

import msgspec
import trio

from metadata.errors import MetadataBroken, MetadataError, MetadataUnavailable
from metadata.prefixes import PrefixTable

WATCHED_MAX = 100_000
"""Different prefixes that one store watches."""
HINTS_MAX = 100
"""Hints that a watch keeps for its reader; beyond, it gets one for everything."""
BATCH_MAX = 4096
"""Prefixes that a source is given at a time."""
WAIT_S = 20.0
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 1.0


class Changes(msgspec.Struct, frozen=True, tag=True):
    """Keys that changed under a prefix, up to *revision*.

    *everything*: the keys are unknown (too many, or too long ago), so any may have changed.
    *cut_off*: there may be later changes, of which whoever says this cannot know at present; `None`
    of a bookie of an older version, which does not say.
    """

    revision: int
    keys: list[str]
    everything: bool = False
    cut_off: bool | None = None


class ChangeLog(Protocol):
    """What a driver has to do for watches."""

    @property
    def is_cut_off(self) -> bool:
        """As MetadataStore.is_cut_off."""

    async def changes(
        self, prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> Changes:
        """As MetadataStore.changes."""


class HintSource(Protocol):
    """Where hints come from."""

    @property
    def is_cut_off(self) -> bool:
        """Whether there may be changes of which next() cannot tell at present."""

    async def begin(self, prefixes: Sequence[str]) -> None:
        """Report changes under *prefixes* from now on. May be repeated.

        Raises:
            MetadataUnavailable: the store did not answer; they are not watched.
            MetadataBroken: the store is damaged, or refuses so many.
        """

    def end(self, prefix: str) -> None:
        """Report no more changes under *prefix*; *begin* got it before."""

    def rest(self) -> None:
        """Forget what was asked last: no prefix is left."""

    async def next(self) -> Changes:
        """Wait for changes; there may be none. A cancelled call loses nothing.

        Raises:
            MetadataUnavailable: wait a moment before the next call.
            MetadataBroken: the store is damaged.
        """


class Listener(Protocol):
    """Gets hints about a prefix."""

    def notify(self, prefix: str, hint: str) -> None:
        """Note that the key *hint* may have changed, or anything if it equals *prefix*.

        Called in the event loop, by the task that leads; must be quick and raise nothing.
        """


class Watches:
    """The watches of one store, whose hints come from *source*."""

    def __init__(self, source: HintSource) -> None:
        self._source = source
        self._table: PrefixTable[Listener] = PrefixTable()
        self._fresh: dict[str, None] = {}
        """prefixes that the task that leads will give to the source"""
        self._unsure: set[str] = set()
        """those, and prefixes that begin() is giving to it"""
        self._fresh_at = 0.0
        """when it is given them, after it could not take them"""
        self._leader: object | None = None
        self._asking: trio.CancelScope | None = None
        self._waiting: OrderedDict[object, trio.Event] = OrderedDict()
        self._pause_s = PAUSE_S_MIN
        self._is_failing = False
        """the last question was not answered"""

    def __len__(self) -> int:
        """Return the number of different prefixes."""
        return len(self._table)

    @property
    def is_cut_off(self) -> bool:
        """Whether there may be changes of which listeners are told later only."""
        return self._is_failing or self._source.is_cut_off

    def tells(self, prefix: str) -> bool:
        """Return whether a change under *prefix* is told of as soon as it happens.

        Not while the prefix is still to be watched, or while the store is cut off: a listener
        gets a hint for everything once that is over, and may look by itself until then.
        """
        is_watched = prefix in self._table and prefix not in self._unsure
        return is_watched and not self.is_cut_off

    def subscribe(self, prefix: str, listener: Listener) -> None:
        """Pass hints about *prefix* to *listener* until unsubscribe(), while a task leads.

        The listener gets a hint for everything as soon as the prefix is watched, so it needs to
        look only then.

        Raises:
            MetadataBroken: WATCHED_MAX other prefixes are watched.
        """
        if self._add(prefix, listener):
            self._fresh[prefix] = None
            self.interrupt()
        elif prefix not in self._unsure:
            listener.notify(prefix, prefix)

    def unsubscribe(self, prefix: str, listener: Listener) -> None:
        """Undo subscribe() or begin(); harmless if it was undone."""
        if not self._table.discard(prefix, listener):
            return
        if prefix in self._unsure:
            self._unsure.discard(prefix)
            self._fresh.pop(prefix, None)
        else:
            self._source.end(prefix)
        if not self._table:
            self._source.rest()
            self.interrupt()

    async def begin(self, prefixes: Sequence[str], listener: Listener) -> None:
        """As subscribe(), but return once changes from now on are reported, without a hint.

        Raises:
            MetadataUnavailable, MetadataBroken: none of *prefixes* is watched.
        """
        was_idle = not self._table
        added: list[str] = []
        try:
            for prefix in prefixes:
                self._add(prefix, listener)
                added.append(prefix)
            new = [prefix for prefix in prefixes if prefix in self._unsure]
            for start in range(0, len(new), BATCH_MAX):
                await self._begin(new[start : start + BATCH_MAX], listener)
        except BaseException:
            for prefix in added:
                self.unsubscribe(prefix, listener)
                if prefix in self._unsure:  # another listener came for it meanwhile
                    self._fresh[prefix] = None
            self.interrupt()
            raise
        if was_idle:
            self.interrupt()

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[StoreWatch]:
        """Watch *prefix* from now on; the contract is MetadataStore.watch."""
        channel = StoreWatch(self, prefix)
        await self.begin([prefix], channel)
        try:
            yield channel
        finally:
            await channel.aclose()

    async def run(self) -> NoReturn:
        """Lead, or stand by, until cancelled; a damaged store is asked again and again."""
        me = object()
        while True:
            try:
                await self.wait(lambda: False, me)
            except MetadataError:
                await trio.sleep(PAUSE_S_MAX)

    async def wait(self, is_over: Callable[[], bool], waiter: object) -> None:
        """Return once *is_over*, which wake() of *waiter* lets this task check.

        Raises:
            MetadataBroken: the store is damaged, and this task leads.
        """
        try:
            while not is_over():
                if self._leader is None:
                    await self._lead(waiter)
                else:
                    news = self._waiting[waiter] = trio.Event()
                    await news.wait()
                    del self._waiting[waiter]
        finally:
            self._waiting.pop(waiter, None)
            if self._leader is None and self._waiting:
                next(iter(self._waiting.values())).set()

    def wake(self, waiter: object) -> None:
        """Let a task in wait() check whether its wait is over."""
        if waiter in self._waiting:
            self._waiting[waiter].set()
        elif waiter is self._leader:
            self.interrupt()

    def interrupt(self) -> None:
        """Let the question that is under way be asked again, perhaps in another way."""
        if self._asking is not None:
            self._asking.cancel()

    def deliver(self, changes: Changes) -> None:
        """Pass hints to the listeners."""
        if changes.everything:
            for prefix, listeners in self._table.items():
                _notify(prefix, prefix, listeners)
        for key in changes.keys:
            for prefix, listeners in [*self._table.matching(key)]:
                _notify(prefix, key, listeners)

    # --- inside ------------------------------------------------------------------------

    def _add(self, prefix: str, listener: Listener) -> bool:
        if prefix not in self._table and len(self._table) >= WATCHED_MAX:
            raise MetadataBroken(f"{WATCHED_MAX} prefixes are watched, which is the limit")
        is_new = self._table.add(prefix, listener)
        if is_new:
            self._unsure.add(prefix)
        return is_new

    async def _lead(self, waiter: object) -> None:
        """Ask one question, and pass on what it brings."""
        self._leader = waiter
        try:
            if self._fresh and trio.current_time() >= self._fresh_at:
                await self._begin_fresh()
            until = self._fresh_at if self._fresh else math.inf
            with trio.CancelScope(deadline=until) as self._asking:
                if not self._table:
                    await trio.sleep_forever()  # until a prefix is added
                changes = await self._source.next()
                self._asking = None
                self._pause_s = PAUSE_S_MIN
                self._is_failing = False
                self.deliver(changes)
        except MetadataUnavailable:
            self._is_failing = True
            await trio.sleep(self._next_pause_s())
        except MetadataError:
            self._is_failing = True
            raise
        finally:
            self._leader = self._asking = None

    def _next_pause_s(self) -> float:
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, PAUSE_S_MAX)
        return pause_s

    async def _begin_fresh(self) -> None:
        """Give new prefixes to the source; those that it does not take, later again."""
        try:
            while self._fresh:
                await self._begin(list(self._fresh)[:BATCH_MAX], None)
        except MetadataError:
            self._fresh_at = trio.current_time() + self._next_pause_s()

    async def _begin(self, prefixes: Sequence[str], asker: Listener | None) -> None:
        """Give *prefixes* to the source, and a first hint to all listeners but *asker*."""
        await self._source.begin(prefixes)
        for prefix in prefixes:
            self._fresh.pop(prefix, None)
            self._unsure.discard(prefix)
            listeners = self._table.holders(prefix)
            if not listeners:  # given up meanwhile
                self._source.end(prefix)
            _notify(prefix, prefix, [each for each in listeners if each is not asker])


def _notify(prefix: str, hint: str, listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        listener.notify(prefix, hint)


class StoreWatch(trio.abc.ReceiveChannel[str]):
    """Hints about changes under *prefix*, kept until they are received."""

    def __init__(self, watches: Watches, prefix: str) -> None:
        self._watches = watches
        self._prefix = prefix
        self._hints: dict[str, None] = {}
        self._turn = trio.Lock()
        self._closed = False

    def notify(self, prefix: str, hint: str) -> None:
        """Keep *hint*; with HINTS_MAX of them, keep one for everything instead."""
        if self._prefix not in self._hints:
            self._hints[hint] = None
        if hint == prefix or len(self._hints) >= HINTS_MAX:
            self._hints = {self._prefix: None}
        self._watches.wake(self)

    async def receive(self) -> str:
        """Return the next hint; *prefix* itself means everything under it.

        Raises:
            trio.ClosedResourceError: the watch is closed.
            MetadataBroken: the store is damaged.
        """
        async with self._turn:
            await self._watches.wait(lambda: self._closed or bool(self._hints), self)
            if self._closed:
                raise trio.ClosedResourceError
            hint = next(iter(self._hints))
            del self._hints[hint]
            return hint

    async def aclose(self) -> None:
        """End the watch, also for a task that is receiving."""
        if not self._closed:
            self._closed = True
            self._hints.clear()
            self._watches.unsubscribe(self._prefix, self)
            self._watches.wake(self)
        await trio.lowlevel.checkpoint()


class PollSource:
    """Hints from changes() of a driver, under *prefix* or everywhere."""

    def __init__(self, log: ChangeLog, prefix: str = "") -> None:
        self._log = log
        self._prefix = prefix
        self._is_lost = False
        self.revision: int | None = None
        """changes up to it were returned; None while nothing is watched"""

    @property
    def is_cut_off(self) -> bool:
        """As HintSource.is_cut_off."""
        return self._log.is_cut_off

    async def begin(self, prefixes: Sequence[str]) -> None:
        """As HintSource.begin; costs a read if nothing was watched before."""
        if self.revision is None:
            start = await self._log.changes(self._prefix)
            self.revision = start.revision if self.revision is None else self.revision

    def end(self, prefix: str) -> None:
        """Do nothing: hints that nobody wants cost a look-up."""

    def rest(self) -> None:
        """As HintSource.rest; later changes are not asked for."""
        self.revision = None

    async def next(self) -> Changes:
        """As HintSource.next; after a failure, everything may have changed."""
        since = None if self._is_lost else self.revision
        try:
            found = await self._log.changes(
                self._prefix, since=since, wait_s=0.0 if since is None else WAIT_S
            )
        except MetadataUnavailable:
            self._is_lost = True
            raise
        is_lost, self._is_lost = self._is_lost, False
        self.revision = found.revision
        return Changes(found.revision, found.keys, everything=found.everything or is_lost)
