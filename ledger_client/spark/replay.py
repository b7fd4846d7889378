"""Replays by Spark: into Parquet files, or into a topic.

Into Parquet, lanes are written side by side, a file for each task:

    range, once ──► data source ──► Spark's writer ──commit──► files ──► tasks sum them up
         └──► ranges ──► tasks sum them up too, to compare: verify

Files appear when Spark commits its job. If the job is killed nothing appears, and the next run
writes everything. Within a file, messages of a lane are in their order. Executors and this
process must see the same folder.

Into a topic, each task copies one part of a round (jobs/replay/rounds.py):

    driver   cuts, collects results, shows the ledgers they name
    tasks    read a part, stage its ledgers                        (jobs/replay/parts.py)

Tasks connect to both clusters themselves. A repeated or speculative task stages ledgers of its
own; Spark collects one result for each part, and only its ledgers are shown.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import trio

from ledger_client.errors import BadTopic, ReplayConflict
from ledger_client.jobs.arrow_columns import NAMES, columns_of
from ledger_client.jobs.replay.log import ReplayReport
from ledger_client.jobs.replay.options import ReplayOptions, fix_range
from ledger_client.jobs.replay.parts import PartPlan, PartResult, PartWork, copy_part
from ledger_client.jobs.replay.source import position_of
from ledger_client.jobs.staging.job import open_job
from ledger_client.spark.failures import unwrapped, without_stack
from ledger_client.spark.session import collected, start_spark
from ledger_client.topics.context import TopicContext, ask, open_context
from ledger_client.topics.positions import Position
from ledger_client.topics.reading.range_plan import plan_read
from ledger_client.topics.reading.range_reader import iterate_ranges
from ledger_client.topics.reading.ranges import LedgerRange, split
from native.checksum import Checksum

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

ROWS = 64 * 1024
TASK_SIZE = 128 << 20
COMPRESSION = "zstd"
_CONF = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""Readers take these times as UTC, like those written without Spark."""
Summed = tuple[int, int, int]
T = TypeVar("T")
"""Count of messages, sum of their hashes, bytes of their values and keys."""


async def replay_by_spark(
    context: TopicContext,
    url: str,
    names: Sequence[str],
    folder: Path,
    options: ReplayOptions,
    *,
    master: str,
) -> ReplayReport:
    """Write a range of topics into Parquet files in *folder*; *url* is the cluster's.

    The report has the sum alone and no chain, since several tasks write at once.

    Raises:
        BadTopic: an order or speed is set, or a place is invalid.
        ReplayConflict: the folder has files, or does not hold the topics' messages (with verify).
        SparkError: Spark is missing, did not start, or failed.
        LedgerError: as reading.
    """
    topics = [(await context.catalogue.get(name))[0] for name in names]
    options.check(topics)
    if options.order is not None or options.speed:
        reason = (
            "Spark writes lanes side by side, at full speed; --order and --speed need --no-spark"
        )
        raise BadTopic(reason, topic=topics[0].name)
    await trio.to_thread.run_sync(_check_empty, folder, topics[0].name)
    started = time.monotonic()
    fixed = await fix_range(context, topics, options.wanted)
    begin, end = (position_of(topics, marks) for marks in fixed)
    async with AsyncExitStack() as stack:
        for index, topic in enumerate(topics):
            pins = [
                (mark.partition, mark.lane, max(mark.number, 0))
                for mark in fixed.begin
                if mark.topic == index
            ]
            await stack.enter_async_context(open_job(context.ledgers, topic, "replay", pins=pins))
        ranges: Sequence[LedgerRange] = ()
        if options.verify:
            ranges = (await plan_read(context, names, start=begin, end=end)).ranges
        job = _Job(url, [topic.name for topic in topics], folder, begin, end, ranges)
        written, read = await _run(partial(job.run, master, verify=options.verify))
    sent = Checksum(written[0], written[1])
    if read is not None and read != written:
        there = Checksum(read[0], read[1])
        part = f"folder {folder}"
        raise ReplayConflict.differs(
            topics[0].name, part=part, sent=there, found=sent, ordered=False
        )
    return ReplayReport(
        name=options.name_of(topics, f"folder {folder}"),
        target=f"folder {folder}",
        messages=sent.count,
        bytes=written[2],
        checksum=sent.total_text,
        seconds=round(time.monotonic() - started, 3),
        verified=options.verify,
    )


async def _run(work: Callable[[], tuple[Summed, Summed | None]]) -> tuple[Summed, Summed | None]:
    """Run Spark in a thread; cancelling this ends its jobs."""
    try:
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
    except trio.Cancelled:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_cancel)
        raise


def _cancel() -> None:
    from pyspark import SparkContext

    spark = SparkContext._active_spark_context
    if spark is not None:
        spark.cancelAllJobs()


class _Job:
    """Writes the files and sums them. Its calls block: make them in a thread."""

    def __init__(
        self,
        url: str,
        names: Sequence[str],
        folder: Path,
        begin: Position,
        end: Position,
        ranges: Sequence[LedgerRange],
    ) -> None:
        self._url = url
        self._names = names
        self._folder = folder.absolute()
        self._begin = begin
        self._end = end
        self._ranges = ranges

    def run(self, master: str, *, verify: bool) -> tuple[Summed, Summed | None]:
        """Write; return the sums of the files and, with *verify*, of the topics."""
        with start_spark(master, app="quire replay", conf=_CONF) as session, unwrapped():
            if self._begin:
                self._write(session)
            else:
                self._folder.mkdir(parents=True, exist_ok=True)
            spark = session.sparkContext
            paths = sorted(str(path) for path in self._folder.glob("*.parquet"))
            written = _total(spark, [[path] for path in paths], sum_files)
            if not verify:
                return written, None
            groups = split(self._ranges, TASK_SIZE, groups_min=spark.defaultParallelism)
            return written, _total(spark, groups, partial(sum_ranges, self._url))

    def _write(self, session: SparkSession) -> None:
        from ledger_client.spark.source import RawSource  # imports PySpark

        session.dataSource.register(RawSource)
        frame = (
            session.read.format(RawSource.name())
            .option("cluster", self._url)
            .option("topics", ",".join(self._names))
            .option("startingIds", _json(self._begin))
            .option("endingIds", _json(self._end))
            .option("columns", ",".join(NAMES))
            .load()
        )
        frame.write.mode("append").option("compression", COMPRESSION).parquet(self._folder.as_uri())


def _total(
    spark: SparkContext,
    groups: Sequence[T],
    work: Callable[[Iterable[T]], Iterable[Summed]],
) -> Summed:
    if not groups:
        return 0, 0, 0
    sums = spark.parallelize(groups, len(groups)).mapPartitions(work).collect()
    return (
        sum(each[0] for each in sums),
        sum(each[1] for each in sums) % (1 << 64),
        sum(each[2] for each in sums),
    )


def sum_files(groups: Iterable[Sequence[str]]) -> Iterator[Summed]:
    """Yield the sum of the messages in the Parquet files of each group; runs in executors."""
    import pyarrow.parquet as pq

    from ledger_client.jobs.replay.columns import CopiedColumns

    for paths in groups:
        found, size = Checksum(), 0
        for path in paths:
            with pq.ParquetFile(path) as opened:
                for batch in opened.iter_batches(ROWS):
                    given = CopiedColumns(batch)
                    found, size = found.add(given.columns), size + given.size
        yield found.count, found.total, size


def sum_ranges(url: str, groups: Iterable[Sequence[LedgerRange]]) -> Iterator[Summed]:
    """Yield the sum of the messages of each group of ranges; runs in executors."""
    import pyarrow as pa

    from ledger_client.jobs.replay.columns import CopiedColumns

    for ranges in groups:
        found, size = Checksum(), 0
        with without_stack():
            for messages in iterate_ranges(url, ranges):
                batch = pa.RecordBatch.from_arrays(columns_of([messages], NAMES), NAMES)
                given = CopiedColumns(batch)
                found, size = found.add(given.columns), size + given.size
        yield found.count, found.total, size


def _check_empty(folder: Path, topic: str) -> None:
    """Raise ReplayConflict if the folder has anything except a killed Spark job's leftovers."""
    if not folder.exists():
        return
    found = sorted(path.name for path in folder.iterdir() if path.name != "_temporary")
    if found:
        reason = f"{folder} holds {found[-1]}; Spark writes into an empty folder"
        raise ReplayConflict(reason, topic=topic)


def _json(position: Position) -> str:
    return msgspec.json.encode(position).decode()


class SparkWorkers:
    """Copies parts in a Spark session; see Workers in jobs/replay/rounds.py.

    Args:
        session: returns the session; called when it is first needed.
        url: of the sources' cluster, as executors reach it.
        target_url: of the target's, if that is another one.
    """

    def __init__(
        self, session: Callable[[], SparkSession], url: str, target_url: str | None = None
    ) -> None:
        self._session = session
        self._url = url
        self._target_url = target_url

    async def count(self) -> int:
        """Return the number of parallel tasks. Raises SparkError if Spark does not start."""
        return (await self._context()).defaultParallelism

    async def copy(
        self, work: PartWork, parts: Sequence[PartPlan], on_progress: Callable[[float], None]
    ) -> Sequence[PartResult]:
        """Run one Spark task per part; return results by part. Raises as collected()."""
        task = PartTask(self._url, self._target_url, work)

        def collect(spark: SparkContext) -> list[bytes]:
            return spark.parallelize(parts, len(parts)).mapPartitions(task.copy).collect()

        rows = await collected(await self._context(), collect, on_progress)
        results = [msgspec.msgpack.decode(row, type=PartResult) for row in rows]
        return sorted(results, key=lambda result: result.index)

    async def _context(self) -> SparkContext:
        return (await trio.to_thread.run_sync(self._session)).sparkContext


class PartTask:
    """The work of tasks. PySpark pickles it and sends it to executors."""

    def __init__(self, url: str, target_url: str | None, work: PartWork) -> None:
        self._url = url
        self._target_url = target_url
        self._work = work

    def copy(self, parts: Iterable[PartPlan]) -> Iterator[bytes]:
        """Stage parts, and yield their results."""
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        with without_stack():
            for plan in parts:
                result = ask(self._url, partial(self._copy, plan=plan, attempt=attempt))
                yield msgspec.msgpack.encode(result)

    async def _copy(self, source: TopicContext, *, plan: PartPlan, attempt: int) -> PartResult:
        if self._target_url is None:
            return await copy_part(source, source.ledgers, self._work, plan, attempt=attempt)
        async with open_context(self._target_url) as target:
            return await copy_part(source, target.ledgers, self._work, plan, attempt=attempt)


@asynccontextmanager
async def spark_workers(
    url: str, *, target_url: str | None = None, master: str = "local[*]"
) -> AsyncIterator[SparkWorkers]:
    """Open workers that start Spark when it is first needed, and stop it with the block.

    Args:
        url: of the sources' cluster, as executors reach it.
        target_url: of the target's, if that is another one.
        master: "local[N]", or the URL of a Spark cluster.
    """
    with ExitStack() as opened:
        sessions: list[SparkSession] = []

        def session() -> SparkSession:
            if not sessions:
                sessions.append(opened.enter_context(start_spark(master, app="quire replay")))
            return sessions[0]

        yield SparkWorkers(session, url, target_url)
