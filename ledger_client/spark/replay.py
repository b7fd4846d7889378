"""A replay into Parquet by Spark: lanes side by side, a file for each task.

    range, once ──► data source ──► Spark's writer ──commit──► files ──► tasks sum them up
         └──► spans ──► tasks sum them up too, to compare: verify

Files are visible when Spark commits its job: of one that is killed nothing is, and the next run
writes everything. Within a file messages of a lane are in their order. Executors and this
process must see the same folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from ledger_client.replay.errors import ChecksumDiffers, TargetForeign
from ledger_client.replay.options import ReplayOptions
from ledger_client.replay.range import fix_range
from ledger_client.replay.report import Report
from ledger_client.replay.source import position_of
from ledger_client.spark.columns import NAMES, columns_of
from ledger_client.spark.failures import unwrapped, without_stack
from ledger_client.spark.session import open_session
from ledger_client.topics.client import TopicClient
from ledger_client.topics.errors import BadTopic
from ledger_client.topics.jobs.job import open_job
from ledger_client.topics.reading.span_plan import plan_spans
from ledger_client.topics.reading.span_reader import iterate_spans
from ledger_client.topics.reading.spans import Span, split
from ledger_client.topics.reading.starting import Position
from native.checksum import Checksum

ROWS = 64 * 1024
TASK_SIZE = 128 << 20
COMPRESSION = "zstd"
_CONF = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""What others read as times of UTC, as those that are written without Spark."""
Summed = tuple[int, int, int]
"""Messages, the sum of their hashes, and the bytes of their values and keys."""


async def replay_by_spark(
    client: TopicClient,
    url: str,
    names: Sequence[str],
    folder: Path,
    options: ReplayOptions,
    *,
    master: str,
) -> Report:
    """Write a range of topics into Parquet files in *folder*; *url* is the cluster's.

    The checksum of the report is the sum alone: there is no one order to chain.

    Raises:
        BadTopic: an order or a speed is asked for, or a place that cannot be.
        TargetForeign: the folder has files.
        ChecksumDiffers: verified, the files do not have what the topics have.
        SparkError: Spark is missing, did not start, or failed.
        LedgerError: as reading.
    """
    topics = [(await client.topics.get(name))[0] for name in names]
    options.check(topics)
    if options.order is not None or options.speed:
        told = "Spark writes lanes side by side, at full speed; --order and --speed need --no-spark"
        raise BadTopic(told, topic=topics[0].name)
    await trio.to_thread.run_sync(_check_empty, folder, topics[0].name)
    started = time.monotonic()
    fixed = await fix_range(client, topics, options.wanted)
    begin, end = (position_of(topics, marks) for marks in fixed)
    async with AsyncExitStack() as stack:
        for index, topic in enumerate(topics):
            pins = [
                (mark.partition, mark.lane, max(mark.number, 0))
                for mark in fixed.begin
                if mark.topic == index
            ]
            await stack.enter_async_context(open_job(client, topic, "replay", pins=pins))
        spans: Sequence[Span] = ()
        if options.verify:
            spans = (await plan_spans(client, names, start=begin, end=end)).spans
        job = _Job(url, [topic.name for topic in topics], folder, begin, end, spans)
        written, read = await _run(partial(job.run, master, verify=options.verify))
    sent = Checksum(written[0], written[1])
    if read is not None and read != written:
        there = Checksum(read[0], read[1])
        told = f"folder {folder}"
        raise ChecksumDiffers(topics[0].name, part=told, sent=there, found=sent, ordered=False)
    return Report(
        name=options.name_of(topics, f"folder {folder}"),
        target=f"folder {folder}",
        messages=sent.count,
        bytes=written[2],
        checksum=sent.total_text,
        seconds=round(time.monotonic() - started, 3),
        verified=options.verify,
    )


async def _run(work: Callable[[], tuple[Summed, Summed | None]]) -> tuple[Summed, Summed | None]:
    """Run Spark in a thread; cancelled, its jobs end."""
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
    """What Spark does; blocks."""

    def __init__(
        self,
        url: str,
        names: Sequence[str],
        folder: Path,
        begin: Position,
        end: Position,
        spans: Sequence[Span],
    ) -> None:
        self._url = url
        self._names = names
        self._folder = folder.absolute()
        self._begin = begin
        self._end = end
        self._spans = spans

    def run(self, master: str, *, verify: bool) -> tuple[Summed, Summed | None]:
        """Write; return what is there, and what was to be there if it is to be verified."""
        with open_session(master, app="quire replay", conf=_CONF) as session, unwrapped():
            if self._begin:
                self._write(session)
            else:
                self._folder.mkdir(parents=True, exist_ok=True)
            spark = session.sparkContext
            paths = sorted(str(path) for path in self._folder.glob("*.parquet"))
            written = _total(spark, [[path] for path in paths], sum_files)
            if not verify:
                return written, None
            groups = split(self._spans, TASK_SIZE, groups_min=spark.defaultParallelism)
            return written, _total(spark, groups, partial(sum_spans, self._url))

    def _write(self, session: Any) -> None:  # noqa: ANN401 - a session, when PySpark is there
        frame = (
            session.read.format("quire")
            .option("cluster", self._url)
            .option("topics", ",".join(self._names))
            .option("startingIds", _json(self._begin))
            .option("endingIds", _json(self._end))
            .option("columns", ",".join(NAMES))
            .load()
        )
        frame.write.mode("append").option("compression", COMPRESSION).parquet(self._folder.as_uri())


def _total(
    spark: Any,  # noqa: ANN401 - a SparkContext, when PySpark is there
    groups: Sequence[Any],
    work: Callable[[Iterable[Any]], Iterator[Summed]],
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

    from ledger_client.replay.columns import Given

    for paths in groups:
        found, size = Checksum(), 0
        for path in paths:
            with pq.ParquetFile(path) as opened:
                for batch in opened.iter_batches(ROWS):
                    given = Given(batch)
                    found, size = found.add(given.columns), size + given.size
        yield found.count, found.total, size


def sum_spans(url: str, groups: Iterable[Sequence[Span]]) -> Iterator[Summed]:
    """Yield the sum of the messages of each group of spans; runs in executors."""
    import pyarrow as pa

    from ledger_client.replay.columns import Given

    for spans in groups:
        found, size = Checksum(), 0
        with without_stack():
            for piece in iterate_spans(url, spans):
                batch = pa.RecordBatch.from_arrays(columns_of([piece], NAMES), NAMES)
                given = Given(batch)
                found, size = found.add(given.columns), size + given.size
        yield found.count, found.total, size


def _check_empty(folder: Path, topic: str) -> None:
    """Raise TargetForeign if there is anything but what a killed job of Spark's left."""
    if not folder.exists():
        return
    found = sorted(path.name for path in folder.iterdir() if path.name != "_temporary")
    if found:
        told = f"{folder} holds {found[-1]}; Spark writes into an empty folder"
        raise TargetForeign(told, topic=topic)


def _json(position: Position) -> str:
    return msgspec.json.encode(position).decode()
