"""The floor of a read by Spark: the same Arrow batches from memory.

No Python data source can be faster than one that has its batches ready, so figures of ``quire``
are compared with it. Every task builds one batch of the wanted columns, as of a topic with keys
and event times, and yields it again and again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ledger_client.spark.schema import columns_of
from metadata.topics import TopicRecord
from native import batch as native_batch
from native.batch import Binary, Columns

if TYPE_CHECKING:
    import pyarrow as pa

KEY_SIZE = 16
NAME = "quire-floor"


class FloorSource(DataSource):
    """The benchmark's data source, with options columns, rows, valueSize, batchRows and tasks."""

    @classmethod
    def name(cls) -> str:
        """Return NAME, which a session registers it under."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of a topic, or those of the option columns."""
        wanted = self.options.get("columns")
        topic = TopicRecord(name="bench/floor", uid=0)
        return columns_of([topic], wanted.split(",") if wanted else None).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader whose tasks build one batch each and yield it repeatedly."""
        return _FloorReader(
            schema,
            rows=int(self.options["rows"]),
            value_size=int(self.options["valueSize"]),
            batch_rows=int(self.options["batchRows"]),
            tasks=int(self.options["tasks"]),
        )


class _FloorReader(DataSourceReader):
    def __init__(
        self, schema: StructType, *, rows: int, value_size: int, batch_rows: int, tasks: int
    ) -> None:
        self._schema = schema
        self._rows = rows
        self._value_size = value_size
        self._batch_rows = batch_rows
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        ends = [self._rows * number // self._tasks for number in range(self._tasks + 1)]
        return [InputPartition(ends[i + 1] - ends[i]) for i in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value
        whole = self._batch(min(self._batch_rows, max(left, 1)))
        while left > 0:
            batch = whole if left >= whole.num_rows else whole.slice(0, left)
            left -= batch.num_rows
            yield batch

    def _batch(self, rows: int) -> pa.RecordBatch:
        import pyarrow as pa

        from ledger_client.jobs import arrow_columns
        from ledger_client.spark.rows import arrow_schema
        from ledger_client.topics.messages import MessageBatch, MessageRange
        from ledger_client.topics.positions import LaneRef, Place

        given = Columns(
            count=rows,
            values=_binary(rows, self._value_size),
            keys=_binary(rows, KEY_SIZE),
            event_times=memoryview(bytes(8 * rows)).cast("q"),
        )
        decoded = native_batch.decode(native_batch.encode(given, 0, rows, created_ms=1))
        lane = LaneRef(0, 0, 0, "bench/floor", 0, ordered=False)
        messages = MessageRange(MessageBatch(lane, Place(0, 1, 0, 1, 1), decoded), 0, rows)
        built = arrow_columns.columns_of([messages], self._schema.fieldNames())
        return pa.RecordBatch.from_arrays(built, schema=arrow_schema(self._schema))


def _binary(count: int, size: int) -> Binary:
    offsets = memoryview(bytearray(4 * count + 4)).cast("i")
    for index in range(count + 1):
        offsets[index] = index * size
    return Binary(offsets, memoryview(os.urandom(count * size)), None)
