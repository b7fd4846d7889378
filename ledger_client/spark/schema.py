"""The columns that Spark sees: those of every message, and those of the topic's schema.

A topic with a schema of kind "string" has text values. Kind "json" with a definition adds a
column for each field; the definition is a JSON Schema of an object, or a schema as Spark writes
it (``frame.schema.json()``). So do kinds "avro" and "protobuf" (topics/values/kinds.py). A schema
without fields adds no column. A field with the name of a message column becomes value_<name>.
Several topics read together have such columns if their schemas are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ledger_client.errors import BadSchema, SparkError
from ledger_client.topics.values.kinds import PACKAGES
from metadata.topics import Schema, TopicRecord

_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_MESSAGE: tuple[tuple[str, DataType], ...] = (
    ("topic", StringType()),
    ("partition", IntegerType()),
    ("lane", IntegerType()),
    ("ledger", LongType()),
    ("entry", LongType()),
    ("batch_index", IntegerType()),
    ("message_id", StringType()),
    ("version", LongType()),
    ("timestamp", LongType()),
    ("publish_time", TimestampType()),
    ("event_time", LongType()),
    ("key", BinaryType()),
    ("value", BinaryType()),
    ("headers", _HEADERS),
    ("producer", StringType()),
)
_CLASH = "value_"
_AS_BYTES = "read it as bytes with the option columns, such as columns=key,value"


class SourceColumns(msgspec.Struct, frozen=True):
    """The columns of a read, and which of them are decoded from values. Pickled for tasks."""

    schema: StructType
    fields: Mapping[str, str]
    """the field of the value in each column that has one"""
    text: bool
    """values are text"""
    decoded: Schema | None = None
    """the schema that decodes values, of kind "avro" or "protobuf"; otherwise they are JSON"""


def columns_of(topics: Sequence[TopicRecord], wanted: Sequence[str] | None) -> SourceColumns:
    """Return the columns of these topics: all, or the wanted ones in their order.

    Raises:
        SparkError: there is no such column, or a topic's schema cannot be converted.
    """
    schemas = {topic.schema for topic in topics}
    schema = topics[0].schema if len(schemas) == 1 else Schema()
    text = schema.kind == "string"
    known = {
        name: StructField(name, StringType() if text and name == "value" else kind)
        for name, kind in _MESSAGE
    }
    fields: dict[str, str] = {}
    only_message = wanted is not None and set(wanted) <= set(known)
    if schema.definition and not only_message:
        for field in _fields_of(topics[0].name, schema):
            name = _CLASH + field.name if field.name.lower() in known else field.name
            known[name] = StructField(name, field.dataType)
            fields[name] = field.name
    chosen = list(known) if wanted is None else list(wanted)
    for name in chosen:
        if name not in known:
            raise SparkError.option(
                "columns", f"there is no column {name!r}; there are {', '.join(known)}"
            )
    return SourceColumns(
        StructType([known[name] for name in chosen]),
        {name: fields[name] for name in chosen if name in fields},
        text,
        schema if schema.kind in PACKAGES else None,
    )


def _fields_of(topic: str, schema: Schema) -> list[StructField]:
    if schema.kind == "json":
        return _defined(topic, schema.definition)
    return _decoded(topic, schema) if schema.kind in PACKAGES else []


def _decoded(topic: str, schema: Schema) -> list[StructField]:
    import pyarrow as pa  # which takes long

    from ledger_client.topics.values.decoder import open_decoder

    try:
        found = from_arrow_schema(pa.schema(open_decoder(topic, schema).fields))
        return _unique(StructType([StructField(f.name, _nullable(f.dataType)) for f in found]))
    except (BadSchema, ValueError, PySparkException) as wrong:
        reason = str(wrong) if isinstance(wrong, BadSchema) else f"topic {topic}: {_line(wrong)}"
        raise SparkError(f"{reason}; {_AS_BYTES}") from wrong


def _defined(topic: str, definition: str) -> list[StructField]:
    import pyarrow as pa  # which takes long

    from ledger_client.topics.values import json_schema

    try:
        schema = json_schema.decoded(definition)
        if json_schema.is_sparks(schema):
            found = StructType.fromJson(schema)
        else:
            found = from_arrow_schema(pa.schema(json_schema.fields_of(schema)))
        fields = _checked(topic, _nullable(found))
    except (ValueError, TypeError, KeyError, PySparkException) as wrong:
        raise SparkError(
            f"topic {topic}: its schema cannot be read: {_line(wrong)}; {_AS_BYTES}"
        ) from wrong
    return fields


def _nullable(kind: DataType) -> DataType:
    """Return the type with null allowed everywhere, since values may lack any field."""
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, _nullable(each.dataType)) for each in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def _checked(topic: str, found: DataType) -> list[StructField]:
    """Return the fields. Raises TypeError for a type without fields, ValueError for a bad one."""
    if not isinstance(found, StructType):
        raise TypeError("it defines no fields")
    _check_parsed(topic, found)
    return _unique(found)


def _unique(found: StructType) -> list[StructField]:
    """Return the fields. Raises ValueError if two differ only in case."""
    low = [name.lower() for name in found.fieldNames()]
    twice = next((name for name in low if low.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"the field {twice!r} is there twice")
    return list(found.fields)


def _check_parsed(topic: str, found: StructType) -> None:
    """Raise ValueError for a type that Arrow cannot parse JSON into."""
    from ledger_client.spark.values import ValueParser  # imports pyarrow, which takes long

    for field in to_arrow_schema(found, timezone="UTC"):
        try:
            ValueParser(topic, [field], "failfast").check()
        except NotImplementedError as wrong:  # Arrow's, if it cannot parse this type
            raise ValueError(f"{field.name} is a {field.type}, which is not parsed") from wrong


def _line(wrong: Exception) -> str:
    return next(iter(str(wrong).strip().splitlines()), type(wrong).__name__)
