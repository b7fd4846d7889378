"""Transactions on a worker thread: one connection, one transaction at a time.

A limiter of one guards the connection. The thread holds it until it ends, even if its caller was
cancelled, so a cancelled change is over before the next one starts.

Changes that arrive while a transaction runs share the next one, and so its sync:

    change ──► waiting ──drain──► BEGIN, SAVEPOINT each, COMMIT ──► outcome of each
               (in order)         (in the thread)

The first task that waits leads: it starts the thread, for all of them. If it is cancelled, the
next one takes over. A savepoint keeps the changes apart, so the refusal of one undoes that one
alone. Whenever SQLite itself refuses something, the transaction is rolled back, and each of its
changes is made by itself: a value that does not fit the disk takes no other change with it.
Whatever goes wrong, each change that the thread took has an outcome when the thread ends.

Reads share a transaction in the same way, without savepoints: it begins after all were asked for.
"""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import trio

from metadata.errors import MetadataError, MetadataUnavailable
from metadata.schema import error_code, open_connection, translate

T = TypeVar("T")
READ = "BEGIN"
CHANGE = "BEGIN IMMEDIATE"
TOGETHER_MAX = 256
"""Changes in one transaction; readers see none of them before the last is made."""


class _Change(Generic[T]):
    """A change or a read, and what became of it.

    Attributes:
        begin: the statement that begins its transaction.
        deadline: by time.monotonic().
        news: set for the task that waits: the outcome is there, or it is its turn to lead.
        is_settled: result or error is there. Written by the thread, read by the task.
        is_abandoned: the task was cancelled, so a change that has not begun is not made.
    """

    __slots__ = (
        "begin",
        "deadline",
        "error",
        "is_abandoned",
        "is_settled",
        "news",
        "result",
        "work",
    )

    def __init__(
        self, begin: str, work: Callable[[sqlite3.Connection], T], deadline: float
    ) -> None:
        self.begin = begin
        self.work = work
        self.deadline = deadline
        self.news = trio.Event()
        self.is_settled = self.is_abandoned = False
        self.result: T | None = None
        self.error: BaseException | None = None

    def settle(self, result: T | None, error: BaseException | None) -> None:
        """Note the outcome. Called in the thread, once."""
        self.result, self.error = result, error
        self.is_settled = True


class Transactions:
    """Runs functions inside transactions on the store at *path*.

    Attributes:
        on_change: called in the thread after changes were made.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, *, timeout_s: float) -> None:
        self._path = path
        self._connection = connection
        self._timeout_s = timeout_s
        self._limiter = trio.CapacityLimiter(1)
        self._closed = False
        self._waiting: deque[_Change[Any]] = deque()
        self._begun: deque[_Change[Any]] = deque()
        """taken by the thread, which settles them in this order; their tasks wait for news"""
        self._is_led = False
        self.on_change: Callable[[], None] = lambda: None

    @classmethod
    async def open(cls, path: Path, *, timeout_s: float) -> Transactions:
        """Open a new connection. Raises as open_connection."""
        connection = await trio.to_thread.run_sync(
            lambda: open_connection(path, timeout_s=timeout_s)
        )
        return cls(path, connection, timeout_s=timeout_s)

    def connect(self) -> sqlite3.Connection:
        """Open another connection to the same store; blocks. Raises as open_connection."""
        return open_connection(self._path, timeout_s=self._timeout_s)

    def translate(self, error: sqlite3.Error) -> MetadataError:
        """Return an error of connect()'s connection as schema.translate does."""
        return translate(error, self._path)

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of *work*, which sees one state of the store.

        Reads that wait together are made in one visit to the thread, and in one transaction.
        """
        return await self._queue(READ, work)

    async def version(self) -> int:
        """Return a number that differs after each change by another connection or process.

        It lies in memory that the processes share. So it is read in the event loop while no
        thread uses the connection, in a tenth of the time that a thread takes to wake.
        """
        await trio.lowlevel.checkpoint()
        if self._limiter.available_tokens:
            with suppress(MetadataUnavailable):  # locked, after the end of another process
                return self._version(0.0)
        return await trio.to_thread.run_sync(
            self._version, self._timeout_s, limiter=self._limiter, abandon_on_cancel=True
        )

    def _version(self, wait_s: float) -> int:
        if self._closed:
            raise MetadataUnavailable(f"{self._path}: the store is closed")
        try:
            self._connection.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
            (found,) = self._connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error as error:
            raise translate(error, self._path) from error
        return int(found)

    async def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of *work* once its changes are on disk.

        *work* may be called twice, the second time after its first changes were undone. If it
        raises, nothing is changed. If the caller is cancelled while the thread runs, the change
        may still be made.

        Raises:
            MetadataUnavailable: the store is locked, full or failing, after *timeout_s* at most.
            MetadataBroken: the file is damaged.
        """
        return await self._queue(CHANGE, work)

    async def _queue(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        mine = _Change(begin, work, time.monotonic() + self._timeout_s)
        self._waiting.append(mine)
        try:
            while not mine.is_settled:
                if self._is_led:
                    await mine.news.wait()
                    mine.news = trio.Event()
                else:
                    await self._lead()
        finally:
            if not mine.is_settled:
                mine.is_abandoned = True
                if not self._is_led:  # it may have been chosen as the next leader
                    self._notify()
        if mine.error is not None:
            raise mine.error
        return cast("T", mine.result)

    async def aclose(self) -> None:
        """Close the connection after the transaction that is under way."""
        self._closed = True
        with trio.CancelScope(shield=True):  # bounded: a transaction has a deadline
            await trio.to_thread.run_sync(self._connection.close, limiter=self._limiter)

    # --- changes that share a transaction ----------------------------------------------

    async def _lead(self) -> None:
        """Make the changes that wait, in one transaction."""
        self._is_led = True
        try:
            await trio.to_thread.run_sync(
                self._drain, limiter=self._limiter, abandon_on_cancel=True
            )
        finally:
            self._is_led = False
            self._notify()

    def _notify(self) -> None:
        """Wake the tasks whose changes are settled, and one that leads the next transaction."""
        while self._begun and self._begun[0].is_settled:
            self._begun.popleft().news.set()
        # The thread of a task that was cancelled may still add to one and take from the other.
        for change in (*self._begun.copy(), *self._waiting.copy()):
            if not change.is_abandoned:
                change.news.set()
                break

    def _drain(self) -> None:
        """Take the changes that wait, and settle all of them. Runs in the thread.

        An exception is the outcome of the changes that have none yet. The leader gets one that
        ends the program, too, because the tasks of the changes may have been cancelled.
        """
        taken = self._take()
        try:
            self._make(taken)
        except BaseException as error:
            for change in taken:
                if not change.is_settled:
                    change.settle(None, error)
            if not isinstance(error, Exception):
                raise
        finally:
            if any(change.begin == CHANGE and change.error is None for change in taken):
                self.on_change()

    def _take(self) -> list[_Change[Any]]:
        taken: list[_Change[Any]] = []
        while self._waiting and len(taken) < TOGETHER_MAX:
            change = self._waiting.popleft()
            if not change.is_abandoned:
                taken.append(change)
        self._begun.extend(taken)
        return taken

    def _make(self, taken: Sequence[_Change[Any]]) -> None:
        begin = taken[0].begin if taken else READ
        shared = len(taken) > 1 and all(change.begin == begin for change in taken)
        if not (shared and self._make_together(begin, taken)):
            for change in taken:
                self._make_alone(change)

    def _make_alone(self, change: _Change[Any]) -> None:
        try:
            result = self._transact(change.begin, change.work, change.deadline)
        except Exception as error:  # noqa: BLE001 - for the task that waits
            change.settle(None, error)
        else:
            change.settle(result, None)

    def _make_together(self, begin: str, taken: Sequence[_Change[Any]]) -> bool:
        """Make the changes in one transaction; False if none was made, and none settled.

        Raises what rolling back raises; then the outcome of all of them is that.
        """
        left_s = taken[0].deadline - time.monotonic()
        if self._closed or left_s <= 0:
            return False
        committing = False
        try:
            self._begin(begin, left_s)
            make = self._make_inside if begin == CHANGE else self._look_inside
            outcomes = [make(change) for change in taken]
            committing = begin == CHANGE
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if not (committing and error_code(error) == sqlite3.SQLITE_IOERR):
                return False
            failure = translate(error, self._path, committing=True)
            outcomes = [(None, failure)] * len(taken)
        finally:
            self._roll_back(committing=committing)
        for change, outcome in zip(taken, outcomes, strict=True):
            change.settle(*outcome)
        return True

    def _make_inside(self, change: _Change[T]) -> tuple[T | None, Exception | None]:
        """Make one change between savepoints. Raises what SQLite itself refuses."""
        result: T | None = None
        refusal: Exception | None = None
        self._connection.execute("SAVEPOINT one")
        try:
            result = change.work(self._connection)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - for the task that waits
            refusal = error
            self._connection.execute("ROLLBACK TO one")
        self._connection.execute("RELEASE one")
        return result, refusal

    def _look_inside(self, read: _Change[T]) -> tuple[T | None, Exception | None]:
        """Make one read. Raises what SQLite itself refuses."""
        try:
            return read.work(self._connection), None
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - for the task that waits
            return None, error

    # --- one transaction ---------------------------------------------------------------

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
            self._begin(begin, left_s)
            result = work(self._connection)
            committing = True
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise translate(error, self._path, committing=committing) from error
        finally:
            self._roll_back(committing=committing)
        return result

    def _begin(self, begin: str, left_s: float) -> None:
        self._roll_back()  # what an earlier failure left open
        self._connection.execute(f"PRAGMA busy_timeout = {max(1, int(left_s * 1000))}")
        self._connection.execute(begin)

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

    def _roll_back(self, *, committing: bool = False) -> None:
        """End a transaction that is open.

        With *committing*, the failure of its COMMIT is the outcome, and stays it if this fails
        too: the next transaction tries again before it begins.
        """
        if self._connection.in_transaction:
            try:
                self._connection.rollback()
            except sqlite3.Error as error:
                if not committing:
                    raise translate(error, self._path) from error


def _is_full(error: MetadataUnavailable) -> bool:
    cause = error.__cause__
    return isinstance(cause, sqlite3.Error) and error_code(cause) == sqlite3.SQLITE_FULL
