"""Columns of topics by their schemas; without Spark."""

from __future__ import annotations

import pickle

import msgspec
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ledger_client.errors import SparkError
from ledger_client.spark.schema import columns_of
from metadata.topics import Schema, TopicRecord

EMPTY = [
    '{"type": "object"}',
    '{"type": ["object", "null"], "additionalProperties": true}',
    '{"type": "object", "properties": {}}',
    '{"type": "struct", "fields": []}',
]


def topic(definition: str = "", kind: str = "json") -> TopicRecord:
    return TopicRecord(name="s/t", uid=1, schema=Schema(kind=kind, definition=definition))  # type: ignore[arg-type]


@pytest.mark.parametrize("definition", EMPTY)
def test_a_schema_that_names_no_fields_adds_no_columns(definition: str) -> None:
    found = columns_of([topic(definition)], None)
    assert found == columns_of([topic(kind="bytes")], None)
    assert columns_of([topic(definition)], ["key", "value"]).schema.names == ["key", "value"]


@pytest.mark.parametrize("definition", EMPTY)
def test_a_column_that_is_not_there_is_told_whatever_the_schema_names(definition: str) -> None:
    with pytest.raises(SparkError, match="there is no column 'kye'; there are topic, partition"):
        columns_of([topic(definition)], ["kye"])


@pytest.mark.parametrize(
    "definition",
    [
        '{"type": "array", "items": {"type": "object"}}',
        '{"type": "object", "properties": {"a": {"type": "object"}}}',
        '{"type": "object", "properties": []}',
        "{}",
    ],
)
def test_what_no_columns_can_be_made_of_is_told(definition: str) -> None:
    with pytest.raises(SparkError, match=r"topic s/t: its schema cannot be read: .*columns=key"):
        columns_of([topic(definition)], None)


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "key", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "counts", "type": {"type": "array", "items": "int"}},
        {"name": "notes", "type": {"type": "map", "values": "bytes"}},
    ],
}


def test_fields_of_an_avro_schema_are_columns() -> None:
    avro = topic(msgspec.json.encode(AVRO).decode(), kind="avro")
    found = columns_of([avro], ["value", "id", "value_key", "at", "counts", "notes"])
    assert found.schema == StructType(
        [
            StructField("value", BinaryType()),
            StructField("id", LongType()),
            StructField("value_key", StringType()),
            StructField("at", TimestampType()),
            StructField("counts", ArrayType(IntegerType())),
            StructField("notes", MapType(StringType(), BinaryType())),
        ]
    )
    assert found.fields["value_key"] == "key"
    assert found.decoded == avro.schema
    assert pickle.loads(pickle.dumps(found)) == found  # Spark sends it to its executors
    assert columns_of([avro], None).schema.names[-5:] == [
        "id",
        "value_key",
        "at",
        "counts",
        "notes",
    ]
    plain = columns_of([avro, topic(kind="bytes")], None)
    assert plain == columns_of([topic(kind="bytes")], None)


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_without_a_definition_values_are_bytes(kind: str) -> None:
    assert columns_of([topic(kind=kind)], None).schema == columns_of([topic("")], None).schema


@pytest.mark.parametrize(
    ("kind", "definition", "words"),
    [
        ("avro", "{}", "it is no Avro schema"),
        ("protobuf", "{}", "missing required field"),
        (
            "avro",
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, '
            '{"name": "A", "type": "int"}]}',
            "'a' is there twice",
        ),
    ],
)
def test_a_definition_that_gives_no_columns_says_how_to_read_bytes(
    kind: str, definition: str, words: str
) -> None:
    with pytest.raises(SparkError, match=rf"topic s/t: .*{words}.*columns=key,value"):
        columns_of([topic(definition, kind)], None)
    assert columns_of([topic(definition, kind)], ["key", "value"]).schema.names == ["key", "value"]
