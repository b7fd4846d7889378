"""Arrow batches over entries; without Spark."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from batches import Sent, columns_of as encoded_columns, plain
from hypothesis import given, settings, strategies as st

from ledger_client.jobs import arrow_columns
from ledger_client.topics.messages import MessageBatch, MessageRange
from ledger_client.topics.positions import LaneRef, Place
from native import batch as native_batch

LANE = LaneRef(0, 3, 2, "a/b", 7, ordered=False)


def piece(
    sent: list[Sent], entry: int, *, batched: bool = True, producer: bytes = b""
) -> MessageRange:
    payload = native_batch.encode(
        encoded_columns(sent), 0, len(sent), batched=batched, producer=producer, created_ms=entry
    )
    place = Place(5, entry, 0, 88, 1000 + entry)
    return MessageRange(MessageBatch(LANE, place, native_batch.decode(payload)), 0, len(sent))


def table(slices: list[MessageRange], rows_min: int = 4096, rows_max: int = 50_000) -> pa.Table:
    batches = arrow_columns.batches_of(
        iter(slices), arrow_columns.NAMES, rows_min=rows_min, rows_max=rows_max
    )
    made = []
    for rows, arrays in batches:
        assert 0 < rows <= rows_max
        assert {len(array) for array in arrays} == {rows}
        made.append(pa.Table.from_arrays(arrays, names=arrow_columns.NAMES))
    counts = [part.num_rows for part in made]
    assert all(one >= rows_min or one + other > rows_max for one, other in pairwise(counts))
    return pa.concat_tables(made)


def expected(slices: list[MessageRange]) -> list[dict[str, object]]:
    return [
        {
            "topic": message.topic,
            "partition": message.id.partition,
            "lane": message.lane,
            "ledger": message.id.ledger_id,
            "entry": message.id.entry_id,
            "batch_index": message.id.batch_index,
            "message_id": str(message.id),
            "version": message.version,
            "event_time": message.event_time,
            "key": message.key,
            "value": message.value,
            "producer": message.producer or None,
            "publish_time": message.publish_time,
        }
        for one in slices
        for message in one.messages
    ]


def found(rows: pa.Table) -> list[dict[str, object]]:
    listed = rows.drop_columns(["headers", "timestamp", "publish_time"]).to_pylist()
    times = rows["publish_time"].cast(pa.int64()).to_pylist()
    return [row | {"publish_time": time // 1000} for row, time in zip(listed, times, strict=True)]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 60),
    st.integers(1, 60),
)
@settings(max_examples=60)
def test_rows_are_those_of_the_messages_however_they_are_cut(
    sizes: list[tuple[int, bool]], rows_min: int, rows_max: int
) -> None:
    slices = []
    for entry, (size, cut) in enumerate(sizes):
        whole = piece(plain(size), entry, producer=b"p" if cut else b"")
        slices.append(whole._replace(start=size // 3) if cut else whole)
    assert found(table(slices, min(rows_min, rows_max), rows_max)) == expected(slices)


def test_a_batch_of_more_messages_than_are_kept_is_right() -> None:
    slices = [piece([Sent(b"v")] * 70_000, 1)]
    rows = table(slices, rows_max=100_000)
    assert rows["batch_index"].to_pylist() == list(range(70_000))
    assert rows["message_id"][69_999].as_py() == "88:1:3:69999"


LARGE = bytes(1 << 20)


@pytest.mark.parametrize(
    "large",
    [
        Sent(LARGE),
        Sent(None, LARGE),
        Sent(b"", headers={"a": LARGE}),
        Sent(b"", headers={"n" * len(LARGE): b""}),
    ],
)
def test_few_large_messages_are_enough_for_a_batch(large: Sent) -> None:
    """Wherever they are large: tombstones have keys alone."""
    slices = [piece([large], entry) for entry in range(10)]
    batches = arrow_columns.batches_of(iter(slices), ["value"], rows_min=4096, rows_max=50_000)
    assert [rows for rows, _ in batches] == [4, 4, 2]


def test_a_message_by_itself_has_no_place_in_a_batch() -> None:
    rows = table([piece([Sent(b"v")], entry, batched=False) for entry in range(3)])
    assert rows["message_id"].to_pylist() == ["88:0:3", "88:1:3", "88:2:3"]
    assert rows["batch_index"].to_pylist() == [-1] * 3


def test_timestamps_are_the_same_bits_and_headers_pairs() -> None:
    sent = [
        Sent(b"a", timestamp=5, headers={"x": b"1", "y": b""}),
        Sent(b"b", timestamp=(1 << 64) - 2, headers={}),
    ]
    rows = table([piece(sent, 0), piece([Sent(b"c")], 1)])
    assert rows["timestamp"].to_pylist() == [5, -2, None]
    assert rows["headers"].to_pylist() == [
        [{"key": "x", "value": b"1"}, {"key": "y", "value": b""}],
        [],
        None,
    ]


def test_columns_of_whole_batches_lie_over_the_memory_in_which_they_came() -> None:
    one = piece([Sent(b"v" * 100)] * 1000, 0)
    (value,) = arrow_columns.columns_of([one], ["value"])
    data = one.batch.decoded.columns.values.data
    assert value.buffers()[2].address == pa.py_buffer(data).address
