"""Transactions on a worker thread: one connection, one transaction at a time.

A limiter of one guards the connection. The thread holds it until it ends, even if its caller was
cancelled, so a cancelled change is over before the next one starts.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trio

from metadata.errors import MetadataUnavailable
from metadata.schema import error_code, open_connection, translate

T = TypeVar("T")


class Transactions:
    """Runs functions inside transactions on the store at *path*."""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, timeout_s: float) -> None:
        self._path = path
        self._connection = connection
        self._timeout_s = timeout_s
        self._limiter = trio.CapacityLimiter(1)
        self._closed = False

    @classmethod
    async def open(cls, path: Path, *, timeout_s: float) -> Transactions:
        """Open a new connection. Raises as open_connection."""
        connection = await trio.to_thread.run_sync(
            lambda: open_connection(path, timeout_s=timeout_s)
        )
        return cls(path, connection, timeout_s=timeout_s)

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of *work*, which sees one state of the store."""
        return await self._run("BEGIN", work)

    async def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of *work* once its changes are on disk.

        If *work* raises, nothing is changed. If the caller is cancelled while the thread runs,
        the change may still be made.

        Raises:
            MetadataUnavailable: the store is locked, full or failing, after *timeout_s* at most.
            BadStore: the file is damaged.
        """
        return await self._run("BEGIN IMMEDIATE", work)

    async def aclose(self) -> None:
        """Close the connection after the transaction that is under way."""
        self._closed = True
        with trio.CancelScope(shield=True):  # bounded: a transaction has a deadline
            await trio.to_thread.run_sync(self._connection.close, limiter=self._limiter)

    async def _run(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        deadline = time.monotonic() + self._timeout_s
        return await trio.to_thread.run_sync(
            lambda: self._transact(begin, work, deadline),
            limiter=self._limiter,
            abandon_on_cancel=True,
        )

    def _transact(self, begin: str, work: Callable[[sqlite3.Connection], T], deadline: float) -> T:
        if self._closed:
            raise MetadataUnavailable(f"{self._path}: the store is closed")
        try:
            return self._attempt(begin, work, deadline)
        except MetadataUnavailable as error:
            if not (_is_full(error) and self._reuse_log()):
                raise
        return self._attempt(begin, work, deadline)

    def _attempt(self, begin: str, work: Callable[[sqlite3.Connection], T], deadline: float) -> T:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise MetadataUnavailable(f"{self._path}: no turn within {self._timeout_s} s")
        committing = False
        try:
            self._connection.execute(f"PRAGMA busy_timeout = {max(1, int(left_s * 1000))}")
            self._connection.execute(begin)
            result = work(self._connection)
            committing = True
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise translate(error, self._path, committing=committing) from error
        finally:
            self._roll_back()
        return result

    def _reuse_log(self) -> bool:
        """Let the next change overwrite the write-ahead log; return False if it cannot.

        On a full disk the log cannot grow, but a checkpoint into the file makes room in it. So
        bookies on a full disk keep their leases, and readers find them.
        """
        try:
            row = self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        except sqlite3.Error:
            return False
        return bool(row[0] == 0)

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            try:
                self._connection.rollback()
            except sqlite3.Error as error:
                raise translate(error, self._path) from error


def _is_full(error: MetadataUnavailable) -> bool:
    cause = error.__cause__
    return isinstance(cause, sqlite3.Error) and error_code(cause) == sqlite3.SQLITE_FULL
