"""Removes folders that became empty, so that nothing grows with keys and leases that are gone.

    node removed ──► its folder noted ──REST_S──► still empty? ──► removed ──► the one above noted

A folder rests first, since one that was emptied is often filled again. ZooKeeper refuses to remove
a folder with a node in it, and whoever creates a node whose folder went away meanwhile makes the
folder again (changing.py): so it may be removed at any time, by any store. What a store had noted
when it ended is noted by the next one that walks there and finds a folder empty (listing.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import islice

import trio

from metadata.errors import MetadataError, MetadataUnavailable
from metadata.zookeeper import paths
from metadata.zookeeper.znodes import Connection, Refused, Remove

REST_S = 60.0
TOGETHER_MAX = 100
"""Folders that are looked at, and removed, at a time."""
NOTED_MAX = 100_000
_log = logging.getLogger(__name__)


class EmptyFolders:
    """Folders of keys and of leases that may be empty. run() removes those that are."""

    def __init__(self, connection: Connection, on_removed: Callable[[list[str]], None]) -> None:
        """*on_removed* is called with folders that are gone."""
        self._connection = connection
        self._on_removed = on_removed
        self._noted: dict[str, float] = {}
        """when each was noted, the earliest first"""
        self._news = trio.Event()

    def note(self, folders: Iterable[str]) -> None:
        """Look at *folders* after a while."""
        now = trio.current_time()
        for folder in folders:
            is_ours = folder.startswith((f"{paths.KEYS}/", f"{paths.LEASES}/"))
            if is_ours and len(self._noted) < NOTED_MAX:
                self._noted.setdefault(folder, now)
        if self._noted:
            self._news.set()

    async def run(self) -> None:
        """Remove what is empty, until cancelled."""
        while True:
            await self._news.wait()
            await trio.sleep_until(next(iter(self._noted.values())) + REST_S)
            now, first = trio.current_time(), islice(self._noted.items(), TOGETHER_MAX)
            due = [folder for folder, noted_at in first if noted_at + REST_S <= now]
            for folder in due:
                del self._noted[folder]
            if not self._noted:
                self._news = trio.Event()
            try:
                await self._remove(due)
            except MetadataUnavailable:
                self.note(due)
            except MetadataError as failure:  # folders may stay, whatever is wrong
                _log.warning("empty folders are left in ZooKeeper: %s", failure)

    async def _remove(self, folders: list[str]) -> None:
        """Remove those of *folders* that are empty. Raises MetadataUnavailable."""
        found = await self._connection.stat(folders)
        pairs = list(zip(folders, found, strict=True))
        self._on_removed([folder for folder, stat in pairs if stat is None])
        empty = [folder for folder, stat in pairs if stat is not None and not stat.children]
        while empty:
            outcome = await self._connection.multi([Remove(folder) for folder in empty])
            if isinstance(outcome, Refused):
                del empty[outcome.place]  # it has a node again, or is gone
                continue
            self._on_removed(empty)
            self.note(folder.rpartition("/")[0] for folder in empty)
            return
