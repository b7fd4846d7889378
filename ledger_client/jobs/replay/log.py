"""The record of a replay in metadata, the lease of the process that runs it, and its report.

A killed process leaves its lease for at most LEASE_S; a resuming process waits for that.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import msgspec
import trio

from ledger_client.background import Background
from ledger_client.errors import BadTopic, JobLost, MetadataBroken, MetadataUnavailable, TopicBusy
from ledger_client.ledgers.catalogue import translated
from metadata.errors import BadRecord, LeaseHeld, LeaseLost, MetadataError
from metadata.replays import ReplayRecord, SentChecksum, decode_replay, encode_replay, replay_key
from metadata.store import CheckLease, Delete, Lease, MetadataStore, Put
from native.checksum import Checksum

WHOLE = -2
"""The part number that stands for all messages, in the order of the replay."""

LEASE_S = 10.0
LOOK_S = 0.5
"""Interval at which a held lease is tried again."""
RELEASE_S = 1.0


class ReplayLog:
    """The record of one replay, held by its lease. Made by open_log()."""

    def __init__(self, store: MetadataStore, key: str, topic: str, *, limit_s: float) -> None:
        self._store = store
        self._key = key
        self._topic = topic
        self._limit_s = limit_s
        self._lease: Lease | None = None
        self.failure: JobLost | None = None

    async def load(self) -> ReplayRecord | None:
        """Return the record, or `None` if there is none."""
        with translated(self._limit_s):
            found = await self._store.get(self._key)
        try:
            return None if found is None else decode_replay(self._key, found.value)
        except BadRecord as wrong:
            raise MetadataBroken(f"metadata: {wrong}") from wrong

    async def save(self, record: ReplayRecord) -> None:
        """Store the record if the lease still holds.

        Raises:
            JobLost: the lease is over; another process may run the replay.
            MetadataUnavailable: the record may have been stored.
        """
        await self._change(Put(self._key, encode_replay(record)))

    async def drop(self) -> None:
        """Delete the record, so that the replay starts over. Raises as save()."""
        await self._change(Delete(self._key))

    async def _change(self, op: Put | Delete) -> None:
        assert self._lease is not None
        try:
            with translated(self._limit_s):
                await self._store.transact([CheckLease.of(self._lease), op])
        except LeaseLost as lost:
            raise self._lost() from lost

    async def take(self) -> None:
        """Take the lease, waiting for that of a killed process to end.

        Raises:
            TopicBusy: another process renews it.
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
                    owner = f"process {process_id} on {host}"
                    reason = f"replay {name} is run by {owner}"
                    raise TopicBusy(reason, topic=self._topic, owner=owner) from failure
                await trio.sleep(LOOK_S)

    async def keep(self, scope: trio.CancelScope) -> None:
        """Renew the lease until cancelled; once it is lost, set *failure* and cancel *scope*."""
        while True:
            await trio.sleep(LEASE_S / 4)
            assert self._lease is not None
            try:
                with translated(LEASE_S / 4):
                    self._lease = await self._store.renew(self._lease)
            except MetadataUnavailable:
                continue  # the store may be back before the lease ends
            except LeaseLost:
                self.failure = self._lost()
                scope.cancel()
                return

    async def release(self) -> None:
        """End the lease, so that others can run the replay."""
        lease, self._lease = self._lease, None
        if lease is not None:
            until = trio.current_time() + RELEASE_S
            with suppress(MetadataError), trio.CancelScope(shield=True, deadline=until):
                await self._store.release(lease)

    def _lost(self) -> JobLost:
        return replay_lost(self._topic, self._key.rpartition("/")[2])


@asynccontextmanager
async def open_log(
    store: MetadataStore, name: str, topic: str, *, limit_s: float
) -> AsyncIterator[ReplayLog]:
    """Hold the replay *name* for the block.

    Raises:
        BadTopic: the name is invalid.
        TopicBusy: another process runs it.
        JobLost: its lease ran out, for example while the store was away; the block is
            cancelled.
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


def replay_lost(topic: str, name: str) -> JobLost:
    """Return the error of a process whose replay another process runs by now."""
    return JobLost(
        topic, job_id=name, reason="it was taken over", advice="another process may run it by now"
    )


class PartReport(msgspec.Struct, frozen=True):
    """The messages sent to one partition or file of the target."""

    part: int
    messages: int
    checksum: str


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a finished replay.

    *messages* and *bytes* (of values and keys) count from the beginning of the replay; *resumed*
    counts messages of earlier runs, and *repeated* those that this run sent again although the
    target had them. *checksum* is the sum and chain (native/checksum.h) of all messages in the
    order of the replay; by Spark into files, which has no single order, the sum alone.
    """

    name: str
    target: str
    messages: int
    bytes: int
    checksum: str
    parts: list[PartReport] = []
    resumed: int = 0
    repeated: int = 0
    seconds: float = 0.0
    verified: bool = False
    finished_before: bool = False
    """The replay was finished before this run, which sent nothing."""


class ReplayProgress(msgspec.Struct, frozen=True):
    """How far a replay is. Entries are of the source, and approximate.

    *kept* messages are not sent again by the next run if this one is interrupted.
    """

    messages: int
    bytes: int
    entries: int
    entries_total: int
    kept: int = 0


def sums_of(sent: list[SentChecksum]) -> dict[int, Checksum]:
    """Return checksums by part, from a record's."""
    return {each.part: Checksum(each.count, each.total, each.chain) for each in sent}


def sent_of(sums: Mapping[int, Checksum]) -> list[SentChecksum]:
    """Return checksums as a record stores them."""
    return [SentChecksum(part, *_fields(each)) for part, each in sorted(sums.items())]


def _fields(each: Checksum) -> tuple[int, int, int]:
    return each.count, each.total, each.chain


def report_of(
    record: ReplayRecord,
    first: ReplayRecord,
    seconds: float,
    *,
    repeated: int = 0,
    finished_before: bool = False,
) -> ReplayReport:
    """Return the report of *record*; *first* is the record as this run found it."""
    sums = sums_of(record.sent)
    whole = sums.pop(WHOLE, Checksum())
    return ReplayReport(
        name=record.name,
        target=record.target,
        messages=whole.count,
        bytes=record.bytes,
        checksum=whole.text,
        parts=[PartReport(part, each.count, each.text) for part, each in sorted(sums.items())],
        resumed=sums_of(first.sent).get(WHOLE, Checksum()).count,
        repeated=repeated,
        seconds=round(seconds, 3),
        finished_before=finished_before,
    )
