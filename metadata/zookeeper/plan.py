"""A transaction of the store as ops of ZooKeeper: decides everything, asks nothing.

The version of a key is the zxid of its last change, which every Stat holds. A multi can check
only how often a node's data changed since the node was made, and a node that is deleted and made
again begins at 0: that number alone does not tell two lives of a node apart. So every removal of a
node also changes one of 4096 nodes under /quire/lives, chosen by its path, in the same multi. Who
read first the version of that node, then the Stat of the key, and checks both versions in the
multi, knows that the node had but one life in between; then equal versions mean equal zxids. Other
keys that share the node and are removed meanwhile make the multi fail without need; it is planned
again.

The same holds for leases: their epoch is the zxid that made the node. A key that must not exist
is checked by creating and removing it. All ops of a multi have one zxid, the new version of each
key that it changes.

A plan has guards, which look at the state before it, then changes. So plans whose nodes differ
can share a multi, guards first, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from metadata.errors import BadRecord, LeaseLost, MetadataBroken, VersionConflict
from metadata.store import ABSENT, Check, CheckLease, Delete, Op as StoreOp, Put
from metadata.zookeeper import paths
from metadata.zookeeper.znodes import ANY, Create, Node, Op, Remove, Set, Stat, Verify

SIZE_MAX = 900_000
"""Bytes of one multi: ZooKeeper's jute.maxbuffer is 1 MiB, and ends the connection above it."""
OP_SIZE = 64
"""Bytes of an op without its path and data, and of its part of the reply; rounded up."""
THIS_CHANGE = -1
"""As a version: the zxid of the multi itself."""


class Place(NamedTuple):
    """The node of a key, and how its data holds a value."""

    path: str
    encode: Callable[[bytes], bytes]


class LeaseRow(msgspec.Struct, frozen=True, array_like=True):
    """What the node of a lease holds."""

    owner: str
    session: int
    ttl_s: float
    value: bytes


class Reading(NamedTuple):
    """Nodes as they were found. *lives* were read first."""

    lives: Mapping[str, int]
    stats: Mapping[str, Stat | None]
    leases: Mapping[str, Node | None]


class Plan:
    """Ops of one transaction, the nodes that they depend on and change, and what to announce."""

    def __init__(self) -> None:
        self.guards: list[Op] = []
        self.changes: list[Op] = []
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self.changed: list[str] = []
        """keys and names of leases, for the change log"""
        self.versions: list[int] = []
        """for each op of the transaction; THIS_CHANGE is to be replaced"""
        self.bumped: dict[str, None] = {}
        """nodes under /quire/lives that it changes"""

    @property
    def ops(self) -> list[Op]:
        """All changes, those of lives at the end."""
        return [*self.changes, *(Set(path, b"") for path in self.bumped)]

    @property
    def size(self) -> int:
        """Bytes of the ops and of the part of the change log, about."""
        size = sum(OP_SIZE + len(key.encode()) for key in self.changed)
        for op in (*self.guards, *self.ops):
            size += OP_SIZE + len(op.path) + (len(op.data) if isinstance(op, Create | Set) else 0)
        return size

    @property
    def created(self) -> list[str]:
        """Paths of nodes that are created, so their folders must exist."""
        return [op.path for op in (*self.guards, *self.changes) if isinstance(op, Create)]

    @property
    def emptied(self) -> set[str]:
        """Folders from which nodes are removed, also such as are created only for a check."""
        removed = (op.path for op in (*self.guards, *self.changes) if isinstance(op, Remove))
        return {path.rpartition("/")[0] for path in removed}

    def versions_at(self, zxid: int) -> list[int]:
        """Return a version for each op, once the multi was made with *zxid*."""
        return [zxid if version == THIS_CHANGE else version for version in self.versions]

    def guard_life(self, path: str, lives: Mapping[str, int]) -> None:
        """Check that *path* was not removed since *lives* was read."""
        counter = paths.lives_path(path)
        guard = Verify(counter, lives[counter])
        if guard not in self.guards:
            self.guards.append(guard)
        self.reads.add(path)

    def guard(self, path: str, version: int, lives: Mapping[str, int]) -> None:
        """Check that the node is the one that was read, and unchanged (ANY: or changed)."""
        self.guard_life(path, lives)
        self.guards.append(Verify(path, version))

    def guard_exists(self, path: str) -> None:
        """Check that there is such a node, of a path that is never used twice."""
        self.guards.append(Verify(path))
        self.reads.add(path)

    def guard_absent(self, path: str) -> None:
        """Check that there is no such node."""
        self.guards += [Create(path), Remove(path)]
        self.reads.add(path)

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Create a node."""
        self.changes.append(Create(path, data, ephemeral=ephemeral))
        self.writes.add(path)

    def set(self, path: str, data: bytes, version: int = ANY) -> None:
        """Set the data of a node."""
        self.changes.append(Set(path, data, version))
        self.writes.add(path)

    def remove(self, path: str, version: int = ANY) -> None:
        """Remove a node, which ends a life. The node under /quire/lives must exist."""
        self.changes.append(Remove(path, version))
        self.writes.add(path)
        self.bumped[paths.lives_path(path)] = None

    def drop(self, path: str, version: int = ANY) -> None:
        """Remove a node whose version no plan ever checks."""
        self.changes.append(Remove(path, version))
        self.writes.add(path)

    def announce(self, key: str) -> None:
        """Put *key* into the change log."""
        if key not in self.changed:
            self.changed.append(key)

    def check_size(self) -> None:
        """Raise MetadataBroken if ZooKeeper would not take it in one multi."""
        if self.size > SIZE_MAX:
            raise MetadataBroken(
                f"the transaction has about {self.size} bytes; ZooKeeper takes {SIZE_MAX}"
            )


class Transaction:
    """Plans the *ops* of one call of transact()."""

    def __init__(self, ops: Sequence[StoreOp], place: Callable[[str], Place]) -> None:
        self._ops = ops
        self._places = {op.key: place(op.key) for op in ops if not isinstance(op, CheckLease)}
        self._plan = Plan()
        self._exists: dict[str, bool] = {}
        """paths that the transaction changed so far, and whether they exist then"""

    @property
    def paths(self) -> list[str]:
        """Nodes whose Stat is needed."""
        return list(dict.fromkeys(place.path for place in self._places.values()))

    @property
    def guarded(self) -> list[str]:
        """Nodes whose node under /quire/lives is needed: those that may be checked or removed."""
        keyed = [
            self._places[op.key].path
            for op in self._ops
            if isinstance(op, Delete) or (not isinstance(op, CheckLease) and op.expected)
        ]
        return [*keyed, *self.lease_paths]

    @property
    def lease_checks(self) -> list[tuple[CheckLease, str]]:
        """The checks of leases, each with the lease's node."""
        checks = (op for op in self._ops if isinstance(op, CheckLease))
        return [(op, paths.leaf_path(paths.LEASES, op.name)) for op in checks]

    @property
    def lease_paths(self) -> list[str]:
        """Nodes of leases whose data and Stat are needed."""
        return list(dict.fromkeys(path for _, path in self.lease_checks))

    def plan(self, found: Reading) -> Plan:
        """Return the plan for what was found.

        Raises:
            VersionConflict, LeaseLost: the first op that does not hold.
            MetadataBroken: too large, or a value that cannot be stored.
        """
        self._plan = Plan()
        self._exists = {}
        for op in self._ops:
            match op:
                case CheckLease():
                    self._check_lease(op, found)
                case Check():
                    self._check(op, found)
                case Put():
                    self._put(op, found)
                case Delete():
                    self._delete(op, found)
        self._plan.check_size()
        return self._plan

    def _check_lease(self, op: CheckLease, found: Reading) -> None:
        path = paths.leaf_path(paths.LEASES, op.name)
        session = live_session(found.leases[path], op)
        self._plan.guard(path, ANY, found.lives)
        self._plan.guard_exists(paths.session_path(session))
        self._plan.versions.append(op.epoch)

    def _check(self, op: Check, found: Reading) -> None:
        path = self._places[op.key].path
        version = self._expect(op, path, found)
        self._plan.versions.append(version)
        stat = found.stats[path]
        if path in self._exists:
            return
        if stat is None:
            self._plan.guard_absent(path)
        else:
            self._plan.guard(path, stat.version, found.lives)

    def _put(self, op: Put, found: Reading) -> None:
        path, encode = self._places[op.key]
        self._expect(op, path, found)
        try:
            data = encode(op.value)
        except BadRecord as wrong:
            raise MetadataBroken(str(wrong)) from wrong
        stat = found.stats[path]
        if not self._exists.get(path, stat is not None):
            self._plan.create(path, data)
        elif stat is not None and path not in self._exists and op.expected is not None:
            self._plan.guard_life(path, found.lives)
            self._plan.set(path, data, stat.version)
        else:
            self._plan.set(path, data)
        self._exists[path] = True
        self._plan.announce(op.key)
        self._plan.versions.append(THIS_CHANGE)

    def _delete(self, op: Delete, found: Reading) -> None:
        path = self._places[op.key].path
        self._expect(op, path, found)
        self._plan.versions.append(ABSENT)
        stat = found.stats[path]
        if not self._exists.get(path, stat is not None):
            if path not in self._exists:
                self._plan.guard_absent(path)
            return
        if stat is not None and path not in self._exists and op.expected is not None:
            self._plan.guard_life(path, found.lives)
            self._plan.remove(path, stat.version)
        else:
            self._plan.remove(path)
        self._exists[path] = False
        self._plan.announce(op.key)

    def _expect(self, op: Check | Put | Delete, path: str, found: Reading) -> int:
        """Return the version that *op* finds. Raises VersionConflict if it expects another."""
        if path in self._exists:
            version = THIS_CHANGE if self._exists[path] else ABSENT
        else:
            stat = found.stats[path]
            version = ABSENT if stat is None else stat.modified
        if op.expected is not None and op.expected != version:
            # Of a change that this very transaction makes nobody can know the version.
            shown = found.stats[path] if version == THIS_CHANGE else None
            raise VersionConflict(
                key=op.key,
                expected=op.expected,
                found=version if version != THIS_CHANGE else shown.modified if shown else 1,
            )
        return version


def live_session(row: Node | None, op: CheckLease) -> int:
    """Return the session of a lease's node. Raises LeaseLost if it is another grant."""
    if row is not None and row[1].created == op.epoch:
        lease = decode_lease(op.name, row[0])
        if lease.owner == op.owner:
            return lease.session
    raise LeaseLost(name=op.name, owner=op.owner, epoch=op.epoch)


def encode_lease(row: LeaseRow) -> bytes:
    """Return the data of a lease's node."""
    return msgspec.msgpack.encode(row)


def decode_lease(name: str, data: bytes) -> LeaseRow:
    """Return what a lease's node holds. Raises MetadataBroken."""
    try:
        return msgspec.msgpack.decode(data, type=LeaseRow)
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise MetadataBroken(f"the node of lease {name} holds something else: {wrong}") from wrong
