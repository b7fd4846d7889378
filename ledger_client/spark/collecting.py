"""A job of Spark's, for callers with trio: its progress is told, and cancelling it ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ledger_client.background import Background
from ledger_client.spark.failures import unwrapped

if TYPE_CHECKING:
    from pyspark import SparkContext

LOOK_S = 0.2
"""Between two looks at how far Spark is."""
T = TypeVar("T")


async def collected(
    spark: SparkContext, collect: Callable[[SparkContext], T], told: Callable[[float], None]
) -> T:
    """Return what *collect* returns, in a thread; cancelled, all jobs of the session end.

    Raises:
        SparkError: Spark failed.
        LedgerError: as tasks raised it, where a message is all that it is made of.
    """

    def run() -> T:
        with unwrapped():
            return collect(spark)

    async with Background() as nursery:
        nursery.start_soon(_watch, spark, told)
        try:
            return await trio.to_thread.run_sync(run, abandon_on_cancel=True)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(spark.cancelAllJobs)
            raise


async def _watch(spark: SparkContext, told: Callable[[float], None]) -> None:
    """Tell which part of the tasks of the stages that run is done."""
    tracker: Any = spark.statusTracker()
    while True:
        await trio.sleep(LOOK_S)
        done, total = await trio.to_thread.run_sync(_tasks, tracker, abandon_on_cancel=True)
        if total:
            told(done / total)


def _tasks(tracker: Any) -> tuple[int, int]:  # noqa: ANN401 - PySpark's tracker has no types
    stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(one.numCompletedTasks for one in known), sum(one.numTasks for one in known)
