"""A job that writes a topic: planned in one process, done in many, shown or given up in another.

    plan_write ──► (pickled) ──► workers: join_write, open_staged_writer ──► pieces
                                                   commit_write(pieces) or abort_write ◄──┘

No process lives as long as the job. So its lease has a long time, and who works for the job
takes it again: those who plan and commit once, workers every KEEP_S. Nothing depends on the
lease but the housekeeper: from WRITE_S after the last of them was heard of, it may give up
what is staged. A job that shows in time shows all of it, and one that comes later gets JobLost;
so does a worker that begins when the job has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import trio

from ledger_client.client import Client
from ledger_client.errors import LedgerError, MetadataUnavailable
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.errors import JobLost, ProducerBusy
from ledger_client.topics.jobs.job import grant_job, new_job_id
from ledger_client.topics.jobs.marks import Mark
from ledger_client.topics.jobs.showing import Showing
from ledger_client.topics.jobs.staged_piece import StagedPiece
from ledger_client.topics.jobs.staging import JobStage, discard
from ledger_client.topics.keeping.holdings import read_owners
from ledger_client.translation import translated
from metadata.errors import LeaseHeld, LeaseLost
from metadata.jobs import ids_key, job_lease, staged_prefix
from metadata.store import Lease
from metadata.topics import TopicRecord

WRITE_S = 15 * 60.0
"""A job of which nothing was heard for so long is taken for dead."""
KEEP_S = 60.0
LEAVE_S = 30.0
_log = logging.getLogger(__name__)


class WritePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What workers and who commits need. Plain values: it can be pickled."""

    stage: JobStage
    begun_ms: int
    """by the store's time"""


async def plan_write(client: Client, name: str) -> WritePlan:
    """Begin a job that writes a topic.

    Raises:
        NoSuchTopic: there is none.
        ProducerBusy: somebody has a whole partition: nothing could be shown.
        MetadataUnavailable, MetadataBroken: as they say.
    """
    limit_s = client.options.metadata_timeout_s
    topic, _ = await TopicCatalogue(client.store, timeout_s=limit_s).get(name)
    await check_free(client, topic)
    stage = JobStage(topic=topic, job_id=new_job_id("write"))
    await client.catalogue.refresh_clock()
    plan = WritePlan(stage=stage, begun_ms=client.clock.now_ms())
    await _hold(client, plan)
    return plan


async def join_write(client: Client, plan: WritePlan) -> None:
    """Let others know that somebody works for the job. Raises JobLost: it has ended."""
    await _stay(client, plan, heard_ms=plan.begun_ms)


async def keep_write(client: Client, plan: WritePlan) -> None:
    """Let others know, after join_write(), that the job lives: until cancelled, or it has ended."""
    heard_ms = await _now_ms(client, plan.begun_ms)
    while True:
        await trio.sleep(KEEP_S)
        try:
            if await _stay(client, plan, heard_ms=heard_ms):
                heard_ms = await _now_ms(client, heard_ms)
        except JobLost as ended:
            _log.warning("%s", ended)
            return


async def commit_write(
    client: Client,
    plan: WritePlan,
    pieces: Sequence[StagedPiece],
    *,
    mark: Mark | None = None,
) -> bool:
    """Show *pieces*, in this order, give up what else is staged, and end the job.

    Returns whether they are shown; False: by their mark they were. Raises as
    Showing.run(); then what is staged is given up, so that nothing of it is shown later.
    """
    lease = await _hold(client, plan)
    try:
        if not pieces and mark is None:
            return True
        return await Showing(client, plan.stage, pieces, mark).run()
    finally:
        await _leave(client, plan, lease)


async def abort_write(client: Client, plan: WritePlan) -> None:
    """Give up all that is staged, and end the job. What cannot be, is the housekeeper's."""
    lease: Lease | None = None
    with suppress(LedgerError):
        lease = await _hold(client, plan)
    await _leave(client, plan, lease)


async def _stay(client: Client, plan: WritePlan, *, heard_ms: int) -> bool:
    """Renew the lease, and return whether that could be done.

    A lease that is there is renewed, never granted anew: it may end in this moment, and a
    grant would bring the job back.

    Raises:
        JobLost: the lease is gone, and cannot have run out since *heard_ms*.
    """
    topic, job_id = plan.stage.topic, plan.stage.job_id
    try:
        with translated(client.options.metadata_timeout_s):
            found = await client.store.leases(job_lease(topic.uid, job_id))
            now_ms = 0 if found else await client.store.now_ms()
            if found:
                await client.store.renew(found[0])
        if not found and now_ms < heard_ms + WRITE_S * 1000:
            raise JobLost(topic.name, job_id=job_id, reason="it has ended")
        if not found:
            await _hold(client, plan)
    except LeaseLost:
        return await _stay(client, plan, heard_ms=heard_ms)  # another worker's by now, or over
    except MetadataUnavailable as failure:
        _log.warning("the lease of job %s is not renewed: %s", job_id, failure)
        return False
    return True


async def _now_ms(client: Client, before_ms: int) -> int:
    """Return the store's time, or *before_ms* while the store is away.

    Whoever works for a job may be on any host, with any clock.
    """
    try:
        await client.catalogue.refresh_clock()
    except MetadataUnavailable:
        return before_ms
    return client.clock.now_ms()


async def _hold(client: Client, plan: WritePlan) -> Lease:
    topic, job_id = plan.stage.topic, plan.stage.job_id
    try:
        return await grant_job(client, topic, "write", job_id, ttl_s=WRITE_S)
    except LeaseHeld as held:  # nobody else has this id
        raise JobLost(topic.name, job_id=job_id, reason=str(held)) from held


async def _leave(client: Client, plan: WritePlan, lease: Lease | None) -> None:
    uid, job_id = plan.stage.topic.uid, plan.stage.job_id
    with trio.CancelScope(shield=True):
        try:
            with translated(LEAVE_S):
                if lease is not None:
                    await client.store.release(lease)
                await discard(client.store, staged_prefix(uid, job_id))
                await client.store.delete(ids_key(uid, job_id))
        except LedgerError as failure:
            _log.warning("a job leaves something to the housekeeper: %s", failure)


async def check_free(client: Client, topic: TopicRecord) -> None:
    """Raise ProducerBusy if somebody has a whole partition now."""
    with translated(client.options.metadata_timeout_s):
        owners = await read_owners(client.store, topic)
    for (partition, lane), owner in owners.items():
        if not (owner.shared or owner.closing):
            name = f"producer {owner.producer}" if owner.producer else "a producer"
            who = f"{name} (process {owner.process_id} on {owner.host})"
            raise ProducerBusy(topic.name, partition=partition, lane=lane, owner=who)
