"""The SQLite driver: one file, shared by the processes of one host.

With a write-ahead log and synchronous=FULL, a transaction is one fsync, and survives power loss.
Changes wait for each other, across processes too, up to the store's timeout; those of one process
that wait together share a transaction. Reads never wait. The file must be on a local disk,
because SQLite's locks and shared memory do not work over network file systems.

One connection writes, another reads; each runs on worker threads. Reads that wait together take the
thread once. A store that is watched rests until another process announces a change
(announcements.py), and looks by itself once a second.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio

from metadata import clock_rows, lease_rows, rows
from metadata.announcements import Announcements
from metadata.clock import host_wall_ms
from metadata.moving import Floors, Snapshot, check_floors
from metadata.revisions import ChangePoll
from metadata.sqlite_snapshot import open_snapshot
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
    StoreSession,
    Versioned,
    Versions,
    check_changes,
    check_grant,
    check_ids,
    check_key,
    check_lease,
    check_opening,
    check_ops,
    check_page,
    check_prefix,
    check_session,
)
from metadata.transactions import Transactions
from metadata.watch import PollSource, Watches

TIMEOUT_S = 10.0
LOOK_S = 1.0
"""How often a store that is watched looks for changes that nobody announced."""
SWEEP_MS_MAX = 60_000
"""And for sessions that ran out, if it knows of none."""
T = TypeVar("T")


class SqliteStore:
    """A MetadataStore in the SQLite file at *path*. Open it with SqliteStore.open."""

    def __init__(
        self,
        writer: Transactions,
        reader: Transactions,
        news: Announcements,
        clock_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        boot: str,
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._clock_ms = clock_ms
        self._wall_ms = wall_ms
        self._boot = boot
        self._news = news
        self._poll = ChangePoll(self._read_revision, self._changes_anywhere, self._pause)
        self._revision = 0
        self._seen: int | None = None
        self._sweep_ms = 0
        """when a session may be over, by the clock of leases"""
        self._made = self._announced = 0
        """newest revisions that a change of this process had; used in the writer's thread"""
        writer.on_change = self._announce
        self.watches = Watches(PollSource(self))

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
        boot = clock_rows.host_boot() if boot is None else boot
        return cls(writer, reader, Announcements(path), clock_ms, wall_ms, boot)

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
        now = self._moment()
        found = await self._reader.read(lambda connection: clock_rows.read(connection, now))
        if found is None:
            found = await self._change(lambda connection: clock_rows.advance(connection, now))
        return found

    async def open_session(self, owner: str, *, ttl_s: float) -> StoreSession:
        """Open a session, as MetadataStore.open_session specifies. Costs one sync."""
        check_opening(owner, ttl_s)
        ttl_ms = round(ttl_s * 1000)
        return await self._change(
            lambda connection: lease_rows.open_session(
                connection, owner, ttl_ms=ttl_ms, now_ms=self._clock_ms()
            )
        )

    async def keep_session(self, session: StoreSession) -> None:
        """Keep a session, as MetadataStore.keep_session specifies. Costs one sync."""
        check_session(session)
        await self._change(
            lambda connection: lease_rows.keep_session(connection, session, self._clock_ms())
        )

    async def end_session(self, session: StoreSession) -> None:
        """End a session, as MetadataStore.end_session specifies. Costs one sync."""
        check_session(session)
        await self._change(lambda connection: lease_rows.end_session(connection, session))

    async def grant(
        self, name: str, session: StoreSession, *, owner: str = "", value: bytes = b""
    ) -> Lease:
        """Take a lease, as MetadataStore.grant specifies. Costs one sync."""
        check_grant(name, session, owner, value)
        return await self._change(
            lambda connection: lease_rows.grant(
                connection,
                name,
                session,
                owner=owner or session.owner,
                value=value,
                now_ms=self._clock_ms(),
            )
        )

    async def update(self, lease: Lease, value: bytes) -> Lease:
        """Set a lease's value, as MetadataStore.update specifies. Costs one sync."""
        check_lease(lease, value)
        return await self._change(
            lambda connection: lease_rows.update(connection, lease, value, self._clock_ms())
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

    @property
    def is_cut_off(self) -> bool:
        """As MetadataStore.is_cut_off: never. A look at a file that is away fails, or hangs."""
        return False

    async def changes(
        self, prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> Changes:
        """Wait for changes, as MetadataStore.changes specifies.

        All calls that wait poll together, and read what changed once.
        """
        check_changes(prefix, since, wait_s)
        until = trio.current_time() + wait_s
        found = await self._changes(prefix, since)
        while since is not None and not (found.keys or found.everything):
            left_s = until - trio.current_time()
            if left_s <= 0:
                return found
            quiet = await self._poll.wait(prefix, found.revision, left_s)
            if quiet is not None:
                return Changes(quiet, [])
            found = await self._changes(prefix, found.revision)
        return found

    def watch(self, prefix: str) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[str]]:
        """Watch a prefix, as MetadataStore.watch specifies. Polls while a task receives."""
        check_prefix(prefix)
        return self.watches.watch(prefix)

    # --- moving house (metadata/moving.py) ------------------------------------------------

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        """As MovableStore.snapshot, of one moment. Needs no sync."""
        time_ms, leases_ms = await self.now_ms(), self._clock_ms()
        async with open_snapshot(self._reader, leases_ms=leases_ms, time_ms=time_ms) as snapshot:
            yield snapshot

    async def floors(self) -> Floors:
        """As MovableStore.floors. Needs no sync."""
        time_ms = await self.now_ms()
        return await self._reader.read(
            lambda connection: Floors(
                counters=rows.counters(connection),
                time_ms=time_ms,
                revision=rows.revision(connection),
            )
        )

    async def raise_floors(self, floors: Floors) -> None:
        """As MovableStore.raise_floors. Costs one sync; all is done, or nothing."""
        check_floors(floors)
        now = self._moment()

        def work(connection: sqlite3.Connection) -> None:
            rows.raise_counters(connection, floors.counters)
            rows.raise_revision(connection, floors.revision)
            clock_rows.raise_to(connection, floors.time_ms, now)

        await self._change(work)

    async def aclose(self) -> None:
        """As MetadataStore.aclose; waits for a change that is under way."""
        self._news.close()
        await self._reader.aclose()
        await self._writer.aclose()

    def _moment(self) -> clock_rows.Moment:
        return clock_rows.Moment(self._boot, self._clock_ms(), self._wall_ms())

    async def _changes(self, prefix: str, since: int | None) -> Changes:
        return await self._reader.read(lambda connection: rows.changes(connection, prefix, since))

    async def _changes_anywhere(self, since: int) -> Changes:
        return await self._changes("", since)

    async def _change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def counted(connection: sqlite3.Connection) -> tuple[T, int]:
            result = work(connection)
            self._made = rows.revision(connection)
            return result, self._made

        result, revision = await self._writer.change(counted)
        self._poll.advance(revision)
        return result

    def _announce(self) -> None:
        """Announce changes, but not that a session was kept, which nobody waits for."""
        if self._made != self._announced:
            self._announced = self._made
            self._news.announce()

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

    async def _pause(self) -> None:
        """Wait until there may be a new revision."""
        left_s = (self._sweep_ms - self._clock_ms()) / 1000
        await self._news.wait(min(LOOK_S, max(left_s, 0.0)))

    async def _read_revision(self) -> int:
        """Return the newest revision; without a change that costs no transaction."""
        seen = await self._reader.version()
        if seen != self._seen or self._clock_ms() >= self._sweep_ms:
            self._revision = await self._sweep()
            self._seen = seen
        return self._revision

    async def _sweep(self) -> int:
        """Record leases that ran out as changes; return the newest revision."""
        now_ms = self._clock_ms()
        over_ms, revision = await self._reader.read(
            lambda connection: (
                lease_rows.next_over_ms(connection, now_ms),
                rows.revision(connection),
            )
        )
        self._sweep_ms = now_ms + SWEEP_MS_MAX if over_ms is None else over_ms
        if self._sweep_ms <= now_ms:
            await self._change(lambda connection: lease_rows.sweep(connection, self._clock_ms()))
        return revision
