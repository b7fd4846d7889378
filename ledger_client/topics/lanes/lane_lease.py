"""The lane of a partition that a producer writes, and the lease that reserves it.

access        lane                                        if it is taken
------------  ------------------------------------------  ---------------------------------
"exclusive"   0; no other may write the partition         ProducerBusy
"wait"        0; the same                                 waits until all writers are gone
"take-over"   0                                           takes it; its writer is fenced
"shared"      the lowest free one; a named producer       takes the next one; ProducerBusy if
              has one of its own, from 1 up               it is its own, if a session of the same
                                                          name holds any, or if one has them all

A producer may ask for a lane by its name; it shares the partition. The lane is created with a
number from 1 up, and no other producer gets it.

A lease belongs to the session of its process (metadata/sessions.py) and outlives a killed
writer by SESSION_S. It only informs: a writer that loses it, for instance while the store is
away, takes it again and goes on until another one raises the lane's epoch.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Literal

import trio

from ledger_client.errors import MetadataBroken, MetadataUnavailable, ProducerBusy
from ledger_client.ledgers.catalogue import translated
from ledger_client.topics.lanes.lane_names import read_lane_names
from ledger_client.topics.lanes.lane_rows import LaneRows
from metadata.errors import BadRecord, LeaseHeld, MetadataError
from metadata.sessions import SESSION_S, HeldLease, ProcessSession
from metadata.store import MetadataStore, leases_under, pages
from metadata.topics import (
    LANES,
    WRITERS,
    LaneOwner,
    TopicRecord,
    decode_lane,
    decode_owner,
    encode_row,
    last_number,
    partition_prefix,
    writer_lease,
)

LOOK_S = SESSION_S / 3
"""Pause before another attempt, after the store did not answer or another one has the lease."""


class LaneLease:
    """Marks a lane as in use. After `take_over` the previous holder's lease may last a while."""

    def __init__(self, session: ProcessSession, name: str, owner: str, value: bytes) -> None:
        self.lane = last_number(name)
        self.owner = owner
        self._session = session
        self._name = name
        self._value = value
        self._held: HeldLease | None = None
        self._news = trio.Event()
        self._has_lapsed = False

    async def take(self, timeout_s: float) -> bool:
        """Ask for the lease; False if another owner has it."""
        self._held = None
        with translated(timeout_s), suppress(LeaseHeld):
            self._held = await self._session.grant(
                self._name, owner=self.owner, value=self._value, on_over=self._lapse
            )
        return self._held is not None

    def _lapse(self) -> None:
        self._has_lapsed = True
        self._news.set()

    async def take_over(self, timeout_s: float) -> None:
        """End the holder's lease and take it, so that no third producer finds the lane free.

        If another producer is faster, `keep` goes on asking.
        """
        store = self._session.store
        with translated(timeout_s):
            for lease in await store.leases(self._name):
                await store.release(lease)
        await self.take(timeout_s)

    async def keep(self, rows: LaneRows) -> None:
        """Take the lease again when it is over; look whether the lane is ours at each hint.

        Nothing is asked while nothing happens. Whoever takes the lane fences its last ledger, so
        that a writer that hears of nothing fails at its next append.

        Raises:
            ProducerFenced, NoSuchTopic: the lane is not ours any more.
            MetadataBroken: metadata is damaged.
        """
        watches = self._session.store.watches
        with suppress(MetadataError):  # too many prefixes: the next append will tell
            watches.subscribe(rows.key, self)
        try:
            await self.hold(rows)
        finally:
            watches.unsubscribe(rows.key, self)

    async def hold(self, rows: LaneRows) -> None:
        """Take the lease again when it is over, without hints. Raises as keep()."""
        is_sure = True
        while True:
            with trio.move_on_after(math.inf if is_sure else LOOK_S):
                await self._news.wait()
            self._news = trio.Event()
            is_sure = await self._look(rows)

    async def _look(self, rows: LaneRows) -> bool:
        """See whether the lane is ours and take the lease if it is over; False: try again."""
        with suppress(MetadataUnavailable):
            await rows.verify()
            if self._held is None or self._held.is_over:
                return await self.take(LOOK_S)
            return True
        return False

    def notify(self, prefix: str, hint: str) -> None:
        """Look soon: the lane's record may have changed."""
        if hint == prefix:
            self._news.set()

    async def check_kept(self) -> None:
        """Raise MetadataUnavailable if the lease has run out since it was taken.

        Another producer may then have found the partition free, with no lane to close yet.
        """
        if not self._has_lapsed:
            await self._session.confirm()
        if self._has_lapsed:
            raise MetadataUnavailable("the lane's lease ran out while the lane was opened")

    async def release(self) -> None:
        """Give the lease back, for up to RELEASE_S, even when cancelled."""
        held, self._held = self._held, None
        if held is not None:
            await held.release()


Away = Callable[[], AbstractAsyncContextManager[None]]
"""Entered by the opening of a lane while it waits for others than the metadata store."""
Access = Literal["exclusive", "wait", "take-over", "shared"]
WAIT_S = 0.5
"""Pause between two attempts to get a lane."""
CLOSING_S = 1.0
"""How long to wait, once, for another process closing an abandoned lane."""

UNKNOWN = LaneOwner(producer="")
"""Stands for a writer that left before its lease was read."""


class Partition:
    """The lanes of a partition, for one producer that wants one of them."""

    def __init__(
        self,
        session: ProcessSession,
        topic: TopicRecord,
        index: int,
        *,
        producer: str,
        owner: str | None,
        limit_s: float,
        is_closing: bool = False,
        lane_name: str = "",
        away: Away = nullcontext,
    ) -> None:
        self._away = away
        self._lane_name = lane_name
        self._session = session
        self._store = session.store
        self._topic = topic
        self._index = index
        self._producer = producer
        self._limit_s = limit_s
        self._is_closing = is_closing
        self._owner = owner or f"{producer or 'producer'}-{secrets.token_hex(16)}"
        self._requested: LaneLease | None = None

    async def lease(self, access: Access) -> LaneLease:
        """Return the lease of a lane, by the table above. Raises ProducerBusy."""
        if access == "shared":
            return await self._shared()
        lease = self._new_lease(0, is_shared=False)
        if access == "take-over":
            await lease.take_over(self._limit_s)
            return lease
        waited = False
        while True:
            try:
                others = await self._others(lease)
                if not others:
                    return lease
                is_brief = all(other.closing for other in others.values())
                if access == "exclusive" and (waited or not is_brief):
                    raise self._is_busy(min(others), others)
            except MetadataUnavailable:
                if access == "exclusive":
                    raise
                await lease.release()
            waited = True
            async with self._away():
                await trio.sleep(CLOSING_S if access == "exclusive" else WAIT_S)

    async def lane(self, lane: int, access: Access) -> LaneLease:
        """Return the lease of this very lane. Raises ProducerBusy.

        With "shared", an exclusive writer of any lane counts as busy.
        """
        lease = self._new_lease(lane, is_shared=True)
        taken = await lease.take(self._limit_s)
        others = await self._leases()
        whole = [n for n, other in others.items() if not other.shared and access == "shared"]
        if whole or not taken:
            await lease.release()
            raise self._is_busy(whole[0] if taken else lane, others, shares=True)
        return lease

    async def give_up(self) -> None:
        """Release the lease that was requested, after a failure."""
        if self._requested is not None:
            await self._requested.release()

    async def _others(self, lease: LaneLease) -> dict[int, LaneOwner]:
        """Take lane 0 if the partition has no writer; else return its writers by lane."""
        others = await self._leases()
        if not others and await lease.take(self._limit_s):
            # A producer that took another lane meanwhile sees this lease, or is seen here.
            others = await self._leases()
            if not others:
                return {}
            await lease.release()
        return others or await self._leases() or {0: UNKNOWN}

    async def _shared(self) -> LaneLease:
        if not self._producer and not self._lane_name:
            first = await self._first()
            if first is not None:
                return first
        lease: LaneLease | None = None
        while True:
            others = await self._leases()
            whole = [lane for lane, other in others.items() if not other.shared]
            taken = whole or await self._same_producer(others)
            if taken:
                if lease is not None:
                    await lease.release()
                raise self._is_busy(taken[0], others, shares=True)
            if lease is not None:
                return lease  # an exclusive producer that comes now sees it
            lease = self._new_lease(await self._choose(others), is_shared=True)
            if not await lease.take(self._limit_s):
                lease = None  # another producer was faster
            elif not await self._is_for_us(lease.lane):
                await lease.release()  # another one was faster, and has left it already
                lease = None

    async def _first(self) -> LaneLease | None:
        """Take lane 0, which belongs to no producer, unless another one has it: most are alone.

        It is all that a producer without a name needs to look at: a producer that has the whole
        partition has this lane, so neither finds the other's lease free.
        """
        lease = self._new_lease(0, is_shared=True)
        return lease if await lease.take(self._limit_s) else None

    async def _same_producer(self, others: dict[int, LaneOwner]) -> list[int]:
        """Return the lanes that another session of this named producer holds.

        A session holds its lease before the lane's record names the producer. Without this look
        a session that begins at the same moment would take another lane, where the numbers of
        the first one do not count, and messages sent again would be stored twice.
        """
        if not self._producer or self._lane_name:
            return []
        held = [lane for lane, other in others.items() if other.producer == self._producer]
        named = await self._named() if held else {}
        return [lane for lane in held if lane not in named]

    async def _choose(self, others: dict[int, LaneOwner]) -> int:
        """Return the lane for a producer that shares the partition."""
        names, named = await self._names(), await self._named()
        own = [lane for lane, name in named.items() if name == self._lane_name]
        if not self._producer and not self._lane_name:
            lane = 0
            while lane in others or names.get(lane) or lane in named:
                lane += 1
            return lane
        if not self._lane_name:
            own = [lane for lane, name in names.items() if name == self._producer]
        if own:
            if own[0] in others:
                raise self._is_busy(own[0], others, shares=True)
            return own[0]
        lane = 1
        while lane in others or lane in names:
            lane += 1
        return lane

    async def _is_for_us(self, lane: int) -> bool:
        """True if the lane, which is held now, is new or was made for this producer."""
        if self._lane_name:
            known = (await self._named()).get(lane)
            return known == self._lane_name or lane not in await self._names()
        return (await self._names()).get(lane, self._producer) == self._producer

    async def _names(self) -> dict[int, str]:
        return await read_lanes(self._store, self._topic.uid, self._index, limit_s=self._limit_s)

    async def _named(self) -> dict[int, str]:
        """Return the names of the partition's named lanes, by lane."""
        with translated(self._limit_s):
            found = await read_lane_names(self._store, self._topic)
        return {lane: name for (index, lane), name in found.items() if index == self._index}

    async def _leases(self) -> dict[int, LaneOwner]:
        """Return the other writers of the partition, by lane."""
        prefix = partition_prefix(WRITERS, self._topic.uid, self._index)
        owners: dict[int, LaneOwner] = {}
        with translated(self._limit_s):
            for lease in await leases_under(self._store, prefix):
                if lease.owner != self._owner and not await self._session.free(lease):
                    owners[last_number(lease.name)] = decode_owner(lease.name, lease.value)
        return owners

    def _new_lease(self, lane: int, *, is_shared: bool) -> LaneLease:
        owner = LaneOwner(
            producer=self._producer,
            host=socket.gethostname(),
            process_id=os.getpid(),
            since_ms=time.time_ns() // 1_000_000,
            shared=is_shared,
            closing=self._is_closing,
        )
        name = writer_lease(self._topic.uid, self._index, lane)
        self._requested = LaneLease(self._session, name, self._owner, encode_row(owner))
        return self._requested

    def _is_busy(
        self, lane: int, owners: dict[int, LaneOwner], *, shares: bool = False
    ) -> ProducerBusy:
        owner = owners.get(lane)
        who = "another producer"
        if owner is not None and owner is not UNKNOWN:
            name = f"producer {owner.producer}" if owner.producer else "a producer"
            who = f"{name} (process {owner.process_id} on {owner.host})"
        return ProducerBusy(
            self._topic.name,
            partition=self._index,
            lane=lane,
            owner=who,
            owner_shares=owner is not None and owner.shared,
            shares=shares,
        )


async def read_lanes(
    store: MetadataStore, uid: int, partition: int, *, limit_s: float
) -> dict[int, str]:
    """Return the producer that each lane belongs to, "" for none; without deleted lanes.

    Raises as translated().
    """
    names: dict[int, str] = {}
    with translated(limit_s):
        async for page in pages(store, partition_prefix(LANES, uid, partition)):
            for key, found in page:
                record = decode_lane(key, found.value)
                if not record.deleted:
                    names[last_number(key)] = record.producer
    return names


@asynccontextmanager
async def hold_lane(
    session: ProcessSession,
    topic: TopicRecord,
    partition: int,
    *,
    access: Access,
    producer: str,
    lane: int | None,
    limit_s: float,
    owner: str | None = None,
    is_closing: bool = False,
    lane_name: str = "",
    away: Away = nullcontext,
) -> AsyncIterator[LaneLease]:
    """Hold the lease of a lane for the block. The caller keeps it with `keep`.

    *owner* identifies the caller in this run of this process; by default it is unique. With
    *is_closing* the lease is marked as lasting only a moment. *lane_name* names the lane to take
    in a shared partition. *away* is entered while another writer is waited for.

    Raises:
        ProducerBusy: the lane is taken, and *access* is neither "wait" nor "take-over".
        MetadataUnavailable: the store did not answer in *limit_s*.
    """
    lanes = Partition(
        session,
        topic,
        partition,
        producer=producer,
        owner=owner,
        limit_s=limit_s,
        is_closing=is_closing,
        lane_name=lane_name,
        away=away,
    )
    try:
        lease = await (lanes.lease(access) if lane is None else lanes.lane(lane, access))
    except BaseException as failure:
        await lanes.give_up()
        if isinstance(failure, BadRecord):
            raise MetadataBroken(f"metadata: {failure}") from failure
        raise
    try:
        yield lease
    finally:
        await lease.release()
