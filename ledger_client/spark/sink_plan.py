"""The options of a write, and the columns of a frame that become messages.

option         meaning
-------------  ---------------------------------------------------------------------
cluster        the cluster's URL; else QUIRE_CLUSTER, else this host's port 3181
topic          namespace/name of an existing topic
valueFormat    "json": there is no column value; each row is a JSON object
sinkName       of a streaming query: its batches are counted under this name too. With a new
               name the query starts over: all batches of its checkpoint are written

A streaming query also has checkpointLocation and queryName, which are Spark's.

column       types                                    becomes
-----------  ---------------------------------------  ----------------------------------
value        binary, string                           the value, which may be null
key          binary, string                           the key, which routes to a partition
headers      array of structs (key or name, value),   the headers
             or map; names text, values binary or text
event_time   whole numbers: nanoseconds; timestamps   the event time
partition    whole numbers                            the partition, whatever the key

Only value is required; names match in any case. Columns that only say where a message was read
(topic, lane, ledger and so on) are ignored, so that a frame read from a topic can be written to
another. Any other column is refused, since it would be lost. With JSON values there is no column
value: all columns except the other four become the object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

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

from ledger_client.errors import SparkError
from ledger_client.spark.options import GivenOptions

_OPTIONS = (
    "cluster",
    "topic",
    "path",
    "valueFormat",
    "sinkName",
    "checkpointLocation",
    "queryName",
)
_SINK_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a write, checked."""

    cluster: str
    topic: str
    json_values: bool = False
    sink_name: str = ""
    checkpoint: str = ""
    """location of a streaming query's checkpoint, if known"""

    def query_of(self, query_id: str) -> str:
        """Return the id under which a streaming query's batches are counted."""
        return f"{query_id}.{self.sink_name}" if self.sink_name else query_id


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options that Spark passes.

    Raises:
        SparkError: an option is invalid; the message names it.
    """
    options = GivenOptions(given, _OPTIONS)
    names = [text for text in map(options.text, ("topic", "path")) if text]
    if len(names) != 1 or "," in names[0]:
        raise SparkError.option("topic", "which topic is to be written? one namespace/name")
    return SinkOptions(
        cluster=options.cluster(),
        topic=names[0],
        json_values=options.one("valueFormat", _is_json, False),
        sink_name=options.one("sinkName", _sink_name, ""),
        checkpoint=options.one("checkpointLocation", _checkpoint, ""),
    )


def _sink_name(text: str) -> str:
    if not _SINK_NAME.fullmatch(text):
        raise ValueError(f"{text!a} is not 1 to 100 letters, digits, '_', '-' or '.'")
    return text


def _checkpoint(text: str) -> str:
    """Normalize a location: file:///a/, file:/a and /a are the same."""
    parts = urlsplit(text)
    location = parts.path if parts.scheme in {"", "file"} and not parts.netloc else text
    return location.rstrip("/")[-1000:]


def _is_json(text: str) -> bool:
    if text.lower() not in {"json", "binary"}:
        raise ValueError(f'{text!r} is neither "json" nor "binary"')
    return text.lower() == "json"


IGNORED = frozenset({
    *("topic", "lane", "ledger", "entry", "batch_index", "message_id", "version"),
    *("timestamp", "publish_time", "producer"),
})  # fmt: skip
"""Columns of a read that a write ignores."""
_TEXT = (BinaryType, StringType)
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_TIMES = (*_WHOLE, TimestampType, TimestampNTZType)


class RowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The frame's column for each part of a message, `None` if there is none."""

    value: str | None = None
    key: str | None = None
    headers: str | None = None
    event_time: str | None = None
    partition: str | None = None
    json: tuple[str, ...] = ()
    """columns of the value's object"""


def plan_rows(schema: StructType, *, json_values: bool) -> RowPlan:
    """Return the plan for writing rows of a frame as messages.

    Raises:
        SparkError: the message names the column and says what to do.
    """
    found = {field.name.lower(): field.name for field in schema.fields}
    types = {field.name.lower(): field.dataType for field in schema.fields}
    if len(found) < len(schema.fields):
        raise SparkError("two columns differ in case alone; rename one")
    for name, is_right, wanted in _KINDS:
        if name in types and not is_right(types[name]):
            kind = types[name].simpleString()
            raise SparkError(f"column {found[name]} is of type {kind}; it can be {wanted}")
    others = [name for name in found if name not in _NAMES]
    if json_values:
        return _of_objects(found, others)
    if "value" not in found:
        raise SparkError(
            f"there is no column value, but {', '.join(found.values()) or 'none at all'}; select "
            'what is to be the value, or write rows as JSON: option("valueFormat", "json")'
        )
    lost = [found[name] for name in others if name not in IGNORED]
    if lost:
        raise SparkError(
            f"columns {', '.join(lost)} would be lost; drop them, select what is to be written, "
            'or write rows as JSON without a column value: option("valueFormat", "json")'
        )
    return _plan(found, ())


def _of_objects(found: dict[str, str], others: Sequence[str]) -> RowPlan:
    if "value" in found:
        raise SparkError("valueFormat is json, and there is a column value; drop or rename it")
    if not others:
        raise SparkError("valueFormat is json, and there is no column to make an object of")
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
