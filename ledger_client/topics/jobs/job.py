"""Jobs over a topic: a lease that says that one runs, and what it needs meanwhile.

    async with open_job(client, topic, "compaction", pins=[(0, 0, 7)]) as job:
        ... workers stage ledgers with job.stage ...
        await store.transact([job.check, ..., *(each.shown for each in staged)])

The lease is renewed while the block runs, and what is staged and was not shown is given up
at its end. A process that is killed leaves the lease for its rest, at most LEASE_S; then the
housekeeper gives up what it staged.

What a job pins is kept, whatever retention or a purge say, from when pin() returns until the
job ends. A ledger may go in the moment before: so a job that finds one gone says so.
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
from ledger_client.client import Client
from ledger_client.errors import LedgerError, MetadataUnavailable
from ledger_client.topics.errors import BadTopic, JobLost
from ledger_client.topics.jobs.staging import JobStage, discard
from ledger_client.topics.keeping.compacted_sets import set_pins
from ledger_client.topics.keeping.holdings import items_under
from ledger_client.topics.keeping.retention import Pin
from ledger_client.translation import translated
from metadata.errors import LeaseLost
from metadata.jobs import (
    JOBS,
    PINS,
    PINS_MAX,
    JobKind,
    JobOwner,
    JobPins,
    PinnedLane,
    decode_pins,
    encode_job_row,
    ids_key,
    job_lease,
    job_of,
    pins_key,
    staged_prefix,
)
from metadata.store import CheckLease, Lease, MetadataStore, Put
from metadata.topics import TopicRecord, topic_prefix

LEASE_S = 30.0
LEAVE_S = 10.0
"""For giving up what is staged, at the end; afterwards the housekeeper does it."""
_log = logging.getLogger(__name__)


class Job:
    """A job that runs. Made by open_job().

    Attributes:
        topic: as it was when the job began.
        id: letters and digits; part of keys.
        failure: why it runs no more.
    """

    def __init__(self, client: Client, topic: TopicRecord, kind: JobKind, lease: Lease) -> None:
        self.topic = topic
        self.id = lease.owner
        self.failure: JobLost | None = None
        self._client = client
        self._kind = kind
        self._lease = lease

    @property
    def check(self) -> CheckLease:
        """What the transaction that shows the job's result names."""
        return CheckLease.of(self._lease)

    @property
    def stage(self) -> JobStage:
        """Where its workers stage ledgers, in whatever process."""
        return JobStage(topic=self.topic, job_id=self.id, epoch=self._lease.epoch)

    async def pin(self, lanes: Iterable[tuple[int, int, int]]) -> None:
        """Have ledgers kept: of each (partition, lane, number) from *number* on, and no others.

        Raises:
            JobLost: the lease is over.
            BadTopic: these are more lanes than can be pinned.
            MetadataUnavailable: the store did not answer in time.
        """
        pinned = [PinnedLane(*lane) for lane in lanes]
        if len(pinned) > PINS_MAX:
            reason = f"a job pins {len(pinned)} lanes; at most {PINS_MAX} can be"
            raise BadTopic(reason, topic=self.topic.name)
        row = encode_job_row(JobPins(kind=self._kind, lanes=pinned))
        try:
            with translated(self._client.options.metadata_timeout_s):
                put = Put(pins_key(self.topic.uid, self.id), row)
                await self._client.store.transact([self.check, put])
        except LeaseLost as lost:
            raise self._lost(lost) from lost

    async def keep(self, scope: trio.CancelScope) -> None:
        """Renew the lease until cancelled; if it is over, say why and cancel *scope*."""
        while True:
            await trio.sleep(LEASE_S / 4)
            try:
                with translated(LEASE_S / 4):
                    self._lease = await self._client.store.renew(self._lease)
            except MetadataUnavailable as failure:
                _log.warning("the lease of job %s is not renewed: %s", self.id, failure)
            except LeaseLost as lost:
                self.failure = self._lost(lost)
                scope.cancel()
                return

    async def leave(self) -> None:
        """Let others know that the job is over, and give up what is staged and not shown.

        In this order: without the lease no worker can stage anything more.
        """
        store, uid = self._client.store, self.topic.uid
        with trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVE_S):
            try:
                with translated(LEAVE_S):
                    await store.release(self._lease)
                    await discard(store, staged_prefix(uid, self.id))
                    await store.delete(pins_key(uid, self.id))
                    await store.delete(ids_key(uid, self.id))
            except LedgerError as failure:
                _log.warning("job %s leaves something to the housekeeper: %s", self.id, failure)

    def _lost(self, lost: LeaseLost) -> JobLost:
        return JobLost(self.topic.name, job_id=self.id, reason=str(lost))


@asynccontextmanager
async def open_job(
    client: Client,
    topic: TopicRecord,
    kind: JobKind,
    *,
    pins: Iterable[tuple[int, int, int]] = (),
) -> AsyncIterator[Job]:
    """Run a job for the block; what it staged and did not show is given up at its end.

    Args:
        client: whose metadata.
        topic: as it was found lately.
        kind: what the job is.
        pins: what is to be kept meanwhile: (partition, lane, number of the first ledger).

    Raises:
        JobLost: the lease ran out, as when the store was away for long. The block is
            cancelled then; what it showed before is shown.
        BadTopic, MetadataUnavailable: as Job.pin().
    """
    job_id = new_job_id(kind)
    lease = await grant_job(client, topic, kind, job_id, ttl_s=LEASE_S)
    job = Job(client, topic, kind, lease)
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
    """Return an id that no other job has."""
    return f"{kind}-{secrets.token_hex(8)}"


async def grant_job(
    client: Client, topic: TopicRecord, kind: JobKind, job_id: str, *, ttl_s: float
) -> Lease:
    """Take a job's lease, or take it again: then its former epoch is over.

    Raises MetadataUnavailable.
    """
    owner = JobOwner(
        kind=kind,
        topic=topic.name,
        host=socket.gethostname(),
        process_id=os.getpid(),
        since_ms=time.time_ns() // 1_000_000,
    )
    with translated(client.options.metadata_timeout_s):
        return await client.store.grant(
            job_lease(topic.uid, job_id), job_id, ttl_s=ttl_s, value=encode_job_row(owner)
        )


async def live_jobs(store: MetadataStore, prefix: str = JOBS) -> set[tuple[int, str]]:
    """Return the topic's uid and the id of each job that runs. Raises MetadataError."""
    found: set[tuple[int, str]] = set()
    after = ""
    while leases := await store.leases(prefix, after=after):
        found |= {job_of(lease.name) for lease in leases}
        after = leases[-1].name
    return found


async def read_pins(store: MetadataStore, topic: TopicRecord) -> list[Pin]:
    """Return what running jobs, and the next compaction, need of a topic. Raises MetadataError."""
    pins = await set_pins(store, topic)
    rows = await items_under(store, topic_prefix(PINS, topic.uid))
    if not rows:
        return pins
    live = await live_jobs(store, topic_prefix(JOBS, topic.uid))
    for key, found in rows:
        if job_of(key) in live:
            row = decode_pins(key, found.value)
            pins += [_pin(lane, f"{row.kind} job {job_of(key)[1]}") for lane in row.lanes]
    return pins


def _pin(lane: PinnedLane, holder: str) -> Pin:
    return Pin(partition=lane.partition, lane=lane.lane, number=lane.number, holder=holder)
