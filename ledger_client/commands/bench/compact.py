"""``quire bench compact``: compaction beside the best plain Spark over the same rows.

The same messages are in a topic and in Parquet files, one for each partition. Spark finds the
latest message of each key in the files as its users write it: by two passes (the greatest
position of each key, then a semi-join), and by max_by. Each run writes what it found: to
ledgers, or to Parquet. They take turns, and the median of each counts.
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
from typing import TYPE_CHECKING, Any

import click
import msgspec
import trio

import ledger_client
from ledger_client import Client
from ledger_client.commands import options
from ledger_client.commands.interruption import finish
from ledger_client.commands.sandbox import open_sandbox
from ledger_client.commands.size import Size
from ledger_client.compaction.runner import LocalRunner, Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "bench/compact"
PART = 10_000
"""Messages that are made together."""
MASTER = "local[2]"
Run = Callable[[], Any]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, with bookies of our own."""

    bookies: int
    partitions: int
    message_size: int
    messages: int
    keys: int
    rounds: int
    folder: Path


class Result(msgspec.Struct, frozen=True, kw_only=True):
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
    """by our job in Spark"""
    ratio_spark: float
    ratio_process: float


@click.command()
@click.option("--bookies", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--partitions", type=click.IntRange(1), default=2, show_default=True)
@click.option("--message-size", type=Size(), default="100", show_default=True)
@click.option("--messages", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option("--keys", type=click.IntRange(1), default=200_000, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@options.folder
@options.as_json
def compact(*, folder: Path | None, as_json: bool, **asked: object) -> None:
    """Compact a topic, beside plain Spark over the same rows in Parquet, in local[2].

    The bookies are its own, in a temporary folder.
    """
    given = asked | {"folder": folder or Path(tempfile.gettempdir())}
    plan = msgspec.convert(given, Plan, dec_hook=lambda _kind, value: value)
    result = trio.run(finish, partial(_measure, plan))
    click.echo(msgspec.json.encode(result).decode() if as_json else _describe(result))


async def _measure(plan: Plan) -> Result:
    async with (
        open_sandbox(plan.bookies, parent=plan.folder) as sandbox,
        ledger_client.connect(sandbox.cluster) as client,
        _session(plan.folder) as (spark, files),
    ):
        await _fill(client, plan, files / "rows")
        from ledger_client.spark.compaction import SparkRunner  # PySpark only for who uses it

        runners: dict[str, Runner] = {
            "spark": SparkRunner(lambda: spark, sandbox.cluster),
            "process": LocalRunner(client),
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


def _result(plan: Plan, times: dict[str, list[float]], kept: int) -> Result:
    median = {name: statistics.median(each[1:]) for name, each in times.items()}  # warm
    best = min(median["two passes"], median["max_by"])
    return Result(
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
    from ledger_client.spark.session import open_session

    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"}
    with (
        tempfile.TemporaryDirectory(prefix="quire-bench-", dir=folder) as files,
        open_session(MASTER, app="quire bench", conf=conf) as spark,
    ):
        yield spark, Path(files)


async def _fill(client: Client, plan: Plan, folder: Path) -> None:
    """Write the same messages to the topic and to a file for each of its partitions."""
    import pyarrow as pa
    from pyarrow import parquet

    await client.create_topic(TOPIC, plan.partitions, replication=plan.bookies)
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
    """Compact the topic from its beginning; return seconds, and how many messages are left."""
    await client.drop_compacted(TOPIC)
    started = time.perf_counter()
    done = await client.compact_topic(TOPIC, runner=runner)
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


def _describe(result: Result) -> str:
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
