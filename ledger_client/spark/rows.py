"""Rows of a task: ranges read from the bookies as the Arrow batches that Spark takes.

pyarrow takes long to import, so import this module where it is first needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ledger_client.jobs import arrow_columns
from ledger_client.spark.failures import without_stack
from ledger_client.spark.options import ROWS_MAX, SourceOptions
from ledger_client.spark.schema import SourceColumns
from ledger_client.spark.values import ValueParser, texts_of
from ledger_client.topics.reading.range_reader import iterate_ranges
from ledger_client.topics.reading.ranges import LedgerRange
from ledger_client.topics.values.decoder import open_decoder


def read_rows(
    ranges: Sequence[LedgerRange], wanted: SourceColumns, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ranges. Raises as RangeReader.entries(), and SparkError."""
    if not ranges:
        return
    forming = _Forming(wanted, options)
    messages = iterate_ranges(options.cluster, ranges, on_gap=options.on_gap)
    with without_stack(), closing(messages):
        for rows, arrays in arrow_columns.batches_of(
            messages, forming.built, rows_min=options.rows_per_batch, rows_max=ROWS_MAX
        ):
            yield forming.batch(rows, arrays)


class _Forming:
    """Builds batches with exactly the columns of the schema."""

    def __init__(self, wanted: SourceColumns, options: SourceOptions) -> None:
        names = wanted.schema.fieldNames()
        self._schema = arrow_schema(wanted.schema)
        self.built = [name for name in names if name not in wanted.fields]
        if wanted.fields and "value" not in self.built:
            self.built.append("value")
        self._names = names
        self._wanted = wanted
        self._options = options
        self._topic = ", ".join(options.topics)
        types = {field.name: field.type for field in self._schema}
        fields = [pa.field(inner, types[name]) for name, inner in wanted.fields.items()]
        self._parser: ValueParser | None = None
        if fields:
            schema = wanted.decoded
            decoder = None if schema is None else open_decoder(self._topic, schema)
            self._parser = ValueParser(self._topic, fields, options.mode, decoder)

    def batch(self, rows: int, arrays: list[pa.Array]) -> pa.RecordBatch:
        """Return a batch of all wanted columns."""
        if not self._names:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        found: dict[str, pa.Array] = dict(zip(self.built, arrays, strict=True))
        if self._parser is not None:
            parsed = self._parser.columns(found["value"])
            found |= {name: parsed[inner] for name, inner in self._wanted.fields.items()}
        if self._wanted.text and "value" in found:
            found["value"] = texts_of(self._topic, found["value"], self._options.mode)
        return pa.RecordBatch.from_arrays(
            [found[name] for name in self._names], schema=self._schema
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for its own."""
    return to_arrow_schema(schema, timezone="UTC")
