"""The SQLite driver: one file, shared by the processes of one host.

With a write-ahead log and synchronous=FULL, a transaction is one fsync, and survives power loss.
Changes wait for each other, across processes too, up to the store's timeout; those of one process
that wait together share a transaction. Reads never wait. The file must be on a local disk,
because SQLite's locks and shared memory do not work over network file systems.

One connection writes, another reads; each runs on worker threads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar

import trio

from metadata import clock_rows, lease_rows, rows
from metadata.clock import host_wall_ms
from metadata.revisions import RevisionPoll
from metadata.store import (
    Changes,
    Check,
    CheckLease,
    Delete,
    Lease,
    Leases,
    Op,
    Page,
    Put,
    Versioned,
    Versions,
    check_changes,
    check_grant,
    check_ids,
    check_key,
    check_lease,
    check_ops,
    check_page,
)
from metadata.transactions import Transactions
from metadata.watch import watching

TIMEOUT_S = 10.0
T = TypeVar("T")


class SqliteStore:
    """A MetadataStore in the SQLite file at *path*. Open it with SqliteStore.open."""

    def __init__(
        self,
        writer: Transactions,
        reader: Transactions,
        clock_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        boot: str,
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._clock_ms = clock_ms
        self._wall_ms = wall_ms
        self._boot = boot
        self._pulse = RevisionPoll(self._read_revision)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        timeout_s: float = TIMEOUT_S,
        clock_ms: Callable[[], int] = lease_rows.host_clock_ms,
        wall_ms: Callable[[], int] = host_wall_ms,
        boot: str | None = None,
    ) -> SqliteStore:
        """Open the store, creating the file if it is missing; its folder must exist.

        Args:
            path: the file.
            timeout_s: how long a call waits for other processes at most.
            clock_ms: milliseconds since the boot, the clock of leases; it must be the same
                for every process.
            wall_ms: the wall clock, which may be set at any time.
            boot: id of this boot of the host; by default the kernel's.

        Raises:
            MetadataBroken: the file is foreign, damaged, or of a newer version.
            MetadataUnavailable: it cannot be opened.
        """
        writer = await Transactions.open(path, timeout_s=timeout_s)
        try:
            reader = await Transactions.open(path, timeout_s=timeout_s)
        except BaseException:
            await writer.aclose()
            raise
        return cls(
            writer, reader, clock_ms, wall_ms, clock_rows.host_boot() if boot is None else boot
        )

    async def get(self, key: str) -> Versioned | None:
        """Read a key, as MetadataStore.get specifies. Needs no sync."""
        check_key(key)
        return await self._reader.read(lambda connection: rows.get(connection, key))

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Write a key, as MetadataStore.put specifies. Costs one sync."""
        (version,) = await self.transact([Put(key, value, expected)])
        return version

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        """Delete a key, as MetadataStore.delete specifies. Costs one sync."""
        await self.transact([Delete(key, expected)])

    async def transact(self, ops: Sequence[Op]) -> Versions:
        """Do all ops or none, as MetadataStore.transact specifies. Costs one sync."""
        ops = tuple(ops)
        check_ops(ops)
        return await self._change(lambda connection: [self._apply(connection, op) for op in ops])

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """List keys, as MetadataStore.list specifies. Needs no sync."""
        check_page(prefix, after, limit)
        return await self._reader.read(
            lambda connection: rows.page(connection, prefix, after, limit)
        )

    async def next_id(self, counter: str, count: int = 1) -> int:
        """Issue fresh ids, as MetadataStore.next_id specifies. Costs one sync."""
        check_ids(counter, count)
        return await self._change(lambda connection: rows.next_id(connection, counter, count))

    async def now_ms(self) -> int:
        """As MetadataStore.now_ms. Costs a read, and once a minute a change."""
        now = clock_rows.Moment(self._boot, self._clock_ms(), self._wall_ms())
        found = await self._reader.read(lambda connection: clock_rows.read(connection, now))
        if found is None:
            found = await self._change(lambda connection: clock_rows.advance(connection, now))
        return found

    async def grant(self, name: str, owner: str, *, ttl_s: float, value: bytes = b"") -> Lease:
        """Take a lease, as MetadataStore.grant specifies. Costs one sync."""
        check_grant(name, owner, ttl_s, value)
        return await self._change(
            lambda connection: lease_rows.grant(
                connection,
                name,
                owner,
                ttl_ms=round(ttl_s * 1000),
                value=value,
                now_ms=self._clock_ms(),
            )
        )

    async def renew(self, lease: Lease, *, value: bytes | None = None) -> Lease:
        """Extend a lease, as MetadataStore.renew specifies. Costs one sync."""
        check_lease(lease, value)
        return await self._change(
            lambda connection: lease_rows.renew(connection, lease, value, self._clock_ms())
        )

    async def release(self, lease: Lease) -> None:
        """End a lease, as MetadataStore.release specifies. Costs one sync."""
        check_lease(lease)
        await self._change(lambda connection: lease_rows.release(connection, lease))

    async def leases(self, prefix: str, *, after: str = "") -> Leases:
        """List live leases, as MetadataStore.leases specifies. Needs no sync."""
        check_page(prefix, after)
        return await self._reader.read(
            lambda connection: lease_rows.live(connection, prefix, after, self._clock_ms())
        )

    async def changes(
        self, prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> Changes:
        """Wait for changes, as MetadataStore.changes specifies. Polls while it waits."""
        check_changes(prefix, since, wait_s)
        found = await self._changes(prefix, since)
        with trio.move_on_after(wait_s):
            while since is not None and not (found.keys or found.everything):
                await self._pulse.wait_past(found.revision)
                found = await self._changes(prefix, found.revision)
        return found

    def watch(self, prefix: str) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[str]]:
        """Watch a prefix, as MetadataStore.watch specifies. Polls while a task receives."""
        return watching(self, prefix)

    async def aclose(self) -> None:
        """As MetadataStore.aclose; waits for a change that is under way."""
        await self._reader.aclose()
        await self._writer.aclose()

    async def _changes(self, prefix: str, since: int | None) -> Changes:
        return await self._reader.read(lambda connection: rows.changes(connection, prefix, since))

    async def _change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        result, revision = await self._writer.change(
            lambda connection: (work(connection), rows.revision(connection))
        )
        self._pulse.advance(revision)
        return result

    def _apply(self, connection: sqlite3.Connection, op: Op) -> int:
        match op:
            case Put():
                return rows.put(connection, op)
            case Delete():
                return rows.delete(connection, op)
            case Check():
                return rows.check(connection, op)
            case CheckLease():
                return lease_rows.check(connection, op, self._clock_ms())

    async def _read_revision(self) -> int:
        over, revision = await self._reader.read(
            lambda connection: (
                lease_rows.any_over(connection, self._clock_ms()),
                rows.revision(connection),
            )
        )
        if over:
            await self._change(lambda connection: lease_rows.sweep(connection, self._clock_ms()))
        return revision
