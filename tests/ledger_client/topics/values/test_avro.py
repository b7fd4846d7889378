"""Values in Avro's encoding: what fields they have, and what is made of what is none."""

from __future__ import annotations

import datetime
import io
import sys
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings, strategies as st

from ledger_client.errors import BadSchema
from ledger_client.topics.values.decoder import open_decoder, struct_array
from metadata.topics import Schema

ITEM = {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "string"}]}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "count", "type": ["null", "int"], "default": None},
        {"name": "paid", "type": "boolean"},
        {"name": "price", "type": PRICE},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "OLD"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "items", "type": {"type": "array", "items": ITEM}},
        {"name": "first", "type": ["shop.Item", "null"]},
        {"name": "notes", "type": {"type": "map", "values": ["null", "string"]}},
        {"name": "weight", "type": "double"},
    ],
}  # fmt: skip
VALUE: dict[str, Any] = {
    "id": 1 << 62,
    "count": None,
    "paid": True,
    "price": Decimal("12.50"),
    "at": datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC),
    "day": datetime.date(2024, 5, 1),
    "uuid": "8d1d0a1e-0000-4000-8000-000000000000",
    "state": "OLD",
    "hash": b"\x00\xff",
    "items": [{"sku": "a"}, {"sku": "b"}],
    "first": {"sku": "c"},
    "notes": {"x": "y", "z": None},
    "weight": 1.5,
}


def schema(told: object) -> Schema:
    return Schema(kind="avro", definition=msgspec.json.encode(told).decode())


def record(kind: object) -> dict[str, object]:
    return {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}


def encoded(told: dict[str, Any], value: object) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(told), value)
    return out.getvalue()


def test_each_type_is_a_column_of_its_own() -> None:
    decoder = open_decoder("s/t", schema(ORDER))
    found = decoder.decode(encoded(ORDER, VALUE))
    assert found == VALUE
    types = {field.name: field.type for field in decoder.fields}
    item = pa.struct([pa.field("sku", pa.string())])
    assert types == {
        "id": pa.int64(),
        "count": pa.int32(),
        "paid": pa.bool_(),
        "price": pa.decimal128(6, 2),
        "at": pa.timestamp("us", tz="UTC"),
        "day": pa.date32(),
        "uuid": pa.string(),
        "state": pa.string(),
        "hash": pa.binary(),
        "items": pa.list_(item),
        "first": item,
        "notes": pa.map_(pa.string(), pa.string()),
        "weight": pa.float64(),
    }
    (row,) = pa.array([found], pa.struct(decoder.fields)).to_pylist()
    assert row == VALUE | {"notes": [("x", "y"), ("z", None)]}


@pytest.mark.parametrize("size", [1 << 10, 4 << 20])
def test_a_number_without_end_is_refused_at_once(size: int) -> None:
    """Reading it as a number would take hours: no bytes of a producer may stop a reader."""
    decoder = open_decoder("s/t", schema(record(PRICE)))
    value = encoded(record("bytes"), {"f": b"\x7f" * size})
    with pytest.raises(ValueError, match=f"a decimal of {size} bytes"):
        decoder.decode(value)


def test_decimals_have_their_sign_and_scale_however_long_they_are() -> None:
    fixed = {"type": "fixed", "name": "D", "size": 20, "logicalType": "decimal"}
    for kind in (PRICE, fixed | {"precision": 6, "scale": 2}):
        decoder = open_decoder("s/t", schema(record(kind)))
        plain = record("bytes" if kind is PRICE else {"type": "fixed", "name": "D", "size": 20})
        for number in (-1, 0, 1250, -999_999):
            data = number.to_bytes(20, "big", signed=True)
            found = decoder.decode(encoded(plain, {"f": data}))["f"]
            assert found == Decimal(number) / 100
            assert pa.array([found], pa.decimal128(6, 2))[0].as_py() == found
    digits = 10**37 + 1
    decoder = open_decoder("s/t", schema(record(PRICE | {"precision": 38})))
    value = encoded(record("bytes"), {"f": digits.to_bytes(16, "big")})
    assert str(decoder.decode(value)["f"]) == f"{digits // 100}.01"  # none is rounded


def test_every_cut_of_a_value_and_every_byte_more_is_none() -> None:
    """A value that is not whole never counts, and none is cut short without a word."""
    decoder = open_decoder("s/t", schema(ORDER))
    whole = encoded(ORDER, VALUE)
    for size in range(len(whole)):
        with pytest.raises(ValueError):
            decoder.decode(whole[:size])
    with pytest.raises(ValueError, match="1 bytes more"):
        decoder.decode(whole + b"\x00")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 200), st.integers(0, 7))
def test_no_bytes_do_more_than_raise_bad_value(data: bytes, place: int, bit: int) -> None:
    decoder = open_decoder("s/t", schema(ORDER))
    flipped = bytearray(encoded(ORDER, VALUE))
    flipped[place % len(flipped)] ^= 1 << bit
    kind = pa.struct(decoder.fields)
    told: list[bytes] = []
    values = [data, bytes(flipped), encoded(ORDER, VALUE)]
    found = struct_array(decoder, kind, values, lambda value, _: told.append(value)).to_pylist()
    assert found[2] is not None
    assert [value for value, row in zip(values, found, strict=True) if row is None] == told


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("string", "it is no record"),
        ({"type": "array", "items": "int"}, "it is no record"),
        ({"type": "enum", "name": "E"}, "it is no Avro schema"),
        (record("shop.Nothing"), "it is no Avro schema"),
        (record(["int", "string"]), "f is a union of several types"),
        (record("null"), "f has the type 'null'"),
        (record(["null", "R"]), "f is a R inside of itself"),
        (record({"type": "array", "items": "null"}), r"f\[\] has the type 'null'"),
        (
            record({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}),
            "f is a list of nothing",
        ),
        (record({"type": "record", "name": "E", "fields": []}), "f is a record without fields"),
        (
            record({"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 0}),
            "at most 38 digits",
        ),
        ([1], "it is no Avro schema"),
    ],
)
def test_what_no_columns_can_be_made_of_is_told(told: object, words: str) -> None:
    with pytest.raises(BadSchema, match=words) as refused:
        open_decoder("s/t", schema(told))
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("topic s/t: its schema cannot be read: ")


@pytest.mark.parametrize("definition", ["", "x", "{", '{"type": "record"}', "[" * 100_000])
def test_a_definition_that_is_no_json_or_no_schema_is_told(definition: str) -> None:
    with pytest.raises(BadSchema):
        open_decoder("s/t", Schema(kind="avro", definition=definition))


def test_a_schema_that_multiplies_itself_is_refused_at_once() -> None:
    """Each record names the one before twice: thirty of them would be a thousand million fields."""
    inner: object = record("int")
    for number in range(30):
        before = f"R{number - 1}" if number else "R"
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": before}]
        inner = {"type": "record", "name": f"R{number}", "fields": fields}
    with pytest.raises(BadSchema, match="more than 10000 fields"):
        open_decoder("s/t", schema(inner))


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    monkeypatch.delitem(sys.modules, "ledger_client.topics.values.avro", raising=False)
    with pytest.raises(BadSchema, match=r"fastavro, .*: pip install '\.\[schemas\]'"):
        open_decoder("s/t", schema(ORDER))
