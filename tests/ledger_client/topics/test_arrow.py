"""Batches as Arrow data and back: no copy of values, sound arrays, every kind of column."""

from __future__ import annotations

import pyarrow as pa
import pytest
from batches import Sent, batches, columns_of as sent_columns, messages_of, plain
from hypothesis import given, strategies as st

from ledger_client.topics.arrow import HEADERS, SCHEMA, columns_of, record_batch
from native.batch import Columns, decode, encode


def read(payload: bytes | memoryview) -> pa.RecordBatch:
    found = record_batch(decode(payload), ledger_id=3, entry_id=4, partition=5)
    found.validate(full=True)
    return found


@given(batches, st.sampled_from([b"", b"me"]), st.integers(0, 7))
def test_every_batch_is_a_sound_record_batch(
    messages: list[Sent], producer: bytes, shift: int
) -> None:
    payload = encode(sent_columns(messages), 0, len(messages), producer=producer, created_ms=17)
    found = read(memoryview(bytes(shift) + payload)[shift:])
    assert found.schema == SCHEMA
    stamped = any(m.timestamp for m in messages)
    headed = any(m.headers for m in messages)
    expected = [
        {
            "ledger_id": 3,
            "entry_id": 4,
            "partition": 5,
            "batch_index": i,
            "timestamp": m.timestamp if stamped else None,
            "event_time": m.event_time,
            "publish_time": 17,
            "producer": producer.decode() or None,
            "key": m.key,
            "value": m.value,
            "headers": [{"name": n, "value": v} for n, v in m.headers.items()] if headed else None,
        }
        for i, m in enumerate(messages)
    ]
    assert found.to_pylist() == expected


@given(batches)
def test_what_was_read_as_arrow_can_be_sent_again(messages: list[Sent]) -> None:
    once = encode(sent_columns(messages), 0, len(messages))
    found = read(once)
    columns = columns_of(
        found["value"],
        keys=found["key"],
        event_times=found["event_time"],
        timestamps=found["timestamp"].fill_null(0),
        headers=found["headers"],
    )
    assert encode(columns, 0, columns.count) == once


@pytest.mark.parametrize("shift", range(8))
def test_values_and_keys_stay_where_they_are_and_the_rest_is_aligned(shift: int) -> None:
    whole = bytes(shift) + encode(sent_columns(plain(50)), 0, 50)
    start = pa.py_buffer(whole).address
    found = read(memoryview(whole)[shift:])
    for name in ("key", "value"):
        data = found[name].buffers()[2]
        assert start <= data.address < data.address + data.size <= start + len(whole)
    for column in found.columns:
        for buffer, width in zip(column.buffers()[1:2], [4], strict=True):
            assert buffer.address % width == 0
    assert found["event_time"].buffers()[1].address % 8 == 0
    assert found["timestamp"].buffers()[1].address % 8 == 0


def test_a_message_alone_has_no_index_in_a_batch() -> None:
    payload = encode(Columns.of([b"alone"]), 0, 1, batched=False)
    assert read(payload)["batch_index"].to_pylist() == [-1]


def test_a_large_batch_is_a_record_batch_too() -> None:
    count = (1 << 16) + 1
    payload = encode(Columns.of([b""] * count), 0, count, producer=b"me")
    found = record_batch(decode(payload), ledger_id=1, entry_id=2)
    assert found.num_rows == count
    assert found.slice(count - 1).to_pylist()[0]["batch_index"] == count - 1
    assert found["producer"][count - 1].as_py() == "me"


def test_a_record_batch_outlives_the_payload() -> None:
    found = read(encode(Columns.of([b"kept"] * 3), 0, 3))
    assert found["value"].to_pylist() == [b"kept"] * 3


# --- to columns -------------------------------------------------------------------


VALUES = [b"a", None, b"", b"ccc", b"dd"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.binary()),
    ],
    ids=str,
)
@pytest.mark.parametrize("first", [0, 1, 3, 5])
def test_values_of_every_arrow_kind_are_taken(kind: pa.DataType, first: int) -> None:
    given_values = pa.array(VALUES, pa.binary()).cast(kind).slice(first)
    assert columns_of(given_values).values.to_list() == VALUES[first:]
    chunks = pa.chunked_array([given_values, given_values])
    assert columns_of(chunks).values.to_list() == 2 * VALUES[first:]


def test_binary_arrays_are_not_copied() -> None:
    given_values = pa.array([b"a", b"bb", b"ccc"], pa.binary())
    columns = columns_of(given_values.slice(1))
    again = pa.py_buffer(columns.values.data)
    assert again.address == given_values.buffers()[2].address


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param([1, None, 3], [1, None, 3], id="a list"),
        pytest.param(pa.array([0, 1, None, 3]).slice(1), [1, None, 3], id="a slice"),
        pytest.param(pa.array([1, 2, 3], pa.int16()), [1, 2, 3], id="short numbers"),
        pytest.param(
            pa.array([1, None, 3], pa.timestamp("ms", "UTC")),
            [1_000_000, None, 3_000_000],
            id="milliseconds",
        ),
        pytest.param(pa.array([None, None, None]).cast(pa.int64()), [None] * 3, id="nulls"),
    ],
)
def test_event_times_of_every_kind_are_taken(times: object, expected: list[int | None]) -> None:
    columns = columns_of([b"a", b"b", b"c"], event_times=times)
    found = decode(encode(columns, 0, 3)).columns
    assert found.event_times_list() == expected


@pytest.mark.parametrize(
    "headers",
    [
        [{"a": b"1", "b": b"2"}, None, {"c": b"3"}],
        pa.array([[("a", b"1"), ("b", b"2")], None, [("c", b"3")]], HEADERS),
        pa.array([[("a", b"1"), ("b", b"2")], [], [("c", b"3")]], HEADERS),
        pa.array([[("a", "1"), ("b", "2")], [], [("c", "3")]], pa.map_(pa.string(), pa.string())),
        pa.array([[("x", b"0")], [("a", b"1"), ("b", b"2")], None, [("c", b"3")]], HEADERS).slice(
            1
        ),
        pa.array([[("x", b"0")], [("a", b"1"), ("b", b"2")], [], [("c", b"3")]], HEADERS).slice(1),
    ],
)
def test_headers_of_every_kind_are_taken(headers: object) -> None:
    columns = columns_of([b""] * 3, headers=headers)
    found = messages_of(decode(encode(columns, 0, 3)).columns)
    assert [m.headers for m in found] == [{"a": b"1", "b": b"2"}, {}, {"c": b"3"}]


def test_nothing_at_all_is_no_messages() -> None:
    for kind in (pa.null(), pa.binary(), pa.large_string()):
        empty = pa.array([], kind)
        columns = columns_of(
            empty, keys=empty, event_times=pa.array([]), headers=pa.array([], HEADERS)
        )
        assert columns.count == 0
    assert columns_of([], keys=[], event_times=[], timestamps=[], headers=[]).count == 0


def test_what_cannot_be_a_column_is_refused() -> None:
    with pytest.raises(TypeError, match="a column of double where binary is needed"):
        columns_of(pa.array([1.5]))
    with pytest.raises(TypeError, match="whole numbers or times"):
        columns_of([b"a"], event_times=pa.array([1.5]))
    with pytest.raises(TypeError):
        columns_of([b"a"], headers=pa.array([1]))
    with pytest.raises(ValueError, match="not in range"):
        columns_of([b"a"], timestamps=pa.array([-1]))
    with pytest.raises(ValueError, match="2 keys for 1 messages"):
        columns_of([b"a"], keys=pa.array([b"k", b"l"]))
