"""How far a replay is, in metadata, and who runs it.

A process that is killed leaves its lease for LEASE_S at most, which who resumes waits for.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from ledger_client.background import Background
from ledger_client.errors import MetadataBroken, MetadataUnavailable
from ledger_client.replay.errors import ReplayBusy, ReplayLost
from ledger_client.topics.errors import BadTopic
from ledger_client.translation import translated
from metadata.errors import BadRecord, LeaseHeld, LeaseLost, MetadataError
from metadata.replays import ReplayRecord, decode_replay, encode_replay, replay_key
from metadata.store import CheckLease, Delete, Lease, MetadataStore, Put

LEASE_S = 10.0
LOOK_S = 0.5
"""Between two looks whether a lease is over."""
RELEASE_S = 1.0


class ReplayLog:
    """The record of one replay, by whoever holds its lease. Made by open_log()."""

    def __init__(self, store: MetadataStore, key: str, topic: str, *, limit_s: float) -> None:
        self._store = store
        self._key = key
        self._topic = topic
        self._limit_s = limit_s
        self._lease: Lease | None = None
        self.failure: ReplayLost | None = None

    async def load(self) -> ReplayRecord | None:
        """Return the record, None if there is none."""
        with translated(self._limit_s):
            found = await self._store.get(self._key)
        try:
            return None if found is None else decode_replay(self._key, found.value)
        except BadRecord as wrong:
            raise MetadataBroken(f"metadata: {wrong}") from wrong

    async def save(self, record: ReplayRecord) -> None:
        """Put the record. Raises ReplayLost."""
        await self._change(Put(self._key, encode_replay(record)))

    async def drop(self) -> None:
        """Forget the replay. Raises ReplayLost."""
        await self._change(Delete(self._key))

    async def _change(self, op: Put | Delete) -> None:
        assert self._lease is not None
        try:
            with translated(self._limit_s):
                await self._store.transact([CheckLease.of(self._lease), op])
        except LeaseLost as lost:
            raise self._lost() from lost

    async def take(self) -> None:
        """Take the lease; of a process that is gone, wait until it is over.

        Raises:
            ReplayBusy: somebody renews it.
        """
        owner = f"{socket.gethostname()}/{os.getpid()}/{id(self):x}"
        until = trio.current_time() + LEASE_S + LOOK_S
        while self._lease is None:
            try:
                with translated(self._limit_s):
                    self._lease = await self._store.grant(self._key, owner, ttl_s=LEASE_S)
            except MetadataBroken as failure:
                held = failure.__cause__
                if not isinstance(held, LeaseHeld):
                    raise
                if trio.current_time() >= until:
                    name = self._key.rpartition("/")[2]
                    host, process_id, _ = held.owner.split("/")
                    told = f"process {process_id} on {host}"
                    raise ReplayBusy(self._topic, name=name, owner=told) from failure
                await trio.sleep(LOOK_S)

    async def keep(self, scope: trio.CancelScope) -> None:
        """Renew the lease until cancelled; if it is over, say why and cancel *scope*."""
        while True:
            await trio.sleep(LEASE_S / 4)
            assert self._lease is not None
            try:
                with translated(LEASE_S / 4):
                    self._lease = await self._store.renew(self._lease)
            except MetadataUnavailable:
                continue  # it may be back before the lease is over
            except LeaseLost:
                self.failure = self._lost()
                scope.cancel()
                return

    async def release(self) -> None:
        """Let others run the replay."""
        lease, self._lease = self._lease, None
        if lease is not None:
            until = trio.current_time() + RELEASE_S
            with suppress(MetadataError), trio.CancelScope(shield=True, deadline=until):
                await self._store.release(lease)

    def _lost(self) -> ReplayLost:
        return ReplayLost(self._topic, name=self._key.rpartition("/")[2])


@asynccontextmanager
async def open_log(
    store: MetadataStore, name: str, topic: str, *, limit_s: float
) -> AsyncIterator[ReplayLog]:
    """Hold the replay *name* for the block.

    Raises:
        BadTopic: that is no name.
        ReplayBusy: another process runs it.
        ReplayLost: its lease ran out, as when the store was away for long; the block is
            cancelled then.
        MetadataUnavailable: the store did not answer in time.
    """
    try:
        key = replay_key(name)
    except ValueError as wrong:
        raise BadTopic(f"a replay's name: {wrong}", topic=topic) from wrong
    log = ReplayLog(store, key, topic, limit_s=limit_s)
    try:
        await log.take()
        with trio.CancelScope() as scope:
            async with Background() as nursery:
                nursery.start_soon(log.keep, scope)
                yield log
        if scope.cancelled_caught and log.failure is not None:
            raise log.failure
    finally:
        await log.release()
