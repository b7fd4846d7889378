"""Sessions of clients, kept by the stores of bookies over one ZooKeeper session each.

A session is one ephemeral node, /quire/sessions/<epoch>, which belongs to the ZooKeeper session of
its sponsor: the store through which it was kept last. Keeping it there costs nothing: the sponsor
resets a timer. If it is kept through another store, that one removes the node and creates it
as its own, in one multi, so nobody ever sees the session without its node. It ends

- when it is ended;
- when the sponsor's timer runs out, which is by a monotonic clock: the sponsor removes the node,
  provided that it is still its own;
- with the ZooKeeper session of its sponsor, unless it moved before. A sponsor without a connection
  refuses to keep sessions, so that clients go on to another store.

All leases of a session are over at that moment, since a lease lives only while the node of its
session exists, and every multi that depends on a lease checks both nodes. So only the session is
an ephemeral node and its leases are not: as many leases as there may be vanish at once, and move
at once. What is left of them is removed afterwards, in bounded steps, each announced in the
change log: by the sponsor, or, if that one vanished, by another store, which watches the folder of
all stores, or by whoever wants one of these leases.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import trio

from metadata.errors import MetadataBroken, MetadataUnavailable, SessionOver
from metadata.store import StoreSession
from metadata.zookeeper import paths
from metadata.zookeeper.changing import Changing
from metadata.zookeeper.plan import Plan
from metadata.zookeeper.znodes import Connection, Create, Stat

CHECK_PART = 18
"""A sponsor that heard nothing of the leader for this part of its ZooKeeper session asks first.

Its own server may be behind: then it does not see yet that a session went on to another sponsor,
or it answers although the leader has ended the ZooKeeper session meanwhile.
"""
KEEP_PART = 4
"""For this part of a session's life one store may try to keep it; then another one is asked."""
RANKS = 3
"""Stores that look after a vanished one, each a while after the one before."""
RANK_S = 2.0
RETRY_S = 0.2
TIMER_S_MAX = 1.0


class SessionRow(msgspec.Struct, frozen=True, array_like=True):
    """What the node of a session holds."""

    owner: str
    ttl_s: float


class _Kept:
    """A session that this store sponsors, as far as it knows."""

    __slots__ = ("is_sure", "session", "until_ms")

    def __init__(self, session: StoreSession, until_ms: int) -> None:
        self.session = session
        self.until_ms = until_ms
        self.is_sure = False
        """its node was ours, and is watched"""


class Sessions:
    """The sessions that one store sponsors. run() ends those that are silent."""

    def __init__(
        self,
        connection: Connection,
        changing: Changing,
        *,
        clock_ms: Callable[[], int],
        next_epoch: Callable[[], Awaitable[int]],
        sweep: Callable[[int], Awaitable[None]],
    ) -> None:
        """*sweep* removes what is left of the leases of a session that is over."""
        self._connection = connection
        self._changing = changing
        self._clock_ms = clock_ms
        self._next_epoch = next_epoch
        self._sweep = sweep
        self._kept: dict[int, _Kept] = {}
        self._sooner = trio.Event()

    async def open(self, owner: str, ttl_s: float) -> StoreSession:
        """Open a session, sponsored by this store. Raises MetadataUnavailable."""
        with self._changing.deadline():
            session = StoreSession(owner, await self._next_epoch(), ttl_s)

        async def planning() -> Plan:
            plan = Plan()
            data = msgspec.msgpack.encode(SessionRow(owner, ttl_s))
            plan.create(paths.session_path(session.epoch), data, ephemeral=True)
            plan.create(paths.held_path(session.epoch), b"")
            return plan

        asked_ms = self._clock_ms()
        await self._changing.make(planning)
        await self._sponsor(session, asked_ms)
        return session

    async def keep(self, session: StoreSession) -> None:
        """Let *session* live for its time from now on, with this store as its sponsor.

        Raises:
            SessionOver: it is over.
            MetadataUnavailable: this store cannot know.
        """
        await self.end_due()
        asked_ms = self._clock_ms()
        if not self._connection.is_connected:
            raise MetadataUnavailable(f"{self._connection.name}: no ZooKeeper answers")
        until = trio.current_time() + session.ttl_s / KEEP_PART
        kept = self._kept.get(session.epoch)
        if kept is not None and kept.is_sure and kept.session.owner == session.owner:
            if not self._heard_lately:
                path = paths.session_path(session.epoch)
                with self._changing.deadline(until):
                    (stat,) = await self._connection.stat([path], fresh=True)
                kept.is_sure = kept.is_sure and self._is_ours(stat)
            if kept.is_sure and self._kept.get(session.epoch) is kept:
                kept.until_ms = max(kept.until_ms, asked_ms + round(session.ttl_s * 1000))
                return
        with self._changing.deadline(until):
            await self._adopt(session)
            await self._sponsor(session, asked_ms)

    async def end(self, session: StoreSession) -> None:
        """End *session*, if it is not over. Raises MetadataUnavailable."""
        if await self._remove(session, only_ours=False):
            await self._sweep(session.epoch)

    async def end_due(self) -> None:
        """End the sessions of this store whose time has run out. Raises MetadataUnavailable."""
        now_ms = self._clock_ms()
        for kept in [each for each in self._kept.values() if each.until_ms <= now_ms]:
            if await self._remove(kept.session, only_ours=True):
                await self._sweep(kept.session.epoch)

    def left_s(self, epoch: int, ttl_s: float) -> float:
        """Return how long a session lives unless it is kept: at most, if this store is not sure."""
        kept = self._kept.get(epoch)
        if kept is None or not kept.is_sure:
            return ttl_s
        return max(0, kept.until_ms - self._clock_ms()) / 1000

    async def run(self) -> None:
        """End sessions whose clients are silent, and look after those of vanished sponsors."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_time)
            nursery.start_soon(self._watch_sponsors, nursery)

    # --- the sponsor -----------------------------------------------------------------------

    @property
    def _heard_lately(self) -> bool:
        silence_s = trio.current_time() - self._connection.heard_at
        return silence_s < self._connection.session_timeout_s / CHECK_PART

    async def _sponsor(self, session: StoreSession, asked_ms: int) -> None:
        """Begin the session's time at *asked_ms*, and watch that its node stays this store's."""
        kept = _Kept(session, asked_ms + round(session.ttl_s * 1000))
        is_lost = False

        def lose() -> None:
            nonlocal is_lost
            is_lost, kept.is_sure = True, False

        self._kept[session.epoch] = kept
        self._sooner.set()
        with self._changing.deadline():
            (stat,) = await self._connection.stat([paths.session_path(session.epoch)], watch=lose)
        # Without an answer there may be no watch, and another store takes the node unnoticed.
        kept.is_sure = self._is_ours(stat) and not is_lost

    def _is_ours(self, stat: Stat | None) -> bool:
        """Return True if this is a node that this store's ZooKeeper session made."""
        return stat is not None and stat.owner == self._connection.session_id

    async def _adopt(self, session: StoreSession) -> None:
        """Make the session's node this store's own. Raises SessionOver."""
        path = paths.session_path(session.epoch)

        async def planning() -> Plan | None:
            lives = await self._changing.lives([path])
            (node,) = await self._connection.get([path], fresh=True)
            if node is None or decode_session(path, node[0]).owner != session.owner:
                self._kept.pop(session.epoch, None)
                raise SessionOver(owner=session.owner, epoch=session.epoch)
            if node[1].owner == self._connection.session_id:
                return None
            plan = Plan()
            plan.guard(path, node[1].version, lives)
            plan.remove(path)
            plan.create(path, node[0], ephemeral=True)
            return plan

        await self._changing.make(planning)

    async def _remove(self, session: StoreSession, *, only_ours: bool) -> bool:
        """Remove the session's node; False if that is not for this store to do."""
        path = paths.session_path(session.epoch)
        is_over = True

        async def planning() -> Plan | None:
            nonlocal is_over
            lives = await self._changing.lives([path])
            (node,) = await self._connection.get([path], fresh=True)
            if node is None:
                return None
            is_ours = node[1].owner == self._connection.session_id
            is_over = decode_session(path, node[0]).owner == session.owner
            if not is_over or (only_ours and not is_ours):
                is_over = False
                return None
            plan = Plan()
            plan.guard(path, node[1].version, lives)
            plan.remove(path)
            return plan

        kept = self._kept.get(session.epoch)
        await self._changing.make(planning)
        if (is_over or only_ours) and self._kept.get(session.epoch) is kept:
            self._kept.pop(session.epoch, None)
        return is_over

    async def _watch_time(self) -> None:
        while True:
            self._sooner = trio.Event()
            now_ms = self._clock_ms()
            due_ms = min((kept.until_ms for kept in self._kept.values()), default=None)
            if due_ms is None:
                await self._sooner.wait()
            elif due_ms > now_ms:
                with trio.move_on_after(min((due_ms - now_ms) / 1000, TIMER_S_MAX)):
                    await self._sooner.wait()
            else:
                try:
                    await self._connection.connected()
                    await self.end_due()
                except MetadataUnavailable:
                    await trio.sleep(RETRY_S)

    # --- vanished sponsors -----------------------------------------------------------------

    async def _watch_sponsors(self, nursery: trio.Nursery) -> None:
        known: set[str] | None = None
        while True:
            changed = trio.Event()
            try:
                await self._connection.connected()
                mine = f"{self._connection.session_id:x}"
                path = f"{paths.SPONSORS}/{mine}"
                (own,) = await self._connection.stat([path])
                if own is None:
                    await self._connection.multi([Create(path, b"", ephemeral=True)])
                (folder,) = await self._connection.children([paths.SPONSORS], watch=changed.set)
            except MetadataUnavailable:
                await trio.sleep(RETRY_S)
                continue
            names = sorted(folder[0]) if folder else []
            rank = names.index(mine) if mine in names else RANKS
            if rank < RANKS and (known is None or known - set(names)):
                nursery.start_soon(self._look_after, rank * RANK_S)
            known = set(names)
            await changed.wait()

    async def _look_after(self, delay_s: float) -> None:
        """Remove what sessions left behind that are over."""
        await trio.sleep(delay_s)
        while True:
            try:
                (held,) = await self._connection.children([paths.HELD], fresh=True)
                epochs = [int(name) for name in held[0]] if held else []
                found = await self._connection.stat([paths.session_path(each) for each in epochs])
                for epoch, stat in zip(epochs, found, strict=True):
                    if stat is None:
                        await self._sweep(epoch)
            except MetadataUnavailable:
                await trio.sleep(RETRY_S)
                continue
            return


def decode_session(path: str, data: bytes) -> SessionRow:
    """Return what a session's node holds. Raises MetadataBroken."""
    try:
        return msgspec.msgpack.decode(data, type=SessionRow)
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise MetadataBroken(f"the node {path} holds something else: {wrong}") from wrong
