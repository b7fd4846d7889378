"""Which rows of a replay go to which partition of its target.

A source and a target with as many partitions: each message stays in its partition. Else keys
decide, and what has none goes by the partition that it comes from.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from native.batch import NO_PARTITION, Columns, route, rows_of


def indexes_of(partitions: int) -> range:
    """Return the indexes of a target's partitions; 0: it has none, and -1 stands for it."""
    return range(partitions) if partitions else range(-1, 0)


def shares_of(
    batch: Any,  # noqa: ANN401 - pyarrow has no types
    columns: Columns,
    indexes: range,
    *,
    one_to_one: bool,
) -> Sequence[tuple[int, array[int] | None]]:
    """Return which rows go to which partition, those of each in their order; None: all."""
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
