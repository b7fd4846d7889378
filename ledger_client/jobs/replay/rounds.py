"""A replay by many workers at once: round after round, each shown by one change.

    record, mark ──► cuts ──► parts ──workers──► staged ledgers ──┐
          ▲                                                       ├─ one change
          └────────── mark: how far it is, checksums ◄────────────┘

The mark is a row beside the target topic. The transaction that shows a round's ledgers replaces
it, at the version that this process knows. So a round is shown once, and of two processes that run
the same replay, for example after a long pause of one, the slower gets JobLost. A mark without a
round is put before the first round, and a final one when all is done. Nothing is shown without a
mark, and a process that puts the first one checks its lease afterwards. A restarted replay
continues after the mark. Ledgers that a killed process staged were never shown, and are discarded
with its job: at the job's end, or by the leader when its lease is over.

Parts follow one another in the order of the replay, and so do their ledgers in each partition of
the target. So the target receives what a single process would have sent, in the same order, with
the same checksums. While others write to the target too, a round may go into another lane.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Protocol

import msgspec

from ledger_client.jobs.replay.log import (
    WHOLE,
    ReplayLog,
    ReplayProgress,
    ReplayReport,
    replay_lost,
    report_of,
    sent_of,
    sums_of,
)
from ledger_client.jobs.replay.options import ReplayOptions
from ledger_client.jobs.replay.parts import PartPlan, PartResult, PartWork, open_planner
from ledger_client.jobs.replay.target import Destination, pin_of, verify
from ledger_client.jobs.staging.job import open_job
from ledger_client.jobs.staging.showing import SHOWN_MAX, Showing, check_free
from ledger_client.jobs.staging.staged_writer import ROLLS_MAX
from ledger_client.ledgers.catalogue import translated
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.topics.context import TopicContext
from metadata.errors import VersionConflict
from metadata.jobs import sink_key
from metadata.paged import PAGE_SIZE, drop_other_pages, read_value, stage_value
from metadata.replays import LaneMark, ReplayMark, ReplayRecord, decode_mark, encode_mark
from metadata.store import ABSENT, Put, Versioned
from metadata.topics import TopicRecord
from native.checksum import Checksum

PART_SIZE = 128 << 20
"""Approximate bytes of a part; more for many partitions, or their ledgers would be small."""
PARTS_PER_TASK = 2
"""Parts of a round for each parallel task, so that no task waits long for the others."""
OnProgress = Callable[[float], None]
"""Called with the fraction of a round that is done."""


class Workers(Protocol):
    """Copies the parts of a round, in any processes."""

    async def count(self) -> int:
        """Return the number of parts that are copied in parallel."""

    async def copy(
        self, work: PartWork, parts: Sequence[PartPlan], on_progress: OnProgress
    ) -> Sequence[PartResult]:
        """Stage all parts; return their results in order. Raises as copy_part()."""


class RoundShown:
    """The mark that a round puts; see CommitMark."""

    def __init__(self, record: ReplayRecord, rounds: int, version: int) -> None:
        """*version* is that of the mark before it."""
        self._record = record
        self._version = version
        self.value = encode_mark(
            ReplayMark(
                batch_id=rounds,
                at_ms=record.updated_ms,
                reached=record.reached,
                sent=record.sent,
                bytes=record.bytes,
            )
        )

    def key(self, topic: TopicRecord) -> str:
        """Return the key of the row."""
        return sink_key(topic.uid, self._record.run)

    def put(self, topic: TopicRecord, found: Versioned | None) -> Put | None:
        """See CommitMark. Raises JobLost if another process has shown a round."""
        version = ABSENT if found is None else found.version
        if version == self._version:
            return Put(self.key(topic), self.value, version)
        if found is not None and found.value == self.value:
            return None  # put by this process, which did not get the answer
        raise replay_lost(self._record.sources[0].name, self._record.name)


class Rounds:
    """One run of a replay by workers.

    Args:
        context: of the cluster of the sources.
        topics: the sources.
        target: of the cluster of the target.
        topic: the target.
        aim: the destination, as passed to run_replay().
        options: of the replay.
        workers: copy the parts.
        part_size: bytes of a part; the default depends on the number of partitions.
    """

    def __init__(
        self,
        context: TopicContext,
        topics: Sequence[TopicRecord],
        target: Ledgers,
        topic: TopicRecord,
        aim: Destination,
        options: ReplayOptions,
        workers: Workers,
        *,
        part_size: int = 0,
    ) -> None:
        self._context = context
        self._topics = topics
        self._target = target
        self._topic = topic
        self._aim = aim
        self._options = options
        self._workers = workers
        partitions = max(len(topic.partition_indexes), 1)
        self._part_size = part_size or PART_SIZE * min(max(partitions // 4, 1), 8)
        self._version = ABSENT
        self._rounds = 0

    async def run(self, log: ReplayLog, record: ReplayRecord) -> ReplayReport:
        """Replay the rest to the end.

        Raises:
            JobLost: another process runs the replay.
            Others: as run_replay().
        """
        started = time.monotonic()
        await check_free(self._target, self._topic)
        record = first = await self._with_mark(log, record)
        async with AsyncExitStack() as stack:
            for index, topic in enumerate(self._topics):
                pins = [pin_of(mark) for mark in first.reached if mark.topic == index]
                await stack.enter_async_context(
                    open_job(self._context.ledgers, topic, "replay", pins=pins)
                )
            record = await self._copy(record)
            if self._options.verify:
                await verify(self._aim, record)
        record = msgspec.structs.replace(record, state="done", updated_ms=self._now_ms())
        await log.save(record)
        await end_mark(self._target, self._topic, record)
        report = report_of(record, first, time.monotonic() - started)
        return msgspec.structs.replace(report, verified=self._options.verify)

    async def _copy(self, record: ReplayRecord) -> ReplayRecord:
        """Copy round after round; return the record after the last one."""
        planner = await open_planner(
            self._context, self._topics, record.order, begin=record.reached, end=record.end
        )
        count, size, above = await self._parts_max(), self._part_size, None
        self._report_progress(record, record.reached, 0.0)
        while True:
            parts = await planner.parts(record.reached, count=count, size=size, above=above)
            if not parts:
                return record
            record, passed = await self._round(record, parts)
            if passed is not None:  # a clock was set back there: cut later, and less often
                above, size = passed if above is None else max(above, passed), 2 * size

    async def _round(
        self, record: ReplayRecord, parts: Sequence[PartPlan]
    ) -> tuple[ReplayRecord, int | None]:
        """Copy parts, and show those before the first wrong cut.

        Returns the record after them, and the time that contradicts the cut, if any.
        """
        async with open_job(self._target, self._topic, "replay") as job:
            work = PartWork(
                topics=tuple(self._topics),
                order=record.order,
                stage=job.stage,
                run=record.run,
                partitions=record.target_partitions,
                one_to_one=record.one_to_one,
                keep_ids=self._options.keep_ids,
            )

            def on_progress(done: float) -> None:
                self._report_progress(record, parts[-1].end, done)

            results = await self._workers.copy(work, parts, on_progress)
            right: list[PartResult] = []
            passed: int | None = None
            for result in results:
                if result.passed is not None:
                    passed = result.passed
                    break
                right.append(result)
            if right:
                record = _behind(record, right, parts[len(right) - 1].end, self._now_ms())
                mark = RoundShown(record, self._rounds + 1, self._version)
                ledgers = [ledger for result in right for ledger in result.ledgers]
                await Showing(self._target, job.stage, ledgers, mark).run()
                await self._note_shown(record, mark)
        self._report_progress(record, record.reached, 0.0)
        return record, passed

    async def _parts_max(self) -> int:
        """Return the number of parts in a round, all of whose ledgers are shown at once."""
        partitions = len(self._topic.partition_indexes)
        room = SHOWN_MAX // (partitions + ROLLS_MAX)
        return max(min(PARTS_PER_TASK * await self._workers.count(), room), 1)

    def _now_ms(self) -> int:
        return self._context.clock.now_ms()

    # --- the mark ----------------------------------------------------------------------

    async def _with_mark(self, log: ReplayLog, record: ReplayRecord) -> ReplayRecord:
        """Return the record brought up to the target's mark.

        The first mark is put before the first round. Otherwise a process that is paused in it,
        while another completes the replay, would find nothing changed and show its round too.
        """
        found = await self._mark(record)
        if found is None:
            await self._begin_mark(record)
            # Checks the lease: no other process finished the replay before the mark was put.
            await log.save(record)
            return record
        with translated(self._target.options.metadata_timeout_s):
            mark = decode_mark(sink_key(self._topic.uid, record.run), found.value)
        if mark.over:
            raise replay_lost(record.sources[0].name, record.name)
        self._version, self._rounds = found.version, mark.batch_id
        return msgspec.structs.replace(
            record, reached=mark.reached, sent=mark.sent, bytes=mark.bytes
        )

    async def _begin_mark(self, record: ReplayRecord) -> None:
        """Put the mark of a replay without shown rounds. Raises JobLost."""
        mark = RoundShown(record, 0, ABSENT)
        key, store = mark.key(self._topic), self._target.store
        with translated(self._target.options.metadata_timeout_s), suppress(VersionConflict):
            value = await stage_value(store, key, mark.value)
            await store.transact([Put(key, value.row, ABSENT), *value.checks])
        self._version = await self._version_of(record, mark)

    async def _note_shown(self, record: ReplayRecord, shown: RoundShown) -> None:
        self._version, self._rounds = await self._version_of(record, shown), self._rounds + 1
        if len(shown.value) > PAGE_SIZE:
            with translated(self._target.options.metadata_timeout_s):
                await drop_other_pages(self._target.store, shown.key(self._topic))

    async def _version_of(self, record: ReplayRecord, shown: RoundShown) -> int:
        """Return the version of the present mark. Raises JobLost if it is another one."""
        found = await self._mark(record)
        if found is None or found.value != shown.value:
            raise replay_lost(record.sources[0].name, record.name)
        return found.version

    async def _mark(self, record: ReplayRecord) -> Versioned | None:
        with translated(self._target.options.metadata_timeout_s):
            return await read_value(self._target.store, sink_key(self._topic.uid, record.run))

    # --- progress ----------------------------------------------------------------------

    def _report_progress(
        self, record: ReplayRecord, ahead: Sequence[LaneMark], done: float
    ) -> None:
        """Report progress: the record, plus the fraction *done* of the way to *ahead*."""
        if self._options.on_progress is None:
            return
        here, there = _entries_left(record, record.reached), _entries_left(record, ahead)
        left = here - int((here - there) * done)
        count = sums_of(record.sent).get(WHOLE, Checksum()).count
        passed = max(record.entries - left, 0)
        self._options.on_progress(
            ReplayProgress(count, record.bytes, passed, record.entries, count)
        )


def _behind(
    record: ReplayRecord, results: Sequence[PartResult], reached: list[LaneMark], now_ms: int
) -> ReplayRecord:
    """Return the record after these parts."""
    sums = sums_of(record.sent)
    for result in results:
        for part, added in sums_of(result.sent).items():
            sums[part] = sums.get(part, Checksum()).join(added)
    return msgspec.structs.replace(
        record,
        reached=reached,
        sent=sent_of(sums),
        bytes=record.bytes + sum(result.bytes for result in results),
        updated_ms=now_ms,
    )


def _entries_left(record: ReplayRecord, reached: Sequence[LaneMark]) -> int:
    ends = {(mark.topic, mark.partition, mark.lane): mark.version for mark in record.end}
    return sum(
        max(ends[mark.topic, mark.partition, mark.lane] - mark.version, 0) for mark in reached
    )


async def end_mark(target: Ledgers, topic: TopicRecord, record: ReplayRecord) -> None:
    """Put a final mark, so that no process shows another round of this run."""
    value = encode_mark(ReplayMark(batch_id=0, over=True))
    with translated(target.options.metadata_timeout_s):
        await target.store.put(sink_key(topic.uid, record.run), value)
        await drop_other_pages(target.store, sink_key(topic.uid, record.run))
