"""The columns of a RecordBatch that a replay copies, and the target partition of each row.

A source and a target with the same number of partitions keep each message in its partition.
Otherwise keys decide, and messages without a key go by the partition they come from.

pyarrow takes long to import, so import this module where it is first needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ledger_client.topics.arrow import HEADERS, columns_of
from native.batch import NO_PARTITION, Columns, route, rows_of

ID_HEADER = "quire-id"
"""Header with the message's id in the source."""
TIME_HEADER = "quire-publish-ms"
"""Header with the message's publish time in the source, in Unix milliseconds."""


class CopiedColumns:
    """The copied columns of a batch, `None` for a column of nulls."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.values = batch.column("value")
        self.keys = _unless_null(batch.column("key"))
        self.event_times = _unless_null(batch.column("event_time"))
        self.headers = _named(_unless_null(batch.column("headers")))

    @property
    def columns(self) -> Columns:
        """The columns for the C core, over the same memory."""
        return columns_of(
            self.values, keys=self.keys, event_times=self.event_times, headers=self.headers
        )

    @property
    def size(self) -> int:
        """Bytes of values and keys, as a report's *bytes* counts them."""
        return _bytes(self.values) + (0 if self.keys is None else _bytes(self.keys))


def with_ids(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with ID_HEADER and TIME_HEADER before each message's other headers."""
    count = batch.num_rows
    names = pa.array([ID_HEADER, TIME_HEADER] * count, pa.string())
    values = _interleaved(_ids(batch), batch.column("publish_time"))
    old = batch.column("headers")
    if old.null_count == count:
        offsets = pa.array(range(0, 2 * count + 1, 2), pa.int32())
        headers = _lists(offsets, names, values)
    else:
        headers = _joined(old, values)
    return batch.set_column(batch.schema.get_field_index("headers"), "headers", headers)


def _unless_null(column: pa.Array) -> pa.Array | None:
    return None if column.null_count == len(column) else column


def _named(headers: pa.Array | None) -> pa.ListArray | None:
    """Return headers as arrow.HEADERS, whatever their field names; null becomes empty."""
    if headers is None or (headers.type == HEADERS and not headers.null_count):
        return headers
    lengths = pc.fill_null(pc.list_value_length(headers), 0)
    ends = pc.cumulative_sum(lengths).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return _lists(offsets, *headers.flatten().flatten())


def _bytes(column: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(column)).as_py() or 0)


def _ids(batch: pa.RecordBatch) -> pa.StringArray:
    """Return the message ids as text."""
    parts = [batch.column(name).cast(pa.string()) for name in ("ledger_id", "entry_id")]
    parts.append(batch.column("partition").cast(pa.string()))
    place = batch.column("batch_index")
    alone = pc.binary_join_element_wise(*parts, ":")
    placed = pc.binary_join_element_wise(*parts, place.cast(pa.string()), ":")
    return pc.if_else(pc.less(place, 0), alone, placed)


def _interleaved(ids: pa.StringArray, times: pa.Array) -> pa.BinaryArray:
    both = pa.concat_arrays([ids, times.cast(pa.string())])
    order = [place for row in range(len(ids)) for place in (row, row + len(ids))]
    return both.take(pa.array(order, pa.int32())).cast(pa.binary())


def _lists(offsets: pa.Array, names: pa.Array, values: pa.Array) -> pa.ListArray:
    fields = [HEADERS.value_type.field(0), HEADERS.value_type.field(1)]
    return pa.ListArray.from_arrays(
        offsets, pa.StructArray.from_arrays([names, values], fields=fields)
    ).cast(HEADERS)


def _joined(old: pa.ListArray, values: pa.BinaryArray) -> pa.ListArray:
    """Return the two new headers followed by the old ones, without old ones of these names."""
    new = values.to_pylist()
    rows = []
    for row, given in enumerate(old.to_pylist()):
        kept = [pair for pair in given or [] if pair["name"] not in {ID_HEADER, TIME_HEADER}]
        first = {"name": ID_HEADER, "value": new[2 * row]}
        second = {"name": TIME_HEADER, "value": new[2 * row + 1]}
        rows.append([first, second, *kept])
    return pa.array(rows, HEADERS)


def indexes_of(partitions: int) -> range:
    """Return the indexes of a target's partitions; a non-partitioned topic has index -1."""
    return range(partitions) if partitions else range(-1, 0)


def shares_of(
    batch: pa.RecordBatch,
    columns: Columns,
    indexes: range,
    *,
    one_to_one: bool,
) -> Sequence[tuple[int, array[int] | None]]:
    """Return the rows of each partition, in their order; `None` stands for all rows."""
    count = len(indexes)
    if count == 1:
        return [(indexes[0], None)]
    places = memoryview(batch.column("partition").buffers()[1]).cast("i")
    first = batch.column("partition").offset
    own = places[first : first + batch.num_rows]
    if one_to_one:
        partition_of = array("I", own.tobytes())
    else:
        partition_of = array("I", bytes(4 * batch.num_rows))
        if columns.keys is not None:
            partition_of = route(columns.keys, count)
        if columns.keys is None or NO_PARTITION in partition_of:
            keyless = columns.keys is None
            pairs = zip(partition_of, own, strict=True)
            partition_of = array(
                "I", [o % count if keyless or p == NO_PARTITION else p for p, o in pairs]
            )
    shares = rows_of(partition_of, count)
    return [(index, rows) for index, rows in enumerate(shares) if rows]
