"""A watch over any store: a channel that asks for changes while a task receives.

No task runs in the background, so a watch costs nothing while its reader is busy. Changes made
meanwhile arrive merged, or as one hint for everything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from metadata.errors import MetadataUnavailable
from metadata.store import MetadataStore

WAIT_S = 20.0
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 1.0


@asynccontextmanager
async def watching(store: MetadataStore, prefix: str) -> AsyncIterator[StoreWatch]:
    """Watch *prefix* from now on; the contract is MetadataStore.watch."""
    start = await store.changes(prefix)
    channel = StoreWatch(store, prefix, start.revision)
    try:
        yield channel
    finally:
        await channel.aclose()


class StoreWatch(trio.abc.ReceiveChannel[str]):
    """Hints about changes under *prefix* after *revision*."""

    def __init__(self, store: MetadataStore, prefix: str, revision: int) -> None:
        self._store = store
        self._prefix = prefix
        self._revision = revision
        self._hints: deque[str] = deque()
        self._turn = trio.Lock()
        self._closed = False

    async def receive(self) -> str:
        """Return the next hint; *prefix* itself means everything under it.

        Raises:
            trio.ClosedResourceError: the watch is closed.
            MetadataBroken: the store is damaged.
        """
        async with self._turn:
            while not self._hints:
                await self._ask()
            return self._hints.popleft()

    async def aclose(self) -> None:
        """End the watch. A task that is receiving notices it with the next change."""
        self._closed = True
        self._hints.clear()
        await trio.lowlevel.checkpoint()

    async def _ask(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        try:
            changes = await self._store.changes(self._prefix, since=self._revision, wait_s=WAIT_S)
        except MetadataUnavailable:
            await self._outlast()
            return
        self._revision = changes.revision
        self._hints.extend([self._prefix] if changes.everything else changes.keys)

    async def _outlast(self) -> None:
        pause_s = PAUSE_S_MIN
        while not self._closed:
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            try:
                changes = await self._store.changes(self._prefix)
            except MetadataUnavailable:
                continue
            self._revision = changes.revision
            self._hints.append(self._prefix)
            return
