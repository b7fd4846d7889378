"""Scrubbing by Spark: a task for each group of ledgers, which asks the bookies by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import trio

from ledger_client import connecting
from ledger_client.operations.scrubbing import Chosen, Part, ScrubbedLedger, group, scrub
from ledger_client.spark.failures import unwrapped, without_stack
from ledger_client.spark.session import open_session

TASKS_MAX = 64
TASK_SIZE = 256 << 20
"""Payload bytes of all copies that one task looks at, about; each task costs some 30 ms."""
LOOK_S = 0.2
"""Between two looks at how far Spark is."""


class Task:
    """What an executor does; pickled. *url* is the cluster's, as executors reach it."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, groups: Iterable[list[Chosen]]) -> Iterator[bytes]:
        """Yield what was found in each group, as msgpack."""
        for chosen in groups:
            with without_stack():
                found = trio.run(self._scrub, chosen)
            yield msgspec.msgpack.encode(found)

    async def _scrub(self, chosen: list[Chosen]) -> list[ScrubbedLedger]:
        async with connecting.connect(self._url) as client:
            return await scrub(client, chosen)


async def scrub_by_spark(
    url: str, chosen: Sequence[Chosen], told: Part, *, master: str
) -> list[ScrubbedLedger]:
    """Compare the copies of these ledgers in Spark at *master*; cancelled, its job ends.

    Raises:
        SparkError: Spark is missing, did not start, or failed.
        LedgerError: as tasks raised it.
    """
    opening = open_session(master, app="quire scrub")
    with opening as session:
        spark: Any = session.sparkContext
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, spark, told)
            try:
                run = partial(_run, spark, url, chosen)
                rows = await trio.to_thread.run_sync(run, abandon_on_cancel=True)
            except trio.Cancelled:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(spark.cancelAllJobs)
                raise
            nursery.cancel_scope.cancel()
    return [each for row in rows for each in msgspec.msgpack.decode(row, type=list[ScrubbedLedger])]


def _run(spark: Any, url: str, chosen: Sequence[Chosen]) -> list[bytes]:  # noqa: ANN401
    total = sum(each.size for each in chosen)
    count = max(-(-total // TASK_SIZE), spark.defaultParallelism)
    groups = group(chosen, min(count, TASKS_MAX))
    if not groups:
        return []
    with unwrapped():
        rdd = spark.parallelize(groups, len(groups)).mapPartitions(Task(url))
        found: list[bytes] = rdd.collect()
        return found


async def _watch(spark: Any, told: Part) -> None:  # noqa: ANN401 - PySpark's has few types
    tracker = spark.statusTracker()
    while True:
        await trio.sleep(LOOK_S)
        part = await trio.to_thread.run_sync(_part, tracker, abandon_on_cancel=True)
        if part is not None:
            told(part)


def _part(tracker: Any) -> float | None:  # noqa: ANN401
    stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None and stage.numTasks]
    if not known:
        return None
    return float(sum(s.numCompletedTasks for s in known) / sum(s.numTasks for s in known))
