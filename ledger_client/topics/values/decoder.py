"""Decoding values whose topic's schema is of kind "avro" or "protobuf" (kinds.py).

Each field becomes a column, of an Arrow type that Spark has too. Types without one (those that
contain themselves, unions of several types, lists of nothing) are refused when the schema is
opened. That fixes the types, so the same bytes give the same columns everywhere.

pyarrow takes long to import, so import this module only inside functions that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from ledger_client.errors import BadSchema
from ledger_client.topics.values.kinds import PACKAGES, ProtobufDefinition
from metadata.topics import Schema


class Decoder(Protocol):
    """Decodes the values of one schema. Threads may share it, one at a time."""

    fields: Sequence[pa.Field]
    """the fields of a value; each may be null"""

    def decode(self, value: bytes) -> dict[str, object]:
        """Return the fields as Python objects that Arrow accepts. Raises ValueError."""


def open_decoder(topic: str, schema: Schema) -> Decoder:
    """Return the decoder of a schema for which kinds.is_decoded() holds.

    Raises:
        BadSchema: the definition cannot be parsed, a field has no column type, or the package
            for its kind is not installed.
    """
    try:
        if schema.kind == "avro":
            from ledger_client.topics.values.avro import AvroDecoder

            return AvroDecoder(schema.definition)
        from ledger_client.topics.values.protobuf import ProtobufDecoder

        definition = msgspec.json.decode(schema.definition, type=ProtobufDefinition)
        return ProtobufDecoder(definition.descriptor_set, definition.message)
    except ImportError as missing:
        package = PACKAGES[schema.kind]
        raise BadSchema(
            f"values of kind {schema.kind} are decoded by {package}, which is not installed: "
            "pip install '.[schemas]' in a clone of quire",
            topic=topic,
            package=package,
        ) from missing
    except (ValueError, TypeError, RecursionError) as wrong:
        raise BadSchema.unreadable(topic, wrong) from wrong


def struct_array(
    decoder: Decoder,
    kind: pa.StructType,
    values: Sequence[bytes | None],
    on_bad: Callable[[bytes, Exception], None],
) -> pa.StructArray:
    """Return *values* decoded as an array of *kind*, which has some of the decoder's fields.

    A value that does not match the schema is passed to *on_bad*, and null in the array if that
    returns. Null values stay null.
    """
    rows: list[dict[str, object] | None] = []
    for value in values:
        try:
            rows.append(None if value is None else decoder.decode(value))
        except ValueError as wrong:
            assert value is not None
            on_bad(value, wrong)
            rows.append(None)
    return _array(kind, rows, values, on_bad)


def _array(
    kind: pa.StructType,
    rows: list[dict[str, object] | None],
    values: Sequence[bytes | None],
    on_bad: Callable[[bytes, Exception], None],
) -> pa.StructArray:
    """Return the rows as an array. A value that no column can hold is found by bisection."""
    try:
        return pa.array(rows, kind)
    except (ValueError, TypeError, OverflowError) as wrong:  # a decimal with too many digits
        if len(rows) > 1:
            middle = len(rows) // 2
            first = _array(kind, rows[:middle], values[:middle], on_bad)
            second = _array(kind, rows[middle:], values[middle:], on_bad)
            return pa.concat_arrays([first, second])
        on_bad(values[0] or b"", wrong)
        return pa.nulls(1, kind)
