"""Streaming reads: the offsets of a query are places in every lane.

    latestOffset ──► what is confirmed now, or as much of it as a micro-batch may have
    partitions   ──► the spans between two offsets; the same each time they are asked for

Entries never change and an offset names them to the message, so a micro-batch that is read
again, by whatever process, has the same rows: with a sink that is idempotent nothing is lost
and nothing comes twice. Lanes and partitions that appear while the query runs are read from
their beginning.

Spark keeps one object of this in the driver's process for as long as the query runs, and sends
others to the tasks; only the first is connected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ledger_client import connecting
from ledger_client.portal import Portal
from ledger_client.spark.failures import without_stack
from ledger_client.spark.offsets import Offset, check_topics, offset_of, position_of
from ledger_client.spark.options import SourceOptions
from ledger_client.spark.partitions import SpanPartition, partitions_of
from ledger_client.spark.planning import plan_of
from ledger_client.spark.schema import Columns
from ledger_client.topics.client import TopicClient
from ledger_client.topics.reading.admitted import admit
from ledger_client.topics.reading.spans import SpanPlan
from ledger_client.topics.reading.starting import Position, Start

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class QuireStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow."""

    def __init__(self, wanted: Columns, options: SourceOptions) -> None:
        self._wanted = wanted
        self._options = options
        self._portal: Portal[TopicClient] | None = None
        self._target: Position | None = None
        """of Trigger.AvailableNow: nothing behind it is read"""
        self._latest: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where the options let reading begin."""
        with without_stack():
            options = self._options
            planned = self._plan(options.start, inclusive=options.inclusive)
            return _offset(planned, planned.begin)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return what the options say of a micro-batch."""
        if self._options.messages_max is not None:
            return ReadMaxRows(self._options.messages_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next micro-batch ends: *start* if there is nothing to read."""
        with without_stack():
            planned = self._plan(position_of(start), end=self._target)
            check_topics(start, _uids(planned))
            self._latest = _offset(planned, planned.end)
            messages_max, bytes_max = self._limits(limit)
            end = admit(planned, messages_max=messages_max, bytes_max=bytes_max)
            return _offset(planned, end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the end of what was there when it was looked for last."""
        return self._latest

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is confirmed now."""
        with without_stack():
            self._target = self._plan("latest").end

    def partitions(self, start: Offset, end: Offset) -> list[SpanPartition]:
        """Return the tasks of a micro-batch."""
        with without_stack():
            planned = self._plan(position_of(start), end=position_of(end))
            check_topics(end, _uids(planned))
            if not planned.spans:
                return []
            return partitions_of(planned.spans, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        from ledger_client.spark.rows import read_rows  # pyarrow, in the process that reads

        assert isinstance(partition, SpanPartition)
        return read_rows(partition.spans, self._wanted, self._options)

    def stop(self) -> None:
        """End the connection to the cluster."""
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to tasks: not the connection."""
        return {**self.__dict__, "_portal": None}

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, self._options.bytes_max
        if isinstance(limit, ReadMaxBytes):
            return None, limit.max_bytes
        return None, None

    def _plan(
        self, start: Start | None, *, end: Start | None = None, inclusive: bool = True
    ) -> SpanPlan:
        return self._ask(
            lambda client: plan_of(client, self._options, start, end=end, inclusive=inclusive)
        )

    def _ask(self, question: Callable[[TopicClient], Awaitable[T]]) -> T:
        if self._portal is None:
            self._portal = Portal(partial(connecting.connect, self._options.cluster))
        portal = self._portal
        return portal.call(lambda: question(portal.value))


def _offset(planned: SpanPlan, position: Position) -> dict[str, Any]:
    return offset_of(position, _uids(planned))


def _uids(planned: SpanPlan) -> dict[str, int]:
    return {topic.name: topic.uid for topic in planned.topics}
