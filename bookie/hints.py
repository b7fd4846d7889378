"""Hints about changes of metadata, for the clients of this bookie.

One follower of the store's changes (metadata/watch.py) serves all connections. While no
connection watches anything, the store is not asked.

    store ──► Watches ──► HintBox of each connection ──► its AwaitHints call
                          prefixes, hints not taken

A connection watches up to PREFIXES_MAX prefixes of PREFIXES_SIZE_MAX bytes; all together watch
ALL_PREFIXES_MAX of ALL_PREFIXES_SIZE_MAX. A hint that is not taken costs no more than its key, up
to KEYS_MAX keys; further ones are reduced to the prefix, which is in memory anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import trio

from bookie.errors import CallRefused
from metadata.errors import MetadataBroken
from metadata.prefixes import PrefixTable
from metadata.store import Changes, MetadataStore, check_prefix
from metadata.watch import PollSource, Watches

PREFIXES_MAX = 100_000
PREFIXES_SIZE_MAX = 8 << 20
ALL_PREFIXES_MAX = 500_000
ALL_PREFIXES_SIZE_MAX = 32 << 20
KEYS_MAX = 1000
"""Keys kept for a connection that does not take them, and items in one answer."""
_ROUNDS_MAX = 100


class Hints:
    """The follower of the store's changes, and what all connections watch.

    Attributes:
        count: prefixes of all connections.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._source = PollSource(store)
        self._size = 0
        self.watches = Watches(self._source)
        self.count = 0

    async def run(self) -> NoReturn:
        """Follow the store's changes while something is watched."""
        await self.watches.run()

    @property
    def is_cut_off(self) -> bool:
        """Whether there may be changes that are passed on later only."""
        return self.watches.is_cut_off

    @property
    def revision(self) -> int:
        """Changes up to it were passed on."""
        return self._source.revision or 0

    def reserve(self, prefixes: Sequence[str]) -> None:
        """Count these prefixes. Raises CallRefused if the connections watch too many."""
        size = _size(prefixes)
        if (
            self.count + len(prefixes) > ALL_PREFIXES_MAX
            or self._size + size > ALL_PREFIXES_SIZE_MAX
        ):
            raise CallRefused(f"all clients watch {self.count} prefixes, which is near the limit")
        self.count += len(prefixes)
        self._size += size

    def release(self, prefixes: Sequence[str]) -> None:
        """Undo reserve()."""
        self.count -= len(prefixes)
        self._size -= _size(prefixes)

    async def since(self, revision: int, prefixes: Sequence[str], box: HintBox) -> None:
        """Put what changed under *prefixes* after *revision* into *box*."""
        table: PrefixTable[None] = PrefixTable()
        for prefix in prefixes:
            table.add(prefix, None)
        for _ in range(_ROUNDS_MAX):
            found = await self._store.changes("", since=revision)
            if found.everything:
                break
            for key in found.keys:
                for prefix, _ in table.matching(key):
                    box.notify(prefix, key)
            if found.revision == revision:
                return
            revision = found.revision
        for prefix in prefixes:
            box.notify(prefix, prefix)


class HintBox:
    """What one connection watches, and the hints that it has not taken."""

    def __init__(self, hints: Hints) -> None:
        self._hints = hints
        self._prefixes: set[str] = set()
        self._size = 0
        self._keys: dict[str, None] = {}
        self._whole: dict[str, None] = {}
        """prefixes under which anything may have changed"""
        self._revision = 0
        self._news = trio.Event()
        self._turn: object = None
        self._changing = trio.Lock()
        """Held by one change at a time: the next may be about the same prefixes."""

    async def change(self, add: Sequence[str], drop: Sequence[str], since: int | None) -> Changes:
        """Watch the prefixes *add* from now on, or from *since* on, and *drop* no longer.

        Raises:
            MetadataBroken: a bad prefix, or more than a connection may watch.
            CallRefused: all connections watch too many.
            MetadataUnavailable: the store did not answer; the prefixes *add* are not watched.
        """
        for prefix in add:
            check_prefix(prefix)
        async with self._changing:
            self._drop(drop)
            new = [prefix for prefix in dict.fromkeys(add) if prefix not in self._prefixes]
            await self._add(new)
            self._revision = self._revision or self._hints.revision
            if since is not None:
                await self._hints.since(since, new, self)
                if self._has_hints:  # what is older than the others is among them
                    self._revision = min(self._revision, since)
            return Changes(self._revision, [], cut_off=self._hints.is_cut_off)

    def notify(self, prefix: str, hint: str) -> None:
        """Keep *hint* about *prefix* until it is taken."""
        if hint != prefix and prefix not in self._whole and len(self._keys) < KEYS_MAX:
            self._keys[hint] = None
        elif hint == prefix or hint not in self._keys:
            self._whole[prefix] = None
        self._news.set()

    async def wait(self, wait_s: float) -> bool:
        """Wait for a hint, up to *wait_s*; False if another task has begun to wait since."""
        mine = self._turn = object()
        self._news.set()  # for the call before
        with trio.move_on_after(wait_s):
            while not self._has_hints and self._turn is mine:
                self._news = trio.Event()
                await self._news.wait()
        return self._turn is mine

    def take(self, count_max: int = KEYS_MAX) -> Changes:
        """Return up to *count_max* hints, and forget them.

        The revision is one up to which all hints were taken with this answer.
        """
        if self._whole and len(self._whole) == len(self._prefixes):
            self._whole.clear()
            self._keys.clear()
            return self._taken([], everything=True)
        keys: list[str] = []
        for kept in (self._keys, self._whole):
            while kept and len(keys) < count_max:
                key = next(iter(kept))
                del kept[key]
                keys.append(key)
        return self._taken(keys)

    def close(self) -> None:
        """Watch nothing any more."""
        self._drop(list(self._prefixes))

    @property
    def _has_hints(self) -> bool:
        return bool(self._keys or self._whole)

    def _taken(self, keys: list[str], *, everything: bool = False) -> Changes:
        if not self._has_hints:
            self._revision = max(self._revision, self._hints.revision)
        return Changes(self._revision, keys, everything, self._hints.is_cut_off)

    async def _add(self, new: Sequence[str]) -> None:
        size = _size(new)
        if len(self._prefixes) + len(new) > PREFIXES_MAX or self._size + size > PREFIXES_SIZE_MAX:
            raise MetadataBroken(
                f"a connection watches at most {PREFIXES_MAX} prefixes"
                f" of {PREFIXES_SIZE_MAX} bytes together"
            )
        self._hints.reserve(new)
        self._prefixes.update(new)
        self._size += size
        try:
            await self._hints.watches.begin(new, self)
        except BaseException:
            self._forget(new)
            raise

    def _drop(self, prefixes: Sequence[str]) -> None:
        dropped = [prefix for prefix in prefixes if prefix in self._prefixes]
        for prefix in dropped:
            self._hints.watches.unsubscribe(prefix, self)
        self._forget(dropped)

    def _forget(self, prefixes: Sequence[str]) -> None:
        there = [prefix for prefix in dict.fromkeys(prefixes) if prefix in self._prefixes]
        self._prefixes.difference_update(there)
        for prefix in there:
            self._whole.pop(prefix, None)
        self._size -= _size(there)
        self._hints.release(there)


def _size(prefixes: Sequence[str]) -> int:
    return sum(map(len, prefixes))
