"""``quire bench spark``: reading a topic by Spark, beside the fastest that Spark can read.

Three sources take turns in one session, so that disturbances affect all: the topic, a Python
data source with the same Arrow batches in memory, and Parquet files of the same rows.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.bench import load_options
from ledger_client.commands.bench.usage import Residence
from ledger_client.commands.outcome import interruptible
from ledger_client.commands.sandbox import open_sandbox
from ledger_client.portal import Portal
from ledger_client.spark import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "bench/spark"
TOTAL_SIZE = 500_000_000
KEYS = 200_000
KEY_SIZE = 16
CALL_SIZE = 16 << 20
WARM_UP = 2
"""Rounds that do not count, while the JVM compiles hot code."""
BATCH_SIZE = 1 << 20
"""Limit of a batch in bytes, high enough that the number of messages decides."""


class SparkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the measurement, which starts a bookie of its own."""

    messages: int
    message_size: int
    batch: int
    partitions: int
    columns: str
    runs: int
    cores: int
    folder: Path


class Ways(msgspec.Struct, frozen=True, kw_only=True):
    """Median seconds of each source, and median ratios of the topic to the others per run."""

    topic_s: float
    floor_s: float
    parquet_s: float
    to_floor: float
    to_parquet: float


class SparkResult(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements; *count* reads every row, *write* stores them in Parquet files."""

    messages: int
    message_size: int
    batch: int
    columns: str
    count: Ways
    write: Ways
    worker_rss_max_mib: float
    """greatest memory of a Python worker of Spark while it read the topic"""
    jvm_rss_max_mib: float


@click.command()
@click.option(
    "--messages", type=click.IntRange(1), show_default="500 MB of them", help="Messages in total."
)
@load_options.message_size
@load_options.message_batch
@click.option(
    "--partitions",
    type=click.IntRange(0),
    default=2,
    show_default=True,
    help="Partitions of the topic.",
)
@click.option("--columns", default="", metavar="NAME,...", help="Columns to read; by default all.")
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True, help="Measured runs.")
@click.option(
    "--cores", type=click.IntRange(1), default=2, show_default=True, help="Cores for Spark."
)
@load_options.folder
@options.as_json
def spark(*, messages: int | None, folder: Path | None, as_json: bool, **arguments: object) -> None:
    """Read a topic by Spark, and compare with its fastest sources.

    The floor is a Python data source that yields the same Arrow batches from memory; Parquet is
    what Spark reads fastest. Each is counted and copied to Parquet. Starts a temporary
    bookie. Needs PySpark: pip install '.[spark]'.
    """
    size = arguments["message_size"]
    assert isinstance(size, int)
    fields = arguments | {
        "messages": messages or TOTAL_SIZE // max(size, 1),
        "folder": folder or Path(tempfile.gettempdir()),
    }
    plan = msgspec.convert(fields, SparkPlan, dec_hook=lambda _kind, value: value)
    with interruptible():
        result = _measure(plan)
    click.echo(msgspec.json.encode(result).decode() if as_json else _describe(result))


def _measure(plan: SparkPlan) -> SparkResult:
    from ledger_client.spark.failures import unwrapped
    from ledger_client.spark.session import check_java, check_spark

    check_spark()  # fails before the topic is filled for nothing
    check_java()
    conf = {"spark.driver.memory": "2g"}
    with (
        tempfile.TemporaryDirectory(dir=plan.folder, prefix="quire-bench-") as folder,
        _filled_topic(plan) as cluster,
        open_session(f"local[{plan.cores}]", app="quire bench spark", conf=conf) as session,
        unwrapped(),
    ):
        return _Measuring(plan, session, cluster, Path(folder)).result()


@contextmanager
def _filled_topic(plan: SparkPlan) -> Iterator[str]:
    with closing(Portal(lambda: open_sandbox(1, parent=plan.folder))) as portal:
        cluster = portal.value.cluster
        portal.call(partial(_fill, cluster, plan))
        yield cluster


async def _fill(cluster: str, plan: SparkPlan) -> None:
    async with connect(cluster) as client:
        await client.topics.create(TOPIC, plan.partitions, replication=1)
        async with client.producer(
            TOPIC,
            access="exclusive",
            router="round-robin",
            batch_messages=plan.batch,
            batch_bytes=max(BATCH_SIZE, plan.message_size),
        ) as producer:
            left = plan.messages
            count = max(1, min(CALL_SIZE // (plan.message_size + KEY_SIZE), left))
            noise = os.urandom(plan.message_size + count)
            values = [noise[index : index + plan.message_size] for index in range(count)]
            while left > 0:
                first, count = plan.messages - left, min(count, left)
                numbers = range(first, first + count)
                keys = [b"%0*d" % (KEY_SIZE, number % KEYS) for number in numbers]
                await producer.send_many(values[:count], keys=keys, event_times=list(numbers))
                left -= count
                await trio.lowlevel.checkpoint()


class _Measuring:
    def __init__(self, plan: SparkPlan, session: SparkSession, cluster: str, folder: Path) -> None:
        from ledger_client.spark.floor import FloorSource

        session.dataSource.register(FloorSource)
        self._plan = plan
        self._session = session
        self._cluster = cluster
        self._folder = folder
        self._seconds: dict[tuple[str, str], list[float]] = {}
        gateway = session.sparkContext._gateway
        assert gateway is not None
        self._residence = Residence(gateway.proc.pid)

    def result(self) -> SparkResult:
        """Run all rounds and compute the medians."""
        self._put(self._topic(), "rows")
        assert self._parquet().count() == self._plan.messages
        for run in range(WARM_UP + self._plan.runs):
            self._round(run, kept=run >= WARM_UP)
        return SparkResult(
            messages=self._plan.messages,
            message_size=self._plan.message_size,
            batch=self._plan.batch,
            columns=self._plan.columns or "all",
            count=self._ways("count"),
            write=self._ways("write"),
            worker_rss_max_mib=round(self._residence.descendants / 2**20, 1),
            jvm_rss_max_mib=round(self._residence.own / 2**20, 1),
        )

    def _round(self, number: int, *, kept: bool) -> None:
        frames = [("topic", self._topic), ("floor", self._floor), ("parquet", self._parquet)]
        first = number % len(frames)  # going first costs time for the JVM's compiler
        for name, frame in (*frames[first:], *frames[:first]):
            for what, work in {"count": self._count, "write": self._write}.items():
                with self._residence.watched() if name == "topic" else _unwatched():
                    before = time.perf_counter()
                    work(frame)
                    seconds = time.perf_counter() - before
                if kept:
                    self._seconds.setdefault((what, name), []).append(seconds)

    def _count(self, frame: Callable[[], DataFrame]) -> None:
        if frame != self._parquet:
            assert frame().count() == self._plan.messages
        else:  # count() would only read the footers, so all columns are read instead
            frame().write.format("noop").mode("overwrite").save()

    def _write(self, frame: Callable[[], DataFrame]) -> None:
        self._put(frame(), "written")

    def _put(self, frame: DataFrame, name: str) -> None:
        frame.write.mode("overwrite").parquet(str(self._folder / name))

    def _topic(self) -> DataFrame:
        reader = self._session.read.format("quire").option("cluster", self._cluster)
        return reader.option("topic", TOPIC).option("columns", self._plan.columns).load()

    def _floor(self) -> DataFrame:
        reader = self._session.read.format("quire-floor").option("columns", self._plan.columns)
        return reader.options(
            rows=self._plan.messages,
            valueSize=self._plan.message_size,
            batchRows=min(self._plan.batch, 50_000),
            tasks=self._topic_tasks,
        ).load()

    def _parquet(self) -> DataFrame:
        return self._session.read.parquet(str(self._folder / "rows"))

    @property
    def _topic_tasks(self) -> int:
        return self._topic().rdd.getNumPartitions()

    def _ways(self, what: str) -> Ways:
        topic, floor, parquet = (
            self._seconds[what, name] for name in ("topic", "floor", "parquet")
        )
        return Ways(
            topic_s=_median(topic),
            floor_s=_median(floor),
            parquet_s=_median(parquet),
            to_floor=_median([one / other for one, other in zip(topic, floor, strict=True)]),
            to_parquet=_median([one / other for one, other in zip(topic, parquet, strict=True)]),
        )


@contextmanager
def _unwatched() -> Iterator[None]:
    yield


def _median(seconds: list[float]) -> float:
    return round(statistics.median(seconds), 3)


def _describe(result: SparkResult) -> str:
    lines = [
        f"{result.messages:,} messages of {result.message_size} bytes, {result.batch} in a batch; "
        f"columns: {result.columns}",
        _line("read", result.count, result.messages),
        _line("into Parquet", result.write, result.messages),
        f"  greatest RSS: Python worker {result.worker_rss_max_mib:.0f} MiB, JVM "
        f"{result.jvm_rss_max_mib:.0f} MiB",
    ]
    return "\n".join(lines)


def _line(name: str, ways: Ways, messages: int) -> str:
    return (
        f"  {name}: {messages / ways.topic_s:,.0f} messages/s, {ways.topic_s:.2f} s = "
        f"{ways.to_floor:.2f} x the floor ({ways.floor_s:.2f} s) = {ways.to_parquet:.2f} x "
        f"Parquet ({ways.parquet_s:.2f} s)"
    )
