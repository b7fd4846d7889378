"""Rows as messages of partitions; no Spark is started for it."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from ledger_client.errors import SparkError
from ledger_client.spark.sink_plan import RowPlan
from ledger_client.spark.sink_rows import (
    TURN_SIZE,
    PartitionRows,
    RowRouter,
    gather_size,
    gathered,
)
from metadata.topics import TopicRecord
from native.route import murmur3

PLAN = RowPlan(
    value="value", key="key", headers="headers", event_time="event_time", partition="partition"
)
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def topic(partitions: int) -> TopicRecord:
    return TopicRecord(name="s/t", uid=1, partitions=partitions)


def values_of(share: PartitionRows) -> list[bytes | None]:
    values = share.columns.values.to_list()
    return values if share.rows is None else [values[row] for row in share.rows]


def shares(
    partitions: int, table: pa.Table, plan: RowPlan = PLAN, *, turn: int = 0
) -> dict[int, list[bytes | None]]:
    router = RowRouter(topic(partitions), plan, turn=turn)
    return {share.partition: values_of(share) for share in router.shares(table)}


def frame(**columns: Any) -> pa.Table:  # noqa: ANN401 - what Arrow makes arrays of
    count = len(next(iter(columns.values())))
    empty: dict[str, Any] = {
        "value": pa.nulls(count, pa.binary()),
        "key": pa.nulls(count, pa.binary()),
        "headers": pa.nulls(count, PAIRS),
        "event_time": pa.nulls(count, pa.int64()),
        "partition": pa.nulls(count, pa.int32()),
    }
    return pa.table(empty | columns)


def expected(key: bytes, partitions: int) -> int:
    return (murmur3(key) & 0x7FFFFFFF) % partitions


# --- partitions --------------------------------------------------------------------------------


@given(
    rows=st.lists(
        st.tuples(st.one_of(st.none(), st.binary(max_size=4)), st.sampled_from([None, 0, 1, 4])),
        min_size=1,
        max_size=60,
    ),
    turn=st.integers(0, 9),
)
def test_each_row_goes_where_it_says_or_its_key_or_where_others_go(
    rows: Sequence[tuple[bytes | None, int | None]], turn: int
) -> None:
    """MV-12: keys go where producers of any kind send them."""
    table = frame(
        value=pa.array([b"%d" % i for i in range(len(rows))], pa.binary()),
        key=pa.array([key for key, _ in rows], pa.binary()),
        partition=pa.array([partition for _, partition in rows], pa.int32()),
    )
    found = shares(5, table, turn=turn)
    places: dict[int, list[bytes | None]] = {}
    for i, (key, partition) in enumerate(rows):
        by_key = turn % 5 if key is None else expected(key, 5)
        places.setdefault(by_key if partition is None else partition, []).append(b"%d" % i)
    assert found == places


def test_all_go_to_the_only_partition() -> None:
    table = frame(value=[b"a", b"b"], key=[b"k", None])
    assert shares(0, table) == {-1: [b"a", b"b"]}
    assert shares(1, table) == {0: [b"a", b"b"]}
    plan = RowPlan(value="value", partition="partition")
    assert shares(0, frame(value=[b"a"], partition=[-1]), plan) == {-1: [b"a"]}


@pytest.mark.parametrize(("partitions", "named"), [(3, 3), (3, -1), (0, 0), (1, 1)])
def test_a_partition_that_there_is_not_is_named(partitions: int, named: int) -> None:
    with pytest.raises(SparkError, match=f"has no partition {named}, but"):
        shares(partitions, frame(value=[b"a", b"b"], partition=[0 if partitions else -1, named]))


def test_rows_without_key_take_turns_by_size() -> None:
    router = RowRouter(topic(3), RowPlan(value="value"), turn=1)
    table = pa.table({"value": [bytes(TURN_SIZE // 2)]})
    found = [router.shares(table)[0].partition for _ in range(6)]
    assert found == [1, 1, 2, 2, 0, 0]


# --- what a message has ------------------------------------------------------------------------


def only(table: pa.Table, plan: RowPlan = PLAN) -> Any:  # noqa: ANN401
    (share,) = RowRouter(topic(0), plan, turn=0).shares(table)
    return share.columns


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()])
def test_text_and_bytes_are_taken_as_they_are(kind: pa.DataType) -> None:
    given = ["", "é", None] if kind in (pa.string(), pa.large_string()) else [b"", b"\xff", None]
    columns = only(frame(value=pa.array(given, kind), key=pa.array(given, kind)))
    bytes_of = [one.encode() if isinstance(one, str) else one for one in given]
    assert columns.values.to_list() == columns.keys.to_list() == bytes_of


@pytest.mark.parametrize(
    ("kind", "given", "expected_ns"),
    [
        (pa.int64(), 5, 5),
        (pa.int32(), -5, -5),
        (pa.timestamp("us", "UTC"), 7, 7000),
        (pa.timestamp("us"), 7, 7000),
    ],
)
def test_event_times_become_nanoseconds(kind: pa.DataType, given: int, expected_ns: int) -> None:
    columns = only(frame(event_time=pa.array([given, None], pa.int64()).cast(kind, safe=False)))
    assert columns.event_times_list() == [expected_ns, None]


def test_a_time_beyond_nanoseconds_is_told() -> None:
    late = pa.array([1 << 60], pa.int64()).cast(pa.timestamp("us", "UTC"))
    with pytest.raises(SparkError, match="s/t"):
        only(frame(event_time=late))


@pytest.mark.parametrize(
    "kind",
    [
        PAIRS,
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())])),
        pa.map_(pa.string(), pa.binary()),
        pa.map_(pa.string(), pa.string()),
    ],
)
@pytest.mark.parametrize("with_null", [False, True])
def test_headers_of_every_form_are_the_same(kind: pa.DataType, with_null: bool) -> None:
    given: list[dict[str, bytes] | None] = [{"a": b"1", "b": b""}, {}, {"a": b"2"}]
    given += [None] if with_null else []

    def arranged(one: dict[str, bytes]) -> list[Any]:
        pairs = list(one.items())
        if pa.types.is_map(kind):
            return pairs
        names = [field.name for field in kind.value_type]
        return [dict(zip(names, pair, strict=True)) for pair in pairs]

    table = frame(headers=pa.array([None if one is None else arranged(one) for one in given], kind))
    assert only(table.slice(1)).headers.to_list() == [one or {} for one in given[1:]]
    assert only(table).headers.to_list() == [one or {} for one in given]


def test_a_header_without_a_value_is_told() -> None:
    given = pa.array([[{"key": "a", "value": None}]], PAIRS)
    table = frame(headers=given)
    with pytest.raises(SparkError, match="header"):
        only(table)


def test_columns_of_nulls_are_no_columns() -> None:
    table = pa.table({name: pa.nulls(2) for name in PLAN.__struct_fields__[:5]})
    columns = only(table)
    assert columns.values.to_list() == [None, None]
    assert columns.headers is None
    assert columns.event_times_list() == [None, None]


def test_rows_become_objects() -> None:
    plan = RowPlan(key="key", json=("id", "at", "on", "price", "tags", "by", "inner", "raw"))
    table = pa.table({
        "key": ["k", None],
        "id": pa.array([7, None], pa.int64()),
        "at": pa.array([1_000_000, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
        "on": [datetime.date(2024, 5, 1), None],
        "price": [decimal.Decimal("1.50"), None],
        "tags": [["a", "é"], None],
        "by": pa.array([[("x", 1)], None], pa.map_(pa.string(), pa.int64())),
        "inner": [{"deep": True}, None],
        "raw": [b"\xff", None],
    })  # fmt: skip
    values = only(table, plan).values.to_list()
    assert json.loads(values[0]) == {
        "id": 7,
        "at": "1970-01-01T00:00:01Z",
        "on": "2024-05-01",
        "price": 1.5,
        "tags": ["a", "é"],
        "by": {"x": 1},
        "inner": {"deep": True},
        "raw": "/w==",
    }
    assert set(json.loads(values[1]).values()) == {None}
    assert b'"price":1.50' in values[0]


def test_old_times_are_written_to_the_second_in_any_time_zone() -> None:
    """Local mean time is 19 minutes and 32 seconds off there; JSON rounds offsets to minutes."""
    zoned = pa.timestamp("us", "Europe/Amsterdam")
    at = datetime.datetime(1900, 1, 1, tzinfo=datetime.UTC)
    plan = RowPlan(json=("at", "deep", "by"))
    deep = pa.struct([("list", pa.list_(zoned)), ("local", pa.timestamp("us"))])
    table = pa.table({
        "at": pa.array([at], zoned),
        "deep": pa.array([{"list": [at, None], "local": at.replace(tzinfo=None)}], deep),
        "by": pa.array([[("k", at)]], pa.map_(pa.string(), zoned)),
    })  # fmt: skip
    assert json.loads(only(table, plan).values.to_list()[0]) == {
        "at": "1900-01-01T00:00:00Z",
        "deep": {"list": ["1900-01-01T00:00:00Z", None], "local": "1900-01-01T00:00:00"},
        "by": {"k": "1900-01-01T00:00:00Z"},
    }


def test_the_first_moment_is_written_and_what_lies_before_it_is_refused() -> None:
    """In New York that moment is in the year 0, which Python has not."""
    zoned, plan = pa.timestamp("us", "America/New_York"), RowPlan(json=("at",))
    first = int(datetime.datetime(1, 1, 1, tzinfo=datetime.UTC).timestamp()) * 1_000_000
    sound, early = (pa.array([moment], pa.int64()).cast(zoned) for moment in (first, first - 1))
    assert only(pa.table({"at": sound}), plan).values.to_list() == [
        b'{"at":"0001-01-01T00:00:00Z"}'
    ]
    with pytest.raises(SparkError, match="s/t: column at has a time before year 1"):
        only(pa.table({"at": early}), plan)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_number_that_json_has_not_is_refused_wherever_it_is(
    number: float, kind: pa.DataType
) -> None:
    plan = RowPlan(json=("price",))
    for wrong, whole in (
        (number, kind),
        ([[1.0], [number]], pa.list_(pa.list_(kind))),
        ({"deep": number}, pa.struct([("deep", kind)])),
        ([("k", number)], pa.map_(pa.string(), kind)),
    ):
        rows = pa.array([None, wrong, None], whole)
        with pytest.raises(SparkError, match="s/t: column price has NaN or an infinity"):
            only(pa.table({"price": rows}), plan)
        for others in (rows.filter(pa.array([True, False, True])), rows.slice(2)):
            found = only(pa.table({"price": others}), plan).values.to_list()
            assert found == [b'{"price":null}'] * len(others)


# --- gathering -----------------------------------------------------------------------------


@given(counts=st.lists(st.integers(0, 5), max_size=20), size_min=st.integers(1, 200))
def test_gathering_keeps_all_rows_in_order_and_small_batches_together(
    counts: list[int], size_min: int
) -> None:
    batches, number = [], 0
    for count in counts:
        rows = pa.array(range(number, number + count), pa.int64())
        batches.append(pa.record_batch([rows], names=["n"]))
        number += count
    tables = list(gathered(batches, size_min))
    assert [row for table in tables for row in table["n"].to_pylist()] == list(range(number))
    assert all(table.num_rows for table in tables)
    assert all(table.nbytes >= size_min for table in tables[:-1])


def test_more_is_gathered_for_more_partitions_within_bounds() -> None:
    sizes = [gather_size(topic(partitions)) for partitions in (0, 16, 100, 10_000)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (1 << 20, 16 << 20)
