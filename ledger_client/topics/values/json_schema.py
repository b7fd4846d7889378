"""The columns that a schema of kind "json" describes.

Its definition is a JSON Schema of an object, or a schema as Spark writes it
(``frame.schema.json()``), which only Spark can turn into columns.

JSON Schema                        column
---------------------------------  -------------------------------------------
object with properties             struct
array with items                   list
string, format date-time           timestamp in microseconds, UTC
string, integer, number, boolean   utf8, int64, float64, bool
["null", kind]                     that of the kind: each column may be null

pyarrow takes long to import, so import this module only inside functions that need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from ledger_client.topics.values.kinds import Budget

_SIMPLE: Mapping[str, pa.DataType] = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.utf8(),
}
SPARKS = "struct"
"""The type of a schema that Spark wrote."""


def decoded(definition: str) -> Any:  # noqa: ANN401 - anything may be in JSON
    """Return the definition's JSON. Raises ValueError if it is none."""
    try:
        return msgspec.json.decode(definition)
    except (msgspec.DecodeError, RecursionError) as wrong:
        raise ValueError(f"it is no JSON: {wrong}") from wrong


def is_sparks(schema: object) -> bool:
    """True for a schema that Spark wrote."""
    return isinstance(schema, dict) and schema.get("type") == SPARKS


def check_definition(definition: str) -> None:
    """Raise ValueError unless the definition describes the fields of an object.

    Of a schema that Spark wrote only the outermost fields are checked.
    """
    schema = decoded(definition)
    if not is_sparks(schema):
        fields_of(schema)
        return
    fields = schema.get("fields")
    named = isinstance(fields, list) and all(
        isinstance(each, dict) and isinstance(each.get("name"), str) and "type" in each
        for each in fields
    )
    if not named:
        raise ValueError("it is a struct, but not with fields as Spark writes them")


def fields_of(schema: object) -> list[pa.Field]:
    """Return the columns of a JSON Schema. Raises ValueError if it describes none."""
    found = _type_of(schema, "", Budget(), 0)
    if not pa.types.is_struct(found):
        raise ValueError("it is not the schema of an object, so it has no fields")
    return list(found)


def _type_of(schema: Any, where: str, budget: Budget, depth: int) -> pa.DataType:  # noqa: ANN401 - anything may be in JSON
    budget.spend(where, depth)
    named = schema.get("type") if isinstance(schema, dict) else None
    kinds = [kind for kind in (named if isinstance(named, list) else [named]) if kind != "null"]
    kind = kinds[0] if len(kinds) == 1 else None
    if kind == "object" and not where and "properties" not in schema:
        return pa.struct([])  # objects of any fields: a column needs known fields
    if kind == "object" and isinstance(schema.get("properties"), dict):
        return pa.struct(
            [
                pa.field(name, _type_of(part, f"{where}.{name}".lstrip("."), budget, depth + 1))
                for name, part in schema["properties"].items()
            ]
        )
    if kind == "array":
        return pa.list_(_type_of(schema.get("items"), f"{where}[]", budget, depth + 1))
    if kind == "string" and schema.get("format") == "date-time":
        return pa.timestamp("us", tz="UTC")
    if isinstance(kind, str) and kind in _SIMPLE:
        return _SIMPLE[kind]
    raise ValueError(f"{where or 'it'} has the type {named!r}, which no column can have")
