"""Compaction by Spark: a task for each partition of the topic, or some of them.

    separately   plans ──► tasks: both passes ──► reports
    together     plans ──► tasks: pass 1 ──► candidates ──shuffle──► winners of each key
                       ──shuffle──► tasks: pass 2 ──► reports

Tasks reach the cluster by themselves. Whatever is tried twice stages ledgers of its own; only
those that a report names are published, and the job gives the others up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Literal

import msgspec
import trio

from ledger_client.compaction.partition import MEMORY_MAX, PartitionResult
from ledger_client.compaction.plan import CompactionPlan
from ledger_client.compaction.runner import Told
from ledger_client.spark.collecting import collected
from ledger_client.spark.compaction_tasks import Contender, Work, partition_of
from ledger_client.spark.session import open_session
from ledger_client.topics.jobs.staging import JobStage

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

TASKS_MAX = 64
"""Tasks of one step: each costs some 30 ms."""
Collect = Callable[["SparkContext"], list[bytes]]


class SparkRunner:
    """Runs tasks in a Spark session; see ledger_client/compaction/runner.py.

    Args:
        session: gives the session, once it is needed.
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
        self, plan: CompactionPlan, stage: JobStage, told: Told
    ) -> list[PartitionResult]:
        """See Runner.

        Raises:
            SparkError: Spark is missing, did not start, or failed.
            LedgerError: as tasks raised it.
        """
        work, tasks = self._work(plan, stage)

        def collect(spark: SparkContext) -> list[bytes]:
            return spark.parallelize(range(tasks), tasks).mapPartitions(work.compact).collect()

        return await self._results(collect, told)

    async def together(
        self, plan: CompactionPlan, stage: JobStage, told: Told
    ) -> list[PartitionResult]:
        """See Runner. Raises as separately()."""
        work, tasks = self._work(plan, stage)

        def collect(spark: SparkContext) -> list[bytes]:
            found = spark.parallelize(range(tasks), tasks).mapPartitions(work.find)
            winners = found.reduceByKey(max, tasks, partition_of).values().keyBy(_partition)
            return winners.partitionBy(tasks, int).mapPartitions(work.write).collect()

        return await self._results(collect, told)

    def _work(self, plan: CompactionPlan, stage: JobStage) -> tuple[Work, int]:
        tasks = max(1, min(len(plan.partitions), TASKS_MAX))
        return Work(self._url, plan, stage, tasks=tasks, memory_max=self._memory_max), tasks

    async def _results(self, collect: Collect, told: Told) -> list[PartitionResult]:
        """Run a job of Spark's; cancelled, it ends."""
        spark = (await trio.to_thread.run_sync(self._session)).sparkContext
        rows = await collected(spark, collect, told)
        results = [msgspec.msgpack.decode(row, type=PartitionResult) for row in rows]
        return sorted(results, key=lambda each: each.partition)


@asynccontextmanager
async def spark_runner(
    url: str, *, master: str = "local[*]", memory_max: int = MEMORY_MAX
) -> AsyncIterator[SparkRunner]:
    """Lend a runner whose Spark starts when it is needed, and ends with the block.

    Args:
        url: of the cluster, as executors reach it.
        master: "local[N]", or the URL of a Spark cluster.
        memory_max: bytes of the table of keys, of each task.
    """
    with ExitStack() as opened:
        sessions: list[SparkSession] = []

        def session() -> SparkSession:
            if not sessions:
                sessions.append(opened.enter_context(open_session(master, app="quire compact")))
            return sessions[0]

        yield SparkRunner(session, url, memory_max=memory_max)


def _partition(winner: Contender) -> int:
    return winner[1]
