"""The next generation of a topic's set, and the one transaction that publishes it."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ledger_client.catalogue import RETRY_S
from ledger_client.compaction.errors import CompactionOutdated, TooManyLanes
from ledger_client.compaction.partition import PartitionResult
from ledger_client.compaction.plan import CompactionPlan
from ledger_client.errors import MetadataUnavailable
from ledger_client.topics.client import TopicClient
from ledger_client.topics.errors import JobLost, NoSuchTopic
from ledger_client.topics.jobs.job import Job
from ledger_client.topics.jobs.staging import staged_ledgers
from ledger_client.topics.keeping.compacted_sets import read_set
from ledger_client.translation import translated
from metadata.compaction import (
    LEDGERS_MAX,
    RETIRED_MAX,
    CompactedLedger,
    CompactedSet,
    Horizon,
    Report,
    Retired,
    SetAt,
    compacted_key,
    encode_set,
)
from metadata.errors import LeaseLost, VersionConflict
from metadata.store import ABSENT, Check, Op, Put
from metadata.topics import TopicRecord, topic_key

PUBLISH_S = 20.0
"""For the transaction that publishes, however often it is tried."""


def set_after(
    topic: TopicRecord,
    found: SetAt | None,
    plan: CompactionPlan,
    results: Sequence[PartitionResult],
    report: Report,
) -> CompactedSet:
    """Return the next generation: the partitions that were compacted, and the others' as before.

    Raises:
        TooManyLanes: a set lists no more ledgers.
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
        reason = f"{len(ledgers)} ledgers of survivors are more than {LEDGERS_MAX}"
        raise TooManyLanes(reason, topic=topic.name)
    if len(retired) > RETIRED_MAX:
        reason = f"{len(retired)} ledgers of former generations are retired; in 10 minutes most go"
        raise TooManyLanes(reason, topic=topic.name)
    return CompactedSet(
        generation=1 if before is None else before.generation + 1,
        null_keys=plan.null_keys,
        partitions=topic.partitions,
        horizons=sorted(horizons, key=lambda each: (each.partition, each.lane)),
        ledgers=sorted(ledgers, key=lambda each: (each.partition, each.lane, each.first.version)),
        retired=retired,
        report=report,
    )


async def publish(client: TopicClient, job: Job, found: SetAt | None, after: CompactedSet) -> None:
    """Put *after* in the place of *found*, and show its ledgers, until that is known to be done.

    Raises:
        CompactionOutdated: the set is another than *found*; nothing was published.
        JobLost: the job's lease is over; nothing was published.
        NoSuchTopic: it was deleted; nothing was published.
        MetadataUnavailable: it may have been published.
    """
    topic = job.topic
    await _found_topic(client, topic)
    reported = {each.ledger_id for each in after.ledgers}
    old = set() if found is None else {each.ledger_id for each in found.set.ledgers}
    staged = await staged_ledgers(client, topic.uid, job.id)
    shown = [each for each in staged if each.ledger.ledger_id in reported]
    if {each.ledger.ledger_id for each in shown} != reported - old:
        raise JobLost(topic.name, job_id=job.id, reason="what it staged was given up")
    expected = ABSENT if found is None else found.version
    ops = [Put(compacted_key(topic.uid), encode_set(after), expected), *(e.shown for e in shown)]
    with trio.move_on_after(PUBLISH_S):
        while not await _transact(client, job, ops, after):  # noqa: ASYNC110 - it asks the store
            await trio.sleep(RETRY_S)
        return
    raise MetadataUnavailable(f"metadata: the set was not published within {PUBLISH_S:g} s")


async def _transact(client: TopicClient, job: Job, ops: Sequence[Op], after: CompactedSet) -> bool:
    """Try once; return whether it is done, or False to try again."""
    there = await _found_topic(client, job.topic)
    checks: list[Op] = [job.check, there]
    try:
        with translated(client.options.metadata_timeout_s):
            await client.store.transact([*checks, *ops])
    except MetadataUnavailable:
        return await _is_there(client, job.topic, after)
    except VersionConflict as conflict:
        if await _is_there(client, job.topic, after):
            return True
        if conflict.key == there.key:
            return False  # the topic was altered meanwhile
        raise CompactionOutdated(job.topic.name) from conflict
    except LeaseLost as lost:
        raise JobLost(job.topic.name, job_id=job.id, reason=str(lost)) from lost
    return True


async def _found_topic(client: TopicClient, topic: TopicRecord) -> Check:
    """Return what checks that the topic is there. Raises NoSuchTopic."""
    record, version = await client.topics.get(topic.name)
    if record.uid != topic.uid:
        raise NoSuchTopic(topic.name)
    return Check(topic_key(record.name), version)


async def _is_there(client: TopicClient, topic: TopicRecord, after: CompactedSet) -> bool:
    try:
        with translated(client.options.metadata_timeout_s):
            found = await read_set(client.store, topic.uid)
    except MetadataUnavailable:
        return False
    return found is not None and found.set == after
