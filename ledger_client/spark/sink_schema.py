"""Which columns of a data frame become what of a message.

column       types                                    becomes
-----------  ---------------------------------------  ----------------------------------
value        binary, string                           the value; null: none
key          binary, string                           the key, which says the partition
headers      array of structs (key or name, value),   the headers
             or map; names text, values binary or text
event_time   whole numbers: nanoseconds; timestamps   the event time
partition    whole numbers                            the partition, whatever the key

Only value must be there; names are taken in any case. Columns that only tell where a message was
read (topic, lane, ledger and so on) are passed over, so that a frame that was read from a topic
can be written to another. Any other column would be lost, and is refused. With JSON
values there is no column value: all columns but the other four are the object.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
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

from ledger_client.spark.errors import BadColumns

TOLD = frozenset({
    *("topic", "lane", "ledger", "entry", "batch_index", "message_id", "version"),
    *("timestamp", "publish_time", "producer"),
})  # fmt: skip
"""Columns of a read that a write passes over."""
_TEXT = (BinaryType, StringType)
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_TIMES = (*_WHOLE, TimestampType, TimestampNTZType)


class RowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where in a frame each part of a message is; None: there is no such column."""

    value: str | None = None
    key: str | None = None
    headers: str | None = None
    event_time: str | None = None
    partition: str | None = None
    json: tuple[str, ...] = ()
    """of these columns the value is made"""


def plan_rows(schema: StructType, *, json_values: bool) -> RowPlan:
    """Return how rows of a frame become messages.

    Raises:
        BadColumns: they cannot; the message says which column, and what to do.
    """
    found = {field.name.lower(): field.name for field in schema.fields}
    types = {field.name.lower(): field.dataType for field in schema.fields}
    if len(found) < len(schema.fields):
        raise BadColumns("two columns differ in case alone; rename one")
    for name, is_right, wanted in _KINDS:
        if name in types and not is_right(types[name]):
            told = types[name].simpleString()
            raise BadColumns(f"column {found[name]} is of type {told}; it can be {wanted}")
    others = [name for name in found if name not in _NAMES]
    if json_values:
        return _of_objects(found, others)
    if "value" not in found:
        raise BadColumns(
            f"there is no column value, but {', '.join(found.values()) or 'none at all'}; select "
            'what is to be the value, or write rows as JSON: option("valueFormat", "json")'
        )
    lost = [found[name] for name in others if name not in TOLD]
    if lost:
        raise BadColumns(
            f"columns {', '.join(lost)} would be lost; drop them, select what is to be written, "
            'or write rows as JSON without a column value: option("valueFormat", "json")'
        )
    return _plan(found, ())


def _of_objects(found: dict[str, str], others: Sequence[str]) -> RowPlan:
    if "value" in found:
        raise BadColumns("valueFormat is json, and there is a column value; drop or rename it")
    if not others:
        raise BadColumns("valueFormat is json, and there is no column to make an object of")
    return _plan(found, tuple(found[name] for name in others))


def _plan(found: dict[str, str], json: tuple[str, ...]) -> RowPlan:
    return RowPlan(
        value=found.get("value"),
        key=found.get("key"),
        headers=found.get("headers"),
        event_time=found.get("event_time"),
        partition=found.get("partition"),
        json=json,
    )


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, (*_TEXT, NullType))


def _is_time(kind: DataType) -> bool:
    return isinstance(kind, (*_TIMES, NullType))


def _is_whole(kind: DataType) -> bool:
    return isinstance(kind, (*_WHOLE, NullType))


def _are_headers(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, _TEXT)
    pair = kind.elementType if isinstance(kind, ArrayType) else None
    if isinstance(pair, StructType) and len(pair.fields) == len(("name", "value")):
        name, value = pair.fields
        names = (name.name.lower(), value.name.lower())
        is_named = names in (("key", "value"), ("name", "value"))
        return (
            is_named and isinstance(name.dataType, StringType) and isinstance(value.dataType, _TEXT)
        )
    return isinstance(kind, NullType)


_KINDS = (
    ("value", _is_text, "binary or string"),
    ("key", _is_text, "binary or string"),
    ("headers", _are_headers, "array<struct<key:string,value:binary>> or map<string,binary>"),
    ("event_time", _is_time, "bigint, which are nanoseconds, or timestamp"),
    ("partition", _is_whole, "int"),
)
_NAMES = tuple(name for name, _, _ in _KINDS)
