"""Values parsed as a schema says; without Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pyarrow.json as pj
import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from ledger_client.errors import SparkError
from ledger_client.spark.rows import arrow_schema
from ledger_client.spark.schema import columns_of
from ledger_client.spark.sink_plan import RowPlan
from ledger_client.spark.sink_rows import RowRouter
from ledger_client.spark.values import ValueParser, texts_of
from ledger_client.topics.values.decoder import open_decoder
from metadata.topics import Schema, TopicRecord

FIELDS = [
    pa.field("id", pa.int64()),
    pa.field("name", pa.string()),
    pa.field("price", pa.float64()),
    pa.field("at", pa.timestamp("us", tz="UTC")),
    pa.field("tags", pa.list_(pa.field("element", pa.string()))),
]


def parsed(values: list[bytes | None], fields: list[pa.Field] = FIELDS) -> list[dict[str, object]]:
    parser = ValueParser("a/b", fields, "permissive")
    columns = parser.columns(pa.array(values, pa.binary()))
    assert all(columns[field.name].type == field.type for field in fields)
    lists = {name: column.to_pylist() for name, column in columns.items()}
    return [{name: lists[name][row] for name in lists} for row in range(len(values))]


def ids(values: list[bytes | None]) -> list[object]:
    return [row["id"] for row in parsed(values)]


def test_fields_are_found_by_name_and_others_left_out() -> None:
    value = b'{"name": "n", "more": {"x": [1]}, "tags": ["a", null], "id": 1, "price": 2}'
    row = parsed([value])[0]
    assert row == {"id": 1, "name": "n", "price": 2.0, "at": None, "tags": ["a", None]}


def test_a_value_takes_a_line_or_many_and_none_takes_none() -> None:
    assert ids([b'{\n"id"\n:\n1}', b"{}", None, b'{"id":2}']) == [1, None, None, 2]
    assert ids([]) == []


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            b"",
            b" ",
            b"nope",
            b'{"id": "text"}',
            b'{"id": 1.5}',
            b'{"id": 1',
            b'{"id": 1}}',
            b"[1]",
        ),
        *(b'{"id": 1}\n{"id": 2}', b'{"id": 1}} {"v": {"id": 2}', b'{"id": 1}, "v": {"id": 2}'),
        *(b'{"name": "\xff"}', b'{"id": 99999999999999999999}', b'"text"', b'{"id": 1} 7', b"7"),
    ],
)
def test_a_value_that_does_not_parse_changes_no_other(wrong: bytes) -> None:
    sound = [b'{"id": %d}' % number for number in range(20)]
    for place in (0, 7, 20):
        values = [*sound[:place], wrong, *sound[place:]]
        expected = [*range(place), None, *range(place, 20)]
        assert ids(list(values)) == expected
    with pytest.raises(SparkError, match=r"topic a/b: .* is not what its schema says") as told:
        ValueParser("a/b", FIELDS, "failfast").columns(pa.array([sound[0], wrong], pa.binary()))
    assert "\n" not in str(told.value)


def test_values_that_make_up_for_each_other_do_not_pass() -> None:
    """One that is nothing and one that is two must not be taken for two."""
    two = b'{"id": 1}}\n{"v": {"id": 2}'
    assert ids([b'{"id": 0}', two, b"", b'{"id": 3}']) == [0, None, None, 3]


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.binary(max_size=20),
            st.fixed_dictionaries(
                {}, optional={"id": st.integers(-(2**63), 2**63 - 1), "name": st.text(max_size=9)}
            ).map(lambda made: json.dumps(made).encode()),
        ),
        max_size=30,
    )
)
@settings(max_examples=60)
def test_each_value_is_parsed_as_if_it_were_alone(values: list[bytes | None]) -> None:
    assert parsed(list(values)) == [parsed([value])[0] for value in values]


def test_a_bad_value_among_many_is_found_by_halving(monkeypatch: pytest.MonkeyPatch) -> None:
    parses = 0
    read = pj.read_json

    def counted(*args: object, **kwargs: object) -> pa.Table:
        nonlocal parses
        parses += 1
        return read(*args, **kwargs)

    monkeypatch.setattr(pj, "read_json", counted)
    sound: list[bytes | None] = [b'{"id": %d}' % number for number in range(20_000)]
    bad = [*sound[:10_000], b"x", *sound[10_000:]]
    assert ids(sound) == list(range(20_000))
    assert parses == 1
    assert ids(bad).count(None) == 1
    assert parses <= 2 + 2 * len(bad).bit_length()


def test_a_type_that_is_not_parsed_is_told_beforehand() -> None:
    parser = ValueParser("a/b", [pa.field("m", pa.map_(pa.string(), pa.int64()))], "permissive")
    with pytest.raises(pa.ArrowNotImplementedError):
        parser.check()
    ValueParser("a/b", FIELDS, "permissive").check()


WRITTEN: dict[str, tuple[DataType, list[object]]] = {
    "flag": (BooleanType(), [True]),
    "tiny": (ByteType(), [-128, 127]),
    "small": (ShortType(), [-(2**15)]),
    "number": (IntegerType(), [2**31 - 1]),
    "large": (LongType(), [-(2**63), 2**63 - 1]),
    "single": (FloatType(), [1.5, -0.0]),
    "double": (DoubleType(), [0.1, 1e300, 5e-324]),
    "exact": (DecimalType(10, 2), [Decimal("1.50"), Decimal("-99999999.99")]),
    "wide": (DecimalType(38, 18), [Decimal("12345678901234567890.123456789012345678")]),
    "text": (StringType(), ["", 'é\n"']),
    "raw": (BinaryType(), [b"", b"\xff\x00", b"text"]),
    "day": (DateType(), [date(1, 1, 1), date(1900, 1, 1), date(9999, 12, 31)]),
    "at": (TimestampType(), [datetime(1, 1, 1, tzinfo=UTC), datetime(2024, 5, 1, 0, 0, 0, 1, UTC)]),
    "local": (TimestampNTZType(), [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]),  # noqa: DTZ001 - of no zone
    "clock": (TimeType(), [time(0), time(23, 59, 59, 999999)]),
    "nothing": (NullType(), []),
}


def nested(kinds: dict[str, DataType]) -> dict[str, DataType]:
    return {
        **kinds,
        "all": StructType([StructField(name, kind) for name, kind in kinds.items()]),
        **{f"{name}s": ArrayType(kind) for name, kind in kinds.items()},
        **{f"{name}ss": ArrayType(ArrayType(kind)) for name, kind in kinds.items()},
    }


def test_what_the_sink_writes_as_json_is_read_back() -> None:
    """Of every type that a field can have, with nulls, and within lists and structs."""
    kinds = nested({name: kind for name, (kind, _) in WRITTEN.items()})
    schema = StructType([StructField(name, kind) for name, kind in kinds.items()])
    topic = TopicRecord(name="s/t", uid=1, schema=Schema(kind="json", definition=schema.json()))
    assert columns_of([topic], list(kinds)).schema == schema
    rows: list[dict[str, object]] = [{}, {"all": {}, "days": [], "dayss": [None, []]}]
    for name, (_, values) in WRITTEN.items():
        for value in values:
            rows.append({name: value, "all": {name: value}})
            rows.append({f"{name}s": [value, None, value], f"{name}ss": [[], [value], None]})
    given = pa.Table.from_pylist(rows, arrow_schema(schema))
    router = RowRouter(topic, RowPlan(json=tuple(kinds)), turn=0)
    written = pa.array(router.shares(given)[0].columns.values.to_list(), pa.binary())
    found = ValueParser("s/t", list(given.schema), "failfast").columns(written)
    for name in kinds:
        assert found[name].to_pylist() == given[name].to_pylist(), name
        assert found[name].type == given.schema.field(name).type


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-05-01T12:00:00.123456789Z", datetime(2024, 5, 1, 12, 0, 0, 123456, UTC)),
        ("2024-05-01T12:00:00.1234567+02:00", datetime(2024, 5, 1, 10, 0, 0, 123456, UTC)),
        ("2024-05-01 12:00:00", datetime(2024, 5, 1, 12, tzinfo=UTC)),
        ("2024-05-01T12:00-0230", datetime(2024, 5, 1, 14, 30, tzinfo=UTC)),
        ("2024-05-01", datetime(2024, 5, 1, tzinfo=UTC)),
        ("2024-13-01", None),
        ("soon", None),
    ],
)
def test_times_of_other_writers_are_read(text: str, expected: datetime | None) -> None:
    """RFC 3339 allows any number of digits; the columns have microseconds."""
    (row,) = parsed([json.dumps({"at": text}).encode()])
    assert row["at"] == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.binary(), "no base64"),
        (pa.binary(), "é"),
        (pa.date32(), "2024-5-1"),
        (pa.time64("ns"), "25:00"),
        (pa.time64("ns"), "12:00Z"),
        (pa.timestamp("us"), ""),
    ],
)
def test_a_text_that_is_none_of_its_type_makes_its_value_null(kind: pa.DataType, text: str) -> None:
    fields = [pa.field("id", pa.int64()), pa.field("f", kind)]
    values = [b'{"id": 1}', json.dumps({"id": 2, "f": text}).encode(), b'{"id": 3, "f": null}']
    assert [row["id"] for row in parsed(list(values), fields)] == [1, None, 3]
    with pytest.raises(SparkError, match="is not what its schema says"):
        ValueParser("a/b", fields, "failfast").columns(pa.array(values, pa.binary()))


def test_text_is_text_or_null() -> None:
    values = pa.array([b"a", "ü".encode(), b"\xff", None, b""], pa.binary())
    assert texts_of("a/b", values, "permissive").to_pylist() == ["a", "ü", None, None, ""]
    with pytest.raises(SparkError, match=r"topic a/b: b'\\xff' is not UTF-8"):
        texts_of("a/b", values, "failfast")


AVRO = Schema(
    kind="avro",
    definition='{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, '
    '{"name": "b", "type": {"type": "bytes", "logicalType": "decimal", "precision": 2}}]}',
)
SOUND, SHORT, TOO_LONG = b"\x02\x02\x05", b"\x02", b"\x02\x06\x7f\xff\xff"


def test_avro_values_are_decoded_and_what_is_none_is_null() -> None:
    """Also a number that has more digits than its type: other values are not lost with it."""
    decoder = open_decoder("s/t", AVRO)
    values = pa.array([SOUND, SHORT, None, TOO_LONG, SOUND], pa.binary())
    parser = ValueParser("s/t", list(decoder.fields), "permissive", decoder)
    found = parser.columns(values)
    assert found["a"].to_pylist() == [1, None, None, None, 1]
    assert found["b"].to_pylist() == [Decimal(5), None, None, None, Decimal(5)]
    only = ValueParser("s/t", [decoder.fields[0]], "permissive", decoder).columns(values)
    assert only["a"].to_pylist() == [1, None, None, 1, 1]
    assert parser.columns(pa.array([], pa.binary()))["a"].to_pylist() == []


@pytest.mark.parametrize("value", [SHORT, TOO_LONG])
def test_failfast_names_the_avro_value_that_is_none(value: bytes) -> None:
    decoder = open_decoder("s/t", AVRO)
    parser = ValueParser("s/t", list(decoder.fields), "failfast", decoder)
    with pytest.raises(SparkError, match=r"topic s/t: b'\\x02.* is not what its schema says"):
        parser.columns(pa.array([SOUND, value], pa.binary()))
