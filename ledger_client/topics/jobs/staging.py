"""Ledgers that a job writes before readers see them.

    create_staged ──► record + staged row ──► entries ──► sealed
                                                  ├─► shown: whoever shows it deletes the row
                                                  └─► discard: row and record together

A row is deleted at the version it was made with, by one of the two: a ledger that was given
up cannot be shown any more, and one that was shown is no more the job's. So what a job that
was killed left needs no care but the housekeeper's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from ledger_client.client import Client
from ledger_client.creation import LedgerPlan, new_record
from ledger_client.errors import LedgerExists
from ledger_client.sealing import sealed_after
from ledger_client.topics.errors import JobLost
from ledger_client.topics.keeping.holdings import items_under
from ledger_client.translation import translated
from ledger_client.writer import LedgerWriter
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
from metadata.store import ABSENT, CheckLease, Delete, MetadataStore, Op, Put
from metadata.topics import TopicRecord, last_number

DISCARD_COUNT = 200
"""Ledgers that one transaction gives up."""
ATTEMPTS_MAX = 5


class JobStage(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job stages ledgers. Plain values: workers in other processes get it pickled."""

    topic: TopicRecord
    """as it was when the job began"""
    job_id: str
    epoch: int = 0
    """of the job's lease; 0: its ledgers may be staged whatever became of the lease"""

    @property
    def checks(self) -> list[CheckLease]:
        """What a transaction for the job names."""
        name = job_lease(self.topic.uid, self.job_id)
        return [CheckLease(name, self.job_id, self.epoch)] if self.epoch else []


class Staged(NamedTuple):
    """A staged ledger, as its row was found."""

    key: str
    version: int
    ledger: StagedLedger

    @property
    def shown(self) -> Op:
        """The op by which a transaction shows the ledger: it conflicts if it was given up."""
        return Delete(self.key, self.version)


@asynccontextmanager
async def create_staged(
    client: Client, stage: JobStage, *, partition: int, lane: int = -1
) -> AsyncIterator[LedgerWriter]:
    """Make a ledger that no reader sees and write it; it is sealed at the end of the block.

    Args:
        client: whose bookies and metadata.
        stage: the job's.
        partition: of the topic, for which the ledger is.
        lane: for which it is; -1: decided when it is shown.

    Raises:
        JobLost: the job's lease is over.
        NotEnoughBookies: fewer than the topic's replication take writes.
        MetadataUnavailable: the store did not answer in time.
        LedgerError: at the end of the block, as LedgerWriter.close().
    """
    opened = await open_staged(client, stage, partition=partition, lane=lane)
    async with sealed_after(opened) as writer:
        yield writer


async def open_staged(
    client: Client,
    stage: JobStage,
    *,
    partition: int,
    lane: int = -1,
    ledger_id: int | None = None,
) -> LedgerWriter:
    """Make a ledger as create_staged() does; to close it, or leave it, is the caller's.

    Raises:
        LedgerExists: *ledger_id*, which the caller chose, is taken.
    """
    topic = stage.topic
    plan = LedgerPlan(
        ensemble_size=topic.replication,
        write_quorum=topic.replication,
        ack_quorum=topic.ack_quorum,
        custom={"topic": topic.name, "partition": str(partition), "job": stage.job_id},
        ledger_id=ledger_id,
    )
    record = await new_record(plan, catalogue=client.catalogue, placement=client.placement)
    await _stage(client, stage, record, partition, lane)
    return client.writers.open(record)


async def _stage(
    client: Client, stage: JobStage, record: LedgerRecord, partition: int, lane: int
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
        with translated(client.options.metadata_timeout_s):
            await client.store.transact(ops)
    except LeaseLost as lost:
        raise JobLost(stage.topic.name, job_id=stage.job_id, reason=str(lost)) from lost
    except VersionConflict:
        raise LedgerExists(record.ledger_id) from None


async def staged_ledgers(client: Client, uid: int, job_id: str) -> list[Staged]:
    """Return what a job staged and nobody showed or gave up, by rising ledger id.

    Raises:
        MetadataUnavailable, MetadataBroken: as every call to the store.
    """
    with translated(client.options.metadata_timeout_s):
        return await read_staged(client.store, staged_prefix(uid, job_id))


async def read_staged(store: MetadataStore, prefix: str) -> list[Staged]:
    """Return the staged ledgers under *prefix*. Raises MetadataError."""
    items = await items_under(store, prefix)
    return [Staged(key, found.version, decode_staged(key, found.value)) for key, found in items]


async def discard(store: MetadataStore, prefix: str, *, checks: Sequence[CheckLease] = ()) -> int:
    """Give up the staged ledgers under *prefix*; return how many.

    Bookies free their space in their time. What somebody shows meanwhile stays; what cannot
    be given up, as it changes without end, is left for another time.

    Raises:
        MetadataError: what was not reached is as it was.
        LeaseLost: one of *checks* is over.
    """
    count = attempts = 0
    while (page := await store.list(prefix, limit=DISCARD_COUNT)) and attempts < ATTEMPTS_MAX:
        rows = [Delete(key, found.version) for key, found in page]
        ledgers = [Delete(ledger_key(last_number(key))) for key, _ in page]
        try:
            await store.transact([*checks, *rows, *ledgers])
        except VersionConflict:
            attempts += 1
        else:
            count, attempts = count + len(page), 0
    return count
