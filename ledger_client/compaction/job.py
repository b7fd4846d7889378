"""A compaction from its plan to the generation that it publishes.

    plan ──► job: lease, pins ──► runner: staged ledgers ──► publish: one transaction

Until that transaction readers have the generation before, and from it on the next one; the job
that fails, or is killed, leaves staged ledgers that are given up (topics/jobs/job.py).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence

import msgspec

from ledger_client.compaction.errors import (
    CompactionRunning,
)
from ledger_client.compaction.partition import PartitionResult
from ledger_client.compaction.plan import CompactionPlan, NullKeys, plan_compaction
from ledger_client.compaction.publishing import publish, set_after
from ledger_client.compaction.runner import Runner
from ledger_client.topics.client import TopicClient
from ledger_client.topics.jobs.job import Job, open_job
from ledger_client.topics.keeping.compacted_sets import read_set, remove_retired, remove_set
from ledger_client.translation import translated
from metadata.compaction import (
    CompactedSet,
    Report,
    SetAt,
)
from metadata.errors import BadRecord
from metadata.jobs import JOBS, JobOwner, decode_job_owner, job_of
from metadata.topics import TopicRecord, topic_prefix

TIDY_S = 20.0
"""For removing ledgers that are retired, or all of a set."""
Progress = Callable[[float], None]


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a topic."""

    topic: str
    published: bool
    """False: nothing was new, or nothing was to be done"""
    generation: int = 0
    """of the set that there is now, 0 for none"""
    report: Report | None = None
    """of the job that made it"""
    partitions: int = 0
    """that were compacted now, or are to be"""
    bytes_in: int = 0
    """read now, or to be read"""


def _untold(_part: float) -> None:
    """Tell nobody how far the work is."""


async def compact_topic(
    client: TopicClient,
    name: str,
    runner: Runner,
    *,
    null_keys: NullKeys | None = None,
    dry_run: bool = False,
    on_progress: Progress = _untold,
) -> Compaction:
    """Keep the latest message of each key of a topic's closed ledgers, and publish that.

    Args:
        client: connected to the cluster.
        name: namespace/name.
        runner: does the work.
        null_keys: "keep" messages without a key, or "drop" them; None: as before, at first
            "drop".
        dry_run: only tell what would be read.
        on_progress: is told which part of the work is done.

    Raises:
        NoSuchTopic: there is none.
        CompactionRunning: another job compacts it.
        CompactionOutdated: another compaction was faster; nothing was published.
        CompactedLost: a ledger of the generation before is gone.
        TooManyLanes: it has more lanes, or survivors, than a set lists.
        JobLost: the job's lease ran out; nothing was published.
        LedgerError: as reading and writing; nothing was published.
    """
    topic, _ = await client.topics.get(name)
    if not dry_run:
        await _tidy(client, topic)
    await _refuse_second(client, topic)
    found, plan = await _plan(client, topic, null_keys)
    if dry_run or not plan.has_news:
        return _unpublished(topic, found, plan)
    began_at = time.monotonic()
    async with open_job(client, topic, "compaction", pins=plan.pins) as job:
        await _refuse_second(client, topic, job)
        found, plan = await _plan(client, topic, null_keys)  # what is pinned now is there
        plan, results = await _run(client, job, runner, found, plan, on_progress)
        report = _report(results, time.monotonic() - began_at, runner, await client.topics.now_ms())
        after = set_after(topic, found, plan, results, report)
        await publish(client, job, found, after)
    return Compaction(
        topic=name,
        published=True,
        generation=after.generation,
        report=after.report,
        partitions=len(results),
        bytes_in=report.bytes_in,
    )


async def drop_compacted(client: TopicClient, name: str) -> CompactedSet | None:
    """End the compaction of a topic: its set is removed; return what it was, None: there was none.

    Raises:
        NoSuchTopic: there is none.
        CompactionRunning: a job compacts it.
        MetadataUnavailable, MetadataBroken: it may be removed in part; call again.
    """
    topic, _ = await client.topics.get(name)
    await _refuse_second(client, topic)
    with translated(TIDY_S):
        return await remove_set(client.store, topic.uid)


async def _run(
    client: TopicClient,
    job: Job,
    runner: Runner,
    found: SetAt | None,
    plan: CompactionPlan,
    on_progress: Progress,
) -> tuple[CompactionPlan, list[PartitionResult]]:
    """Compact partitions by themselves, unless a key is in several."""
    if not plan.is_foreign:
        results = await runner.separately(plan, job.stage, on_progress)
        if not any(each.foreign for each in results):
            return plan, results
    with translated(client.options.metadata_timeout_s):
        plan = await plan_compaction(
            client.store, plan.topic, found, null_keys=plan.null_keys, everything=True
        )
    return plan, await runner.together(plan, job.stage, on_progress)


async def _plan(
    client: TopicClient, topic: TopicRecord, null_keys: NullKeys | None
) -> tuple[SetAt | None, CompactionPlan]:
    with translated(client.options.metadata_timeout_s):
        found = await read_set(client.store, topic.uid)
        return found, await plan_compaction(client.store, topic, found, null_keys=null_keys)


async def _tidy(client: TopicClient, topic: TopicRecord) -> None:
    with translated(TIDY_S):
        now_ms = await client.store.now_ms()
        await remove_retired(client.store, topic.uid, now_ms)


async def _refuse_second(client: TopicClient, topic: TopicRecord, own: Job | None = None) -> None:
    """Raise CompactionRunning when another job compacts the topic, and was there before *own*."""
    with translated(client.options.metadata_timeout_s):
        leases = await client.store.leases(topic_prefix(JOBS, topic.uid))
    for lease in leases:
        job_id = job_of(lease.name)[1]
        try:
            owner = decode_job_owner(lease.name, lease.value)
        except BadRecord:  # a newer one's, which is no reason to stop
            continue
        earlier = own is None or job_id < own.id
        if owner.kind == "compaction" and earlier and not _is_dead(owner):
            told = f"process {owner.process_id} on {owner.host or 'a host'}"
            raise CompactionRunning(topic.name, owner=told)


def _is_dead(owner: JobOwner) -> bool:
    """Whether a job's process is known to be gone, although its lease has some rest.

    A mistake does no harm: of two that publish, one finds the set changed.
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
) -> Report:
    ledgers = [one for each in results for one in each.ledgers]
    return Report(
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


def _unpublished(topic: TopicRecord, found: SetAt | None, plan: CompactionPlan) -> Compaction:
    return Compaction(
        topic=topic.name,
        published=False,
        generation=0 if found is None else found.set.generation,
        report=None if found is None else found.set.report,
        partitions=sum(each.has_news for each in plan.partitions),
        bytes_in=plan.size if plan.has_news else 0,
    )
