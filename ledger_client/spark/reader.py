"""Batch reads: planned once, in the driver, and read by the tasks of a query.

``read()`` runs in other processes, on other machines; all that gets there is this object and a
partition, by pickling. Filters are not taken from Spark: where one frame is scanned twice in a
query it hands the filters of one scan to the other. Options bound a read instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ledger_client.spark.failures import without_stack
from ledger_client.spark.options import SourceOptions
from ledger_client.spark.partitions import SpanPartition, partitions_of
from ledger_client.spark.planning import plan
from ledger_client.spark.schema import Columns

if TYPE_CHECKING:
    import pyarrow as pa


class QuireReader(DataSourceReader):
    """Reads what the options bound, up to what is confirmed when it is planned."""

    def __init__(self, wanted: Columns, options: SourceOptions) -> None:
        self._wanted = wanted
        self._options = options

    def partitions(self) -> list[SpanPartition]:
        """Return the tasks; their spans are the frozen end of the read."""
        with without_stack():
            return partitions_of(plan(self._options).spans, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        from ledger_client.spark.rows import read_rows  # pyarrow, in the process that reads

        assert isinstance(partition, SpanPartition)
        return read_rows(partition.spans, self._wanted, self._options)
