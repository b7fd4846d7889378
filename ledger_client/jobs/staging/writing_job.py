"""A job that writes a topic: planned in one process, done in many, committed or aborted in another.

    plan_write ──► (pickled) ──► workers: join_write, open_staged_writer ──► sealed ledgers
                                           commit_write(ledgers) or abort_write ◄──┘

No process lives as long as the job, so its lease belongs to a session of its own, which is long
(WRITE_S). Each process that works for it opens or keeps it: the planner and the committer once,
workers every KEEP_S. Only the leader acts on the lease: WRITE_S after the last call it may
discard what is staged. A commit in time shows everything; a later one gets JobLost, and so does a
worker that starts after the job has ended.

Streams. Spark writes a micro-batch again after a restart from the checkpoint if it had not noted
that the batch was done. The batch is then in the topic already and is skipped. That is right only
for the last batch, by a later run of the same query, with as many messages. A lower batch number,
or a different batch of the same number, comes from a checkpoint that was set back or copied: its
messages are not in the topic, and skipping it would lose them, so it is an error (SinkBatch).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
import trio

from ledger_client.errors import (
    JobLost,
    LedgerError,
    MetadataUnavailable,
    ReplayConflict,
)
from ledger_client.jobs.staging.job import JobStage, SealedLedger, new_job_id, owner_row
from ledger_client.jobs.staging.showing import CommitMark, Showing, check_free
from ledger_client.ledgers.catalogue import translated
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.retention.job_rows import discard
from metadata.errors import LeaseHeld, SessionOver
from metadata.jobs import (
    SinkProgress,
    decode_sink,
    encode_job_row,
    ids_key,
    job_lease,
    sink_key,
    staged_prefix,
)
from metadata.store import ABSENT, Lease, MetadataStore, Put, StoreSession, Versioned
from metadata.topics import TopicRecord

WRITE_S = 15 * 60.0
"""A job whose lease was not renewed for this long is taken for dead."""
KEEP_S = 60.0
LEAVE_S = 30.0
_log = logging.getLogger(__name__)


class WritePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plain values for workers and for the commit; can be pickled."""

    stage: JobStage
    begun_ms: int
    """Unix time of the store"""


async def plan_write(ledgers: Ledgers, name: str) -> WritePlan:
    """Begin a job that writes a topic.

    Raises:
        NoSuchTopic: there is none.
        ProducerBusy: a producer holds a whole partition, so nothing could be shown.
        MetadataUnavailable, MetadataBroken: the store did not answer, or a row is damaged.
    """
    limit_s = ledgers.options.metadata_timeout_s
    topic, _ = await TopicCatalogue(ledgers.store, timeout_s=limit_s).get(name)
    await check_free(ledgers, topic)
    stage = JobStage(topic=topic, job_id=new_job_id("write"))
    await ledgers.catalogue.refresh_clock()
    plan = WritePlan(stage=stage, begun_ms=ledgers.clock.now_ms())
    await _hold(ledgers, plan)
    return plan


async def join_write(ledgers: Ledgers, plan: WritePlan) -> None:
    """Renew the job's lease as a worker begins. Raises JobLost if the job has ended."""
    await _stay(ledgers, plan, heard_ms=plan.begun_ms)


async def keep_write(ledgers: Ledgers, plan: WritePlan) -> None:
    """After join_write(), renew the job's lease every KEEP_S until cancelled or the job ends."""
    heard_ms = await _now_ms(ledgers, plan.begun_ms)
    while True:
        await trio.sleep(KEEP_S)
        try:
            if await _stay(ledgers, plan, heard_ms=heard_ms):
                heard_ms = await _now_ms(ledgers, heard_ms)
        except JobLost as ended:
            _log.warning("%s", ended)
            return


async def commit_write(
    ledgers: Ledgers,
    plan: WritePlan,
    sealed: Sequence[SealedLedger],
    *,
    mark: CommitMark | None = None,
) -> bool:
    """Show *sealed* in this order, discard what else is staged, and end the job.

    Returns False if their mark shows that they were shown before. Raises as Showing.run();
    what is staged is discarded then too, so that none of it is shown later.
    """
    lease = await _hold(ledgers, plan)
    try:
        if not sealed and mark is None:
            return True
        return await Showing(ledgers, plan.stage, sealed, mark).run()
    finally:
        await _leave(ledgers, plan, lease)


async def abort_write(ledgers: Ledgers, plan: WritePlan) -> None:
    """Discard all that is staged and end the job; on failure the leader discards it later."""
    lease: Lease | None = None
    with suppress(LedgerError):
        lease = await _hold(ledgers, plan)
    await _leave(ledgers, plan, lease)


async def _stay(ledgers: Ledgers, plan: WritePlan, *, heard_ms: int) -> bool:
    """Renew the lease; return False if the store did not answer.

    Of an existing lease the session is kept, and the lease never granted anew: it may end at
    this moment, and a grant would revive the job.

    Raises:
        JobLost: the lease is gone and cannot have run out since *heard_ms*, so it was ended.
    """
    topic, job_id = plan.stage.topic, plan.stage.job_id
    try:
        with translated(ledgers.options.metadata_timeout_s):
            found = await ledgers.store.leases(job_lease(topic.uid, job_id))
            now_ms = 0 if found else await ledgers.store.now_ms()
            if found:
                await _keep_session_of(found[0], ledgers.store)
        if not found and now_ms < heard_ms + WRITE_S * 1000:
            raise JobLost(topic.name, job_id=job_id, reason="it has ended")
        if not found:
            await _hold(ledgers, plan)
    except SessionOver:
        return await _stay(ledgers, plan, heard_ms=heard_ms)  # another worker's by now, or over
    except MetadataUnavailable as failure:
        _log.warning("the lease of job %s is not renewed: %s", job_id, failure)
        return False
    return True


async def _keep_session_of(lease: Lease, store: MetadataStore) -> None:
    """Keep the session of a job's lease. Raises SessionOver if the lease has another one by now."""
    session = StoreSession(lease.owner, lease.session, WRITE_S)
    await store.keep_session(session)
    if session.epoch not in [again.session for again in await store.leases(lease.name)]:
        raise SessionOver(owner=session.owner, epoch=session.epoch)


async def _now_ms(ledgers: Ledgers, before_ms: int) -> int:
    """Return the store's time, or *before_ms* while the store is away.

    Workers may be on any host, with any clock.
    """
    try:
        await ledgers.catalogue.refresh_clock()
    except MetadataUnavailable:
        return before_ms
    return ledgers.clock.now_ms()


async def _hold(ledgers: Ledgers, plan: WritePlan) -> Lease:
    topic, job_id = plan.stage.topic, plan.stage.job_id
    name, row = job_lease(topic.uid, job_id), owner_row(topic, "write")
    try:
        with translated(ledgers.options.metadata_timeout_s):
            session = await ledgers.store.open_session(job_id, ttl_s=WRITE_S)
            return await ledgers.store.grant(name, session, value=row)
    except LeaseHeld as held:  # nobody else has this id
        raise JobLost(topic.name, job_id=job_id, reason=str(held)) from held


async def _leave(ledgers: Ledgers, plan: WritePlan, lease: Lease | None) -> None:
    uid, job_id = plan.stage.topic.uid, plan.stage.job_id
    with trio.CancelScope(shield=True):
        try:
            with translated(LEAVE_S):
                if lease is not None:
                    await ledgers.store.end_session(StoreSession(job_id, lease.session, WRITE_S))
                await discard(ledgers.store, staged_prefix(uid, job_id))
                await ledgers.store.delete(ids_key(uid, job_id))
        except LedgerError as failure:
            _log.warning("a job leaves staged ledgers to the leader: %s", failure)


class SinkBatch(NamedTuple):
    """A stream's micro-batch as a CommitMark: shown once, however often it is written."""

    query: str
    """id of the query that numbers the batches; the same after a restart from the checkpoint"""
    batch_id: int
    run: str = ""
    """id of the query's run, new after each restart; "" if unknown"""
    checkpoint: str = ""
    """location of the query's checkpoint; "" if unknown"""
    messages: int = -1
    """in the batch; -1 if unknown"""

    def key(self, topic: TopicRecord) -> str:
        """Return the key of the row."""
        return sink_key(topic.uid, self.query)

    def put(self, topic: TopicRecord, found: Versioned | None) -> Put | None:
        """See CommitMark. Raises ReplayConflict if skipping the batch would lose it."""
        key = self.key(topic)
        if found is not None:
            last = decode_sink(key, found.value)
            if last.batch_id == self.batch_id and self._repeats(last):
                return None
            if last.batch_id >= self.batch_id:
                raise ReplayConflict(self._set_back(last), topic=topic.name)
        row = SinkProgress(
            batch_id=self.batch_id,
            at_ms=time.time_ns() // 1_000_000,
            run=self.run,
            checkpoint=self.checkpoint,
            messages=self.messages,
        )
        return Put(key, encode_job_row(row), ABSENT if found is None else found.version)

    def _set_back(self, last: SinkProgress) -> str:
        return (
            f"the stream begins again with batch {self.batch_id}, and the topic has it up to "
            f"{_described(last)} (query {self.query}): its checkpoint was set back, moved or "
            "copied, or the query was altered after a kill in this batch. Go on with the "
            "checkpoint and the query that wrote last, or write all of this one's batches anew, "
            "beside what is there, with the option sinkName and a name that was not used before"
        )

    def _repeats(self, last: SinkProgress) -> bool:
        """Whether the topic's batch of this number is this very batch."""
        if self.run and self.run == last.run:  # of which Spark makes each batch once
            return True
        is_moved = "" != self.checkpoint != last.checkpoint != ""
        differs = -1 != self.messages != last.messages != -1
        return not (is_moved or differs)


def _described(last: SinkProgress) -> str:
    text = f"batch {last.batch_id}"
    text += f" with {last.messages} messages" if last.messages >= 0 else ""
    return text + (f" from checkpoint {last.checkpoint}" if last.checkpoint else "")
