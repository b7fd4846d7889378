"""An ensemble in memory, whose connections break where a schedule says.

It keeps what plans rest on: zxids, versions that begin at 0 with each life of a node, ephemeral and
sequential nodes, watches that fire once, multis that are made as a whole or not at all.

The server of a connection may lag: it shows the tree as it was, and fires watches as it sees what
they wait for. It never goes back, and has seen what its session was answered: a multi, also one
that was refused, since ZooKeeper gives that a zxid, too; the beginning of the session; a sync.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import trio

from metadata.errors import MetadataUnavailable
from metadata.zookeeper.znodes import (
    ANY,
    Applied,
    Create,
    Folder,
    Node,
    Op,
    Reason,
    Refused,
    Remove,
    Set,
    Stat,
    Verify,
)


class Loss(enum.Enum):
    """When a connection breaks at a multi, and what becomes of that."""

    BEFORE = "the server never sees it"
    AFTER = "it is made, and the answer is lost"
    LATE = "another server comes upon it after the next multi of the session"


@dataclass
class Znode:
    data: bytes
    created: int
    modified: int
    owner: int = 0
    version: int = 0
    made: int = 0
    modified_ms: int = 0
    children: set[str] = field(default_factory=set)


class _Change(NamedTuple):
    """What a multi changed: its nodes as they were *before*; None: there was none."""

    zxid: int
    before: dict[str, Znode | None]
    touched: list[str]


class _Refusal(Exception):
    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class MemoryEnsemble:
    """The nodes, and the sessions that are alive. *wall_ms* is the leader's clock."""

    def __init__(self, wall_ms: Callable[[], int] = lambda: 1_700_000_000_000) -> None:
        self.nodes = {"/": Znode(b"", 0, 0)}
        self.zxid = 0
        self.wall_ms = wall_ms
        self.sessions: set[int] = set()
        self.watches: dict[str, list[tuple[MemoryConnection, Callable[[], None]]]] = {}
        self._last_session = 0
        self._before: dict[str, Znode | None] = {}
        self._lagging: dict[MemoryConnection, int] = {}
        """connections whose servers lag, each with the zxid up to which its own sees"""
        self._unseen: deque[_Change] = deque()
        """changes that not all of them see"""

    def new_session(self) -> int:
        self._last_session += 1
        self.sessions.add(self._last_session)
        return self._last_session

    def expire(self, session: int) -> None:
        """End a session: its nodes vanish."""
        self.sessions.discard(session)
        ours = [path for path, node in self.nodes.items() if node.owner == session]
        if ours:
            self.make([Remove(path) for path in ours], 0)

    def make(self, ops: Sequence[Op], session: int) -> Applied | Refused:
        """Do all of *ops*, or none."""
        self._before = {}
        self.zxid += 1
        results: Applied = []
        touched: list[str] = []
        for place, op in enumerate(ops):
            try:
                results.append(self._do(op, session, touched))
            except _Refusal as refusal:
                for path, node in self._before.items():
                    if node is None:
                        self.nodes.pop(path, None)
                    else:
                        self.nodes[path] = node
                return Refused(place, refusal.reason)
        if self._lagging:
            self._unseen.append(_Change(self.zxid, self._before, touched))
        for path in touched:
            self._fire(path)
        return results

    # --- servers that lag ------------------------------------------------------------------

    def let_lag(self, connection: MemoryConnection) -> None:
        """Show *connection* no later change until it catches up."""
        self._lagging.setdefault(connection, self.zxid)

    def catch_up(self, connection: MemoryConnection) -> None:
        """Show all changes to *connection*, whose server lags or not, and fire its watches."""
        if connection not in self._lagging:
            return
        seen, self._lagging[connection] = self._lagging[connection], self.zxid
        for change in [change for change in self._unseen if change.zxid > seen]:
            for path in change.touched:
                self._fire_of(connection, path)
        self._forget_seen()

    def let_keep_up(self, connection: MemoryConnection) -> None:
        """Let the server of *connection* lag no more."""
        self.catch_up(connection)
        self._lagging.pop(connection, None)
        self._forget_seen()

    def lags(self, connection: MemoryConnection) -> bool:
        return connection in self._lagging

    def seen_by(self, connection: MemoryConnection, path: str) -> Znode | None:
        """Return a node as the server of *connection* has it."""
        seen = self._lagging.get(connection, self.zxid)
        for change in self._unseen:
            if change.zxid > seen and path in change.before:
                return change.before[path]
        return self.nodes.get(path)

    def _forget_seen(self) -> None:
        oldest = min(self._lagging.values(), default=self.zxid)
        while self._unseen and self._unseen[0].zxid <= oldest:
            self._unseen.popleft()

    def _fire_of(self, connection: MemoryConnection, path: str) -> None:
        waiting = self.watches.pop(path, [])
        if others := [each for each in waiting if each[0] is not connection]:
            self.watches[path] = others
        for owner, watch in waiting:
            if owner is connection:
                watch()

    # --- the leader's tree -----------------------------------------------------------------

    def stat(self, path: str) -> Stat | None:
        return stat_of(self.nodes.get(path))

    def _keep(self, path: str) -> None:
        """Remember a node as it is before the multi."""
        if path not in self._before:
            node = self.nodes.get(path)
            self._before[path] = node and replace(node, children=set(node.children))

    def _do(self, op: Op, session: int, touched: list[str]) -> str | Stat | None:
        if isinstance(op, Create):
            return self._create(op, session, touched)
        node = self.nodes.get(op.path)
        if node is None:
            raise _Refusal(Reason.NO_NODE)
        if op.version not in (ANY, node.version):
            raise _Refusal(Reason.BAD_VERSION)
        if isinstance(op, Verify):
            return None
        touched.append(op.path)
        self._keep(op.path)
        if isinstance(op, Set):
            node.data, node.modified = op.data, self.zxid
            node.version += 1
            node.modified_ms = self.wall_ms()
            return self.stat(op.path)
        if node.children:
            raise _Refusal(Reason.NOT_EMPTY)
        del self.nodes[op.path]
        folder, name = _split(op.path)
        self._keep(folder)
        self.nodes[folder].children.discard(name)
        touched.append(folder)
        return None

    def _create(self, op: Create, session: int, touched: list[str]) -> str:
        folder, name = _split(op.path)
        above = self.nodes.get(folder)
        if above is None:
            raise _Refusal(Reason.NO_NODE)
        if op.sequence:
            name += f"{above.made:010d}"
        path = f"{folder.rstrip('/')}/{name}"
        if path in self.nodes:
            raise _Refusal(Reason.EXISTS)
        owner = session if op.ephemeral else 0
        self._keep(path)
        self._keep(folder)
        self.nodes[path] = Znode(op.data, self.zxid, self.zxid, owner, modified_ms=self.wall_ms())
        above = self.nodes[folder]
        above.children.add(name)
        above.made += 1
        touched += [path, folder]
        return path

    def _fire(self, path: str) -> None:
        waiting = self.watches.pop(path, [])
        if late := [each for each in waiting if each[0] in self._lagging]:
            self.watches[path] = late
        for connection, watch in waiting:
            if connection not in self._lagging:
                watch()


class MemoryConnection:
    """The Connection of znodes.py to a MemoryEnsemble."""

    name = "zk://memory"
    session_timeout_s = 6.0

    def __init__(self, ensemble: MemoryEnsemble) -> None:
        self.ensemble = ensemble
        self.session_id = ensemble.new_session()
        self.is_connected = True
        self.multis: list[list[Op]] = []
        self.before_multi: Callable[[Sequence[Op]], Loss | None] = lambda _ops: None
        """Called with each multi; says whether the connection breaks at it."""
        self.after_read: Callable[[Sequence[str]], None] = lambda _paths: None
        """Called with the paths of each read, after it: where a rival slips in."""
        self._late: list[Op] = []
        self._news = trio.Event()
        self._is_closed = False
        self._silent_since: float | None = None
        self._led_at = 0.0
        """when the leader last answered, while the server lags"""

    @property
    def heard_at(self) -> float:
        if self._silent_since is not None:
            return self._silent_since
        return self._led_at if self.lags else trio.current_time()

    @property
    def lags(self) -> bool:
        """True while the server of this connection lags."""
        return self.ensemble.lags(self)

    # --- what a schedule does ----------------------------------------------------------

    def drop(self) -> None:
        """Lose the connection; the session goes on."""
        self.is_connected = False
        for watches in self.ensemble.watches.values():
            for connection, watch in [*watches]:
                if connection is self:
                    watch()
                    watches.remove((connection, watch))
        self._spread()

    def connect(self) -> None:
        """Connect again, with a new session if the former one is over."""
        if self.session_id not in self.ensemble.sessions:
            self.session_id = self.ensemble.new_session()
            self.catch_up()
        self.is_connected = True
        self._spread()

    def fall_behind(self) -> None:
        """Let the server lag from now on, until keep_up()."""
        self._led_at = trio.current_time()
        self.ensemble.let_lag(self)

    def catch_up(self) -> None:
        """Let the server see what there is by now; what comes after it sees later again."""
        self.ensemble.catch_up(self)

    def keep_up(self) -> None:
        """Let the server lag no more."""
        self.ensemble.let_keep_up(self)

    def fall_silent(self) -> None:
        """Answer nothing from now on, as a server that vanished; the connection seems to live."""
        self._silent_since = trio.current_time()

    def expire(self) -> None:
        """Lose the connection and the session."""
        self.ensemble.expire(self.session_id)
        self.drop()
        self.session_id = 0

    # --- the connection ----------------------------------------------------------------

    async def connected(self) -> None:
        while not self.is_connected:
            if self._is_closed:
                raise MetadataUnavailable("the store is closed")
            await self._news.wait()

    async def aclose(self) -> None:
        self._is_closed = True
        self.ensemble.expire(self.session_id)
        self.drop()
        self.keep_up()
        await trio.lowlevel.checkpoint()

    async def make_root(self) -> None:
        await trio.lowlevel.checkpoint()

    async def above_with(self, name: str) -> list[str]:
        return []  # its path is the top

    async def get(self, paths: Sequence[str], *, fresh: bool = False) -> list[Node | None]:
        await self._reach_to_read(fresh=fresh)
        found: list[Node | None] = []
        for path in paths:
            node = self._see(path)
            stat = stat_of(node)
            found.append(None if node is None or stat is None else (node.data, stat))
        self.after_read(paths)
        return found

    async def stat(
        self, paths: Sequence[str], *, fresh: bool = False, watch: Callable[[], None] | None = None
    ) -> list[Stat | None]:
        await self._reach_to_read(fresh=fresh)
        self._watch(paths, watch)
        found = [stat_of(self._see(path)) for path in paths]
        self.after_read(paths)
        return found

    async def children(
        self, paths: Sequence[str], *, fresh: bool = False, watch: Callable[[], None] | None = None
    ) -> list[Folder | None]:
        await self._reach_to_read(fresh=fresh)
        self._watch(paths, watch)
        found: list[Folder | None] = []
        for path in paths:
            node = self._see(path)
            stat = stat_of(node)
            names = sorted(node.children, reverse=True) if node else []
            found.append(None if stat is None else (names, stat))
        return found

    async def multi(self, ops: Sequence[Op]) -> Applied | Refused:
        await self._reach()
        self.multis.append([*ops])
        loss = self.before_multi(ops)
        if loss is Loss.BEFORE:
            self.drop()
        elif loss is Loss.LATE:
            self._late = [*ops]
            self.drop()
        elif loss is None or loss is Loss.AFTER:
            made = self.ensemble.make(ops, self.session_id)
            if self._late:
                self.ensemble.make(self._late, self.session_id)
                self._late = []
            if loss is None:
                self._hear_of_leader()
                return made
            self.drop()
        raise MetadataUnavailable("the connection was lost", outcome_unknown=True)

    async def _reach(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._silent_since is not None:
            await trio.sleep_forever()
        await self.connected()

    def _see(self, path: str) -> Znode | None:
        return self.ensemble.seen_by(self, path)

    async def _reach_to_read(self, *, fresh: bool) -> None:
        await self._reach()
        if fresh:
            self._hear_of_leader()

    def _hear_of_leader(self) -> None:
        self._led_at = trio.current_time()
        self.catch_up()

    def _watch(self, paths: Sequence[str], watch: Callable[[], None] | None) -> None:
        for path in paths if watch else ():
            assert watch is not None
            self.ensemble.watches.setdefault(path, []).append((self, watch))

    def _spread(self) -> None:
        self._news.set()
        self._news = trio.Event()


def stat_of(node: Znode | None) -> Stat | None:
    """Return what ZooKeeper tells of a node beside its data."""
    if node is None:
        return None
    return Stat(
        created=node.created,
        modified=node.modified,
        modified_ms=node.modified_ms,
        created_ms=node.modified_ms,
        version=node.version,
        children_version=2 * node.made - len(node.children),
        owner=node.owner,
        children=len(node.children),
    )


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder or "/", name
