"""Which frames can be written; no Spark is started for it."""

from __future__ import annotations

import re

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ledger_client.errors import SparkError
from ledger_client.spark.sink_plan import RowPlan, SinkOptions, parse_sink_options, plan_rows


def schema(ddl: str) -> StructType:
    """What Spark makes of *ddl*, without a Spark that runs."""
    parts = re.findall(r"`?(\w+)`? ([\w]+(?:<.*?>+(?=,|$))?)", ddl)
    found = StructType()
    for name, kind in parts:
        found.add(name, TYPES[kind])
    return found


def pairs(name: str, value: DataType) -> DataType:
    return ArrayType(StructType().add(name, StringType()).add("value", value))


TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "void": NullType(),
    "smallint": ShortType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "array<string>": ArrayType(StringType()),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<int,string>": MapType(IntegerType(), StringType()),
    "array<struct<key:string,value:binary>>": pairs("key", BinaryType()),
    "array<struct<name:string,value:string>>": pairs("name", StringType()),
    "array<struct<a:string,b:binary>>": ArrayType(
        StructType().add("a", StringType()).add("b", BinaryType())
    ),
    "array<struct<key:string,value:int>>": pairs("key", IntegerType()),
}


READ = (
    "topic string, partition int, lane int, ledger bigint, entry bigint, batch_index int, "
    "message_id string, version bigint, timestamp bigint, publish_time timestamp, "
    "event_time bigint, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, producer string"
)


def test_a_frame_that_was_read_can_be_written() -> None:
    assert plan_rows(schema(READ), json_values=False) == RowPlan(
        value="value",
        key="key",
        headers="headers",
        event_time="event_time",
        partition="partition",
    )


@pytest.mark.parametrize(
    "ddl",
    [
        "value string",
        "value void",
        "VALUE binary, Key string",
        "value binary, headers map<string,string>, event_time timestamp",
        "value binary, headers array<struct<name:string,value:string>>, event_time timestamp_ntz",
        "value binary, key void, headers void, event_time void, partition void",
        "value binary, partition smallint, event_time int",
    ],
)
def test_types_that_can_be_written(ddl: str) -> None:
    plan = plan_rows(schema(ddl), json_values=False)
    assert plan.value in {"value", "VALUE"}


@pytest.mark.parametrize(
    ("ddl", "told"),
    [
        ("key string", 'no column value.*option\\("valueFormat", "json"\\)'),
        ("", "none at all"),
        ("value int", "value is of type int; it can be binary or string"),
        ("value string, key bigint", "key is of type bigint"),
        ("value string, event_time string", "event_time is of type string"),
        ("value string, partition string", "partition is of type string"),
        ("value string, headers array<string>", "headers is of type array<string>"),
        ("value string, headers map<int,string>", "headers is of type"),
        ("value string, headers array<struct<a:string,b:binary>>", "headers is of type"),
        ("value string, headers array<struct<key:string,value:int>>", "headers is of type"),
        ("value string, amount int, customer string", "amount, customer would be lost"),
        ("value string, `Value` string", "differ in case"),
    ],
)
def test_frames_that_are_no_messages_are_refused_with_what_to_do(ddl: str, told: str) -> None:
    with pytest.raises(SparkError, match=told):
        plan_rows(schema(ddl), json_values=False)


def test_rows_as_json_leave_out_what_says_where_they_go() -> None:
    ddl = "customer string, amount int, key string, event_time timestamp, timestamp bigint"
    plan = plan_rows(schema(ddl), json_values=True)
    assert plan.json == ("customer", "amount", "timestamp")
    assert (plan.value, plan.key, plan.event_time) == (None, "key", "event_time")


@pytest.mark.parametrize("ddl", ["value string, a int", "key string"])
def test_rows_as_json_without_an_object_are_refused(ddl: str) -> None:
    with pytest.raises(SparkError, match="valueFormat is json"):
        plan_rows(schema(ddl), json_values=True)


def test_options_are_taken_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_CLUSTER", raising=False)
    assert parse_sink_options({"TOPIC": "s/t", "valueformat": "JSON"}) == SinkOptions(
        cluster="bookie://127.0.0.1:3181", topic="s/t", json_values=True
    )
    given = {"path": "s/t", "cluster": "bookie://h:1", "checkpointLocation": "/c", "queryName": "q"}
    expected = SinkOptions(cluster="bookie://h:1", topic="s/t", checkpoint="/c")
    assert parse_sink_options(given) == expected
    assert expected.query_of("1f") == "1f"
    named = parse_sink_options({**given, "sinkName": "again", "checkpointLocation": "file:///c/"})
    assert (named.query_of("1f"), named.checkpoint) == ("1f.again", "/c")
    with pytest.raises(SparkError, match=r"sinkName.* letters, digits"):
        parse_sink_options({**given, "sinkName": "a/b"})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "which topic"),
        ({"topic": "s/a,s/b"}, "which topic"),
        ({"topic": "s/a", "path": "s/b"}, "which topic"),
        ({"topic": "s/a", "valueFormat": "avro"}, "'avro' is neither"),
        ({"topic": "s/a", "valuFormat": "json"}, "is valueFormat meant"),
    ],
)
def test_options_that_cannot_be_are_named(given: dict[str, str], told: str) -> None:
    with pytest.raises(SparkError, match=told):
        parse_sink_options(given)
