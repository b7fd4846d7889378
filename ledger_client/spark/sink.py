"""Writing a topic from Spark: the whole frame is shown in the topic, or nothing of it.

    driver   writer()     begins a job and takes its lease (writing_job.py)
    tasks    write()      stage ledgers, renew the job's lease every minute
    driver   commit()     shows the ledgers of one attempt at each task, by one change
             abort()      discards all of them

Each of the three runs in a process of its own; state goes from one to the next by pickling.
Ledgers of failed and speculative tasks are never shown. If the driver is killed, nothing of the
frame is shown, and the leader discards the ledgers once the lease was not renewed for 15 minutes.
A frame that waits longer than that between its last row and its commit is lost, with an error.

Rows of a Spark partition keep their order in each partition of the topic, and Spark's partitions
follow one another. A topic ordered by event time takes a frame ordered by it. One commit can show
100 000 ledgers: each task makes one for each partition of the topic that it has rows for, or more
where it writes more than the topic's roll size.

A streaming query writes each micro-batch the same way. The last batch is recorded with the
topic, under the query's id, by that change: a batch that is written again, after a restart
from the checkpoint, is in the topic once. A checkpoint that does not match the topic is an error
(SinkBatch in jobs/staging/writing_job.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ledger_client.background import Background
from ledger_client.jobs.staging.job import SealedLedger
from ledger_client.jobs.staging.staged_writer import JobPart, StagedWriter, open_staged_writer
from ledger_client.jobs.staging.writing_job import (
    SinkBatch,
    WritePlan,
    abort_write,
    commit_write,
    join_write,
    keep_write,
    plan_write,
)
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.portal import Portal
from ledger_client.spark.failures import without_stack
from ledger_client.spark.sink_plan import RowPlan, SinkOptions
from ledger_client.topics.context import TopicContext, ask, open_context

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
QUERY_ID = "sql.streaming.queryId"
"""Spark's task property with the query's id, which is kept in the checkpoint."""
RUN_ID = "spark.jobGroup.id"
"""Spark's task property with the run's id, new after each restart."""


@dataclass(frozen=True)
class WrittenPart(WriterCommitMessage):
    """The ledgers that a task staged."""

    index: int
    ledgers: tuple[SealedLedger, ...]
    plan: WritePlan
    query: str
    """id of the streaming query, or "" """
    run: str
    """id of that query's run, or "" """


class QuireWriter(DataSourceArrowWriter):
    """Writes a frame in one job; Spark pickles it into each task."""

    def __init__(self, options: SinkOptions, rows: RowPlan) -> None:
        """Begin the job. Raises as plan_write()."""
        self._options = options
        self._rows = rows
        self._plan = call(options.cluster, partial(plan_write, name=options.topic))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:
        """Stage the rows of a task; runs in the task's process."""
        with without_stack():
            return write_part(self._options, self._rows, self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Show the tasks' ledgers. Raises as commit_write()."""
        with without_stack():
            work = partial(commit_write, plan=self._plan, sealed=_ledgers(_parts(messages)))
            call(self._options.cluster, work)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard all staged ledgers; on failure the leader discards them later."""
        with without_stack():
            call(self._options.cluster, partial(abort_write, plan=self._plan))


class QuireStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query.

    Spark creates one for each micro-batch and sends it to the tasks. It creates another to
    commit, which begins no job: the tasks' messages carry the plan.
    """

    def __init__(self, options: SinkOptions, rows: RowPlan) -> None:
        self._options = options
        self._rows = rows
        self._plan: WritePlan | None = None

    def __getstate__(self) -> dict[str, object]:
        """Begin the job, since pickling means that tasks will follow. Raises as plan_write()."""
        if self._plan is None:
            self._plan = call(self._options.cluster, partial(plan_write, name=self._options.topic))
        return self.__dict__.copy()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:
        """Stage the rows of a task; runs in the task's process."""
        assert self._plan is not None
        with without_stack():
            return write_part(self._options, self._rows, self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Show the tasks' ledgers, unless the batch was shown before.

        Raises:
            ReplayConflict: the topic has a different batch of this number, or a later one.
            Others: as commit_write().
        """
        parts = _parts(messages)
        if parts:
            ledgers = _ledgers(parts)
            batch = SinkBatch(
                query=self._options.query_of(parts[0].query),
                batch_id=batchId,
                run=parts[0].run,
                checkpoint=self._options.checkpoint,
                messages=sum(ledger.figures.messages for ledger in ledgers),
            )
            work = partial(commit_write, plan=parts[0].plan, sealed=ledgers, mark=batch)
            with without_stack():
                call(self._options.cluster, work)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Discard all ledgers; if no task's message is known, the leader does later."""
        parts = _parts(messages)
        if parts:
            with without_stack():
                call(self._options.cluster, partial(abort_write, plan=parts[0].plan))


def call(url: str, work: Callable[[Ledgers], Awaitable[T]]) -> T:
    """Connect for one call of a job that writes. Raises as *work*."""
    return ask(url, lambda context: work(context.ledgers))


def write_part(
    options: SinkOptions, rows: RowPlan, plan: WritePlan, batches: Iterator[pa.RecordBatch]
) -> WrittenPart:
    """Stage the rows of a task, and return when they are durable.

    Raises:
        SparkError: a row cannot be a message.
        LedgerError: as StagedWriter.write(). Spark tries again, with another attempt.
    """
    from ledger_client.spark.sink_rows import RowRouter, gather_size, gathered  # pyarrow

    context = TaskContext.get()
    assert context is not None
    part = JobPart(index=context.partitionId(), attempt=context.attemptNumber())
    query = context.getLocalProperty(QUERY_ID) or ""
    run = context.getLocalProperty(RUN_ID) or ""
    topic = plan.stage.topic
    tables = gathered(batches, gather_size(topic))
    first = next(tables, None)
    if first is None:  # nothing to connect for
        return WrittenPart(part.index, (), plan, query, run)
    router = RowRouter(topic, rows, turn=part.index)
    with _connected(options.cluster) as portal, portal.hold(_work(portal, plan, part)) as writer:
        table: pa.Table | None = first
        while table is not None:
            for share in router.shares(table):
                portal.call(partial(writer.write, *share))
            table = next(tables, None)
        ledgers = portal.call(writer.finish)
    return WrittenPart(part.index, tuple(ledgers), plan, query, run)


class _connected:  # noqa: N801  # read as a word: with _connected(url)
    """A client of a cluster for the block, in a thread of its own."""

    def __init__(self, url: str) -> None:
        self._portal: Portal[TopicContext] = Portal(partial(open_context, url))

    def __enter__(self) -> Portal[TopicContext]:
        return self._portal

    def __exit__(self, *_: object) -> None:
        self._portal.close()


@asynccontextmanager
async def _work(
    portal: Portal[TopicContext], plan: WritePlan, part: JobPart
) -> AsyncIterator[StagedWriter]:
    """Write a part of the job for the block, renewing the job's lease.

    Raises JobLost if the job has ended, for example since another task failed for good.
    """
    await join_write(portal.value.ledgers, plan)
    async with Background() as nursery:
        nursery.start_soon(keep_write, portal.value.ledgers, plan)
        async with open_staged_writer(portal.value.ledgers, plan.stage, part=part) as writer:
            yield writer


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenPart]:
    """Return the messages of tasks in task order, without those of failed tasks."""
    parts = [message for message in messages if isinstance(message, WrittenPart)]
    return sorted(parts, key=lambda part: part.index)


def _ledgers(parts: Sequence[WrittenPart]) -> list[SealedLedger]:
    return [ledger for part in parts for ledger in part.ledgers]
