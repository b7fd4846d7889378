"""The data source ``quire``: topics as data frames.

    spark.read.format("quire").option("cluster", url).option("topic", "shop/orders").load()

options.py has all options, schema.py the columns; sink_options.py and sink_schema.py have those
of a write. Spark makes this object in processes of its own, as often as it likes, and sends it
to others: it holds its options and nothing else.
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

from ledger_client.spark.errors import BadOption
from ledger_client.spark.failures import without_stack
from ledger_client.spark.options import SourceOptions, parse_options
from ledger_client.spark.planning import topics_of
from ledger_client.spark.reader import QuireReader
from ledger_client.spark.schema import Columns, columns_of
from ledger_client.spark.sink import QuireStreamWriter, QuireWriter
from ledger_client.spark.sink_options import SinkOptions, parse_sink_options
from ledger_client.spark.sink_schema import RowPlan, plan_rows
from ledger_client.spark.stream_reader import QuireStreamReader


class QuireSource(DataSource):
    """``spark.read.format("quire")`` and its three siblings."""

    @classmethod
    def name(cls) -> str:
        """Return what the format is called."""
        return "quire"

    def schema(self) -> StructType:
        """Return the columns of the topics that the options name.

        Raises:
            BadOption: an option cannot be.
            NoSuchTopic, MetadataUnavailable: as TopicClient.topic().
        """
        with without_stack():
            return self._columns.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads once. Raises as schema()."""
        with without_stack():
            return QuireReader(self._wanted(schema), self._options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads as the topics grow. Raises as schema(), and BadOption for an end."""
        with without_stack():
            if self._options.end is not None:
                raise BadOption("ending...", "a streaming query has no end: stop it, or read once")
            if self._options.compacted:
                told = "a streaming query reads every message: what is compacted changes; read once"
                raise BadOption("compacted", told)
            return QuireStreamReader(self._wanted(schema), self._options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes a frame once, and begin to: sink.py says how.

        Raises:
            BadOption: an option cannot be, or the frame is to take the topic's place.
            BadColumns: its columns are not those of messages.
            NoSuchTopic, ProducerBusy, MetadataUnavailable: as plan_write().
        """
        with without_stack():
            return QuireWriter(*self._sink(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return what writes the micro-batches of a query. Raises as writer()."""
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
    def _columns(self) -> Columns:
        return columns_of(topics_of(self._options), self._options.columns)

    def _wanted(self, schema: StructType) -> Columns:
        """Return the columns; the user may have given them as a schema of his own.

        Raises:
            BadOption: that schema is not what the topics have.
        """
        if schema != self._columns.schema:
            raise BadOption("schema", "columns are chosen by the option columns, not by a schema")
        return self._columns
