"""Which lane of a partition a producer writes.

access        lane                                          somebody has it
------------  --------------------------------------------  -------------------------------
"exclusive"   0; nobody else may write the partition        ProducerBusy
"wait"        0; the same                                   waits until all are gone
"take-over"   0                                             takes it; the other is fenced
"shared"      the lowest that nobody has; a named producer  takes the next; its own, or all
              has one of its own, from 1 up                 by "exclusive": ProducerBusy

Who names a lane shares the partition and writes that lane, which is made from 1 up; a lane with a
name is nobody else's.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import trio

from ledger_client.errors import MetadataBroken, MetadataUnavailable
from ledger_client.topics.errors import ProducerBusy
from ledger_client.topics.lanes.lane_lease import LaneLease
from ledger_client.topics.lanes.lane_names import read_lane_names
from ledger_client.translation import translated
from metadata.errors import BadRecord
from metadata.store import MetadataStore
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

Access = Literal["exclusive", "wait", "take-over", "shared"]
WAIT_S = 0.5
"""Between two looks whether a lane is free."""
CLOSING_S = 1.0
"""Who closes a lane that was left is waited for so long, once."""

UNKNOWN = LaneOwner(producer="")
"""Somebody who has left already."""


class Partition:
    """The lanes of a partition, for one producer that wants one of them."""

    def __init__(
        self,
        store: MetadataStore,
        topic: TopicRecord,
        index: int,
        *,
        producer: str,
        owner: str | None,
        limit_s: float,
        is_closing: bool = False,
        lane_name: str = "",
    ) -> None:
        self._lane_name = lane_name
        self._store = store
        self._topic = topic
        self._index = index
        self._producer = producer
        self._limit_s = limit_s
        self._is_closing = is_closing
        self._owner = owner or f"{producer or 'producer'}-{secrets.token_hex(16)}"
        self._asked: LaneLease | None = None

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
            await trio.sleep(CLOSING_S if access == "exclusive" else WAIT_S)

    async def lane(self, lane: int, access: Access) -> LaneLease:
        """Return the lease of this very lane. Raises ProducerBusy.

        Who shares the partition gets none while somebody has all of it.
        """
        lease = self._new_lease(lane, is_shared=True)
        taken = await lease.take(self._limit_s)
        others = await self._leases()
        whole = [n for n, other in others.items() if not other.shared and access == "shared"]
        if taken is None or whole:
            await lease.release()
            raise self._is_busy(lane if taken is None else whole[0], others)
        return lease

    async def give_up(self) -> None:
        """Release what was taken; nobody got it."""
        if self._asked is not None:
            await self._asked.release()

    async def _others(self, lease: LaneLease) -> dict[int, LaneOwner]:
        """Take lane 0 if nobody writes the partition; else return who does."""
        others = await self._leases()
        if not others and await lease.take(self._limit_s) is not None:
            # Who took another lane meanwhile sees this lease, or is seen here.
            others = await self._leases()
            if not others:
                return {}
            await lease.release()
        return others or await self._leases() or {0: UNKNOWN}

    async def _shared(self) -> LaneLease:
        lease: LaneLease | None = None
        while True:
            others = await self._leases()
            whole = [lane for lane, other in others.items() if not other.shared]
            if whole:
                if lease is not None:
                    await lease.release()
                raise self._is_busy(whole[0], others)
            if lease is not None:
                return lease  # and who comes for the whole partition now sees it
            lease = self._new_lease(await self._choose(others), is_shared=True)
            if await lease.take(self._limit_s) is None:
                lease = None  # somebody was faster
            elif not await self._is_for_us(lease.lane):
                await lease.release()  # somebody was faster, and has left it already
                lease = None

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
                raise self._is_busy(own[0], others)
            return own[0]
        lane = 1
        while lane in others or lane in names:
            lane += 1
        return lane

    async def _is_for_us(self, lane: int) -> bool:
        """Return whether a lane that is held now is new, or was made for this producer."""
        if self._lane_name:
            known = (await self._named()).get(lane)
            return known == self._lane_name or lane not in await self._names()
        return (await self._names()).get(lane, self._producer) == self._producer

    async def _names(self) -> dict[int, str]:
        return await read_lanes(self._store, self._topic.uid, self._index, limit_s=self._limit_s)

    async def _named(self) -> dict[int, str]:
        """Return the lanes of the partition that have names."""
        with translated(self._limit_s):
            found = await read_lane_names(self._store, self._topic)
        return {lane: name for (index, lane), name in found.items() if index == self._index}

    async def _leases(self) -> dict[int, LaneOwner]:
        """Return who else writes which lane."""
        prefix = partition_prefix(WRITERS, self._topic.uid, self._index)
        owners: dict[int, LaneOwner] = {}
        after = ""
        with translated(self._limit_s):
            while leases := await self._store.leases(prefix, after=after):
                for lease in leases:
                    if lease.owner != self._owner:
                        owners[last_number(lease.name)] = decode_owner(lease.name, lease.value)
                after = leases[-1].name
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
        self._asked = LaneLease(self._store, name, self._owner, encode_row(owner))
        return self._asked

    def _is_busy(self, lane: int, owners: dict[int, LaneOwner]) -> ProducerBusy:
        owner = owners.get(lane)
        who = "another producer"
        if owner is not None and owner is not UNKNOWN:
            name = f"producer {owner.producer}" if owner.producer else "a producer"
            who = f"{name} (process {owner.process_id} on {owner.host})"
        return ProducerBusy(self._topic.name, partition=self._index, lane=lane, owner=who)


async def read_lanes(
    store: MetadataStore, uid: int, partition: int, *, limit_s: float
) -> dict[int, str]:
    """Return the lanes there are, and whose they are; not those that were deleted.

    Raises as translated().
    """
    prefix = partition_prefix(LANES, uid, partition)
    names: dict[int, str] = {}
    after = ""
    with translated(limit_s):
        while page := await store.list(prefix, after=after):
            for key, found in page:
                record = decode_lane(key, found.value)
                if not record.deleted:
                    names[last_number(key)] = record.producer
            after = page[-1][0]
    return names


@asynccontextmanager
async def hold_lane(
    store: MetadataStore,
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
) -> AsyncIterator[LaneLease]:
    """Hold the lease of a lane for the block; renewing it is the caller's.

    *owner* names who asks in this run of this process, and nobody else: what it holds is its own.
    *is_closing*: it is held to close the lane, which does not take long. *lane_name*: of the lane
    to take, when the partition is shared.

    Raises:
        ProducerBusy: the lane is another's, and *access* is neither "wait" nor "take-over".
        MetadataUnavailable: the store did not answer in *limit_s*.
    """
    lanes = Partition(
        store,
        topic,
        partition,
        producer=producer,
        owner=owner,
        limit_s=limit_s,
        is_closing=is_closing,
        lane_name=lane_name,
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
