"""Compaction by Spark: tasks for the topic's partitions.

    separately   plans ──► tasks: both passes ──► reports
    together     plans ──► tasks: pass 1 ──► candidates ──shuffle──► winners of each key
                       ──shuffle──► tasks: pass 2 ──► reports

Tasks connect to the cluster themselves. A repeated attempt stages ledgers of its own; only those
named in a report are published, and the job discards the others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
import trio

from ledger_client.background import Background
from ledger_client.errors import LedgerError
from ledger_client.jobs.compaction.partition import (
    MEMORY_MAX,
    EntryTable,
    LaneSurvivors,
    PartitionSurvivors,
    compact_partition,
    find_survivors,
    floors_of,
    result_of,
    write_survivors,
)
from ledger_client.jobs.compaction.plan import (
    CompactionPlan,
    OnProgress,
    PartitionPlan,
    PartitionResult,
)
from ledger_client.jobs.compaction.runner import Candidate, candidates
from ledger_client.jobs.staging.job import JobStage
from ledger_client.portal import Portal
from ledger_client.spark.failures import without_stack
from ledger_client.spark.session import collected, start_spark
from ledger_client.topics.context import TopicContext, open_context
from native.latest import Survivors
from native.route import murmur3

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

TASKS_MAX = 64
"""Tasks of one step; each costs about 30 ms."""
Collect = Callable[["SparkContext"], list[bytes]]


class SparkRunner:
    """Compacts partitions in a Spark session; see Runner in jobs/compaction/job.py.

    Args:
        session: returns the session; called when it is first needed.
        url: of the cluster, as executors reach it.
        memory_max: bytes of the table of keys, of each task.
    """

    engine: Literal["spark", "process"] = "spark"

    def __init__(
        self, session: Callable[[], SparkSession], url: str, *, memory_max: int = MEMORY_MAX
    ) -> None:
        self._session = session
        self._url = url
        self._memory_max = memory_max

    async def separately(
        self, plan: CompactionPlan, stage: JobStage, on_progress: OnProgress
    ) -> list[PartitionResult]:
        """Compact each partition by itself, several in parallel.

        Raises:
            SparkError: Spark is missing, did not start, or failed.
            LedgerError: as tasks raised it.
        """
        work, tasks = self._work(plan, stage)

        def collect(spark: SparkContext) -> list[bytes]:
            return spark.parallelize(range(tasks), tasks).mapPartitions(work.compact).collect()

        return await self._results(collect, on_progress)

    async def together(
        self, plan: CompactionPlan, stage: JobStage, on_progress: OnProgress
    ) -> list[PartitionResult]:
        """Compact all partitions in one job with two shuffles. Raises as separately()."""
        work, tasks = self._work(plan, stage)

        def collect(spark: SparkContext) -> list[bytes]:
            found = spark.parallelize(range(tasks), tasks).mapPartitions(work.find)
            winners = found.reduceByKey(max, tasks, partition_of).values().keyBy(_partition)
            return winners.partitionBy(tasks, int).mapPartitions(work.write).collect()

        return await self._results(collect, on_progress)

    def _work(self, plan: CompactionPlan, stage: JobStage) -> tuple[Work, int]:
        tasks = max(1, min(len(plan.partitions), TASKS_MAX))
        return Work(self._url, plan, stage, tasks=tasks, memory_max=self._memory_max), tasks

    async def _results(self, collect: Collect, on_progress: OnProgress) -> list[PartitionResult]:
        """Run a Spark job; cancelling this ends the job."""
        spark = (await trio.to_thread.run_sync(self._session)).sparkContext
        rows = await collected(spark, collect, on_progress)
        results = [msgspec.msgpack.decode(row, type=PartitionResult) for row in rows]
        return sorted(results, key=lambda each: each.partition)


@asynccontextmanager
async def spark_runner(
    url: str, *, master: str = "local[*]", memory_max: int = MEMORY_MAX
) -> AsyncIterator[SparkRunner]:
    """Open a runner that starts Spark when it is first needed, and stops it with the block.

    Args:
        url: of the cluster, as executors reach it.
        master: "local[N]", or the URL of a Spark cluster.
        memory_max: bytes of the table of keys, of each task.
    """
    with ExitStack() as opened:
        sessions: list[SparkSession] = []

        def session() -> SparkSession:
            if not sessions:
                sessions.append(opened.enter_context(start_spark(master, app="quire compact")))
            return sessions[0]

        yield SparkRunner(session, url, memory_max=memory_max)


def _partition(winner: Contender) -> int:
    return winner[1]


PAGES_MAX = 2
"""Pages of candidates that wait for Spark."""
CANDIDATE = -1
"""The mark of candidates; that of a lane's notes is the lane's own."""
Marked = tuple[int, bytes]
"""A mark and a key."""
Contender = tuple[int, int, int, int, bool, bytes]
"""A candidate without its key, and a lane's notes or nothing: the greater one wins."""
Page = list[tuple[Marked, Contender]]
Pages = trio.MemoryReceiveChannel[Page | LedgerError]


class LaneNotes(msgspec.Struct, frozen=True):
    """The result of pass 1 for a lane, without its survivors; sent to tasks."""

    counts: bytes
    orders: bytes
    keyless: bytes
    last_order: int
    foreign: int
    """keys of the partition whose hash belongs to another partition"""

    @classmethod
    def of(cls, found: LaneSurvivors, foreign: int) -> LaneNotes:
        """Return the notes of a lane."""
        table = found.table
        return cls(
            table.counts.tobytes(),
            table.orders.tobytes(),
            bytes(table.keyless),
            table.last_order,
            foreign,
        )

    def table(self) -> EntryTable:
        """Return the lane's table of entries."""
        table = EntryTable()
        table.counts.frombytes(self.counts)
        table.orders.frombytes(self.orders)
        table.keyless += self.keyless
        table.last_order = self.last_order
        return table


class Work:
    """The work of tasks. PySpark pickles it and sends it to executors."""

    def __init__(
        self, url: str, plan: CompactionPlan, stage: JobStage, *, tasks: int, memory_max: int
    ) -> None:
        self._url = url
        self._plan = plan
        self._stage = stage
        self._tasks = tasks
        self._memory_max = memory_max

    def compact(self, numbers: Iterable[int]) -> Iterator[bytes]:
        """Compact the partitions of the tasks *numbers*, and yield reports."""
        with without_stack():
            for partitions in self._partitions(numbers):
                yield from map(msgspec.msgpack.encode, trio.run(self._compact, partitions))

    def find(self, numbers: Iterable[int]) -> Iterator[tuple[Marked, Contender]]:
        """Yield the candidates of partitions and the notes of their lanes."""
        with without_stack():
            portal = Portal(partial(open_context, self._url))
            try:
                for partitions in self._partitions(numbers):
                    for partition in partitions:
                        yield from self._find(portal, partition)
            finally:
                portal.close()

    def write(self, some: Iterable[tuple[int, Contender]]) -> Iterator[bytes]:
        """Take winners, and yield reports of the partitions whose notes came with them."""
        with without_stack():
            winners = _Winners()
            for _, winner in some:
                winners.take(winner)
            if winners.notes:
                yield from map(msgspec.msgpack.encode, trio.run(self._write, winners))

    def _partitions(self, numbers: Iterable[int]) -> Iterator[Sequence[PartitionPlan]]:
        for number in numbers:
            yield self._plan.partitions[number :: self._tasks]

    async def _compact(self, partitions: Sequence[PartitionPlan]) -> list[PartitionResult]:
        async with open_context(self._url) as context:
            return [
                await compact_partition(
                    context, self._plan, each, self._stage, memory_max=self._memory_max
                )
                for each in partitions
            ]

    # --- keys in several partitions -------------------------------------------------

    def _find(
        self, portal: Portal[TopicContext], partition: PartitionPlan
    ) -> Iterator[tuple[Marked, Contender]]:
        with portal.hold(self._pages(portal.value, partition)) as pages:
            following = partial(_following, pages)
            while (page := portal.call(following)) is not None:
                yield from page

    @asynccontextmanager
    async def _pages(self, context: TopicContext, partition: PartitionPlan) -> AsyncIterator[Pages]:
        """Open a channel of candidates and notes; a task fills it up to PAGES_MAX ahead."""
        send, receive = trio.open_memory_channel[Page | LedgerError](PAGES_MAX)

        async def make() -> None:
            async with send:
                try:
                    found = await find_survivors(
                        context,
                        self._plan,
                        partition,
                        memory_max=self._memory_max,
                        tombstones=True,
                    )
                    async with aclosing(candidates(context, found)) as some:
                        async for page in some:
                            await send.send(_contenders(page))
                    await send.send(_notes(found))
                except LedgerError as failure:
                    await send.send(failure)

        async with Background() as nursery:
            nursery.start_soon(make)
            with receive:
                yield receive

    async def _write(self, winners: _Winners) -> list[PartitionResult]:
        results: list[PartitionResult] = []
        async with open_context(self._url) as context:
            for partition in self._plan.partitions:
                if (partition.partition, partition.lanes[0].lane) not in winners.notes:
                    continue
                found = winners.found(partition)
                floors = floors_of(found.lanes, partition)
                result = await write_survivors(
                    context,
                    self._plan,
                    found,
                    self._stage,
                    result_of(partition, found),
                    floors=floors,
                )
                results.append(msgspec.structs.replace(result, foreign=found.foreign))
        return results


class _Winners:
    """Winners, taken in any order, and the notes of their lanes."""

    def __init__(self) -> None:
        self.notes: dict[tuple[int, int], LaneNotes] = {}
        self._bits: dict[tuple[int, int], bytearray] = {}
        self._keys: dict[int, int] = {}

    def take(self, winner: Contender) -> None:
        _, part, lane, ordinal, tombstone, noted = winner
        if noted:
            self.notes[part, lane] = msgspec.msgpack.decode(noted, type=LaneNotes)
            return
        bits = self._bits.setdefault((part, lane), bytearray())
        place = ordinal >> 3
        if place >= len(bits):
            bits.extend(bytes(place + 1 + len(bits) // 2 - len(bits)))
        bits[place] |= 1 << (ordinal & 7)
        self._keys[part] = self._keys.get(part, 0) + (not tombstone)

    def found(self, partition: PartitionPlan) -> PartitionSurvivors:
        """Return the partition's survivors: the winners alone."""
        lanes: list[LaneSurvivors] = []
        foreign = 0
        for lane in partition.lanes:
            noted = self.notes[lane.partition, lane.lane]
            table = noted.table()
            survivors = Survivors(table.messages)
            bits = self._bits.get((lane.partition, lane.lane), bytearray())[: len(survivors.bits)]
            survivors.bits[: len(bits)] = bits
            lanes.append(LaneSurvivors(lane, table, survivors))
            foreign = noted.foreign
        return PartitionSurvivors(lanes, self._keys.get(partition.partition, 0), foreign)


def partition_of(marked: Marked) -> int:
    """Return the number by which Spark chooses a task, equal in every process."""
    return murmur3(marked[1]) + max(marked[0], 0)


async def _following(pages: Pages) -> Page | None:
    page = await anext(pages, None)
    if isinstance(page, LedgerError):
        raise page
    return page


def _contenders(page: Sequence[Candidate]) -> Page:
    return [
        ((CANDIDATE, key), (order, partition, lane, ordinal, tombstone, b""))
        for key, order, partition, lane, ordinal, tombstone in page
    ]


def _notes(found: PartitionSurvivors) -> Page:
    """Return the notes of a partition's lanes, as records for the shuffle."""
    return [
        (
            (each.lane.partition << 31 | each.lane.lane, b""),
            (
                0,
                each.lane.partition,
                each.lane.lane,
                0,
                False,
                msgspec.msgpack.encode(LaneNotes.of(each, found.foreign)),
            ),
        )
        for each in found.lanes
    ]
