from __future__ import annotations

from array import array

import pytest
from hypothesis import given, strategies as st

from native.batch import decode, encode
from native.columns import Columns
from native.gather import Gather

BYTES = st.none() | st.binary(max_size=20)
HEADERS = st.none() | st.dictionaries(st.text(max_size=4), st.binary(max_size=6), max_size=3)
TIMES = st.none() | st.integers(-(1 << 63) + 1, (1 << 63) - 1)
MESSAGE = st.tuples(BYTES, BYTES, TIMES, st.integers(0, (1 << 64) - 1), HEADERS)
Message = tuple[bytes | None, bytes | None, int | None, int, dict[str, bytes] | None]


def columns_of(messages: list[Message]) -> Columns:
    values, keys, times, stamps, headers = zip(*messages, strict=True)
    columns = Columns.of(values, keys=keys, event_times=times, timestamps=stamps, headers=headers)
    return decode(encode(columns, 0, len(messages))).columns


def told(columns: Columns) -> list[Message]:
    count = columns.count
    found = zip(
        columns.values.to_list(),
        [None] * count if columns.keys is None else columns.keys.to_list(),
        columns.event_times_list(),
        [0] * count if columns.timestamps is None else columns.timestamps.tolist(),
        [{}] * count if columns.headers is None else columns.headers.to_list(),
        strict=True,
    )
    return list(found)


@given(st.lists(st.lists(st.tuples(MESSAGE, st.booleans()), min_size=1, max_size=9), max_size=5))
def test_rows_of_many_batches_come_back_as_one(batches: list[list[tuple[Message, bool]]]) -> None:
    gather = Gather()
    wanted: list[Message] = []
    for batch in batches:
        rows = array("I", [at for at, (_, taken) in enumerate(batch) if taken])
        if rows:
            ended = gather.add(columns_of([each for each, _ in batch]), rows, size_max=1 << 30)
            assert ended == len(rows)
        wanted += [(*each[:4], each[4] or {}) for each, taken in batch if taken]
    assert gather.count == len(wanted)
    if wanted:
        columns = gather.columns()
        assert told(decode(encode(columns, 0, columns.count)).columns) == wanted
        assert len(encode(columns, 0, columns.count)) <= gather.size


def test_rows_are_taken_as_long_as_they_fit() -> None:
    gather = Gather()
    columns = Columns.of([b"x" * 1000] * 10, keys=[b"k"] * 10)
    rows = array("I", range(10))
    assert gather.add(columns, rows, size_max=3400) == 3
    assert gather.add(columns, rows, 3, size_max=3400) == 3
    assert gather.size <= 3400
    gather.clear()
    assert gather.add(columns, rows, 3, size_max=1) == 4
    assert told(gather.columns()) == [(b"x" * 1000, b"k", None, 0, {})]


def test_a_row_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        Gather().add(Columns.of([b"x"]), array("I", [1]), size_max=100)
