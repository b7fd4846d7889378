"""The record of a replay in metadata, the lease of the process that runs it, and its report.

A killed process leaves its lease for at most GONE_S; a resuming process waits for that.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
import trio

from ledger_client.errors import BadTopic, JobLost, MetadataBroken, TopicBusy
from ledger_client.ledgers.catalogue import translated
from metadata.errors import LeaseHeld, LeaseLost
from metadata.paged import drop_other_pages, read_value, remove_pages, stage_value
from metadata.replays import ReplayRecord, SentChecksum, decode_replay, encode_replay, replay_key
from metadata.sessions import GONE_S, HeldLease, ProcessSession
from metadata.store import Delete, Op, Put
from native.checksum import Checksum

WHOLE = -2
"""The part number that stands for all messages, in the order of the replay."""

LOOK_S = 0.5
"""Interval at which a held lease is tried again."""


class ReplayLog:
    """The record of one replay, held by its lease. Made by open_log()."""

    def __init__(self, session: ProcessSession, key: str, topic: str, *, limit_s: float) -> None:
        self._session = session
        self._store = session.store
        self._key = key
        self._topic = topic
        self._limit_s = limit_s
        self._held: HeldLease | None = None
        self.failure: JobLost | None = None
        self._is_paged = False
        """the record that this process saved last has pages"""

    async def load(self) -> ReplayRecord | None:
        """Return the record, or `None` if there is none."""
        with translated(self._limit_s):
            found = await read_value(self._store, self._key)
            return None if found is None else decode_replay(self._key, found.value)

    async def save(self, record: ReplayRecord) -> None:
        """Store the record if the lease still holds.

        Raises:
            JobLost: the lease is over; another process may run the replay.
            MetadataUnavailable: the record may have been stored.
        """
        with translated(self._limit_s):
            value = await stage_value(self._store, self._key, encode_replay(record))
        await self._change(Put(self._key, value.row), *value.checks)
        if value.checks or self._is_paged:
            with translated(self._limit_s):
                await drop_other_pages(self._store, self._key)
        self._is_paged = bool(value.checks)

    async def drop(self) -> None:
        """Delete the record, so that the replay starts over. Raises as save()."""
        await self._change(Delete(self._key))
        with translated(self._limit_s):
            await remove_pages(self._store, self._key + "/")

    async def _change(self, *ops: Op) -> None:
        assert self._held is not None
        try:
            with translated(self._limit_s):
                await self._store.transact([self._held.check, *ops])
        except LeaseLost as lost:
            raise self._lost() from lost

    async def take(self, on_lost: Callable[[], None]) -> None:
        """Take the lease, waiting for that of a killed process to end.

        Once it is lost, *failure* is set and *on_lost* called.

        Raises:
            TopicBusy: another process renews it.
        """
        owner = f"{socket.gethostname()}/{os.getpid()}/{id(self):x}"
        until = trio.current_time() + GONE_S + LOOK_S

        def lost() -> None:
            self.failure = self._lost()
            on_lost()

        while self._held is None:
            try:
                with translated(self._limit_s):
                    self._held = await self._session.grant(self._key, owner=owner, on_over=lost)
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

    async def release(self) -> None:
        """End the lease, so that others can run the replay."""
        held, self._held = self._held, None
        if held is not None:
            await held.release()

    def _lost(self) -> JobLost:
        return replay_lost(self._topic, self._key.rpartition("/")[2])


@asynccontextmanager
async def open_log(
    session: ProcessSession, name: str, topic: str, *, limit_s: float
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
    log = ReplayLog(session, key, topic, limit_s=limit_s)
    try:
        with trio.CancelScope() as scope:
            await log.take(scope.cancel)
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
