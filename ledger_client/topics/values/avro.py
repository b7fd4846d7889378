"""Values in Avro's binary encoding, decoded by fastavro.

Arrow types: int int32, long int64, float, double, boolean, string and enum string, bytes and
fixed binary, array list, map map, record struct, [null, T] as T; of logical types date, decimal,
timestamp-millis and timestamp-micros (UTC). Other logical types appear as they are encoded: a uuid
as its text, a time-millis as an int.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal, DecimalException
from typing import Any

import msgspec
import pyarrow as pa
from fastavro import parse_schema, schemaless_reader
from fastavro.read import LOGICAL_READERS
from fastavro.schema import SchemaParseException, UnknownType
from fastavro.types import Schema

from ledger_client.topics.values.kinds import Budget

Complex = dict[str, Any]
"""A schema that is a JSON object; others are a name, or a list."""
Around = tuple[str, ...]
"""Names of the records that contain a type."""
_PRIMITIVES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
}
_PRECISION_MAX = 38
_DECIMAL = "quire-decimal"
"""Replaces "decimal": fastavro's own decoder takes hours for a number of a few million bytes."""
_EXACT = Context(prec=100)
"""More digits than a number of _DECIMAL_SIZE_MAX has, so none is rounded."""
_DECIMAL_SIZE_MAX = 32
"""Bytes of a number. Sixteen hold all digits; the others may only repeat the sign."""
_UNUSABLE = (KeyError, TypeError, AttributeError, ValueError)
"""Raised by fastavro for JSON that is no schema, beside its own errors."""
_BROKEN = (
    *(EOFError, ValueError, IndexError, OverflowError, TypeError, KeyError, StopIteration),
    *(DecimalException, RecursionError),
)
"""Raised by fastavro for bytes that do not match the schema."""


class AvroDecoder:
    """Decodes values of one Avro record. See decoder.Decoder."""

    def __init__(self, definition: str) -> None:
        """Raise ValueError or TypeError if it is not a record's schema, or has no columns."""
        given = msgspec.json.decode(definition)
        names: dict[str, dict[str, object]] = {}
        try:
            parsed = parse_schema(given, named_schemas=names)
        except (SchemaParseException, UnknownType, *_UNUSABLE) as wrong:
            raise ValueError(f"it is no Avro schema: {wrong}") from wrong
        layout = _RecordTypes(names)
        found = layout.type_of(parsed, "", ())
        if not pa.types.is_struct(found):
            raise TypeError("it is no record, so it has no fields")
        self.fields: Sequence[pa.Field] = list(found)
        self._schema = _known_logical(parsed)

    def decode(self, value: bytes) -> dict[str, object]:
        """Return the fields by name. Raises ValueError unless all bytes match the schema."""
        source = io.BytesIO(value)
        try:
            found = schemaless_reader(source, self._schema, None)
        except _BROKEN as wrong:
            raise ValueError(str(wrong) or type(wrong).__name__) from wrong
        if source.tell() != len(value):
            raise ValueError(f"it has {len(value) - source.tell()} bytes more than its fields")
        assert isinstance(found, dict)  # as a record is
        return found


class _RecordTypes:
    """Maps the types of a parsed schema to Arrow types."""

    def __init__(self, names: Mapping[str, Schema]) -> None:
        self._names = names
        self._budget = Budget()

    def type_of(self, schema: Schema, where: str, within: Around, depth: int = 0) -> pa.DataType:
        """Return the Arrow type of *schema*, inside the records *within*. Raises ValueError."""
        self._budget.spend(where, depth)
        if isinstance(schema, list):
            return self._union(schema, where, within, depth)
        if isinstance(schema, str):
            return self._named(schema, where, within, depth)
        if schema["type"] in {"record", "error"}:
            return self._record(schema, where, within, depth)
        return self._logical(schema) or self._plain(schema, where, within, depth)

    def _named(self, name: str, where: str, within: Around, depth: int) -> pa.DataType:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        if name in self._names:
            return self.type_of(self._names[name], where, within, depth)
        raise ValueError(f"{where or 'it'} has the type {name!r}, which no column can have")

    def _plain(self, schema: Complex, where: str, within: Around, depth: int) -> pa.DataType:
        match schema["type"]:
            case "enum":
                return pa.string()
            case "fixed":
                return pa.binary()
            case "map":
                value = self.type_of(schema["values"], f"{where}{{}}", within, depth + 1)
                return pa.map_(pa.string(), value)
            case "array":
                item = self.type_of(schema["items"], f"{where}[]", within, depth + 1)
                if _may_be_empty(schema["items"], self._names):
                    raise ValueError(f"{where} is a list of nothing: its items take no bytes")
                return pa.list_(item)
            case kind:
                return self.type_of(kind, where, within, depth)

    def _record(self, schema: Complex, where: str, within: Around, depth: int) -> pa.DataType:
        name = schema["name"]
        if name in within:
            raise ValueError(f"{where} is a {name} inside of itself, which no column can have")
        around = (*within, name)
        fields = []
        for each in schema["fields"]:
            inner = f"{where}.{each['name']}".lstrip(".")
            fields.append(
                pa.field(each["name"], self.type_of(each["type"], inner, around, depth + 1))
            )
        if where and not fields:
            raise ValueError(f"{where} is a record without fields, which no column can have")
        return pa.struct(fields)

    def _union(self, kinds: list[Schema], where: str, within: Around, depth: int) -> pa.DataType:
        left = [kind for kind in kinds if kind != "null"]
        if len(left) != 1:
            reason = f"{where or 'it'} is a union of several types, which no column can have"
            raise ValueError(reason)
        return self.type_of(left[0], where, within, depth)

    def _logical(self, schema: Complex) -> pa.DataType | None:
        kind, logical = str(schema["type"]), str(schema.get("logicalType"))
        if logical == "decimal" and kind in {"bytes", "fixed"}:
            precision = schema.get("precision", 0)
            if not 0 < precision <= _PRECISION_MAX:
                raise ValueError(f"a decimal has at most {_PRECISION_MAX} digits, not {precision}")
            return pa.decimal128(precision, schema.get("scale", 0))
        return _LOGICAL.get((kind, logical))


def _may_be_empty(schema: Schema, names: Mapping[str, Schema]) -> bool:
    """True if a datum can take no bytes, so that a few bytes could encode any number of them."""
    if isinstance(schema, list):
        return False  # the branch takes a byte
    if isinstance(schema, str):
        return schema == "null" or (schema in names and _may_be_empty(names[schema], names))
    kind = schema["type"]
    if kind == "fixed":
        return bool(schema["size"] == 0)
    if kind in {"record", "error"}:
        return all(_may_be_empty(each["type"], names) for each in schema["fields"])
    if kind in {"array", "map", "enum"}:
        return False  # the list's end, or the index, takes a byte
    return _may_be_empty(kind, names)


def _decimal(data: bytes, schema: Complex | None, _reader: object = None) -> Decimal:
    assert schema is not None
    if len(data) > _DECIMAL_SIZE_MAX:
        raise ValueError(f"a decimal of {len(data)} bytes")
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-schema.get("scale", 0), _EXACT)


LOGICAL_READERS[f"bytes-{_DECIMAL}"] = LOGICAL_READERS[f"fixed-{_DECIMAL}"] = _decimal


def _known_logical(schema: Schema) -> Schema:
    """Return the schema without logical types that have no column type here."""
    if isinstance(schema, list):
        return [_known_logical(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _known_logical(each) for key, each in schema.items() if key != "default"}
    key = (str(schema.get("type")), str(schema.get("logicalType")))
    if key in {("bytes", "decimal"), ("fixed", "decimal")}:
        kept["logicalType"] = _DECIMAL
    elif "logicalType" in kept and key not in _LOGICAL:
        del kept["logicalType"]
    return kept
