"""Replay into a topic by Spark: a task for each part of a round.

    driver   cuts, collects results, shows what they name     replay/rounds.py
    tasks    read a part, stage its ledgers                    replay/parts.py

Tasks reach both clusters by themselves. A task that is done again, or beside a slow one, stages
ledgers of its own; Spark collects one result for each part, and only what that names is shown.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio

from ledger_client import connecting
from ledger_client.replay.parts import PartPlan, PartResult, PartWork, copy_part
from ledger_client.spark.collecting import collected
from ledger_client.spark.failures import without_stack
from ledger_client.spark.planning import ask
from ledger_client.spark.session import open_session
from ledger_client.topics.client import TopicClient

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


class SparkWorkers:
    """Does parts in a Spark session; see Workers.

    Args:
        session: gives the session, once it is needed.
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
        """Return how many tasks run at once. Raises SparkError: Spark did not start."""
        return (await self._context()).defaultParallelism

    async def copy(
        self, work: PartWork, parts: Sequence[PartPlan], told: Callable[[float], None]
    ) -> Sequence[PartResult]:
        """See Workers. Raises as collected()."""
        task = PartTask(self._url, self._target_url, work)

        def collect(spark: SparkContext) -> list[bytes]:
            return spark.parallelize(parts, len(parts)).mapPartitions(task.copy).collect()

        rows = await collected(await self._context(), collect, told)
        results = [msgspec.msgpack.decode(row, type=PartResult) for row in rows]
        return sorted(results, key=lambda result: result.index)

    async def _context(self) -> SparkContext:
        return (await trio.to_thread.run_sync(self._session)).sparkContext


class PartTask:
    """What tasks do. PySpark pickles it and sends it to executors."""

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

    async def _copy(self, source: TopicClient, *, plan: PartPlan, attempt: int) -> PartResult:
        if self._target_url is None:
            return await copy_part(source, source, self._work, plan, attempt=attempt)
        async with connecting.connect(self._target_url) as target:
            return await copy_part(source, target, self._work, plan, attempt=attempt)


@asynccontextmanager
async def spark_workers(
    url: str, *, target_url: str | None = None, master: str = "local[*]"
) -> AsyncIterator[SparkWorkers]:
    """Lend workers whose Spark starts when it is needed, and ends with the block.

    Args:
        url: of the sources' cluster, as executors reach it.
        target_url: of the target's, if that is another one.
        master: "local[N]", or the URL of a Spark cluster.
    """
    with ExitStack() as opened:
        sessions: list[SparkSession] = []

        def session() -> SparkSession:
            if not sessions:
                sessions.append(opened.enter_context(open_session(master, app="quire replay")))
            return sessions[0]

        yield SparkWorkers(session, url, target_url)
