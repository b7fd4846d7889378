"""Writing a topic from Spark: a frame is in the topic as a whole, or nothing of it is.

    driver   writer()     begins a job: says that it lives (writing_job.py)
    tasks    write()      stage ledgers, say every minute that the job lives
    driver   commit()     shows the ledgers of one attempt at each task, by one transaction
             abort()      gives all up

Each of the three is a process of its own; what they need goes from one to the other by pickling.
What failed and speculative tasks staged is never shown. When the driver is killed, nothing of
the frame is shown, and what is staged is given up by the bookie that leads, once nobody has said
for 15 minutes that the job lives. A frame that waits longer than that between its last
row and its commit is lost, and told so.

Rows of a Spark partition keep their order in each partition of the topic, and Spark's
partitions follow one another. A topic ordered by event time takes a frame that is ordered
by it. At most about 500 ledgers can be shown at once: each task makes one for each partition of
the topic that it has rows for, or more where it writes more than the topic's roll size.

A streaming query writes each micro-batch so. What it wrote last is kept with the topic, under
the query's id, by that same transaction: a batch that is written again, after a restart from the
checkpoint, is in the topic once. A checkpoint that does not go with what the topic has is told
(topics/jobs/marks.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ledger_client import connecting
from ledger_client.background import Background
from ledger_client.portal import Portal
from ledger_client.spark.failures import without_stack
from ledger_client.spark.planning import ask
from ledger_client.spark.sink_options import SinkOptions
from ledger_client.spark.sink_schema import RowPlan
from ledger_client.topics.client import TopicClient
from ledger_client.topics.jobs.marks import SinkBatch
from ledger_client.topics.jobs.staged_piece import StagedPiece
from ledger_client.topics.jobs.staged_writer import Part, StagedWriter, open_staged_writer
from ledger_client.topics.jobs.writing_job import (
    WritePlan,
    abort_write,
    commit_write,
    join_write,
    keep_write,
    plan_write,
)

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_ID = "sql.streaming.queryId"
"""Of Spark's properties of a task; it is kept in the checkpoint."""
RUN_ID = "spark.jobGroup.id"
"""Of a streaming query that was started once: another one after each restart."""


@dataclass(frozen=True)
class WrittenPart(WriterCommitMessage):
    """What a task staged."""

    index: int
    pieces: tuple[StagedPiece, ...]
    plan: WritePlan
    query: str
    """id of the streaming query, or "" """
    run: str
    """of that query's run, or "" """


class QuireWriter(DataSourceArrowWriter):
    """Writes a frame."""

    def __init__(self, options: SinkOptions, rows: RowPlan) -> None:
        """Begin the job. Raises as plan_write()."""
        self._options = options
        self._rows = rows
        self._plan = ask(options.cluster, partial(plan_write, name=options.topic))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:
        """Stage what a task has; runs where the task does."""
        with without_stack():
            return write_part(self._options, self._rows, self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Show what the tasks staged. Raises as commit_write()."""
        with without_stack():
            work = partial(commit_write, plan=self._plan, pieces=_pieces(_parts(messages)))
            ask(self._options.cluster, work)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give everything up."""
        with without_stack():
            ask(self._options.cluster, partial(abort_write, plan=self._plan))


class QuireStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query.

    Spark makes one for each micro-batch, and sends it to the tasks; it makes another one to
    commit, and that one begins no job: the tasks' messages tell which it is.
    """

    def __init__(self, options: SinkOptions, rows: RowPlan) -> None:
        self._options = options
        self._rows = rows
        self._plan: WritePlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Begin the job, as tasks are to work on it. Raises as plan_write()."""
        if self._plan is None:
            self._plan = ask(self._options.cluster, partial(plan_write, name=self._options.topic))
        return self.__dict__.copy()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:
        """Stage what a task has; runs where the task does."""
        assert self._plan is not None
        with without_stack():
            return write_part(self._options, self._rows, self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Show what the tasks staged, unless it was shown before.

        Raises:
            SinkBatchDiffers: the topic has another batch of this number, or later ones.
            Others: as commit_write().
        """
        parts = _parts(messages)
        if parts:
            pieces = _pieces(parts)
            batch = SinkBatch(
                query=self._options.query_of(parts[0].query),
                batch_id=batchId,
                run=parts[0].run,
                checkpoint=self._options.checkpoint,
                messages=sum(piece.figures.messages for piece in pieces),
            )
            work = partial(commit_write, plan=parts[0].plan, pieces=pieces, mark=batch)
            with without_stack():
                ask(self._options.cluster, work)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Give everything up; where no task is known, the leader does it by and by."""
        parts = _parts(messages)
        if parts:
            with without_stack():
                ask(self._options.cluster, partial(abort_write, plan=parts[0].plan))


def write_part(
    options: SinkOptions, rows: RowPlan, plan: WritePlan, batches: Iterator[pa.RecordBatch]
) -> WrittenPart:
    """Stage what a task has, and return when it is durable.

    Raises:
        BadRow: a row cannot be a message.
        LedgerError: as StagedWriter.write(). Spark tries again, with another attempt.
    """
    from ledger_client.spark.sink_rows import RowRouter, gather_size, gathered  # pyarrow

    context = TaskContext.get()
    assert context is not None
    part = Part(index=context.partitionId(), attempt=context.attemptNumber())
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
        pieces = portal.call(writer.finish)
    return WrittenPart(part.index, tuple(pieces), plan, query, run)


class _connected:  # noqa: N801  # read as a word: with _connected(url)
    """A client of a cluster for the block, in a thread of its own."""

    def __init__(self, url: str) -> None:
        self._portal: Portal[TopicClient] = Portal(partial(connecting.connect, url))

    def __enter__(self) -> Portal[TopicClient]:
        return self._portal

    def __exit__(self, *_: object) -> None:
        self._portal.close()


@asynccontextmanager
async def _work(
    portal: Portal[TopicClient], plan: WritePlan, part: Part
) -> AsyncIterator[StagedWriter]:
    """Work on a part of the job for the block, and let others know that it lives.

    Raises JobLost: it has ended, as when another task failed for good.
    """
    await join_write(portal.value, plan)
    async with Background() as nursery:
        nursery.start_soon(keep_write, portal.value, plan)
        async with open_staged_writer(portal.value, plan.stage, part=part) as writer:
            yield writer


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenPart]:
    """Return what tasks staged, in the order of the tasks; that of failed ones is unknown."""
    parts = [message for message in messages if isinstance(message, WrittenPart)]
    return sorted(parts, key=lambda part: part.index)


def _pieces(parts: Sequence[WrittenPart]) -> list[StagedPiece]:
    return [piece for part in parts for piece in part.pieces]
