"""A compaction from its plan to the generation that it publishes.

    plan ──► job: lease, pins ──► runner: staged ledgers ──► publish: one transaction

Readers have the previous generation until that transaction, and the new one from it on. What does
not fit it is stored before, where nobody counts it: a large set as pages (metadata/paged.py), and
in the rows of many staged ledgers the name of a pointer, which the transaction turns
(metadata/pointers.py). A job that fails or is killed leaves staged ledgers, which are discarded
(jobs/staging/job.py), and pages, which the leader removes.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, Protocol

import msgspec
import trio

from ledger_client.errors import (
    JobLost,
    LedgerError,
    MetadataUnavailable,
    NoSuchTopic,
    TopicBusy,
    TopicError,
)
from ledger_client.jobs.compaction.plan import (
    CompactionPlan,
    NullKeys,
    OnProgress,
    PartitionResult,
    plan_compaction,
)
from ledger_client.jobs.compaction.uncompacted import Uncompacted, uncompacted
from ledger_client.jobs.staging.job import Job, JobStage, Staged, open_job, staged_ledgers
from ledger_client.ledgers.catalogue import RETRY_S, translated
from ledger_client.topics.context import TopicContext
from ledger_client.topics.retention.holdings import read_set, remove_retired, remove_set
from metadata.compaction import (
    LEDGERS_MAX,
    RETIRED_MAX,
    CompactedLedger,
    CompactedSet,
    CompactionReport,
    Horizon,
    Retired,
    SetAt,
    compacted_key,
    encode_set,
)
from metadata.errors import BadRecord, LeaseLost, VersionConflict
from metadata.jobs import JOBS, TRUNCATIONS, JobOwner, decode_job_owner, job_of
from metadata.paged import PAGES, drop_other_pages, stage_value
from metadata.pointers import STEP_COUNT, OpenPointer, finish, open_pointer
from metadata.store import ABSENT, OPS_MAX, Check, Op, Put
from metadata.topics import TopicRecord, topic_key, topic_prefix

PUBLISH_S = 20.0
"""Time limit of all attempts to publish."""
PREPARE_S = 60.0
"""Time limit for storing what does not fit the transaction that publishes."""
CHECKS = 2
"""Ops of the publication beside the set and its ledgers: of the lease, and of the topic."""
DIRECT_OPS_MAX = OPS_MAX
"""A generation whose publication has more ops needs a pointer."""
_log = logging.getLogger(__name__)

TIDY_S = 20.0
"""Time limit for removing retired ledgers, or a whole set."""


class Runner(Protocol):
    """Compacts the partitions of a plan into staged ledgers."""

    @property
    def engine(self) -> Literal["spark", "process"]:
        """The engine's name in the report."""

    async def separately(
        self, plan: CompactionPlan, stage: JobStage, on_progress: OnProgress
    ) -> list[PartitionResult]:
        """Compact each partition by itself.

        A partition with keys of another is not written; its result counts them.
        """

    async def together(
        self, plan: CompactionPlan, stage: JobStage, on_progress: OnProgress
    ) -> list[PartitionResult]:
        """Compact all partitions together; a key may be in several, and one message of it stays."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """The result of compact_topic(): the set it published, or the figures of a dry run."""

    topic: str
    published: bool
    """False if there was nothing new, or for a dry run"""
    generation: int = 0
    """generation of the current set, 0 if there is none"""
    report: CompactionReport | None = None
    """report of the job that made the set"""
    partitions: int = 0
    """compacted, or to be compacted"""
    bytes_in: int = 0
    """read, or to be read"""
    uncompacted: Uncompacted | None = None
    """messages that were left out; `None` if they could not be counted"""


async def compact_topic(
    context: TopicContext,
    name: str,
    runner: Runner,
    *,
    null_keys: NullKeys | None = None,
    dry_run: bool = False,
    on_progress: OnProgress = lambda _done: None,
) -> Compaction:
    """Compact a topic's closed ledgers to the latest message of each key, and publish them.

    Args:
        context: of the cluster.
        name: namespace/name.
        runner: does the work.
        null_keys: "keep" or "drop" messages without a key; by default as before, at first
            "drop".
        dry_run: only report what would be read.
        on_progress: called with the fraction of the work that is done.

    Raises:
        NoSuchTopic: there is no such topic.
        TopicBusy: another job compacts it, or messages of it are being deleted.
        MessagesLost: a ledger of the generation before is gone.
        TopicError: it has more lanes, or ledgers of survivors, than a set can list.
        JobLost: the lease ran out, or another compaction published first; nothing was
            published.
        LedgerError: as reading and writing; nothing was published.
    """
    topic, _ = await context.catalogue.get(name)
    if not dry_run:
        await _tidy(context, topic)
    await _refuse_second(context, topic)
    found, plan = await _plan(context, topic, null_keys)
    if dry_run or not plan.has_news:
        return _unpublished(topic, found, plan, await uncompacted(context, plan))
    began_at = time.monotonic()
    async with open_job(context.ledgers, topic, "compaction", pins=plan.pins) as job:
        await _refuse_second(context, topic, job)
        await _refuse_truncated(context, topic)
        # The pins hold, so what is listed now stays.
        found, plan = await _plan(context, topic, null_keys, pinned=plan.pinned)
        plan, results = await _run(context, job, runner, found, plan, on_progress)
        report = _report(
            results, time.monotonic() - began_at, runner, await context.catalogue.now_ms()
        )
        after = set_after(topic, found, plan, results, report)
        await publish(context, job, found, after)
    return Compaction(
        topic=name,
        published=True,
        generation=after.generation,
        report=after.report,
        partitions=len(results),
        bytes_in=report.bytes_in,
        uncompacted=await uncompacted(context, plan),
    )


async def drop_compacted(context: TopicContext, name: str) -> CompactedSet | None:
    """Remove a topic's compacted set and return it; `None` if there was none.

    Raises:
        NoSuchTopic: there is no such topic.
        TopicBusy: a job compacts it.
        MetadataUnavailable, MetadataBroken: it may be removed in part; call again.
    """
    topic, _ = await context.catalogue.get(name)
    await _refuse_second(context, topic)
    with translated(TIDY_S):
        return await remove_set(context.store, topic.uid)


async def _run(
    context: TopicContext,
    job: Job,
    runner: Runner,
    found: SetAt | None,
    plan: CompactionPlan,
    on_progress: OnProgress,
) -> tuple[CompactionPlan, list[PartitionResult]]:
    """Compact each partition by itself, or all together if a key is in several."""
    if not plan.is_foreign:
        results = await runner.separately(plan, job.stage, on_progress)
        if not any(each.foreign for each in results):
            return plan, results
    with translated(context.options.metadata_timeout_s):
        plan = await plan_compaction(
            context.store,
            plan.topic,
            found,
            null_keys=plan.null_keys,
            everything=True,
            pinned=plan.pinned,
        )
    return plan, await runner.together(plan, job.stage, on_progress)


async def _plan(
    context: TopicContext,
    topic: TopicRecord,
    null_keys: NullKeys | None,
    pinned: Container[tuple[int, int]] | None = None,
) -> tuple[SetAt | None, CompactionPlan]:
    with translated(context.options.metadata_timeout_s):
        found = await read_set(context.store, topic.uid)
        plan = await plan_compaction(
            context.store, topic, found, null_keys=null_keys, pinned=pinned
        )
        return found, plan


async def _tidy(context: TopicContext, topic: TopicRecord) -> None:
    with translated(TIDY_S):
        now_ms = await context.store.now_ms()
        await remove_retired(context.store, topic.uid, now_ms)


async def _refuse_second(context: TopicContext, topic: TopicRecord, own: Job | None = None) -> None:
    """Raise TopicBusy if a job that began before *own* compacts the topic."""
    with translated(context.options.metadata_timeout_s):
        leases = await context.store.leases(topic_prefix(JOBS, topic.uid))
    for lease in leases:
        job_id = job_of(lease.name)[1]
        try:
            owner = decode_job_owner(lease.name, lease.value)
        except BadRecord:  # written by a newer version, which is no reason to stop
            continue
        earlier = own is None or job_id < own.id
        if owner.kind == "compaction" and earlier and not _is_dead(owner):
            where = f"process {owner.process_id} on {owner.host or 'a host'}"
            reason = f"is being compacted by {where}; wait for it"
            raise TopicBusy(reason, topic=topic.name, owner=where)


async def _refuse_truncated(context: TopicContext, topic: TopicRecord) -> None:
    """Raise TopicBusy if messages are being deleted; the pins must be there already."""
    with translated(context.options.metadata_timeout_s):
        leases = await context.store.leases(topic_prefix(TRUNCATIONS, topic.uid))
    if leases:
        reason = "has messages that are being deleted; wait for the end of that"
        raise TopicBusy(reason, topic=topic.name)


def _is_dead(owner: JobOwner) -> bool:
    """Whether a job's process is known to be gone although its lease still lasts.

    A mistake does no harm: of two jobs that publish, one finds the set changed.
    """
    if owner.host != socket.gethostname() or owner.process_id <= 0:
        return False
    try:
        os.kill(owner.process_id, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _report(
    results: Sequence[PartitionResult], seconds: float, runner: Runner, now_ms: int
) -> CompactionReport:
    ledgers = [one for each in results for one in each.ledgers]
    return CompactionReport(
        at_ms=now_ms,
        seconds=round(seconds, 3),
        keys=sum(each.keys for each in results),
        messages_in=sum(each.messages_in for each in results),
        messages_out=sum(each.messages for each in ledgers),
        bytes_in=sum(each.bytes_in for each in results),
        bytes_out=sum(each.size for each in ledgers),
        ranges=sum(each.ranges for each in results),
        shuffled=any(each.foreign for each in results),
        tombstones=sum(each.tombstones for each in results),
        engine=runner.engine,
    )


def _unpublished(
    topic: TopicRecord, found: SetAt | None, plan: CompactionPlan, left: Uncompacted | None
) -> Compaction:
    return Compaction(
        topic=topic.name,
        published=False,
        generation=0 if found is None else found.set.generation,
        report=None if found is None else found.set.report,
        partitions=sum(each.has_news for each in plan.partitions),
        bytes_in=plan.size if plan.has_news else 0,
        uncompacted=left,
    )


def set_after(
    topic: TopicRecord,
    found: SetAt | None,
    plan: CompactionPlan,
    results: Sequence[PartitionResult],
    report: CompactionReport,
) -> CompactedSet:
    """Return the next generation: compacted partitions anew, the others as before.

    Raises:
        TopicError: more ledgers than a set can list.
    """
    before = found.set if found is not None else None
    done = {each.partition for each in results}
    horizons: list[Horizon] = [h for each in results for h in each.horizons]
    ledgers: list[CompactedLedger] = [one for each in results for one in each.ledgers]
    retired: list[Retired] = []
    if before is not None:
        horizons += [each for each in before.horizons if each.partition not in done]
        ledgers += [each for each in before.ledgers if each.partition not in done]
        gone = [each.ledger_id for each in before.ledgers if each.partition in done]
        retired = [*before.retired, *(Retired(each, report.at_ms) for each in gone)]
    if len(ledgers) > LEDGERS_MAX:
        raise TopicError.too_many(
            topic.name,
            count=len(ledgers),
            count_max=LEDGERS_MAX,
            what="ledgers of survivors",
            advice="write fewer keys to the topic",
        )
    if len(retired) > RETIRED_MAX:
        raise TopicError.too_many(
            topic.name,
            count=len(retired),
            count_max=RETIRED_MAX,
            what="ledgers of former generations are retired",
            advice="most of them go within 10 minutes",
        )
    return CompactedSet(
        generation=1 if before is None else before.generation + 1,
        null_keys=plan.null_keys,
        partitions=topic.partitions,
        horizons=sorted(horizons, key=lambda each: (each.partition, each.lane)),
        ledgers=sorted(ledgers, key=lambda each: (each.partition, each.lane, each.first.version)),
        retired=retired,
        report=report,
    )


async def publish(
    context: TopicContext, job: Job, found: SetAt | None, after: CompactedSet
) -> None:
    """Replace *found* by *after* and show its ledgers; retry until the outcome is known.

    Retired ledgers may be removed meanwhile; then *after* is published without them.

    Raises:
        JobLost: the lease is over, or the set is not *found* any more; nothing was published.
        NoSuchTopic: it was deleted; nothing was published.
        MetadataUnavailable: it may have been published.
    """
    topic = job.topic
    await _found_topic(context, topic)
    shown = await _to_show(context, job, found, after)
    replacement = await _stage(context, job, found, after)
    ops: list[Op] = [each.shown for each in shown]
    if len(replacement.ops) + len(ops) + CHECKS > DIRECT_OPS_MAX:
        pointer = await _point(context, job, {each.ledger.ledger_id for each in shown})
        ops = [pointer.shown]
    while not await _publish(context, job, replacement, ops):
        changed = await _tidied(context, job, replacement.found, replacement.after)
        replacement = await _stage(context, job, *changed)
    try:
        with translated(PREPARE_S):
            await finish(context.store, topic.uid, job.id)
            await drop_other_pages(context.store, compacted_key(topic.uid))
    except LedgerError as failure:  # the leader does it
        _log.warning("a generation is published, and tidied up later: %s", failure)


async def _to_show(
    context: TopicContext, job: Job, found: SetAt | None, after: CompactedSet
) -> list[Staged]:
    """Return the staged ledgers that *after* lists. Raises JobLost if one was discarded."""
    reported = {each.ledger_id for each in after.ledgers}
    old = set() if found is None else {each.ledger_id for each in found.set.ledgers}
    staged = await staged_ledgers(context.ledgers, job.topic.uid, job.id)
    shown = [each for each in staged if each.ledger.ledger_id in reported]
    if {each.ledger.ledger_id for each in shown} != reported - old:
        raise JobLost(job.topic.name, job_id=job.id, reason="what it staged was discarded")
    return shown


class _Replacement(NamedTuple):
    """The next generation, ready to be put in place of the one that was found."""

    found: SetAt | None
    after: CompactedSet
    ops: list[Op]


async def _stage(
    context: TopicContext, job: Job, found: SetAt | None, after: CompactedSet
) -> _Replacement:
    """Store the pages of *after*, if it needs any. Raises as publish()."""
    key = compacted_key(job.topic.uid)
    while True:
        try:
            with translated(PREPARE_S):
                value = await stage_value(context.store, key, encode_set(after))
        except VersionConflict:  # whoever changes the set removes pages that its row does not name
            found, after = await _tidied(context, job, found, after)
            continue
        put = Put(key, value.row, ABSENT if found is None else found.version)
        return _Replacement(found, after, [put, *value.checks])


async def _tidied(
    context: TopicContext, job: Job, found: SetAt | None, after: CompactedSet
) -> tuple[SetAt, CompactedSet]:
    """Return the set of now, and *after* without the retired ledgers that were removed.

    Raises:
        JobLost: more was changed.
    """
    with translated(context.options.metadata_timeout_s):
        now = await read_set(context.store, job.topic.uid)
    if found is None or now is None or not _is_only_tidied(found, now):
        reason = "its compacted set was changed meanwhile"
        raise JobLost(job.topic.name, job_id=job.id, reason=reason)
    gone = set(found.set.retired).difference(now.set.retired)
    retired = [each for each in after.retired if each not in gone]
    return now, msgspec.structs.replace(after, retired=retired)


def _is_only_tidied(found: SetAt, now: SetAt) -> bool:
    """Whether nothing but the removal of retired ledgers changed a set, and its version."""
    is_less = set(now.set.retired) < set(found.set.retired)
    return _is_same(found.set, now.set) and (is_less or now.version == found.version)


def _is_same(one: CompactedSet, other: CompactedSet) -> bool:
    """Whether sets are equal, whichever ledgers are retired: anybody may remove these."""
    return one == msgspec.structs.replace(other, retired=one.retired)


async def _publish(
    context: TopicContext, job: Job, replacement: _Replacement, ops: Sequence[Op]
) -> bool:
    """Retry until the outcome is known; return False if the set, or a page of it, was changed."""
    ops = [*replacement.ops, *ops]
    try:
        with trio.move_on_after(PUBLISH_S):
            while not await _transact(  # noqa: ASYNC110 - it asks the store
                context, job, ops, replacement.after
            ):
                await trio.sleep(RETRY_S)
            return True
    except VersionConflict:
        return False
    raise MetadataUnavailable(f"metadata: the set was not published within {PUBLISH_S:g} s")


@contextmanager
def _prepared(job: Job) -> Iterator[None]:
    """Run steps before the publication. Raises JobLost if they cannot be made any more."""
    try:
        with translated(PREPARE_S):
            yield
    except (LeaseLost, VersionConflict) as lost:
        raise JobLost(job.topic.name, job_id=job.id, reason=str(lost)) from lost


async def _point(context: TopicContext, job: Job, ledger_ids: set[int]) -> OpenPointer:
    """Open the job's pointer, and have it show staged ledgers.

    Raises:
        JobLost: one of them was discarded, or the lease is over.
        MetadataUnavailable: nothing is published.
    """
    with _prepared(job):
        pointer = await open_pointer(context.store, job.topic.uid, job.id, [job.check])
        staged = await staged_ledgers(context.ledgers, job.topic.uid, job.id)
        ours = [each.named(pointer.name) for each in staged if each.ledger.ledger_id in ledger_ids]
        for start in range(0, len(ours), STEP_COUNT):
            await context.store.transact([pointer.check, *ours[start : start + STEP_COUNT]])
    if len(ours) != len(ledger_ids):
        raise JobLost(job.topic.name, job_id=job.id, reason="what it staged was discarded")
    return pointer


async def _transact(
    context: TopicContext, job: Job, ops: Sequence[Op], after: CompactedSet
) -> bool:
    """Try once; return False if it must be tried again.

    Raises as publish(), and VersionConflict if the set, or a page of it, was changed.
    """
    there = await _found_topic(context, job.topic)
    checks: list[Op] = [job.check, there]
    try:
        with translated(context.options.metadata_timeout_s):
            await context.store.transact([*checks, *ops])
    except MetadataUnavailable:
        return await _is_there(context, job.topic, after)
    except VersionConflict as conflict:
        if await _is_there(context, job.topic, after):
            return True
        if conflict.key == there.key:
            return False  # the topic was altered meanwhile
        key = compacted_key(job.topic.uid)
        if conflict.key == key or conflict.key.startswith(f"{PAGES}{key}/"):
            raise
        reason = "what it staged was discarded"
        raise JobLost(job.topic.name, job_id=job.id, reason=reason) from conflict
    except LeaseLost as lost:
        raise JobLost(job.topic.name, job_id=job.id, reason=str(lost)) from lost
    return True


async def _found_topic(context: TopicContext, topic: TopicRecord) -> Check:
    """Return a check that the topic is unchanged. Raises NoSuchTopic."""
    record, version = await context.catalogue.get(topic.name)
    if record.uid != topic.uid:
        raise NoSuchTopic(topic.name)
    return Check(topic_key(record.name), version)


async def _is_there(context: TopicContext, topic: TopicRecord, after: CompactedSet) -> bool:
    try:
        with translated(context.options.metadata_timeout_s):
            found = await read_set(context.store, topic.uid)
    except MetadataUnavailable:
        return False
    return found is not None and _is_same(found.set, after)
