"""The ZooKeeper driver: one ensemble, shared by the bookies of many hosts.

A change is one multi, which a majority of the ensemble has on disk before the call returns. Reads
first let the server that answers catch up with the leader, so that they see every change that
returned, wherever it was made. (A leader that was cut off and does not know it yet may answer so
for a few ticks; what is read then is old, and a change that expects it is refused.)

    paths.py      where keys lie            plan.py      a transaction as ops
    layout.py     BookKeeper's own nodes    commits.py   multis, each made once
    sessions.py   who is alive              changelog.py hints
    leases.py     who holds what            keys.py      reading keys

Without a connection calls wait for one, and raise MetadataUnavailable at their deadline.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager

import trio

from metadata.clock import host_wall_ms
from metadata.errors import LeaseLost, MetadataUnavailable, VersionConflict
from metadata.moving import Floors, Snapshot, check_floors, live_view
from metadata.store import (
    Changes,
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
    check_session,
)
from metadata.watch import PollSource, Watches
from metadata.zookeeper.changelog import ChangeLog
from metadata.zookeeper.changing import Changing
from metadata.zookeeper.commits import Commits
from metadata.zookeeper.connection import KazooConnection
from metadata.zookeeper.counters import Counters
from metadata.zookeeper.floors import RaisedConnection
from metadata.zookeeper.founding import find_cluster
from metadata.zookeeper.keys import Keys
from metadata.zookeeper.layout import Layout
from metadata.zookeeper.leases import LeaseNodes
from metadata.zookeeper.patience import Patience
from metadata.zookeeper.plan import Plan, Reading, Transaction
from metadata.zookeeper.sessions import Sessions
from metadata.zookeeper.store_clock import StoreTime
from metadata.zookeeper.url import parse_zookeeper_url

TIMEOUT_S = 10.0
RETRY_S = 0.1
SESSION_S = 9.0
"""Life of a store's ZooKeeper session without a sign of it. The ensemble may ask for more.

A holder of leases is sure of them for at most PART_USED of SESSION_S (metadata/sessions.py) after
its session was kept, and less than 1 / CHECK_PART of this life has passed by then
(sessions.py): together no more than this life. So it stops before ZooKeeper ends them.
"""


def trio_clock_ms() -> int:
    """Return milliseconds of trio's clock, which is monotonic."""
    return round(trio.current_time() * 1000)


class ZooKeeperStore:
    """A MetadataStore in an ensemble. Open it with open_zookeeper_store()."""

    def __init__(
        self,
        connection: RaisedConnection,
        layout: Layout,
        *,
        timeout_s: float = TIMEOUT_S,
        clock_ms: Callable[[], int] = trio_clock_ms,
        wall_ms: Callable[[], int] = host_wall_ms,
    ) -> None:
        """run() must be running while the store is used.

        Args:
            connection: to ZooKeeper.
            layout: where BookKeeper's nodes are.
            timeout_s: each call's deadline.
            clock_ms: milliseconds of a clock that nobody can set; the clock of sessions.
            wall_ms: the wall clock, which may be set at any time.
        """
        self.watches = Watches(PollSource(self))
        self._connection = connection
        self._log = ChangeLog(connection)
        self._patience = Patience(connection)
        self._commits = Commits(connection, self._log, self._patience)
        self._changing = Changing(connection, self._commits, self._patience, timeout_s=timeout_s)
        self._counters = Counters(connection)
        self._keys = Keys(connection, layout, self._log, self._changing.empty)
        self._time = StoreTime(connection, clock_ms=clock_ms, wall_ms=wall_ms)
        self._leases = LeaseNodes(
            connection,
            self._changing,
            layout,
            lambda epoch, ttl_s: self._sessions.left_s(epoch, ttl_s),
        )
        self._sessions = Sessions(
            connection,
            self._changing,
            clock_ms=clock_ms,
            next_epoch=self._counters.take_session,
            sweep=self._leases.sweep,
        )
        self._closed = False

    @property
    def zookeeper_session(self) -> int:
        """Id of the store's own session with ZooKeeper; 0 while it has none."""
        return self._connection.session_id

    async def run(self) -> None:
        """Serve the store's calls until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._patience.run)
            nursery.start_soon(self._commits.run)
            nursery.start_soon(self._log.run)
            nursery.start_soon(self._sessions.run)
            nursery.start_soon(self._changing.empty.run)

    # --- keys ------------------------------------------------------------------------------

    async def get(self, key: str) -> Versioned | None:
        """Read a key, as MetadataStore.get specifies."""
        check_key(key)
        with self._deadline():
            return await self._keys.get(key)

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Write a key, as MetadataStore.put specifies."""
        (version,) = await self.transact([Put(key, value, expected)])
        return version

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        """Delete a key, as MetadataStore.delete specifies."""
        await self.transact([Delete(key, expected)])

    async def transact(self, ops: Sequence[Op]) -> Versions:
        """Do all ops or none, as MetadataStore.transact specifies. Costs one multi."""
        ops = tuple(ops)
        check_ops(ops)
        transaction = Transaction(ops, self._keys.place)
        self._check_open()
        if transaction.lease_paths:
            await self._sessions.end_due()
        plan = Plan()
        fresh = False

        async def planning() -> Plan | None:
            nonlocal plan, fresh
            try:
                plan = await self._plan(transaction, fresh=fresh)
            except (VersionConflict, LeaseLost):
                if fresh:
                    raise
                plan = await self._plan(transaction, fresh=True)
            if not plan.changes and len(ops) <= 1 and not fresh:
                plan = await self._plan(transaction, fresh=True)
            is_done = not plan.changes and len(ops) <= 1  # one look is enough for one op
            fresh = True
            return None if is_done else plan

        zxid = await self._changing.make(planning)
        return plan.versions_at(zxid)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """List keys, as MetadataStore.list specifies."""
        check_page(prefix, after, limit)
        with self._deadline():
            return await self._keys.page(prefix, after, limit)

    async def next_id(self, counter: str, count: int = 1) -> int:
        """Issue fresh ids, as MetadataStore.next_id specifies."""
        check_ids(counter, count)
        with self._deadline():
            return await self._counters.take(counter, count)

    async def now_ms(self) -> int:
        """As MetadataStore.now_ms. Costs a read and a write."""
        with self._deadline():
            return await self._time.now_ms()

    # --- sessions and leases ---------------------------------------------------------------

    async def open_session(self, owner: str, *, ttl_s: float) -> StoreSession:
        """Open a session, as MetadataStore.open_session specifies."""
        check_opening(owner, ttl_s)
        self._check_open()
        return await self._sessions.open(owner, ttl_s)

    async def keep_session(self, session: StoreSession) -> None:
        """Keep a session, as MetadataStore.keep_session specifies. Mostly costs nothing.

        Raises MetadataUnavailable at once while there is no connection: another bookie may
        have one.
        """
        check_session(session)
        self._check_open()
        await self._sessions.keep(session)

    async def end_session(self, session: StoreSession) -> None:
        """End a session, as MetadataStore.end_session specifies."""
        check_session(session)
        self._check_open()
        await self._sessions.end(session)

    async def grant(
        self, name: str, session: StoreSession, *, owner: str = "", value: bytes = b""
    ) -> Lease:
        """Take a lease, as MetadataStore.grant specifies."""
        check_grant(name, session, owner, value)
        self._check_open()
        await self._sessions.end_due()
        return await self._leases.grant(name, session, owner or session.owner, value)

    async def update(self, lease: Lease, value: bytes) -> Lease:
        """Set a lease's value, as MetadataStore.update specifies."""
        check_lease(lease, value)
        self._check_open()
        await self._sessions.end_due()
        return await self._leases.update(lease, value)

    async def release(self, lease: Lease) -> None:
        """End a lease, as MetadataStore.release specifies."""
        check_lease(lease)
        self._check_open()
        await self._leases.release(lease)

    async def leases(self, prefix: str, *, after: str = "") -> Leases:
        """List live leases, as MetadataStore.leases specifies."""
        check_page(prefix, after)
        self._check_open()
        await self._sessions.end_due()
        with self._deadline() as answered:
            return await self._leases.live(prefix, after, answered)

    # --- changes ---------------------------------------------------------------------------

    @property
    def is_cut_off(self) -> bool:
        """As MetadataStore.is_cut_off; a connection without an answer ends before its session."""
        return self._log.is_cut_off

    async def changes(
        self, prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> Changes:
        """Wait for changes, as MetadataStore.changes specifies. Costs nothing while it waits."""
        check_changes(prefix, since, wait_s)
        with self._deadline():
            # A client that comes from another bookie may have seen more than this store.
            is_behind = since is not None and since > self._log.revision
            await self._log.catch_up(fresh=is_behind)
        until = trio.current_time() + wait_s
        found = self._log.since(prefix, since)
        while since is not None and not (found.keys or found.everything):
            left_s = until - trio.current_time()
            if left_s <= 0:
                break
            quiet = await self._log.wait(prefix, found.revision, left_s)
            if quiet is not None:
                return Changes(quiet, [])
            found = self._log.since(prefix, found.revision)
        return found

    def watch(self, prefix: str) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[str]]:
        """Watch a prefix, as MetadataStore.watch specifies."""
        return self.watches.watch(prefix)

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """As MovableStore.snapshot; is_consistent() says whether something changed meanwhile."""
        return live_view(self)

    async def floors(self) -> Floors:
        """As MovableStore.floors. Costs two writes."""
        with self._deadline():
            return Floors(
                counters=await self._counters.following(),
                time_ms=await self._time.now_ms(),
                revision=await self._connection.newest(),
            )

    async def raise_floors(self, floors: Floors) -> None:
        """As MovableStore.raise_floors. No other store may be open."""
        check_floors(floors)
        with self._deadline():
            for counter, following in floors.counters.items():
                await self._counters.raise_to(counter, following)
            await self._time.raise_to(floors.time_ms)
            await self._connection.raise_above(floors.revision)

    async def aclose(self) -> None:
        """As MetadataStore.aclose; the sessions that this store sponsors end."""
        self._closed = True
        await self._connection.aclose()

    # --- inside ----------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataUnavailable(f"{self._connection.name}: the store is closed")

    def _deadline(self) -> AbstractContextManager[Callable[[], None]]:
        """Limit a call that changes nothing; changes have deadlines in changing.py."""
        self._check_open()
        return self._changing.deadline()

    async def _plan(self, transaction: Transaction, *, fresh: bool) -> Plan:
        """Read what *transaction* touches, and plan it. Raises VersionConflict, LeaseLost.

        What is not read *fresh* may be old: then the plan is refused, or what is raised is wrong.
        """
        wanted, leases = transaction.paths, transaction.lease_paths
        lives = await self._changing.lives(transaction.guarded)
        stats = await self._connection.stat(wanted, fresh=fresh)
        nodes = await self._connection.get(leases, fresh=fresh) if leases else []
        found = Reading(
            lives,
            dict(zip(wanted, stats, strict=True)),
            dict(zip(leases, nodes, strict=True)),
        )
        plan = transaction.plan(found)
        if fresh:
            for op, path in transaction.lease_checks:
                await self._leases.check(op, found.leases[path])
        return plan


@asynccontextmanager
async def open_zookeeper_store(
    url: str,
    *,
    create: bool = False,
    timeout_s: float = TIMEOUT_S,
    session_s: float = SESSION_S,
    clock_ms: Callable[[], int] = trio_clock_ms,
    wall_ms: Callable[[], int] = host_wall_ms,
) -> AsyncGenerator[ZooKeeperStore]:
    """Open the store of the ensemble that *url* names, for the length of the block.

    Args:
        url: see url.py.
        create: make a cluster at a path that does not exist or is empty.
        timeout_s: each call's deadline.
        session_s: life of the ZooKeeper session.
        clock_ms: as ZooKeeperStore.
        wall_ms: as ZooKeeperStore.

    Raises:
        BadAddress: *url* has another form.
        AccessDenied: ZooKeeper refuses the login.
        MetadataBroken: the path holds no cluster, or one that this program does not know.
        MetadataUnavailable: no ZooKeeper answers.
    """
    address = parse_zookeeper_url(url)
    kazoo = KazooConnection(address, session_timeout_s=session_s)
    connection = RaisedConnection(kazoo)
    try:
        layout: Layout | None = None
        with trio.move_on_after(timeout_s):
            layout = await _find(connection, create=create)
        if layout is None:
            reason = f": {kazoo.reason}" if kazoo.reason else ""
            raise MetadataUnavailable(
                f"{connection.name}: no ZooKeeper answers in {timeout_s:g} s{reason}"
            )
        store = ZooKeeperStore(
            connection, layout, timeout_s=timeout_s, clock_ms=clock_ms, wall_ms=wall_ms
        )
        async with serving(store):
            yield store
    finally:
        await connection.aclose()


async def _find(connection: RaisedConnection, *, create: bool) -> Layout:
    """Return the cluster's layout, once there is a connection that lasts for so long."""
    while True:
        try:
            await connection.connected()
            layout = await find_cluster(connection, create=create)
            await connection.find_floor()
        except MetadataUnavailable:
            await trio.sleep(RETRY_S)
        else:
            return layout


@asynccontextmanager
async def serving(store: ZooKeeperStore) -> AsyncGenerator[None]:
    """Run *store* for the length of the block.

    It outlives a cancellation of the block, since the clean-up may still release leases.
    """
    running = trio.CancelScope(shield=True)

    async def run() -> None:
        with running:
            await store.run()

    failed = True
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            try:
                yield
                failed = False
            finally:
                running.cancel()
    except BaseExceptionGroup as group:
        if failed and len(group.exceptions) == 1:  # of the block, which need not know of the task
            raise group.exceptions[0] from None
        raise
