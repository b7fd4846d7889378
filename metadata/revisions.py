"""Polling for other processes' changes, by one of the tasks that wait.

    wait("a/") ──┐                 pause ──► newest revision ──► risen? ──► read the changed keys
    wait("b/") ──┤ Waits ◄── keys ─────────────────────────────────────────────────────┘
    wait("c/") ──┘ (PrefixTable)

The first task that waits looks after each pause, for all of them, and reads what changed once. It
wakes those whose prefix a key has; the others notice nothing. If it is cancelled or fails, another
task takes over. While no task waits, nothing is read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import trio

from metadata.prefixes import PrefixTable
from metadata.watch import Changes

INTERVAL_S = 0.1


async def pause() -> None:
    """Wait between two reads of a store that announces nothing."""
    await trio.sleep(INTERVAL_S)


class Wait:
    """One task's wait for a change under a prefix.

    Attributes:
        is_over: there may have been one.
        news: set for the task: the wait is over, or there is something else for it to do.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.news = trio.Event()

    def end(self) -> None:
        """There may have been a change."""
        self.is_over = True
        self.news.set()


class Waits:
    """The waits of one store's tasks, by prefix."""

    def __init__(self) -> None:
        self._table: PrefixTable[Wait] = PrefixTable()

    def __len__(self) -> int:
        """Return the number of different prefixes."""
        return len(self._table)

    @contextmanager
    def one_more(self, prefix: str) -> Iterator[Wait]:
        """Have changes under *prefix* end the wait, for the length of the block."""
        wait = Wait()
        self._table.add(prefix, wait)
        try:
            yield wait
        finally:
            self._table.discard(prefix, wait)

    def note(self, changes: Changes) -> None:
        """End the waits that *changes* concern."""
        matching = chain.from_iterable(map(self._table.matching, changes.keys))
        for _, waits in self._table.items() if changes.everything else matching:
            for wait in waits:
                wait.end()


class ChangePoll:
    """Wakes waiting tasks when something changed under their prefixes.

    *newest* returns the store's revision and *read* what changed anywhere after a revision, perhaps
    in parts. *pause* returns when there may be a new revision. One task at a time calls *pause*,
    the leader; a change of this process meanwhile is passed on by another task, and leaves the
    leader where it is.
    """

    def __init__(
        self,
        newest: Callable[[], Awaitable[int]],
        read: Callable[[int], Awaitable[Changes]],
        pause: Callable[[], Awaitable[None]] = pause,
    ) -> None:
        self._newest = newest
        self._read = read
        self._pause = pause
        self._waits = Waits()
        self._idle: OrderedDict[Wait, None] = OrderedDict()
        """those whose tasks do nothing but wait, the newest last"""
        self._known = 0
        """the newest revision, as far as it is known"""
        self._passed_on = 0
        """changes up to it ended the waits that they concern"""
        self._is_led = self._is_reading = False

    async def wait(self, prefix: str, revision: int, limit_s: float) -> int | None:
        """Wait for a change under *prefix* after *revision*, which the caller has just read.

        Return None if there may have been one. After *limit_s*, return the revision up to which
        there was none.

        Raises the exceptions of *newest* and *read*.
        """
        if not self._waits:
            self._passed_on = revision
        elif revision < self._passed_on:
            return None  # what came since was passed on to the others
        with self._waits.one_more(prefix) as mine:
            try:
                with trio.move_on_after(limit_s):
                    await self._wait(mine)
            finally:
                self._idle.pop(mine, None)
                self._call()
            return None if mine.is_over else max(revision, self._passed_on)

    def advance(self, revision: int) -> None:
        """Pass on changes at once: this process made the one with *revision* itself."""
        if revision > self._known:
            self._known = revision
            self._call()

    async def _wait(self, mine: Wait) -> None:
        while not mine.is_over:
            if self._is_behind:
                await self._pass_on()
            elif not self._is_led:
                await self._lead()
            else:
                mine.news = trio.Event()
                self._idle[mine] = None
                await mine.news.wait()
                self._idle.pop(mine, None)

    @property
    def _is_behind(self) -> bool:
        """True if there is something to read, and no task reads it."""
        return self._known > self._passed_on and not self._is_reading

    def _call(self) -> None:
        """Have an idle task do what is to be done, the one that will wait longest."""
        if self._idle and (self._is_behind or not self._is_led):
            wait, _ = self._idle.popitem()
            wait.news.set()

    async def _lead(self) -> None:
        self._is_led = True
        try:
            await self._pause()
            self._known = max(self._known, await self._newest())
        finally:
            self._is_led = False

    async def _pass_on(self) -> None:
        known = self._known
        self._is_reading = True
        try:
            found = await self._read(self._passed_on)
        finally:
            self._is_reading = False
        if known == self._known and (found.everything or not found.keys):
            self._known = found.revision  # there is no more, also in a store that was set back
        self._passed_on = found.revision
        self._waits.note(found)
