"""The columns that a JSON Schema describes."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from ledger_client.topics.values import json_schema
from ledger_client.topics.values.kinds import DEPTH_MAX, FIELDS_MAX

ORDER = {
    "type": ["null", "object"],
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": ["number", "null"]},
        "paid": {"type": "boolean"},
        "at": {"type": "string", "format": "date-time"},
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"n": {"type": "string"}}},
        },
    },
}


def encoded(schema: object) -> str:
    return msgspec.json.encode(schema).decode()


def test_the_properties_of_an_object_are_columns() -> None:
    json_schema.check_definition(encoded(ORDER))
    assert json_schema.fields_of(ORDER) == [
        pa.field("id", pa.int64()),
        pa.field("price", pa.float64()),
        pa.field("paid", pa.bool_()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("lines", pa.list_(pa.struct([pa.field("n", pa.utf8())]))),
    ]


@pytest.mark.parametrize("schema", [{"type": "object"}, {"type": "object", "properties": {}}])
def test_an_object_of_any_fields_has_no_columns(schema: object) -> None:
    json_schema.check_definition(encoded(schema))
    assert json_schema.fields_of(schema) == []


def test_a_schema_that_spark_wrote_is_left_to_spark() -> None:
    json_schema.check_definition(encoded({"type": "struct", "fields": []}))
    field = {"name": "a", "type": "decimal(10,2)", "nullable": True, "metadata": {}}
    json_schema.check_definition(encoded({"type": "struct", "fields": [field]}))


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("", "it is no JSON"),
        ("{", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("null", "it has the type None"),
        ('{"properties": {}}', "it has the type None"),
        ('{"type": "string"}', "not the schema of an object"),
        ('{"type": "array", "items": {"type": "string"}}', "not the schema of an object"),
        ('{"type": "object", "properties": []}', "it has the type 'object'"),
        ('{"type": "object", "properties": {"a": {"type": "object"}}}', "a has the type 'object'"),
        ('{"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}', "a has the"),
        ('{"type": "object", "properties": {"a": {"type": "array"}}}', r"a\[\] has the type None"),
        ('{"type": [["object"]]}', "it has the type"),
        ('{"type": "struct"}', "not with fields as Spark writes them"),
        ('{"type": "struct", "fields": [{"name": 1, "type": "long"}]}', "as Spark writes them"),
    ],
)
def test_what_describes_no_columns_is_refused(definition: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        json_schema.check_definition(definition)


def test_depth_and_number_of_fields_are_limited() -> None:
    many = {"type": "object", "properties": {str(i): {"type": "string"} for i in range(FIELDS_MAX)}}
    with pytest.raises(ValueError, match=f"more than {FIELDS_MAX} fields"):
        json_schema.fields_of(many)
    deep: dict[str, object] = {"type": "string"}
    for _ in range(DEPTH_MAX + 1):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(ValueError, match=f"deeper than {DEPTH_MAX}"):
        json_schema.fields_of(deep)
