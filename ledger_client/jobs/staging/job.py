"""Jobs over a topic: a lease while the job runs, pins for what it reads, and staged ledgers.

    async with open_job(client, topic, "compaction", pins=[(0, 0, 7)]) as job:
        ... workers stage ledgers with job.stage ...
        await store.transact([job.check, ..., *(each.shown for each in staged)])

The lease lives as long as the client's session. At the end of the block, ledgers that were staged
and not shown are discarded. After a kill the lease lasts at most SESSION_S more; then the leader
discards them.

From when pin() returns until the job ends, neither retention nor a purge removes what it pinned.
A ledger may go in the moment before, so a job that finds one gone must report it.

Readers do not see the ledgers that a job stages until it shows them:

    create_staged ──► record + staged row ──► entries ──► sealed
                                                  ├─► shown: the transaction deletes the row
                                                  └─► discarded: row and record together

Either way the row is deleted at the version it was made with. So a discarded ledger cannot be
shown any more, and a shown one cannot be discarded. What a killed job left is discarded by the
leader (topics/retention/job_rows.py).
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
import trio

from ledger_client.errors import BadTopic, JobLost, LedgerError, LedgerExists
from ledger_client.ledgers.catalogue import translated
from ledger_client.ledgers.ledgers import LedgerPlan, Ledgers, new_record, sealed_after
from ledger_client.ledgers.writer import Request, WriteDriver
from ledger_client.topics.lanes.lane_state import Figures, LaneState, SealedBatch
from ledger_client.topics.retention.job_rows import discard
from metadata.errors import LeaseLost, VersionConflict
from metadata.jobs import (
    PINS_MAX,
    JobKind,
    JobOwner,
    JobPins,
    PinnedLane,
    StagedLedger,
    decode_staged,
    encode_job_row,
    ids_key,
    job_lease,
    pins_key,
    staged_key,
    staged_prefix,
)
from metadata.paged import drop_other_pages, remove_pages, stage_value
from metadata.records import LedgerRecord, encode_record, ledger_key
from metadata.sessions import HeldLease
from metadata.store import ABSENT, CheckLease, Delete, MetadataStore, Op, Put, items_under
from metadata.topics import TopicRecord

LEAVE_S = 10.0
"""Time limit for discarding staged ledgers at the end; the leader does the rest."""
_log = logging.getLogger(__name__)


class Job:
    """A running job. Made by open_job().

    Attributes:
        topic: as it was when the job began.
        id: letters and digits; part of keys.
        failure: set when the lease is lost.
    """

    def __init__(
        self, ledgers: Ledgers, topic: TopicRecord, kind: JobKind, held: HeldLease
    ) -> None:
        self.topic = topic
        self.id = held.lease.owner
        self.failure: JobLost | None = None
        self._ledgers = ledgers
        self._kind = kind
        self._held = held

    @property
    def check(self) -> CheckLease:
        """The lease check for the transaction that shows the job's result."""
        return self._held.check

    @property
    def stage(self) -> JobStage:
        """The values that workers need to stage ledgers, in any process."""
        return JobStage(topic=self.topic, job_id=self.id, epoch=self._held.lease.epoch)

    async def pin(self, lanes: Iterable[tuple[int, int, int]]) -> None:
        """Pin ledgers: of each (partition, lane, number) those from *number* on, and no others.

        Raises:
            JobLost: the lease is over.
            BadTopic: more lanes than can be pinned.
            MetadataUnavailable: the store did not answer in time.
        """
        pinned = [PinnedLane(*lane) for lane in lanes]
        if len(pinned) > PINS_MAX:
            reason = f"a job pins {len(pinned)} lanes; at most {PINS_MAX} can be"
            raise BadTopic(reason, topic=self.topic.name)
        row = encode_job_row(JobPins(kind=self._kind, lanes=pinned))
        try:
            with translated(self._ledgers.options.metadata_timeout_s):
                store, key = self._ledgers.store, pins_key(self.topic.uid, self.id)
                value = await stage_value(store, key, row)
                await store.transact([self.check, Put(key, value.row), *value.checks])
                await drop_other_pages(store, key)
        except LeaseLost as lost:
            raise self._lost(str(lost)) from lost

    def lose(self) -> None:
        """Set *failure*: the lease is over."""
        self.failure = self._lost("its lease is over")

    async def leave(self) -> None:
        """End the lease, then discard what is staged and not shown.

        In this order, since without the lease no worker can stage more.
        """
        store, uid = self._ledgers.store, self.topic.uid
        with trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVE_S):
            try:
                with translated(LEAVE_S):
                    await self._held.release()
                    await discard(store, staged_prefix(uid, self.id))
                    await store.delete(pins_key(uid, self.id))
                    await remove_pages(store, pins_key(uid, self.id) + "/")
                    await store.delete(ids_key(uid, self.id))
            except LedgerError as failure:
                _log.warning("job %s leaves staged ledgers to the leader: %s", self.id, failure)

    def _lost(self, reason: str) -> JobLost:
        return JobLost(self.topic.name, job_id=self.id, reason=reason)


@asynccontextmanager
async def open_job(
    ledgers: Ledgers,
    topic: TopicRecord,
    kind: JobKind,
    *,
    pins: Iterable[tuple[int, int, int]] = (),
) -> AsyncIterator[Job]:
    """Run a job for the block; what it staged and did not show is discarded at its end.

    Args:
        ledgers: whose metadata.
        topic: as it was read last.
        kind: of the job.
        pins: (partition, lane, number of the first ledger) of what must stay meanwhile.

    Raises:
        JobLost: the lease ran out, for example while the store was away. The block is
            cancelled; what it showed before stays shown.
        BadTopic, MetadataUnavailable: as Job.pin().
    """
    job_id = new_job_id(kind)
    scope = trio.CancelScope()

    def lost() -> None:
        job.lose()
        scope.cancel()

    with translated(ledgers.options.metadata_timeout_s):
        held = await ledgers.session.grant(
            job_lease(topic.uid, job_id), owner=job_id, value=owner_row(topic, kind), on_over=lost
        )
    job = Job(ledgers, topic, kind, held)
    try:
        with scope:
            pinned = list(pins)
            if pinned:
                await job.pin(pinned)
            yield job
        if scope.cancelled_caught and job.failure is not None:
            raise job.failure
    finally:
        await job.leave()


def new_job_id(kind: JobKind) -> str:
    """Return a random id, unique among jobs."""
    return f"{kind}-{secrets.token_hex(8)}"


def owner_row(topic: TopicRecord, kind: JobKind) -> bytes:
    """Return the value of a job's lease: who runs it."""
    owner = JobOwner(
        kind=kind,
        topic=topic.name,
        host=socket.gethostname(),
        process_id=os.getpid(),
        since_ms=time.time_ns() // 1_000_000,
    )
    return encode_job_row(owner)


# --- staged ledgers ------------------------------------------------------------------------


class JobStage(msgspec.Struct, frozen=True, kw_only=True):
    """The job that staged ledgers belong to. Plain values, pickled for workers."""

    topic: TopicRecord
    """as it was when the job began"""
    job_id: str
    epoch: int = 0
    """epoch of the job's lease; 0 if ledgers may be staged without the lease"""

    @property
    def checks(self) -> list[CheckLease]:
        """Lease checks for the job's transactions."""
        name = job_lease(self.topic.uid, self.job_id)
        return [CheckLease(name, self.job_id, self.epoch)] if self.epoch else []


class Staged(NamedTuple):
    """The row of a staged ledger, as it was read."""

    key: str
    version: int
    ledger: StagedLedger

    @property
    def shown(self) -> Op:
        """The op that shows the ledger; it conflicts if the ledger was discarded."""
        return Delete(self.key, self.version)

    def named(self, pointer: str) -> Op:
        """Return the op that has a pointer show the ledger; it conflicts as `shown` does."""
        row = msgspec.structs.replace(self.ledger, pointer=pointer)
        return Put(self.key, encode_job_row(row), self.version)


@asynccontextmanager
async def create_staged(
    ledgers: Ledgers, stage: JobStage, *, partition: int, lane: int = -1
) -> AsyncIterator[WriteDriver]:
    """Create a ledger that no reader sees, and seal it at the end of the block.

    Args:
        ledgers: whose bookies and metadata.
        stage: the job's.
        partition: of the topic.
        lane: of the partition; -1 if that is decided when the ledger is shown.

    Raises:
        JobLost: the job's lease is over.
        NotEnoughBookies: fewer bookies than the topic's replication accept writes.
        MetadataUnavailable: the store did not answer in time.
        LedgerError: at the end of the block, as WriteDriver.close().
    """
    opened = await open_staged(ledgers, stage, partition=partition, lane=lane)
    async with sealed_after(opened) as writer:
        yield writer


async def open_staged(
    ledgers: Ledgers,
    stage: JobStage,
    *,
    partition: int,
    lane: int = -1,
    ledger_id: int | None = None,
) -> WriteDriver:
    """Create a ledger like create_staged(); the caller closes it.

    Raises:
        LedgerExists: *ledger_id* is taken.
    """
    topic = stage.topic
    plan = LedgerPlan(
        ensemble_size=topic.replication,
        write_quorum=topic.replication,
        ack_quorum=topic.ack_quorum,
        custom={"topic": topic.name, "partition": str(partition), "job": stage.job_id},
        ledger_id=ledger_id,
    )
    record = await new_record(plan, catalogue=ledgers.catalogue, placement=ledgers.placement)
    await _stage(ledgers, stage, record, partition, lane)
    return ledgers.writers.open(record)


async def _stage(
    ledgers: Ledgers, stage: JobStage, record: LedgerRecord, partition: int, lane: int
) -> None:
    row = StagedLedger(
        ledger_id=record.ledger_id, partition=partition, lane=lane, created_ms=record.created_ms
    )
    key = staged_key(stage.topic.uid, stage.job_id, record.ledger_id)
    ops: list[Op] = [
        *stage.checks,
        Put(ledger_key(record.ledger_id), encode_record(record), ABSENT),
        Put(key, encode_job_row(row), ABSENT),
    ]
    try:
        with translated(ledgers.options.metadata_timeout_s):
            await ledgers.store.transact(ops)
    except LeaseLost as lost:
        raise JobLost(stage.topic.name, job_id=stage.job_id, reason=str(lost)) from lost
    except VersionConflict:
        raise LedgerExists(record.ledger_id) from None


async def staged_ledgers(ledgers: Ledgers, uid: int, job_id: str) -> list[Staged]:
    """Return the ledgers of a job that are neither shown nor discarded, by rising ledger id.

    Raises:
        MetadataUnavailable, MetadataBroken: as every call to the store.
    """
    with translated(ledgers.options.metadata_timeout_s):
        return await read_staged(ledgers.store, staged_prefix(uid, job_id))


async def read_staged(store: MetadataStore, prefix: str) -> list[Staged]:
    """Return the staged ledgers under *prefix*. Raises MetadataError."""
    items = await items_under(store, prefix)
    return [Staged(key, found.version, decode_staged(key, found.value)) for key, found in items]


class SealedLedger(msgspec.Struct, frozen=True, kw_only=True):
    """A staged ledger that is sealed, with the figures for its row."""

    ledger_id: int
    partition: int
    entries: int
    size: int
    """payload bytes"""
    created_ms: int
    figures: Figures


class StagedLedgerWriter:
    """A staged ledger being written; has the attributes that Rolling reads."""

    def __init__(self, writer: WriteDriver, partition: int) -> None:
        self.writer = writer
        self.partition = partition
        self.batches = self.size = 0
        self.due_size = 0
        """Bytes that it had when it first reached the topic's limits; 0 before that."""
        self.last_event_time: int | None = None
        self.failure: LedgerError | None = None
        self._figures = Figures()
        self._opened_at = trio.current_time()

    @property
    def age_s(self) -> float:
        """Seconds since it was created, by trio's clock."""
        return trio.current_time() - self._opened_at

    def send(self, batch: SealedBatch) -> Request:
        """Send a batch without waiting. Raises WriterFailed if it was not sent."""
        request = Request([batch.payload])
        self.writer.submit(request)
        self.batches += 1
        self.size += batch.size
        self._figures.note(batch)
        self.last_event_time = self._figures.last_event_time
        return request

    def append_state(self, now_ms: int) -> None:
        """Send the lane's state as the last entry; the lane's next writer reads it."""
        state = LaneState(last_event_time=self.last_event_time, figures=self._figures)
        self.writer.submit(Request([state.encode(now_ms)]))

    async def seal(self, limit: trio.CapacityLimiter) -> None:
        """Wait until all is durable and close the ledger, or set *failure*."""
        async with limit:
            try:
                await self.writer.settle()
                if self.writer.failure is not None:
                    raise self.writer.failure
                await self.writer.close()
            except LedgerError as failure:
                self.failure = failure

    def sealed(self) -> SealedLedger:
        """Return the ledger with its figures; call it after seal()."""
        record = self.writer.metadata
        return SealedLedger(
            ledger_id=record.ledger_id,
            partition=self.partition,
            entries=record.last_entry + 1,
            size=record.length,
            created_ms=record.created_ms,
            figures=self._figures,
        )
