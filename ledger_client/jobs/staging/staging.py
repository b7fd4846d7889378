"""Ledgers that a job writes before readers see them.

    create_staged ──► record + staged row ──► entries ──► sealed
                                                  ├─► shown: the transaction deletes the row
                                                  └─► discarded: row and record together

Either way the row is deleted at the version it was made with. So a discarded ledger cannot be
shown any more, and a shown one cannot be discarded. What a killed job left is discarded by the
leader (topics/retention/job_rows.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
import trio

from ledger_client.errors import JobLost, LedgerError, LedgerExists
from ledger_client.ledgers.catalogue import translated
from ledger_client.ledgers.creation import LedgerPlan, new_record
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.ledgers.writer import Request, WriteDriver
from ledger_client.ledgers.writers import sealed_after
from ledger_client.topics.lanes.lane_state import Figures, LaneState, SealedBatch
from metadata.errors import LeaseLost, VersionConflict
from metadata.jobs import (
    StagedLedger,
    decode_staged,
    encode_job_row,
    job_lease,
    staged_key,
    staged_prefix,
)
from metadata.records import LedgerRecord, encode_record, ledger_key
from metadata.store import ABSENT, CheckLease, Delete, MetadataStore, Op, Put, items_under
from metadata.topics import TopicRecord


class JobStage(msgspec.Struct, frozen=True, kw_only=True):
    """The job that staged ledgers belong to. Plain values, pickled for workers."""

    topic: TopicRecord
    """as it was when the job began"""
    job_id: str
    epoch: int = 0
    """of the job's lease; 0 if ledgers may be staged without the lease"""

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
