"""What of a RecordBatch of messages goes into a target, as Arrow arrays and as columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ledger_client.topics.arrow import HEADERS, columns_of
from native.columns import Columns

ID_HEADER = "quire-id"
"""The id that the message had in the topic that was replayed."""
TIME_HEADER = "quire-publish-ms"
"""When its producer had made it, in Unix milliseconds."""


class Given:
    """The columns of a batch that are copied; None where nothing is in one."""

    def __init__(self, batch: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        self.values = batch.column("value")
        self.keys = _unless_null(batch.column("key"))
        self.event_times = _unless_null(batch.column("event_time"))
        self.headers = _named(_unless_null(batch.column("headers")))

    @property
    def columns(self) -> Columns:
        """They as columns, over the same memory."""
        return columns_of(
            self.values, keys=self.keys, event_times=self.event_times, headers=self.headers
        )

    @property
    def size(self) -> int:
        """Bytes of values and keys."""
        return _bytes(self.values) + (0 if self.keys is None else _bytes(self.keys))


def with_ids(batch: Any) -> Any:  # noqa: ANN401
    """Return the batch with ID_HEADER and TIME_HEADER in front of the headers of each message."""
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


def _unless_null(column: Any) -> Any:  # noqa: ANN401
    return None if column.null_count == len(column) else column


def _named(headers: Any) -> Any:  # noqa: ANN401
    """Return headers as arrow.HEADERS, whatever their fields are called; null is none."""
    if headers is None or (headers.type == HEADERS and not headers.null_count):
        return headers
    lengths = pc.fill_null(pc.list_value_length(headers), 0)
    ends = pc.cumulative_sum(lengths).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return _lists(offsets, *headers.flatten().flatten())


def _bytes(column: Any) -> int:  # noqa: ANN401
    return int(pc.sum(pc.binary_length(column)).as_py() or 0)


def _ids(batch: Any) -> Any:  # noqa: ANN401
    """Return the ids as texts of three or four parts."""
    parts = [batch.column(name).cast(pa.string()) for name in ("ledger_id", "entry_id")]
    parts.append(batch.column("partition").cast(pa.string()))
    place = batch.column("batch_index")
    alone = pc.binary_join_element_wise(*parts, ":")
    placed = pc.binary_join_element_wise(*parts, place.cast(pa.string()), ":")
    return pc.if_else(pc.less(place, 0), alone, placed)


def _interleaved(ids: Any, times: Any) -> Any:  # noqa: ANN401
    both = pa.concat_arrays([ids, times.cast(pa.string())])
    order = [place for row in range(len(ids)) for place in (row, row + len(ids))]
    return both.take(pa.array(order, pa.int32())).cast(pa.binary())


def _lists(offsets: Any, names: Any, values: Any) -> Any:  # noqa: ANN401
    fields = [HEADERS.value_type.field(0), HEADERS.value_type.field(1)]
    return pa.ListArray.from_arrays(
        offsets, pa.StructArray.from_arrays([names, values], fields=fields)
    ).cast(HEADERS)


def _joined(old: Any, values: Any) -> Any:  # noqa: ANN401
    """Return old headers behind the two new ones; those of these names go."""
    new = values.to_pylist()
    rows = []
    for row, given in enumerate(old.to_pylist()):
        kept = [pair for pair in given or [] if pair["name"] not in {ID_HEADER, TIME_HEADER}]
        first = {"name": ID_HEADER, "value": new[2 * row]}
        second = {"name": TIME_HEADER, "value": new[2 * row + 1]}
        rows.append([first, second, *kept])
    return pa.array(rows, HEADERS)
