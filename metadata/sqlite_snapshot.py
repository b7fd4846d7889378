"""A snapshot of a SQLite store: one read transaction on a connection of its own.

In WAL mode it sees the store as it was when it began, however much is changed meanwhile. The log
cannot be reused as long as it is open, and grows with these changes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from metadata import lease_rows, rows
from metadata.moving import Floors
from metadata.store import Leases, Page, check_page
from metadata.transactions import Transactions

T = TypeVar("T")


class SqliteSnapshot:
    """A Snapshot of the store behind *connection*, which has a transaction open."""

    def __init__(
        self, store: Transactions, connection: sqlite3.Connection, leases_ms: int, time_ms: int
    ) -> None:
        """*leases_ms* is the moment for leases, *time_ms* the store's time."""
        self._store = store
        self._connection = connection
        self._leases_ms = leases_ms
        self._time_ms = time_ms
        self._limiter = trio.CapacityLimiter(1)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """As MetadataStore.list."""
        check_page(prefix, after, limit)
        return await self._read(lambda connection: rows.page(connection, prefix, after, limit))

    async def leases(self, prefix: str, *, after: str = "") -> Leases:
        """As MetadataStore.leases."""
        check_page(prefix, after)
        now_ms = self._leases_ms
        return await self._read(
            lambda connection: lease_rows.live(connection, prefix, after, now_ms)
        )

    async def floors(self) -> Floors:
        """As Snapshot.floors."""
        return await self._read(
            lambda connection: Floors(
                counters=rows.counters(connection),
                time_ms=self._time_ms,
                revision=rows.revision(connection),
            )
        )

    async def is_consistent(self) -> bool:
        """Return True: the transaction sees one moment."""
        await trio.lowlevel.checkpoint()
        return True

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await trio.to_thread.run_sync(
                work, self._connection, limiter=self._limiter, abandon_on_cancel=False
            )
        except sqlite3.Error as error:
            raise self._store.translate(error) from error


@asynccontextmanager
async def open_snapshot(
    store: Transactions, *, leases_ms: int, time_ms: int
) -> AsyncIterator[SqliteSnapshot]:
    """Begin a snapshot of *store*. Raises as open_connection."""

    def begin() -> sqlite3.Connection:
        connection = store.connect()
        connection.execute("BEGIN")
        rows.revision(connection)  # a transaction begins with its first read
        return connection

    connection = await trio.to_thread.run_sync(begin)
    try:
        yield SqliteSnapshot(store, connection, leases_ms, time_ms)
    finally:
        with trio.CancelScope(shield=True):  # bounded: nothing is written
            await trio.to_thread.run_sync(connection.close)
