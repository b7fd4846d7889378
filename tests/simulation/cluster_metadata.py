"""The metadata of a simulated cluster: what bookies and clients open, and what the harness sees.

in memory     every machine has the same store                              (here)
in a file     bookies open SQLite, and clients ask the bookies      (metadata_file.py)
in ZooKeeper  bookies have sessions, and clients ask the bookies    (metadata_ensemble.py)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import trio
from memory_store import MemoryStore

from metadata.store import MetadataStore, Versioned


class ClusterMetadata(Protocol):
    """Metadata of one cluster.

    Attributes:
        values: every key as it is now.
        on_change: called with each change of a key; None: it was deleted.
    """

    values: dict[str, Versioned]
    on_change: Callable[[str, Versioned | None], None]

    @property
    def observer(self) -> MetadataStore:
        """A store that no fault befalls, for the harness."""

    async def run(self) -> None:
        """Do what the metadata need to have done, until cancelled."""

    def at_bookie(self) -> AbstractAsyncContextManager[MetadataStore]:
        """The store of one process of a bookie."""

    def at_client(self) -> AbstractAsyncContextManager[MetadataStore]:
        """The store of one process of a client."""

    def change(self, key: str, value: bytes) -> int:
        """Put at once."""

    def set_back(self, keys: Iterable[str], counter: str, next_id: int) -> None:
        """Lose *keys* and the ids from *next_id* on, as a restore from a backup does."""

    def close(self) -> None:
        """Close what is open. Nothing uses the metadata any more."""


class InMemory(MemoryStore):
    """Metadata that every machine reaches by itself."""

    @property
    def observer(self) -> MetadataStore:
        return self

    async def run(self) -> None:
        await trio.sleep_forever()

    @asynccontextmanager
    async def at_bookie(self) -> AsyncIterator[MetadataStore]:
        yield self

    @asynccontextmanager
    async def at_client(self) -> AsyncIterator[MetadataStore]:
        yield self

    def close(self) -> None:
        """There is nothing to close."""
