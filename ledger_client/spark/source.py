"""The data source ``quire``: topics as data frames.

    spark.read.format("quire").option("cluster", url).option("topic", "shop/orders").load()

options.py lists the options of a read and schema.py its columns; sink_plan.py has those of a
write. Spark creates this object in several processes, repeatedly, and pickles it: it holds its
options and nothing else.
"""

from __future__ import annotations

from functools import cached_property

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from ledger_client.errors import BadOption
from ledger_client.spark.failures import without_stack
from ledger_client.spark.options import SourceOptions, parse_options
from ledger_client.spark.reader import QuireReader, QuireStreamReader, topics_of
from ledger_client.spark.schema import SourceColumns, columns_of
from ledger_client.spark.sink import QuireStreamWriter, QuireWriter
from ledger_client.spark.sink_plan import RowPlan, SinkOptions, parse_sink_options, plan_rows


class QuireSource(DataSource):
    """``format("quire")`` for read, readStream, write and writeStream."""

    @classmethod
    def name(cls) -> str:
        """Return "quire", the name that ``format()`` takes."""
        return "quire"

    def schema(self) -> StructType:
        """Return the columns of the topics that the options name.

        Raises:
            BadOption: an option is invalid.
            NoSuchTopic, MetadataUnavailable: as Topics.info().
        """
        with without_stack():
            return self._columns.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises as schema()."""
        with without_stack():
            return QuireReader(self._wanted(schema), self._options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query. Raises as schema(), and BadOption for an end."""
        with without_stack():
            if self._options.end is not None:
                raise BadOption("ending...", "a streaming query has no end: stop it, or read once")
            if self._options.compacted:
                reason = (
                    "a streaming query reads every message: what is compacted changes; read once"
                )
                raise BadOption("compacted", reason)
            return QuireStreamReader(self._wanted(schema), self._options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Begin a job that writes a frame, and return its writer (sink.py).

        Raises:
            BadOption: an option is invalid, or the mode is overwrite.
            BadFrame: the frame's columns cannot be written as messages.
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
            raise BadOption("mode", 'topics can be appended to alone: mode("append")')
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
            BadOption: *schema* is not that of the topics.
        """
        if schema != self._columns.schema:
            raise BadOption("schema", "columns are chosen by the option columns, not by a schema")
        return self._columns
