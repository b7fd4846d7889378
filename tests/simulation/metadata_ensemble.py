"""Metadata in ZooKeeper: an ensemble in memory that bookies have sessions with, and nobody else.

    client ─► BookieStore ─► the simulated network ─► CALL of a bookie ─► ZooKeeperStore ─┐
    bookie ─► ZooKeeperStore ─► a connection that is late, breaks, loses answers ────► ensemble

Each process of a bookie has a connection of its own. The ensemble expires the ZooKeeper session
of a process that gives no sign for its time: it was killed or frozen, or its connection is away. A
process finds that out by its next sign or call. What watches say may be late. While the whole
ensemble is away no session expires, as no leader counts the time. In some seeds the server of each
connection lags behind the leader.

The harness sees the nodes of keys as the keys they stand for, whoever's layout they have.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import trio
import virtual
from machines import MACHINE, Machine
from memory_zookeeper import Loss, MemoryConnection, MemoryEnsemble, Znode
from metadata_file import PORT, Asking
from network import Network
from prompt_reads import CheckedStore, Reads
from troubles import ANSWERS_LOST, ENSEMBLE, LAG, SESSIONS_EXPIRED

from ledger_client.background import Background
from ledger_client.wire.stores import BookieStore
from metadata.address import Address
from metadata.errors import MetadataUnavailable
from metadata.records import COOKIES, INSTANCE, LEDGER_COUNTER, ledger_key
from metadata.store import Versioned
from metadata.zookeeper import changelog, ledger_ids, paths
from metadata.zookeeper.floors import RaisedConnection
from metadata.zookeeper.founding import find_cluster
from metadata.zookeeper.layout import COOKIE_FOLDER, INSTANCE_NODE, Layout
from metadata.zookeeper.store import ZooKeeperStore, serving
from metadata.zookeeper.znodes import (
    Applied,
    Create,
    Folder,
    Node,
    Op,
    Refused,
    Remove,
    Set,
    Stat,
    Verify,
)

SIGN_S = 1.0
"""A connection gives a sign this often."""
LATE_SHARE = 0.1
DELAY_S_MAX = 0.01
HINT_LATE_S_MAX = 1.0
RETRY_S_MAX = 0.5
LOSS_SHARE = 0.2
"""of the multis, while answers are lost"""
LAGS_S_MAX = (0.1, 0.5, 2.0, 8.0)
"""A server that lags sees what is new after up to one of these times."""
CAUGHT_UP_SHARE = 0.05
"""of the reads come after it did so, also amid others of the same call"""
T = TypeVar("T")


class MetadataEnsemble:
    """A ClusterMetadata in an ensemble, behind *bookies*.

    *happened* counts what these answered, and what befell their connections.

    Attributes:
        away_from: bookies whose connections are away.
        is_away: True while the whole ensemble is away.
        losing: bookies whose multis lose their answers, or are lost themselves.
        lag: draws how far the servers of bookies are behind; None: they are not.
        reads: those of bookies, and which of them showed what was old.
    """

    def __init__(
        self,
        bookies: Sequence[str],
        network: Network,
        happened: Counter[str],
        chance: random.Random,
        lag: random.Random | None = None,
    ) -> None:
        self.values: dict[str, Versioned] = {}
        self.on_change: Callable[[str, Versioned | None], None] = lambda _key, _value: None
        self.reads = Reads(self.values)
        self.nodes = _Watched(self._look)
        self.happened = happened
        self.chance = chance
        self.lag = lag
        self.away_from: set[str] = set()
        self.is_away = False
        self.losing: set[str] = set()
        self._addresses = [Address(name, PORT) for name in bookies]
        self._network = network
        self._layout = Layout()
        self._connections: list[_Connection] = []
        self._unaffected = RaisedConnection(MemoryConnection(self.nodes))
        self.observer = ZooKeeperStore(self._unaffected, self._layout)

    async def run(self) -> None:
        """Serve the observer and count the time of sessions, until cancelled."""
        await find_cluster(self._unaffected, create=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.observer.run)
            nursery.start_soon(self._expire_silent)

    @asynccontextmanager
    async def at_bookie(self) -> AsyncIterator[ZooKeeperStore]:
        """Open a store as a process does.

        A process that is killed leaves its ZooKeeper session behind, which expires later.
        """
        machine = MACHINE.get()
        assert machine is not None
        async with trio.open_nursery() as nursery:
            connection = _Connection(self, machine, nursery)
            self._connections.append(connection)
            nursery.start_soon(connection.give_signs)
            if self.lag is not None:
                nursery.start_soon(connection.follow_late, self.lag)
            try:
                raised = RaisedConnection(connection)
                store = CheckedStore(raised, await _found(raised), self.reads)
                async with serving(store):
                    yield store
            finally:
                connection.leave()
                if machine.alive:
                    self._expire(connection)
                nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def at_client(self) -> AsyncIterator[BookieStore]:
        """Open a store that asks one bookie after the other."""
        async with Background() as nursery:
            store = Asking(self._addresses, nursery, self._network, self.happened, ENSEMBLE)
            try:
                yield store
            finally:
                await store.aclose()

    def change(self, key: str, value: bytes) -> int:
        """Put at once."""
        path = self._path(key)
        missing = [each for each in paths.parents(path)[1:] if each not in self.nodes.nodes]
        data = self._layout.encode(key, value)
        put = Set(path, data) if path in self.nodes.nodes else Create(path, data)
        self._make([*map(Create, missing), put], [key])
        return self.nodes.zxid

    def set_back(self, keys: Iterable[str], counter: str, next_id: int) -> None:
        """Lose *keys* and the ids from *next_id* on, as a restore from a backup does."""
        if counter == LEDGER_COUNTER:
            self.nodes.nodes[f"/{ledger_ids.FOLDER}"].made = next_id
        else:
            self._make([Set(paths.counter_path(counter), str(next_id).encode())], [])
        lost = list(keys)
        self._make([Remove(self._path(key)) for key in lost], lost)

    def close(self) -> None:
        """There is nothing to close."""

    # --- faults ----------------------------------------------------------------------------

    def expire(self, bookie: str) -> None:
        """End the ZooKeeper sessions of a bookie's processes, which hear of it later."""
        for connection in self._connections:
            if connection.machine.name == bookie:
                self._expire(connection)

    def cut(self, bookie: str) -> None:
        """Break a bookie's connection."""
        for connection in self._connections:
            if connection.machine.name == bookie and connection.is_connected:
                connection.lose()

    def heal(self) -> None:
        """Let all connections be as good as they get."""
        self.is_away = False
        self.away_from.clear()
        self.losing.clear()
        self._count_anew()

    def go_away(self) -> None:
        """Let no connection reach the ensemble."""
        self.is_away = True
        for connection in self._connections:
            if connection.is_connected:
                connection.lose()

    def come_back(self) -> None:
        """End go_away(): a new leader counts the time of all sessions anew."""
        self.is_away = False
        self._count_anew()

    def _count_anew(self) -> None:
        for connection in self._connections:
            connection.sign_at = trio.current_time()

    async def _expire_silent(self) -> None:
        while True:
            await trio.sleep(SIGN_S / 2)
            now = trio.current_time()
            for connection in self._connections:
                silent_s = now - connection.sign_at
                if silent_s >= connection.session_timeout_s and not self.is_away:
                    self._expire(connection)
            self._connections = [
                each for each in self._connections if each.is_open or each.session_lives
            ]

    def _expire(self, connection: _Connection) -> None:
        if connection.session_lives:
            self.happened[SESSIONS_EXPIRED] += 1
            self.nodes.expire(connection.session_id)

    # --- what the harness sees -------------------------------------------------------------

    def _look(self, changed: Iterable[str]) -> None:
        """Take note of the nodes that a multi changed."""
        for path in changed:
            key = key_of(path)
            if key is None or self._path(key) != path:
                continue
            node, stat = self.nodes.nodes.get(path), self.nodes.stat(path)
            if node is not None and stat is not None:
                value = node.data
                if self._layout.path(key) is not None:
                    value = self._layout.decode(key, value, created_ms=stat.created_ms)
                self.values[key] = Versioned(value, stat.modified)
            elif self.values.pop(key, None) is None:
                continue  # it was only looked whether the node is absent
            self.reads.note(key)
            self.on_change(key, self.values.get(key))

    def _path(self, key: str) -> str:
        path = self._layout.path(key)
        return paths.leaf_path(paths.KEYS, key) if path is None else f"/{path}"

    def _make(self, ops: list[Op], changed: list[str]) -> None:
        """Make *ops*, and announce the keys that they change."""
        if changed:
            part = self.nodes.nodes[paths.LOG].version
            entry = f"{paths.LOG}/{part}/{changelog._PREFIX}"
            ops.append(Create(entry, "\n".join(changed).encode(), sequence=True))
        made = self.nodes.make(ops, 0)
        assert not isinstance(made, Refused), made


async def _found(connection: RaisedConnection) -> Layout:
    while True:
        try:
            return await find_cluster(connection, create=True)
        except MetadataUnavailable:
            await trio.sleep(RETRY_S_MAX)


def key_of(path: str) -> str | None:
    """Return the key that a node may stand for, None for folders and all other nodes."""
    if path.startswith(f"{paths.KEYS}/"):
        place = paths.Place("", paths.KEYS, False)
        for name in path.removeprefix(f"{paths.KEYS}/").split("/"):
            (place,) = paths.children_of(place, [name])
        return place.text if place.is_leaf else None
    if path == f"/{INSTANCE_NODE}":
        return INSTANCE
    if path.startswith(f"/{COOKIE_FOLDER}/"):
        return COOKIES + path.removeprefix(f"/{COOKIE_FOLDER}/")
    digits = path.replace("/L", "").replace("/", "")
    return ledger_key(int(digits)) if "/L" in path and digits.isdigit() else None


class _Watched(MemoryEnsemble):
    """An ensemble whose changes the harness sees at once."""

    def __init__(self, look: Callable[[Iterable[str]], None]) -> None:
        # The leader's clock is nobody's here: machines have their own.
        super().__init__(lambda: virtual.EPOCH_NS // 10**6 + round(trio.current_time() * 1000))
        self._look = look

    def make(self, ops: Sequence[Op], session: int) -> Applied | Refused:
        made = super().make(ops, session)
        if not isinstance(made, Refused):
            self._look(dict.fromkeys(op.path for op in ops if not isinstance(op, Verify)))
        return made


class _Connection(MemoryConnection):
    """The connection of one process of a bookie."""

    def __init__(self, metadata: MetadataEnsemble, machine: Machine, nursery: trio.Nursery) -> None:
        super().__init__(metadata.nodes)
        self.machine = machine
        self.is_open = True
        self.sign_at = trio.current_time()
        self.before_multi = self._draw_loss
        self._heard_at = trio.current_time()
        self._metadata = metadata
        self._nursery = nursery
        self._line = trio.StrictFIFOLock()
        if self._is_away:
            self.lose()

    @property
    def heard_at(self) -> float:
        return self._heard_at

    @property
    def session_lives(self) -> bool:
        """Whether the ensemble still knows the session."""
        return self.session_id in self.ensemble.sessions

    @property
    def _is_away(self) -> bool:
        return self._metadata.is_away or self.machine.name in self._metadata.away_from

    async def give_signs(self) -> None:
        """Ping until cancelled."""
        while True:
            if self.is_connected:
                self._sign()
            await trio.sleep(SIGN_S)

    def lose(self) -> None:
        """Lose the connection, and find another one after a while."""
        self.drop()
        self._nursery.start_soon(self._find_another)

    def leave(self) -> None:
        """Close the connection; the session is left to itself."""
        self.is_open = False
        self._is_closed = True
        self.drop()
        self.keep_up()

    async def follow_late(self, chance: random.Random) -> None:
        """See what is new from time to time, until cancelled."""
        self.fall_behind()
        while True:
            await trio.sleep(chance.choice(LAGS_S_MAX) * chance.random())
            self.catch_up()

    async def _find_another(self) -> None:
        while self.is_open and not self.is_connected:
            await trio.sleep(RETRY_S_MAX * self._metadata.chance.random())
            if self.is_open and not self.is_connected and not self._is_away:
                self.connect()
                self._sign()

    def _sign(self) -> None:
        """Let the ensemble hear of the session, or find out that it has expired."""
        if self.session_lives:
            self.sign_at = trio.current_time()
        else:
            self.session_id = 0
            self.lose()

    # --- calls, in their order ---------------------------------------------------------

    async def get(self, paths: Sequence[str], *, fresh: bool = False) -> list[Node | None]:
        return await self._ask(lambda: super(_Connection, self).get(paths, fresh=fresh), led=fresh)

    async def stat(
        self, paths: Sequence[str], *, fresh: bool = False, watch: Callable[[], None] | None = None
    ) -> list[Stat | None]:
        late = watch and self._late_hint(watch)
        return await self._ask(
            lambda: super(_Connection, self).stat(paths, fresh=fresh, watch=late), led=fresh
        )

    async def children(
        self, paths: Sequence[str], *, fresh: bool = False, watch: Callable[[], None] | None = None
    ) -> list[Folder | None]:
        late = watch and self._late_hint(watch)
        return await self._ask(
            lambda: super(_Connection, self).children(paths, fresh=fresh, watch=late), led=fresh
        )

    async def multi(self, ops: Sequence[Op]) -> Applied | Refused:
        return await self._ask(lambda: super(_Connection, self).multi(ops), led=True, changes=True)

    async def _ask(
        self, call: Callable[[], Awaitable[T]], *, led: bool, changes: bool = False
    ) -> T:
        chance = self._metadata.chance
        way = chance.random()
        async with self._line:
            if way < LATE_SHARE:
                await trio.sleep(DELAY_S_MAX * chance.random())
            found = await call()
            session_id = self.session_id
            if way > 1 - LATE_SHARE:
                await trio.sleep(DELAY_S_MAX * chance.random())
            if not self.is_connected or self.session_id != session_id:
                raise MetadataUnavailable("the connection was lost", outcome_unknown=changes)
        self.sign_at = trio.current_time()
        if led or not self.lags:
            self._heard_at = self.sign_at
        return found

    async def _reach(self) -> None:
        await super()._reach()
        if not self.machine.alive:
            raise MetadataUnavailable(f"{self.machine.name} was killed")
        self._sign()
        if not self.is_connected:
            raise MetadataUnavailable("the ZooKeeper session is over")

    def _see(self, path: str) -> Znode | None:
        lag = self._metadata.lag
        if lag is not None and lag.random() < CAUGHT_UP_SHARE:
            self.catch_up()  # each node of a call is a request of its own
        node = super()._see(path)
        if node is not self.ensemble.nodes.get(path):
            self._metadata.happened[LAG] += 1
        return node

    def _late_hint(self, watch: Callable[[], None]) -> Callable[[], None]:
        async def call_late() -> None:
            await trio.sleep(HINT_LATE_S_MAX * self._metadata.chance.random())
            watch()

        def call() -> None:
            if self.is_open and self._metadata.chance.random() < LATE_SHARE:
                self._nursery.start_soon(call_late)
            else:
                watch()

        return call

    def _draw_loss(self, _ops: Sequence[Op]) -> Loss | None:
        chance, name = self._metadata.chance, self.machine.name
        if name not in self._metadata.losing or chance.random() >= LOSS_SHARE:
            return None
        self._metadata.happened[ANSWERS_LOST] += 1
        self._nursery.start_soon(self._find_another)  # it runs once the connection is lost
        return chance.choice([Loss.BEFORE, Loss.AFTER, Loss.AFTER, Loss.LATE])
