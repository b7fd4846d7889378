"""A replay by many workers at once: round after round, each shown by one transaction.

    record, mark ──► cuts ──► parts ──workers──► staged ledgers ──┐
          ▲                                                       ├─ one transaction
          └────────── mark: how far it is, checksums ◄────────────┘

The mark is a row beside the target topic. It is put by the transaction that shows a round's
ledgers, at the version that this process knows: so a round is shown once, and of two
processes that run the replay, as when one was paused for long, one gets ReplayLost. A mark of no
round is put before the first one, and gone when all is done: so without a mark nothing is shown,
and whoever puts it checks its lease afterwards. Who begins again goes on behind the mark. What a
killed process had staged for its round was never shown, and is given up with its job: at its end,
or by the housekeeper when its lease is over.

Parts follow one another in the order of the replay, and their ledgers in each partition of the
target. So what the target has is what one process would have sent, in the same order, with the
same checksums. Where others write to the target meanwhile, a round may go into another lane.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Protocol

import msgspec

from ledger_client.client import Client
from ledger_client.replay.cuts import open_planner
from ledger_client.replay.errors import ReplayLost
from ledger_client.replay.log import ReplayLog
from ledger_client.replay.options import ReplayOptions
from ledger_client.replay.parts import PartPlan, PartResult, PartWork
from ledger_client.replay.replay import Aim, pin_of, report_of, verify
from ledger_client.replay.report import Progress, Report
from ledger_client.replay.target import WHOLE, sent_of, sums_of
from ledger_client.topics.client import TopicClient
from ledger_client.topics.errors import BadTopic
from ledger_client.topics.jobs.job import open_job
from ledger_client.topics.jobs.part_ids import ROLLS_MAX
from ledger_client.topics.jobs.showing import Showing, ledgers_max
from ledger_client.topics.jobs.writing_job import check_free
from ledger_client.translation import translated
from metadata.errors import VersionConflict
from metadata.jobs import sink_key
from metadata.replays import LaneMark, ReplayMark, ReplayRecord, decode_mark, encode_mark
from metadata.store import ABSENT, Put, Versioned
from metadata.topics import TopicRecord
from native.checksum import Checksum

PART_SIZE = 128 << 20
"""Bytes of a part, about; more for many partitions, so that their ledgers do not become small."""
PARTS_PER_TASK = 2
"""Of a round, for each task that runs at once: so that none waits long for the others."""
Told = Callable[[float], None]
"""Is told how much of a round is done."""


class Workers(Protocol):
    """Who does the parts of a round, in whatever processes."""

    async def count(self) -> int:
        """Return how many parts are done at once."""

    async def copy(
        self, work: PartWork, parts: Sequence[PartPlan], told: Told
    ) -> Sequence[PartResult]:
        """Stage all parts; return a result for each, in their order. Raises as copy_part()."""


class RoundShown:
    """The mark of a replay, as a round puts it; see Mark."""

    def __init__(self, record: ReplayRecord, rounds: int, version: int) -> None:
        """*version*: of the mark that it follows."""
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
        """See Mark. Raises ReplayLost: somebody else has shown a round."""
        version = ABSENT if found is None else found.version
        if version == self._version:
            return Put(self.key(topic), self.value, version)
        if found is not None and found.value == self.value:
            return None  # by this process, which did not hear of it
        raise ReplayLost(self._record.sources[0].name, name=self._record.name)


class Rounds:
    """One process's part of a replay by workers.

    Args:
        client: of the cluster of the sources.
        topics: which.
        target: of the cluster of the target.
        topic: the target.
        aim: the same, for run_replay().
        options: how to replay.
        workers: who does the parts.
        part_size: bytes of a part; by default by the number of partitions.
    """

    def __init__(
        self,
        client: TopicClient,
        topics: Sequence[TopicRecord],
        target: Client,
        topic: TopicRecord,
        aim: Aim,
        options: ReplayOptions,
        workers: Workers,
        *,
        part_size: int = 0,
    ) -> None:
        self._client = client
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

    async def run(self, log: ReplayLog, record: ReplayRecord) -> Report:
        """Replay what is left to the end.

        Raises:
            ReplayLost: another process runs the replay.
            TooManyLedgers: parts made more ledgers than one transaction shows.
            Others: as run_replay().
        """
        started = time.monotonic()
        await check_free(self._target, self._topic)
        record = first = await self._with_mark(log, record)
        async with AsyncExitStack() as stack:
            for index, topic in enumerate(self._topics):
                pins = [pin_of(mark) for mark in first.reached if mark.topic == index]
                await stack.enter_async_context(open_job(self._client, topic, "replay", pins=pins))
            record = await self._copy(record)
            if self._options.verify:
                await verify(self._aim, record)
        record = msgspec.structs.replace(record, state="done", updated_ms=self._now_ms())
        await log.save(record)
        await end_mark(self._target, self._topic, record)
        report = report_of(record, first, time.monotonic() - started)
        return msgspec.structs.replace(report, verified=self._options.verify)

    async def _copy(self, record: ReplayRecord) -> ReplayRecord:
        """Do round after round; return the record behind the last."""
        planner = await open_planner(
            self._client, self._topics, record.order, begin=record.reached, end=record.end
        )
        count, size, above = await self._parts_max(), self._part_size, None
        self._tell(record, record.reached, 0.0)
        while True:
            parts = await planner.parts(record.reached, count=count, size=size, above=above)
            if not parts:
                return record
            record, passed = await self._round(record, parts)
            if passed is not None:  # clocks were set back there: cut later, and less often
                above, size = passed if above is None else max(above, passed), 2 * size

    async def _round(
        self, record: ReplayRecord, parts: Sequence[PartPlan]
    ) -> tuple[ReplayRecord, int | None]:
        """Do parts, and show those in front of the first that is cut wrongly.

        Returns the record behind them, and the time that tells of the wrong cut.
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

            def told(done: float) -> None:
                self._tell(record, parts[-1].end, done)

            results = await self._workers.copy(work, parts, told)
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
                pieces = [piece for result in right for piece in result.pieces]
                await Showing(self._target, job.stage, pieces, mark).run()
                await self._note_shown(record, mark)
        self._tell(record, record.reached, 0.0)
        return record, passed

    async def _parts_max(self) -> int:
        """Return how many parts a round has: one transaction shows all of its ledgers."""
        partitions = len(self._topic.partition_indexes)
        room = ledgers_max(partitions) // (partitions + ROLLS_MAX)
        return max(min(PARTS_PER_TASK * await self._workers.count(), room), 1)

    def _now_ms(self) -> int:
        return self._client.clock.now_ms()

    # --- the mark ----------------------------------------------------------------------

    async def _with_mark(self, log: ReplayLog, record: ReplayRecord) -> ReplayRecord:
        """Return a record that is as far as the target is.

        The first mark is put before the first round: who is paused in that one while another
        process does it all, and forgets the mark, must not find things as they were.
        """
        found = await self._mark(record)
        if found is None:
            await self._begin_mark(record)
            await log.save(record)  # still ours, so nobody did it all before there was a mark
            return record
        with translated(self._target.options.metadata_timeout_s):
            mark = decode_mark(sink_key(self._topic.uid, record.run), found.value)
        if mark.over:
            raise ReplayLost(record.sources[0].name, name=record.name)
        self._version, self._rounds = found.version, mark.batch_id
        return msgspec.structs.replace(
            record, reached=mark.reached, sent=mark.sent, bytes=mark.bytes
        )

    async def _begin_mark(self, record: ReplayRecord) -> None:
        """Put the mark of a replay of which no round is shown. Raises ReplayLost."""
        mark = RoundShown(record, 0, ABSENT)
        put = Put(mark.key(self._topic), mark.value, ABSENT)
        with translated(self._target.options.metadata_timeout_s), suppress(VersionConflict):
            await self._target.store.transact([put])
        self._version = await self._version_of(record, mark)

    async def _note_shown(self, record: ReplayRecord, shown: RoundShown) -> None:
        self._version, self._rounds = await self._version_of(record, shown), self._rounds + 1

    async def _version_of(self, record: ReplayRecord, shown: RoundShown) -> int:
        """Return the version of the mark that is there. Raises ReplayLost: it is another one."""
        found = await self._mark(record)
        if found is None or found.value != shown.value:
            raise ReplayLost(record.sources[0].name, name=record.name)
        return found.version

    async def _mark(self, record: ReplayRecord) -> Versioned | None:
        with translated(self._target.options.metadata_timeout_s):
            return await self._target.store.get(sink_key(self._topic.uid, record.run))

    # --- progress ----------------------------------------------------------------------

    def _tell(self, record: ReplayRecord, ahead: Sequence[LaneMark], done: float) -> None:
        """Tell how far it is: *done* of what lies between the record and *ahead*."""
        if self._options.on_progress is None:
            return
        here, there = _entries_left(record, record.reached), _entries_left(record, ahead)
        left = here - int((here - there) * done)
        count = sums_of(record.sent).get(WHOLE, Checksum()).count
        passed = max(record.entries - left, 0)
        self._options.on_progress(Progress(count, record.bytes, passed, record.entries, count))


def _behind(
    record: ReplayRecord, results: Sequence[PartResult], reached: list[LaneMark], now_ms: int
) -> ReplayRecord:
    """Return the record behind these parts."""
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


async def end_mark(target: Client, topic: TopicRecord, record: ReplayRecord) -> None:
    """Let nobody show a round of a run that is done, or was begun anew since."""
    value = encode_mark(ReplayMark(batch_id=0, over=True))
    with translated(target.options.metadata_timeout_s):
        await target.store.put(sink_key(topic.uid, record.run), value)


def check_partitions(topic: TopicRecord) -> None:
    """Raise BadTopic for a target with too many partitions to show a part of each at once."""
    count = len(topic.partition_indexes)
    if ledgers_max(count) < count + ROLLS_MAX:
        told = f"its {count} partitions are more than workers can show at once; use --no-spark"
        raise BadTopic(told, topic=topic.name)
