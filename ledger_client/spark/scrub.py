"""Scrubbing by Spark: a task for each group of ledgers reads all copies from the bookies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio

from ledger_client.cluster.operations.scrubbing import (
    Chosen,
    OnProgress,
    ScrubbedLedger,
    group,
    scrub,
)
from ledger_client.spark.failures import without_stack
from ledger_client.spark.session import collected, start_spark
from ledger_client.topics.context import open_context

if TYPE_CHECKING:
    from pyspark import SparkContext

TASKS_MAX = 64
TASK_SIZE = 256 << 20
"""Approximate payload bytes, of all copies, for one task; a task costs about 30 ms."""


class ScrubTask:
    """The work of an executor; pickled. *url* is the cluster as executors reach it."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, groups: Iterable[list[Chosen]]) -> Iterator[bytes]:
        """Yield the findings for each group, as msgpack."""
        for chosen in groups:
            with without_stack():
                found = trio.run(self._scrub, chosen)
            yield msgspec.msgpack.encode(found)

    async def _scrub(self, chosen: list[Chosen]) -> list[ScrubbedLedger]:
        async with open_context(self._url) as context:
            return await scrub(context.ledgers, chosen)


async def scrub_by_spark(
    url: str, chosen: Sequence[Chosen], on_progress: OnProgress, *, master: str
) -> list[ScrubbedLedger]:
    """Compare the copies of ledgers in Spark at *master*; cancelling it ends the job.

    Raises:
        SparkError: Spark is missing, did not start, or failed.
        LedgerError: as tasks raised it.
    """
    with start_spark(master, app="quire scrub") as session:
        run = partial(_run, url=url, chosen=chosen)
        rows = await collected(session.sparkContext, run, on_progress)
    return [each for row in rows for each in msgspec.msgpack.decode(row, type=list[ScrubbedLedger])]


def _run(spark: SparkContext, *, url: str, chosen: Sequence[Chosen]) -> list[bytes]:
    total = sum(each.size for each in chosen)
    count = max(-(-total // TASK_SIZE), spark.defaultParallelism)
    groups = group(chosen, min(count, TASKS_MAX))
    if not groups:
        return []
    return spark.parallelize(groups, len(groups)).mapPartitions(ScrubTask(url)).collect()
