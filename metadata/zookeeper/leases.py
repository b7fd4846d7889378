"""Leases: nodes that belong to a session, and live while its node exists.

/quire/leases/... holds the owner, the session and the value of each lease. A grant creates the
node; the same owner's next grant removes it and creates it anew in the same multi. So a lease's
epoch is the zxid that made its node: it rises with each grant, and is never seen again.

Beside each lease there is a node /quire/held/<session>/<name>, made and removed in the same multi,
so that the leases of a session can be found once it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from metadata.errors import BadRecord, LeaseHeld, LeaseLost, MetadataBroken, SessionOver
from metadata.store import PAGE_COUNT_MAX, CheckLease, Lease, Leases, StoreSession
from metadata.zookeeper import paths
from metadata.zookeeper.changing import Changing
from metadata.zookeeper.layout import Layout
from metadata.zookeeper.listing import KeyWalk
from metadata.zookeeper.plan import LeaseRow, Plan, decode_lease, encode_lease, live_session
from metadata.zookeeper.sessions import decode_session
from metadata.zookeeper.znodes import Connection, Node, Reason, Refused, Remove

SWEPT_MAX = 50
"""Leases that are removed in one multi."""


class LeaseNodes:
    """The leases of a cluster."""

    def __init__(
        self,
        connection: Connection,
        changing: Changing,
        layout: Layout,
        left_s: Callable[[int, float], float],
    ) -> None:
        """*left_s* returns how long a session lives: Sessions.left_s."""
        self._connection = connection
        self._changing = changing
        self._layout = layout
        self._left_s = left_s

    async def grant(self, name: str, session: StoreSession, owner: str, value: bytes) -> Lease:
        """Give the lease to *owner*. Raises LeaseHeld, SessionOver, MetadataUnavailable."""
        path = paths.leaf_path(paths.LEASES, name)
        own = paths.session_path(session.epoch)
        wanted = self._registration(name, value)
        data = encode_lease(LeaseRow(owner, session.epoch, session.ttl_s, value))

        async def planning() -> Plan:
            lives = await self._changing.lives([path])
            (node,) = await self._connection.get([path], fresh=True)
            held = decode_lease(name, node[0]) if node is not None else None
            # The lease first: if its session is gone now, then it is gone for good.
            other = paths.session_path(held.session) if held else own
            ours, theirs = await self._connection.get([own, other])
            if ours is None or decode_session(own, ours[0]).owner != session.owner:
                raise SessionOver(owner=session.owner, epoch=session.epoch)
            if held and theirs is not None and held.owner != owner:
                left_s = self._left_s(held.session, held.ttl_s)
                raise LeaseHeld(name=name, owner=held.owner, expires_in_s=left_s)
            plan = Plan()
            plan.guard_exists(own)
            if node is not None and held is not None:
                plan.guard(path, node[1].version, lives)
                plan.remove(path)
                plan.drop(paths.held_path(held.session, name))
            plan.create(path, data)
            plan.create(paths.held_path(session.epoch, name), b"")
            await self._register(plan, name, wanted)
            plan.announce(name)
            return plan

        epoch = await self._changing.make(planning)
        left_s = self._left_s(session.epoch, session.ttl_s)
        return Lease(name, owner, epoch, value, left_s, session.epoch)

    async def update(self, lease: Lease, value: bytes) -> Lease:
        """Set the value of *lease*. Raises LeaseLost, MetadataUnavailable."""
        path = paths.leaf_path(paths.LEASES, lease.name)
        wanted = self._registration(lease.name, value)
        row: LeaseRow | None = None

        async def planning() -> Plan | None:
            nonlocal row
            lives = await self._changing.lives([path])
            node = await self._read(CheckLease.of(lease), path)
            row = decode_lease(lease.name, node[0])
            if row.value == value:
                return None
            changed = LeaseRow(row.owner, row.session, row.ttl_s, value)
            plan = Plan()
            plan.guard_exists(paths.session_path(row.session))
            plan.guard_life(path, lives)
            plan.set(path, encode_lease(changed), node[1].version)
            await self._register(plan, lease.name, wanted)
            plan.announce(lease.name)
            return plan

        await self._changing.make(planning)
        assert row is not None
        left_s = self._left_s(row.session, row.ttl_s)
        return Lease(lease.name, lease.owner, lease.epoch, value, left_s, row.session)

    async def release(self, lease: Lease) -> None:
        """End *lease*, if it is not over. Raises MetadataUnavailable."""
        path = paths.leaf_path(paths.LEASES, lease.name)

        async def planning() -> Plan | None:
            lives = await self._changing.lives([path])
            (node,) = await self._connection.get([path], fresh=True)
            try:
                session = live_session(node, CheckLease.of(lease))
            except LeaseLost:
                return None
            plan = Plan()
            plan.guard_life(path, lives)
            plan.remove(path)
            plan.drop(paths.held_path(session, lease.name))
            await self._register(plan, lease.name, {})
            plan.announce(lease.name)
            return plan

        await self._changing.make(planning)

    async def live(self, prefix: str, after: str, on_answer: Callable[[], None]) -> Leases:
        """Return up to 1000 live leases under *prefix* above *after*. MetadataUnavailable.

        *on_answer* is called whenever ZooKeeper has answered: there may be many empty folders.
        """
        found: Leases = []
        walk = KeyWalk(
            *(self._connection, paths.LEASES, prefix, after),
            fresh=True,
            on_empty=self._changing.empty.note,
            on_answer=on_answer,
        )
        while len(found) < PAGE_COUNT_MAX:
            places = await walk.take(PAGE_COUNT_MAX - len(found))
            if not places:
                break
            nodes = await self._connection.get([place.path for place in places])
            rows = [
                (place.text, decode_lease(place.text, node[0]), node[1].created)
                for place, node in zip(places, nodes, strict=True)
                if node is not None
            ]
            live = await self._live_sessions({row.session for _, row, _ in rows})
            found += [
                self._lease(name, row, epoch) for name, row, epoch in rows if row.session in live
            ]
        return found

    async def check(self, op: CheckLease, node: Node | None) -> None:
        """Raise LeaseLost if the lease whose node was read is another, or its session over."""
        session = live_session(node, op)
        if not await self._live_sessions({session}):
            raise LeaseLost(name=op.name, owner=op.owner, epoch=op.epoch)

    async def sweep(self, session: int) -> None:
        """Remove what is left of the leases of a session that is over, and of itself.

        Raises:
            MetadataUnavailable: it is left to whoever comes next.
        """
        while True:
            with self._changing.deadline():
                (held,) = await self._connection.children([paths.held_path(session)], fresh=True)
            if held is None:
                return
            names = [paths.held_name(node) for node in held[0]]
            for start in range(0, len(names), SWEPT_MAX):
                await self._sweep_some(session, names[start : start + SWEPT_MAX])
            if not names:
                with self._changing.deadline():
                    removed = await self._connection.multi([Remove(paths.held_path(session))])
                if not (isinstance(removed, Refused) and removed.reason is Reason.NOT_EMPTY):
                    return

    async def _sweep_some(self, session: int, names: list[str]) -> None:
        leases = {name: paths.leaf_path(paths.LEASES, name) for name in names}

        async def planning() -> Plan | None:
            lives = await self._changing.lives(leases.values())
            nodes = await self._connection.get(list(leases.values()), fresh=True)
            marks = await self._connection.stat([paths.held_path(session, name) for name in names])
            plan = Plan()
            for (name, path), node, mark in zip(leases.items(), nodes, marks, strict=True):
                if mark is None:
                    continue
                plan.drop(paths.held_path(session, name))
                if node is not None and decode_lease(name, node[0]).session == session:
                    plan.guard_life(path, lives)
                    plan.remove(path)
                    await self._register(plan, name, {})
                    plan.announce(name)
            return plan if plan.changes else None

        await self._changing.make(planning)

    # --- inside ----------------------------------------------------------------------------

    async def _read(self, op: CheckLease, path: str) -> Node:
        """Return the node of a live lease. Raises LeaseLost."""
        (node,) = await self._connection.get([path], fresh=True)
        await self.check(op, node)
        assert node is not None
        return node

    async def _live_sessions(self, sessions: Iterable[int]) -> set[int]:
        wanted = list(sessions)
        stats = await self._connection.stat([paths.session_path(each) for each in wanted])
        return {epoch for epoch, stat in zip(wanted, stats, strict=True) if stat is not None}

    def _lease(self, name: str, row: LeaseRow, epoch: int) -> Lease:
        left_s = self._left_s(row.session, row.ttl_s)
        return Lease(name, row.owner, epoch, row.value, left_s, row.session)

    def _registration(self, name: str, value: bytes) -> dict[str, bytes]:
        """Return BookKeeper's nodes beside a lease. Raises MetadataBroken."""
        try:
            found = self._layout.registration(name, value)
        except BadRecord as wrong:
            raise MetadataBroken(str(wrong)) from wrong
        return {f"/{path}": data for path, data in found.items()}

    async def _register(self, plan: Plan, name: str, wanted: dict[str, bytes]) -> None:
        """Plan that of BookKeeper's nodes beside the lease *name* just *wanted* exist."""
        nodes = [f"/{path}" for path in self._layout.registrations(name)]
        found = await self._connection.get(nodes) if nodes else []
        for path, node in zip(nodes, found, strict=True):
            data = wanted.get(path)
            is_ours = node is not None and node[1].owner == self._connection.session_id
            if node is not None and data is not None and is_ours:
                if node[0] != data:
                    plan.set(path, data)
                continue
            if node is not None:
                plan.drop(path)
            if data is not None:
                plan.create(path, data, ephemeral=True)
