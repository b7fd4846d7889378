r"""The change log: which keys and leases changed, in the order of the changes.

kazoo can watch one node once, so a store cannot watch a prefix. Instead every multi that changes
something also creates a sequential node that lists the keys:

    /quire/log            its version is the number of the current part
    /quire/log/<n>/c0000000007     "lanes/...\nlane-ledgers/..."

A store reads every entry, once for all of its watches, and keeps the last ones in memory. It
watches for the next one to exist, so an idle store costs nothing. Every multi checks the number of
the current part: once that has risen, the former part is complete. The log goes on in a new part
before ZooKeeper's counter of 31 bits runs out. A revision is the number of the part, then that of
the entry, so revisions rise.

About 10 000 entries are kept: whoever creates one whose number is a multiple of 256 removes the
oldest ones. A store that is too far behind says that anything may have changed.
"""

from __future__ import annotations

from collections import deque

import trio

from metadata.errors import MetadataBroken, MetadataUnavailable
from metadata.revisions import Waits
from metadata.store import Changes
from metadata.zookeeper import paths
from metadata.zookeeper.znodes import (
    Connection,
    Create,
    Op,
    Refused,
    Remove,
    Set,
    Verify,
    entries_made,
)

ENTRIES_MAX = 10_000
KEYS_TOLD_MAX = 1000
BEHIND_MAX = 2000
"""Entries that a store reads to catch up; with more, anything may have changed."""
TRIM_EVERY = 256
TRIMMED_MAX = 2048
PART_ENTRIES_MAX = 2_000_000_000
_PART_BITS = 31
_PREFIX = "c"
MERGE_S = 0.01
"""After news, the next ones are read that much later, together."""


class ChangeLog:
    """The log as one store knows it. run() follows it."""

    def __init__(self, connection: Connection, *, part_entries_max: int = PART_ENTRIES_MAX) -> None:
        self._connection = connection
        self._part_entries_max = part_entries_max
        self._current: int | None = None
        """the part to which this store's own changes go, if it is known"""
        self._part = self._next = 0
        """the entry that is read next"""
        self._oldest = 0
        """revision before the oldest entry in memory"""
        self._entries: deque[tuple[int, list[str]]] = deque()
        self._reading = trio.Lock()
        self._is_open = False
        self._waits = Waits()
        self._passed_on = 0
        """entries up to it ended the waits that they concern"""
        self._wake = trio.Event()
        self._written = 0
        """number of this store's last entry, if it calls for trimming"""
        self._is_followed = False
        """run() heard of every entry so far, unless the connection is lost"""

    @property
    def is_cut_off(self) -> bool:
        """Whether run() cannot hear of new entries at present."""
        return not (self._is_followed and self._connection.is_connected)

    @property
    def revision(self) -> int:
        """That of the newest entry that was read; 0 if there was none."""
        return (self._part << _PART_BITS) + self._next

    # --- for changes -------------------------------------------------------------------

    async def begin(self) -> None:
        """Find the current part. Raises MetadataUnavailable, MetadataBroken."""
        if self._current is None:
            (stat,) = await self._connection.stat([paths.LOG], fresh=True)
            if stat is None:
                raise MetadataBroken(f"{self._connection.name}: {paths.LOG} is missing")
            self._current = stat.version

    def forget(self) -> None:
        """Find the current part anew: a multi was refused for it."""
        self._current = None

    def guard(self) -> Op:
        """Return the op that fails once there is another part."""
        return Verify(paths.LOG, self._current or 0)

    def entry(self, changed: list[str]) -> Op:
        """Return the op that announces *changed*."""
        path = f"{paths.LOG}/{self._current or 0}/{_PREFIX}"
        return Create(path, "\n".join(changed).encode(), sequence=True)

    def note(self, path: str) -> None:
        """Note that this store created *path*, if that is an entry."""
        if not path.startswith(paths.LOG):
            return
        number = int(path.rpartition(_PREFIX)[2])
        if number % TRIM_EVERY == 0 or number >= self._part_entries_max:
            self._written = number
            self._wake.set()

    # --- for watches -------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the log until cancelled."""
        while True:
            self._is_followed = self._is_followed and self._connection.is_connected
            try:
                await self._connection.connected()
                await self._tidy()
                await self.catch_up()
                self._is_followed = True
                await self._wait()
            except MetadataUnavailable:
                self._is_followed = False
                await trio.sleep(MERGE_S)

    async def catch_up(self, *, fresh: bool = False) -> None:
        """Read all entries that exist by now; with *fresh*, whichever server made them.

        Raises:
            MetadataUnavailable: no connection.
        """
        async with self._reading:
            before = self.revision
            try:
                while await self._read(fresh=fresh):
                    pass
            finally:
                self._pass_on(before)

    async def wait(self, prefix: str, revision: int, limit_s: float) -> int | None:
        """Wait for an entry about a key under *prefix* after *revision*, up to which since() saw.

        Return None if there may be one. After *limit_s*, return the revision up to which there was
        none.
        """
        with self._waits.one_more(prefix) as mine:
            with trio.move_on_after(limit_s):
                await mine.news.wait()
            return None if mine.is_over else max(revision, self._passed_on)

    def _pass_on(self, before: int) -> None:
        """End the waits that entries after revision *before* concern."""
        self._passed_on = self.revision
        if not self._waits or self.revision == before:
            return
        if self.remembers(before):
            self._waits.note(Changes(self.revision, self.changed_since("", before)))
        else:
            self._waits.note(Changes(self.revision, [], everything=True))

    def since(self, prefix: str, revision: int | None) -> Changes:
        """Return what changed under *prefix* after *revision*, as far as it was read."""
        newest = self.revision
        if revision is None or revision == newest:
            return Changes(newest, [])
        if revision > newest or revision < self._oldest:
            return Changes(newest, [], everything=True)
        keys = self.changed_since(prefix, revision)
        if len(keys) > KEYS_TOLD_MAX:
            return Changes(newest, [], everything=True)
        return Changes(newest, keys)

    def changed_since(self, prefix: str, revision: int) -> list[str]:
        """Return the keys under *prefix* that changed after *revision*, which is in memory."""
        found: dict[str, None] = {}
        for number, keys in reversed(self._entries):
            if number <= revision:
                break
            found.update(dict.fromkeys(key for key in reversed(keys) if key.startswith(prefix)))
        return list(reversed(found))

    def remembers(self, revision: int) -> bool:
        """Return True if all entries after *revision* are in memory."""
        return self._oldest <= revision <= self.revision

    async def _read(self, *, fresh: bool) -> bool:
        """Read what there is of the current part. Return True if another one follows."""
        head, folder = await self._connection.stat(
            [paths.LOG, f"{paths.LOG}/{self._part}"], fresh=fresh
        )
        if head is None:
            raise MetadataBroken(f"{self._connection.name}: {paths.LOG} is missing")
        if not self._is_open or folder is None:
            return await self._jump(head.version)
        end = entries_made(folder)
        if end - self._next > BEHIND_MAX:
            return await self._jump(head.version)
        found = await self._connection.get(
            [_entry_path(self._part, number) for number in range(self._next, end)]
        )
        for node in found:
            if node is None:  # removed by now, so too far behind
                return await self._jump(head.version)
            self._next += 1
            self._entries.append((self.revision, node[0].decode().split("\n")))
        while len(self._entries) > ENTRIES_MAX:
            self._oldest = self._entries.popleft()[0]
        if head.version <= self._part:
            return False
        self._part, self._next = self._part + 1, 0
        return True

    async def _jump(self, part: int) -> bool:
        """Go on from the newest entry, and forget all before."""
        (folder,) = await self._connection.stat([f"{paths.LOG}/{part}"])
        if folder is None:
            raise MetadataBroken(f"{self._connection.name}: {paths.LOG}/{part} is missing")
        self._part, self._next = part, max(entries_made(folder), 0)
        self._entries.clear()
        self._oldest = self.revision
        self._is_open = True
        return False

    async def _wait(self) -> None:
        """Return when there may be another entry."""
        wake = self._wake = trio.Event()
        head, entry = await self._connection.stat(
            [paths.LOG, _entry_path(self._part, self._next)], watch=wake.set
        )
        if entry is None and head is not None and head.version <= self._part and not self._written:
            await wake.wait()
        await trio.sleep(MERGE_S)

    # --- its length --------------------------------------------------------------------

    async def _tidy(self) -> None:
        """Remove old entries, or begin another part, if this store's last change asks for it."""
        written, self._written = self._written, 0
        if not written:
            return
        await self.begin()
        part = self._current or 0
        if written >= self._part_entries_max:
            await self._connection.multi(
                [Set(paths.LOG, b"", part), Create(f"{paths.LOG}/{part + 1}")]
            )
            self.forget()
        (parts,) = await self._connection.children([paths.LOG])
        for name in parts[0] if parts else ():
            await self._trim(int(name), 0 if int(name) < part - 1 else ENTRIES_MAX)

    async def _trim(self, part: int, kept: int) -> None:
        folder = f"{paths.LOG}/{part}"
        (stat,) = await self._connection.stat([folder])
        if stat is None or stat.children <= kept + TRIM_EVERY * bool(kept):
            if stat is not None and not kept:
                await self._connection.multi([Remove(folder)])
            return
        (found,) = await self._connection.children([folder])
        names = sorted(found[0]) if found else []
        names = names[: min(len(names) - kept, TRIMMED_MAX)]
        for start in range(0, len(names), TRIM_EVERY):
            outcome = await self._connection.multi(
                [Remove(f"{folder}/{name}") for name in names[start : start + TRIM_EVERY]]
            )
            if isinstance(outcome, Refused):  # another store does it
                return


def _entry_path(part: int, number: int) -> str:
    return f"{paths.LOG}/{part}/{_PREFIX}{number:010d}"
