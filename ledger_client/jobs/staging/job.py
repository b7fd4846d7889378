"""Jobs over a topic: a lease while the job runs, and pins for what it reads.

    async with open_job(client, topic, "compaction", pins=[(0, 0, 7)]) as job:
        ... workers stage ledgers with job.stage ...
        await store.transact([job.check, ..., *(each.shown for each in staged)])

The lease is renewed while the block runs. At its end, ledgers that were staged and not shown are
discarded. After a kill the lease lasts at most LEASE_S more; then the leader discards them.

From when pin() returns until the job ends, neither retention nor a purge removes what it pinned.
A ledger may go in the moment before, so a job that finds one gone must report it.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from ledger_client.background import Background
from ledger_client.errors import BadTopic, JobLost, LedgerError, MetadataUnavailable
from ledger_client.jobs.staging.staging import JobStage
from ledger_client.ledgers.catalogue import translated
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.topics.retention.job_rows import discard
from metadata.errors import LeaseLost
from metadata.jobs import (
    PINS_MAX,
    JobKind,
    JobOwner,
    JobPins,
    PinnedLane,
    encode_job_row,
    ids_key,
    job_lease,
    pins_key,
    staged_prefix,
)
from metadata.store import CheckLease, Lease, Put
from metadata.topics import TopicRecord

LEASE_S = 30.0
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

    def __init__(self, ledgers: Ledgers, topic: TopicRecord, kind: JobKind, lease: Lease) -> None:
        self.topic = topic
        self.id = lease.owner
        self.failure: JobLost | None = None
        self._ledgers = ledgers
        self._kind = kind
        self._lease = lease

    @property
    def check(self) -> CheckLease:
        """The lease check for the transaction that shows the job's result."""
        return CheckLease.of(self._lease)

    @property
    def stage(self) -> JobStage:
        """The values that workers need to stage ledgers, in any process."""
        return JobStage(topic=self.topic, job_id=self.id, epoch=self._lease.epoch)

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
                put = Put(pins_key(self.topic.uid, self.id), row)
                await self._ledgers.store.transact([self.check, put])
        except LeaseLost as lost:
            raise self._lost(lost) from lost

    async def keep(self, scope: trio.CancelScope) -> None:
        """Renew the lease until cancelled; once it is lost, set *failure* and cancel *scope*."""
        while True:
            await trio.sleep(LEASE_S / 4)
            try:
                with translated(LEASE_S / 4):
                    self._lease = await self._ledgers.store.renew(self._lease)
            except MetadataUnavailable as failure:
                _log.warning("the lease of job %s is not renewed: %s", self.id, failure)
            except LeaseLost as lost:
                self.failure = self._lost(lost)
                scope.cancel()
                return

    async def leave(self) -> None:
        """End the lease, then discard what is staged and not shown.

        In this order, since without the lease no worker can stage more.
        """
        store, uid = self._ledgers.store, self.topic.uid
        with trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVE_S):
            try:
                with translated(LEAVE_S):
                    await store.release(self._lease)
                    await discard(store, staged_prefix(uid, self.id))
                    await store.delete(pins_key(uid, self.id))
                    await store.delete(ids_key(uid, self.id))
            except LedgerError as failure:
                _log.warning("job %s leaves staged ledgers to the leader: %s", self.id, failure)

    def _lost(self, lost: LeaseLost) -> JobLost:
        return JobLost(self.topic.name, job_id=self.id, reason=str(lost))


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
    lease = await grant_job(ledgers, topic, kind, job_id, ttl_s=LEASE_S)
    job = Job(ledgers, topic, kind, lease)
    try:
        pinned = list(pins)
        if pinned:
            await job.pin(pinned)
        with trio.CancelScope() as scope:
            async with Background() as nursery:
                nursery.start_soon(job.keep, scope)
                yield job
        if scope.cancelled_caught and job.failure is not None:
            raise job.failure
    finally:
        await job.leave()


def new_job_id(kind: JobKind) -> str:
    """Return a random id, unique among jobs."""
    return f"{kind}-{secrets.token_hex(8)}"


async def grant_job(
    ledgers: Ledgers, topic: TopicRecord, kind: JobKind, job_id: str, *, ttl_s: float
) -> Lease:
    """Take a job's lease; taking it again ends its former epoch.

    Raises MetadataUnavailable.
    """
    owner = JobOwner(
        kind=kind,
        topic=topic.name,
        host=socket.gethostname(),
        process_id=os.getpid(),
        since_ms=time.time_ns() // 1_000_000,
    )
    with translated(ledgers.options.metadata_timeout_s):
        return await ledgers.store.grant(
            job_lease(topic.uid, job_id), job_id, ttl_s=ttl_s, value=encode_job_row(owner)
        )
