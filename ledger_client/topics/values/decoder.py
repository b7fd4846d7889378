"""Decoding values whose topic's schema is of kind "avro" or "protobuf" (kinds.py).

Each field is a column, of an Arrow type that Spark has too; what has none (a type that contains
itself, a union of several types, a list of nothing) is refused when the schema is opened. Types
are laid down there, so the same bytes give the same columns everywhere.

pyarrow takes long to import, so import this module where it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from ledger_client.topics.errors import BadSchema, SchemaPackageMissing
from ledger_client.topics.values.kinds import PACKAGES, ProtobufDefinition
from metadata.topics import Schema

DEPTH_MAX = 32
"""Of types inside of types."""
FIELDS_MAX = 10_000
"""In all, whatever their depth: a schema can multiply itself."""


class BadValue(ValueError):
    """The bytes are not what the schema says."""


class Decoder(Protocol):
    """Decodes the values of one schema. Any thread may use it, one at a time."""

    fields: Sequence[pa.Field]
    """of a value, each of which may be null"""

    def decode(self, value: bytes) -> dict[str, object]:
        """Return the fields as Python objects that Arrow takes. Raises BadValue."""


def open_decoder(topic: str, schema: Schema) -> Decoder:
    """Return the decoder of a schema for which kinds.is_decoded() holds.

    Raises:
        BadSchema: the definition cannot be understood, or a field can be no column.
        SchemaPackageMissing: the package for its kind is not installed.
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
        raise SchemaPackageMissing(
            f"its schema is of kind {schema.kind}, which needs {package}: "
            "pip install 'quire[schemas]'",
            topic=topic,
        ) from missing
    except (ValueError, TypeError, RecursionError) as wrong:
        reason = next(iter(str(wrong).strip().splitlines()), type(wrong).__name__)
        raise BadSchema(f"its schema cannot be read: {reason}", topic=topic) from wrong


def struct_array(
    decoder: Decoder,
    kind: pa.StructType,
    values: Sequence[bytes | None],
    on_bad: Callable[[bytes, Exception], None],
) -> pa.StructArray:
    """Return *values* decoded as an array of *kind*, which has some of the decoder's fields.

    A value that is null, or is told to *on_bad* because it is not what the schema says, is null.
    What *on_bad* raises is passed on.
    """
    rows: list[dict[str, object] | None] = []
    for value in values:
        try:
            rows.append(None if value is None else decoder.decode(value))
        except BadValue as wrong:
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
    """Return the rows as an array; what no column can hold is found by halving."""
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


class Budget:
    """Counts types while a schema is laid out. Raises ValueError when there are too many."""

    def __init__(self) -> None:
        self._left = FIELDS_MAX

    def spend(self, where: str, depth: int) -> None:
        """Count one type at *depth*."""
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"it has more than {FIELDS_MAX} fields in all")
        if depth > DEPTH_MAX:
            raise ValueError(f"{where} is deeper than {DEPTH_MAX} types inside of types")
