"""The data source ``quire``: topics as data frames, read in batches or as a stream.

    spark.read.format("quire").option("cluster", url).option("topic", "shop/orders").load()

options.py lists the options of a read and schema.py its columns; sink_plan.py has those of a
write, and sink.py writes. Spark creates these objects in several processes, repeatedly, and
pickles them: the source holds its options and nothing else.

A read is planned in the driver, in a process of its own for each plan, and done by tasks. A
cluster that does not answer is reported within *metadata_timeout_s*. ``read()`` runs in other
processes, on other machines; they get only the reader and a partition, pickled. Spark's filters
are not used: if a query scans one frame twice, Spark hands the filters of one scan to the other.
Options bound a read instead.

Tasks have about *bytesPerPartition* bytes, but there is one for each core if there is enough to
do: a Python task costs some 30 ms before its first row, as much as reading 8 MiB.

A streaming query's offsets are places in every lane:

    latestOffset ──► the confirmed end, or as much as a micro-batch may have
    partitions   ──► the ranges between two offsets, the same on every call

Entries never change and an offset is exact to the message, so a micro-batch that is read again,
by any process, has the same rows: with an idempotent sink nothing is lost or duplicated. Lanes
and partitions that appear while the query runs are read from their beginning. Spark keeps one
stream reader in the driver while the query runs, and sends copies to the tasks; only the first
is connected.

With the option *group*, the reader commits to this group what Spark has committed (GroupReport).
The query itself goes on from its checkpoint, and does not depend on that.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ledger_client.errors import BadCut, SparkError
from ledger_client.message_id import MessageId
from ledger_client.portal import Portal
from ledger_client.spark.failures import without_stack
from ledger_client.spark.group_report import GroupReport
from ledger_client.spark.options import (
    NewOffset,
    Offset,
    SourceOptions,
    check_topics,
    offset_of,
    parse_options,
    position_of,
)
from ledger_client.spark.schema import SourceColumns, columns_of
from ledger_client.spark.sink import QuireStreamWriter, QuireWriter
from ledger_client.spark.sink_plan import RowPlan, SinkOptions, parse_sink_options, plan_rows
from ledger_client.topics.context import TopicContext, ask, open_context
from ledger_client.topics.cuts import places_at
from ledger_client.topics.positions import Position
from ledger_client.topics.reading.options import Start
from ledger_client.topics.reading.range_plan import plan_read
from ledger_client.topics.reading.ranges import LedgerRange, RangePlan, limited_end, split
from metadata.topics import Schema, TopicRecord

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
SIZE_MIN = 8 << 20


def topics_of(options: SourceOptions) -> list[TopicRecord]:
    """Return the topics' records. Raises NoSuchTopic, BadTopic, MetadataUnavailable."""

    async def look(context: TopicContext) -> list[TopicRecord]:
        return [(await context.catalogue.get(name))[0] for name in options.topics]

    return ask(options.cluster, look)


def plan(options: SourceOptions) -> RangePlan:
    """Return the plan of a batch read. Raises as plan_batch()."""
    return ask(options.cluster, partial(plan_batch, options))


async def plan_batch(options: SourceOptions, context: TopicContext) -> RangePlan:
    """Return the plan of a batch read. Raises as plan_read(), and SparkError for a bad asOf."""
    end = options.end
    if options.as_of is not None:
        topics = [(await context.catalogue.get(name))[0] for name in options.topics]
        try:
            end = await places_at(context, topics, options.as_of)
        except BadCut as wrong:
            reason = str(wrong).removeprefix(f"cut {wrong.cut}: ")
            raise SparkError.option("asOf", reason) from wrong
    return await plan_of(
        context,
        options,
        options.start,
        inclusive=options.inclusive,
        end=end,
        end_inclusive=options.end_inclusive,
        starting_cut=options.starting_cut,
        ending_cut=options.ending_cut,
    )


async def plan_of(
    context: TopicContext,
    options: SourceOptions,
    start: Start | None,
    *,
    inclusive: bool = True,
    end: Start | None = None,
    end_inclusive: bool = True,
    starting_cut: str = "",
    ending_cut: str = "",
    whole: Collection[str] = (),
) -> RangePlan:
    """Return the plan of a read between two places. Raises as plan_read()."""
    return await plan_read(
        context,
        options.topics,
        whole=whole,
        start=start,
        inclusive=inclusive,
        end=end,
        end_inclusive=end_inclusive,
        starting_cut=starting_cut,
        ending_cut=ending_cut,
        partitions=options.partitions,
        lanes=options.lanes,
        on_gap=options.on_gap,
        compacted=options.compacted,
    )


def check_endless(options: SourceOptions) -> None:
    """Raise SparkError for options that a streaming query cannot have.

    The query's first question does so. Raised by QuireSource.streamReader(), the reason would be
    hidden: Spark's process for readers then fails with an UnboundLocalError of its own.
    """
    if options.as_of is not None:
        raise SparkError.option("asOf", "a streaming query goes on; read once")
    if options.end is not None or options.ending_cut:
        name = "endingCut" if options.ending_cut else "ending..."
        raise SparkError.option(name, "a streaming query has no end: stop it, or read once")
    if options.compacted:
        reason = "a streaming query reads every message: what is compacted changes; read once"
        raise SparkError.option("compacted", reason)


class RangePartition(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: Sequence[LedgerRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


def partitions_of(ranges: Sequence[LedgerRange], options: SourceOptions) -> list[RangePartition]:
    """Return the tasks that read these ranges; one empty task if there are none."""
    size = sum(ledger_range.size for ledger_range in ranges)
    least = options.partitions_min
    if least is None:
        least = max(min(os.cpu_count() or 1, size // SIZE_MIN), 1)
    groups = split(ranges, options.bytes_per_partition, groups_min=least)
    return [RangePartition(group) for group in groups] or [RangePartition(())]


class QuireReader(DataSourceReader):
    """Reads the range in the options, up to the end confirmed at planning."""

    def __init__(self, wanted: SourceColumns, options: SourceOptions) -> None:
        self._wanted = wanted
        self._options = options

    def partitions(self) -> list[RangePartition]:
        """Return the tasks; their ranges fix the end of the read."""
        with without_stack():
            return partitions_of(plan(self._options).ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        from ledger_client.spark.rows import read_rows  # pyarrow, in the process that reads

        assert isinstance(partition, RangePartition)
        return read_rows(partition.ranges, self._wanted, self._options)


class QuireStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow; the driver's copy keeps one connection until stop()."""

    def __init__(self, wanted: SourceColumns, options: SourceOptions) -> None:
        self._wanted = wanted
        self._options = options
        self._portal: Portal[TopicContext] | None = None
        self._target: Position | None = None
        """end of a query with Trigger.AvailableNow"""
        self._latest: NewOffset | None = None
        self._report = GroupReport(options.group) if options.group else None

    def initialOffset(self) -> NewOffset:  # noqa: N802  # Spark's name
        """Return the offset at which the options begin."""
        with without_stack():
            options, start = self._options, self._options.start
            if self._report is not None:
                start = self._ask(partial(self._report.start, options))
            planned = self._plan(
                start, inclusive=options.inclusive, starting_cut=options.starting_cut
            )
            return _offset(planned, planned.begin)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the options' limit of a micro-batch."""
        if self._options.messages_max is not None:
            return ReadMaxRows(self._options.messages_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> NewOffset:  # noqa: N802
        """Return the end of the next micro-batch, which is *start* if there is nothing to read."""
        with without_stack():
            self.commit(start)
            planned = self._plan(position_of(start), end=self._target, whole=self._whole(start))
            check_topics(start, _uids(planned))
            self._latest = _offset(planned, planned.end)
            messages_max, bytes_max = self._limits(limit)
            end = limited_end(planned, messages_max=messages_max, bytes_max=bytes_max)
            return _offset(planned, end)

    def reportLatestOffset(self) -> NewOffset | None:  # noqa: N802
        """Return the confirmed end as of the last call of latestOffset()."""
        return self._latest

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at what is confirmed now."""
        with without_stack():
            self._target = self._plan("latest").end

    def partitions(self, start: Offset, end: Offset) -> list[RangePartition]:
        """Return the tasks of a micro-batch."""
        with without_stack():
            planned = self._plan(position_of(start), end=position_of(end), whole=self._whole(start))
            check_topics(end, _uids(planned))
            if not planned.ranges:
                return []
            return partitions_of(planned.ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        from ledger_client.spark.rows import read_rows  # pyarrow, in the process that reads

        assert isinstance(partition, RangePartition)
        return read_rows(partition.ranges, self._wanted, self._options)

    def commit(self, end: Offset) -> None:
        """Commit to the group, if there is one, that Spark is done up to *end*.

        Spark calls this once it plans the next micro-batch with messages. But it also asks for
        the latest offset only after it has committed the offset that it asks with, so an idle
        query is up to date too.
        """
        if self._report is not None and self._report.is_due(end):
            self._ask(partial(self._report.commit, end))

    def stop(self) -> None:
        """End the connection to the cluster."""
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.close()

    def __getstate__(self) -> dict[str, object]:
        """Return the state sent to tasks, without the connection."""
        return {**self.__dict__, "_portal": None}

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, self._options.bytes_max
        if isinstance(limit, ReadMaxBytes):
            return None, limit.max_bytes
        return None, None

    def _plan(
        self,
        start: Start | None,
        *,
        end: Start | None = None,
        inclusive: bool = True,
        starting_cut: str = "",
        whole: Collection[str] = (),
    ) -> RangePlan:
        return self._ask(
            lambda context: plan_of(
                context,
                self._options,
                start,
                end=end,
                inclusive=inclusive,
                starting_cut=starting_cut,
                whole=whole,
            )
        )

    def _whole(self, offset: Offset) -> Collection[str]:
        """Return the topics of which an offset names every lane that there was.

        One that began at a message has, at first, the lane of this message alone.
        """
        return () if isinstance(self._options.start, MessageId) else offset.keys()

    def _ask(self, question: Callable[[TopicContext], Awaitable[T]]) -> T:
        if self._portal is None:
            check_endless(self._options)
            self._portal = Portal(partial(open_context, self._options.cluster))
        portal = self._portal
        return portal.call(lambda: question(portal.value))


def _offset(planned: RangePlan, position: Position) -> NewOffset:
    return offset_of(position, _uids(planned))


def _uids(planned: RangePlan) -> dict[str, int]:
    return {topic.name: topic.uid for topic in planned.topics}


# --- the data source -------------------------------------------------------------------


class QuireSource(DataSource):
    """``format("quire")`` for read, readStream, write and writeStream."""

    @classmethod
    def name(cls) -> str:
        """Return "quire", the name that ``format()`` takes."""
        return "quire"

    def schema(self) -> StructType:
        """Return the columns of the topics that the options name.

        Raises:
            SparkError: an option is invalid.
            NoSuchTopic, MetadataUnavailable: as Topics.info().
        """
        with without_stack():
            return self._columns.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises as schema()."""
        with without_stack():
            if self._options.group:
                raise SparkError.option("group", "only a streaming query has progress to commit")
            return QuireReader(self._wanted(schema), self._options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query, which refuses an end. Raises as schema()."""
        with without_stack():
            return QuireStreamReader(self._wanted(schema), self._options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Begin a job that writes a frame, and return its writer (sink.py).

        Raises:
            SparkError: an option is invalid, the mode is overwrite, or the frame's columns cannot
                be written as messages.
            NoSuchTopic, ProducerBusy, MetadataUnavailable: as plan_write().
        """
        with without_stack():
            return QuireWriter(*self._sink(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a query's micro-batches. Raises as writer()."""
        with without_stack():
            return QuireStreamWriter(*self._sink(schema, overwrite))

    def _sink(self, schema: StructType, overwrite: bool) -> tuple[SinkOptions, RowPlan]:
        if overwrite:
            raise SparkError.option("mode", 'topics can be appended to alone: mode("append")')
        options = parse_sink_options(self.options)
        return options, plan_rows(schema, json_values=options.json_values)

    @cached_property
    def _options(self) -> SourceOptions:
        return parse_options(self.options)

    @cached_property
    def _columns(self) -> SourceColumns:
        return columns_of(topics_of(self._options), self._options.columns)

    def _wanted(self, schema: StructType) -> SourceColumns:
        """Return the columns; *schema* may be one that the user passed.

        Raises:
            SparkError: *schema* is not that of the topics.
        """
        if schema != self._columns.schema:
            raise SparkError.option(
                "schema", "columns are chosen by the option columns, not by a schema"
            )
        return self._columns


class RawSource(QuireSource):
    """``format("quire-raw")``, for copies: values are bytes, whatever the topics' schemas say.

    A value that is not UTF-8 would be null in a column of text.
    """

    @classmethod
    def name(cls) -> str:
        """Return "quire-raw"."""
        return "quire-raw"

    @cached_property
    def _columns(self) -> SourceColumns:
        topics = [replace(topic, schema=Schema()) for topic in topics_of(self._options)]
        return columns_of(topics, self._options.columns)
