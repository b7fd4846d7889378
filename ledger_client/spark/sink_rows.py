"""Arrow batches of a frame as columns of messages, routed to the partitions of a topic.

    batches ──► gathered, some MiB ──► Columns ──► explicit partition, key, or in turn

A batch of a topic holds the rows of one gathering for one partition. So the more partitions, the
more is gathered, or each would get a few rows at a time. Nothing is done row by row except for
JSON, whose objects are built one by one.

pyarrow takes long to import, so import this module where it is first needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ledger_client.errors import SparkError
from ledger_client.spark.sink_plan import RowPlan
from ledger_client.topics.arrow import HEADERS, columns_of
from metadata.topics import TopicRecord
from native.batch import Columns
from native.route import NO_PARTITION, route, rows_of

GATHER_SIZE = 64 << 10
"""Bytes for each partition; in all at least GATHER_MIN and at most GATHER_MAX."""
GATHER_MIN = 1 << 20
GATHER_MAX = 16 << 20
TURN_SIZE = 16 << 20
"""Bytes of rows without a key that go to one partition before the next has its turn."""


class PartitionRows(NamedTuple):
    """Messages of one partition: all of *columns*, or those at *rows*."""

    partition: int
    columns: Columns
    rows: array[int] | None


def gathered(batches: Iterable[pa.RecordBatch], size_min: int) -> Iterator[pa.Table]:
    """Yield the batches joined into tables of at least *size_min* bytes, except the last."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            size += batch.nbytes
        if size >= size_min:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def gather_size(topic: TopicRecord) -> int:
    """Return the number of bytes to gather for a topic."""
    return min(max(GATHER_SIZE * len(topic.partition_indexes), GATHER_MIN), GATHER_MAX)


class RowRouter:
    """Converts rows to messages and routes them to partitions.

    *turn* is the first partition for rows without a key; it differs between tasks.
    """

    def __init__(self, topic: TopicRecord, plan: RowPlan, *, turn: int) -> None:
        self._topic = topic
        self._plan = plan
        self._indexes = topic.partition_indexes
        self._turn = turn % len(self._indexes)
        self._turn_size = 0

    def shares(self, table: pa.Table) -> list[PartitionRows]:
        """Return the messages by partition, each in the order of the rows.

        Raises:
            SparkError: a row names a partition that does not exist, has a header without a name or
                value, or cannot be written as JSON.
            TooLarge: values or keys have 2 GiB or more.
        """
        columns = self._columns(table)
        explicit = self._explicit(table)
        count = len(self._indexes)
        if count == 1:
            return [PartitionRows(self._indexes[0], columns, None)]
        found = self._places(columns, explicit)
        if found is None:
            return [PartitionRows(self._indexes[self._next_turn(table.nbytes)], columns, None)]
        grouped = rows_of(found, count)
        return [
            PartitionRows(index, columns, rows)
            for index, rows in zip(self._indexes, grouped, strict=True)
            if rows
        ]

    def _columns(self, table: pa.Table) -> Columns:
        plan = self._plan
        try:
            return columns_of(
                self._values(table),
                keys=_column(table, plan.key),
                event_times=_column(table, plan.event_time),
                headers=_headers(_column(table, plan.headers)),
            )
        except (ValueError, TypeError) as wrong:  # Arrow's errors are such, too
            raise SparkError(
                f"rows cannot be written to topic {self._topic.name}: {wrong}"
            ) from wrong

    def _values(self, table: pa.Table) -> pa.Array:
        if not self._plan.json:
            return _column(table, self._plan.value)
        encode = msgspec.json.Encoder(decimal_format="number").encode
        names = self._plan.json
        rows = zip(*(_for_json(name, table.column(name)) for name in names), strict=True)
        return pa.array([encode(dict(zip(names, row, strict=True))) for row in rows], pa.binary())

    def _explicit(self, table: pa.Table) -> pa.Array | None:
        """Return the partitions that rows name, null where a row names none. Raises SparkError."""
        found = _column(table, self._plan.partition)
        if found is None or found.null_count == len(found):
            return None
        bounds = pc.min_max(found).as_py()
        for named in bounds.values():
            if named not in self._indexes:
                first, last = self._indexes[0], self._indexes[-1]
                has = f"{first} to {last}" if first < last else f"{first} alone"
                raise SparkError(f"topic {self._topic.name} has no partition {named}, but {has}")
        return found

    def _places(self, columns: Columns, explicit: pa.Array | None) -> array[int] | None:
        """Return each row's partition index, or `None` if any partition will do for all."""
        if columns.keys is None and explicit is None:
            return None
        count = len(self._indexes)
        if columns.keys is None:
            found = pa.nulls(columns.count, pa.uint32())
        else:
            routed = route(columns.keys, count)
            found = pa.Array.from_buffers(
                pa.uint32(), columns.count, [None, pa.py_buffer(routed)], 0
            )
            found = pc.if_else(pc.equal(found, NO_PARTITION), pa.scalar(None, pa.uint32()), found)
        if explicit is not None:
            found = pc.coalesce(explicit.cast(pa.uint32()), found)
        if found.null_count:
            own = pa.scalar(self._next_turn(0), pa.uint32())
            found = pc.fill_null(found, own)
        places = array("I")
        places.frombytes(memoryview(found.buffers()[1])[: 4 * columns.count])
        return places

    def _next_turn(self, size: int) -> int:
        """Return the index of the partition whose turn it is for these bytes."""
        if self._turn_size >= TURN_SIZE:
            self._turn = (self._turn + 1) % len(self._indexes)
            self._turn_size = 0
        self._turn_size += size
        return self._turn


def _column(table: pa.Table, name: str | None) -> pa.Array | None:
    """Return a column as one array without an offset, or `None` if there is no such column."""
    if name is None:
        return None
    found = table.column(name).combine_chunks()
    if isinstance(found, pa.ChunkedArray):  # no chunk at all, or more than an array takes
        found = pa.concat_arrays(found.chunks) if found.num_chunks else pa.nulls(0, found.type)
    if found.type in (pa.null(), pa.large_string(), pa.large_binary()):
        found = found.cast(pa.int64() if name.lower() == "event_time" else pa.binary())
    return found


def _for_json(name: str, column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as JSON takes them. Raises ValueError if it has not one."""
    if not all(map(_is_finite, column.chunks)):
        raise ValueError(f"column {name} has NaN or an infinity, which JSON has not")
    kind = _in_utc(column.type)
    column = column if kind == column.type else column.cast(kind)
    try:
        found: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    except OverflowError as wrong:
        raise ValueError(f"column {name} has a time before year 1 or after year 9999") from wrong
    return found


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return a type with UTC for all time zones: old offsets have seconds, which JSON rounds."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_in_utc(each.type)) for each in kind])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_in_utc(key.type)), item.with_type(_in_utc(item.type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    return kind


def _is_finite(found: pa.Array) -> bool:
    """True if no number in an array, however deep, is NaN or an infinity."""
    kind = found.type
    if pa.types.is_floating(kind):
        return pc.all(pc.is_finite(found)).as_py() is not False
    if pa.types.is_map(kind):
        pair = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return _is_finite(found.cast(pa.list_(pair)))
    if pa.types.is_list(kind):
        return _is_finite(pc.list_flatten(found))
    return not pa.types.is_struct(kind) or all(map(_is_finite, found.flatten()))


def _headers(found: pa.Array | None) -> pa.ListArray | None:
    """Return headers in our Arrow type, from any of the types that a frame may use.

    Raises ValueError for a header without a name or a value.
    """
    if found is None or found.type == pa.binary():  # as _column() gives a column of nulls
        return None
    if pa.types.is_map(found.type):
        pair = pa.struct([("name", found.type.key_type), ("value", found.type.item_type)])
        found = found.cast(pa.list_(pair))
    pairs = pc.list_flatten(found).flatten()
    if any(part.null_count for part in pairs):
        raise ValueError("a header has a name and a value, neither of them null")
    lengths = pc.fill_null(pc.list_value_length(found), 0)
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    fields = list(HEADERS.value_type)
    cast = [part.cast(field.type) for part, field in zip(pairs, fields, strict=True)]
    whole = pa.StructArray.from_arrays(cast, fields=fields)
    return pa.ListArray.from_arrays(offsets, whole, type=HEADERS)
