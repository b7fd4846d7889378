"""``quire bench compact``: compaction beside the best plain Spark over the same rows.

The same messages are stored in a topic and in Parquet files, one per partition. Spark finds the
latest message of each key in the files the way its users do: in two passes (the greatest
position of each key, then a semi-join), and by max_by. Each run writes its result, to
ledgers or to Parquet. The ways take turns, and the median of each counts.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
import trio

from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.bench import load_options
from ledger_client.commands.outcome import finish
from ledger_client.commands.sandbox import open_sandbox
from ledger_client.jobs.compaction.job import Runner
from ledger_client.jobs.compaction.runner import LocalRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "bench/compact"
PART = 10_000
"""Messages to generate and send at once."""
MASTER = "local[2]"
Run = Callable[[], object]


class CompactPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the measurement, which runs in a sandbox."""

    bookies: int
    partitions: int
    message_size: int
    messages: int
    keys: int
    rounds: int
    folder: Path


class CompactResult(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each way, the median of its runs; ratios to the best plain Spark."""

    copies: int
    partitions: int
    message_size: int
    messages: int
    keys: int
    messages_kept: int
    compact_spark_s: float
    compact_process_s: float
    spark_two_passes_s: float
    spark_max_by_s: float
    messages_per_s: float
    """rate of quire's job in Spark"""
    ratio_spark: float
    ratio_process: float


@click.command()
@load_options.bookies
@click.option(
    "--partitions",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Partitions of the topic.",
)
@load_options.message_size
@click.option(
    "--messages",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="Messages in total.",
)
@click.option(
    "--keys",
    type=click.IntRange(1),
    default=200_000,
    show_default=True,
    help="Number of different keys.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Measured runs of each way.",
)
@load_options.folder
@options.as_json
def compact(*, folder: Path | None, as_json: bool, **arguments: object) -> None:
    """Compact a topic, and compare with plain Spark.

    Spark compacts the same rows in Parquet. Starts a temporary cluster, and Spark as local[2].
    """
    fields = arguments | {"folder": folder or Path(tempfile.gettempdir())}
    plan = msgspec.convert(fields, CompactPlan, dec_hook=lambda _kind, value: value)
    result = trio.run(finish, partial(_measure, plan))
    click.echo(msgspec.json.encode(result).decode() if as_json else _describe(result))


async def _measure(plan: CompactPlan) -> CompactResult:
    async with (
        open_sandbox(plan.bookies, parent=plan.folder) as sandbox,
        connect(sandbox.cluster) as client,
        _session(plan.folder) as (spark, files),
    ):
        await _fill(client, plan, files / "rows")
        from ledger_client.spark.compaction import SparkRunner  # imports PySpark

        runners: dict[str, Runner] = {
            "spark": SparkRunner(lambda: spark, sandbox.cluster),
            "process": LocalRunner(client._context),
        }
        times: dict[str, list[float]] = {}
        kept = 0
        for turn in range(plan.rounds + 1):
            for name, runner in runners.items():
                seconds, kept = await _compact(client, runner)
                times.setdefault(name, []).append(seconds)
            for name, query in {"two passes": _two_passes, "max_by": _max_by}.items():
                out = files / f"{name}-{turn}"
                run = partial(_timed, partial(query, spark, files / "rows", out))
                times.setdefault(name, []).append(await trio.to_thread.run_sync(run))
        return _result(plan, times, kept)


def _result(plan: CompactPlan, times: dict[str, list[float]], kept: int) -> CompactResult:
    median = {name: statistics.median(each[1:]) for name, each in times.items()}  # warm
    best = min(median["two passes"], median["max_by"])
    return CompactResult(
        copies=plan.bookies,
        partitions=plan.partitions,
        message_size=plan.message_size,
        messages=plan.messages,
        keys=plan.keys,
        messages_kept=kept,
        compact_spark_s=round(median["spark"], 3),
        compact_process_s=round(median["process"], 3),
        spark_two_passes_s=round(median["two passes"], 3),
        spark_max_by_s=round(median["max_by"], 3),
        messages_per_s=round(plan.messages / median["spark"], 1),
        ratio_spark=round(median["spark"] / best, 3),
        ratio_process=round(median["process"] / best, 3),
    )


@asynccontextmanager
async def _session(folder: Path) -> AsyncIterator[tuple[SparkSession, Path]]:
    from ledger_client.spark import open_session

    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"}
    with (
        tempfile.TemporaryDirectory(prefix="quire-bench-", dir=folder) as files,
        open_session(MASTER, app="quire bench", conf=conf) as spark,
    ):
        yield spark, Path(files)


async def _fill(client: Client, plan: CompactPlan, folder: Path) -> None:
    """Write the same messages to the topic and to one file per partition."""
    import pyarrow as pa
    from pyarrow import parquet

    await client.topics.create(TOPIC, plan.partitions, replication=plan.bookies)
    await trio.Path(folder).mkdir()
    chance = random.Random(0)
    keys = [b"%016d" % number for number in range(plan.keys)]
    schema = pa.schema({"key": pa.binary(), "value": pa.binary(), "position": pa.int64()})
    paths = [folder / f"{number}.parquet" for number in range(plan.partitions)]
    writers = [parquet.ParquetWriter(path, schema) for path in paths]
    async with client.producer(TOPIC) as producer:
        for turn, start in enumerate(range(0, plan.messages, PART)):
            count = min(PART, plan.messages - start)
            some = chance.choices(keys, k=count)
            values = [chance.randbytes(plan.message_size) for _ in range(count)]
            await producer.send_many(values, keys=some)
            columns = [some, values, list(range(start, start + count))]
            arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
            writers[turn % plan.partitions].write_table(pa.table(arrays, schema=schema))
    for writer in writers:
        writer.close()


async def _compact(client: Client, runner: Runner) -> tuple[float, int]:
    """Compact the topic from scratch; return the seconds and the number of messages left."""
    await client.topics.drop_compacted(TOPIC)
    started = time.perf_counter()
    done = await client.topics.compact(TOPIC, runner=runner)
    assert done.report is not None
    return time.perf_counter() - started, done.report.messages_out


def _timed(run: Run) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _two_passes(spark: SparkSession, rows: Path, out: Path) -> None:
    from pyspark.sql import functions

    frame = spark.read.parquet(str(rows))
    last = frame.groupBy("key").agg(functions.max("position").alias("position"))
    found = frame.join(last, ["key", "position"], "left_semi")
    found.write.parquet(str(out))


def _max_by(spark: SparkSession, rows: Path, out: Path) -> None:
    from pyspark.sql import functions

    frame = spark.read.parquet(str(rows))
    found = frame.groupBy("key").agg(functions.max_by("value", "position").alias("value"))
    found.write.parquet(str(out))


def _describe(result: CompactResult) -> str:
    lines = [
        f"{result.messages:,} messages of {result.message_size} bytes, {result.keys:,} keys, "
        f"{result.messages_kept:,} messages left:",
        f"  compaction by Spark        {result.compact_spark_s:8.2f} s, "
        f"{result.ratio_spark:.2f} x plain Spark, {result.messages_per_s:,.0f} messages/s",
        f"  compaction in this process {result.compact_process_s:8.2f} s, "
        f"{result.ratio_process:.2f} x plain Spark",
        f"  plain Spark, two passes    {result.spark_two_passes_s:8.2f} s",
        f"  plain Spark, max_by        {result.spark_max_by_s:8.2f} s",
    ]
    return "\n".join(lines)
