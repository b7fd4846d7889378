"""Values that are protobuf messages, decoded by their descriptors.

Arrow types: int32, int64 and their kin as they are, uint32 int64, uint64 decimal(20, 0), enum
string (an unknown number as its digits), bytes binary, repeated list, map map, message struct,
google.protobuf.Timestamp a timestamp (UTC). An absent field is null if its presence is tracked,
otherwise it has its default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from ledger_client.topics.values.kinds import Budget

_TIMESTAMP = "google.protobuf.Timestamp"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MIN, _SECONDS_MAX = -62_135_596_800, 253_402_300_799
"""Years 1 to 9999, the range that protobuf defines."""
_NANOS = 1_000_000_000
_TYPES: Mapping[int, pa.DataType] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
Convert = Callable[[Any], object]


class ProtobufDecoder:
    """Decodes values of one message type. See decoder.Decoder."""

    def __init__(self, descriptors: bytes, message: str) -> None:
        """Raise ValueError or TypeError for a missing message, or a field without a column type."""
        found = _find(descriptors, message)
        self._class = cast("type[Message]", message_factory.GetMessageClass(found))
        layout = _MessageTypes(Budget())
        self.fields: Sequence[pa.Field] = list(layout.struct_of(found, "", (), 0))
        self._convert = layout.message(found)

    def decode(self, value: bytes) -> dict[str, object]:
        """Return the fields by name. Raises ValueError if the bytes do not parse."""
        message = self._class()
        try:
            message.ParseFromString(value)
        except (DecodeError, ValueError, RecursionError) as wrong:
            raise ValueError(str(wrong) or type(wrong).__name__) from wrong
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            raise ValueError(f"a required field is missing: {missing}")
        return cast("dict[str, object]", self._convert(message))


def _find(descriptors: bytes, message: str) -> Descriptor:
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(descriptors)
    except DecodeError as wrong:
        raise ValueError("the descriptors are no FileDescriptorSet") from wrong
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files.file:
            pool.Add(file)
        return cast("Descriptor", pool.FindMessageTypeByName(message))
    except KeyError as wrong:
        raise ValueError(f"the descriptors have no message {message!r}") from wrong
    except TypeError as wrong:
        reason = "the descriptors lack a file that they import: protoc --include_imports keeps it"
        raise ValueError(f"{reason} ({wrong})") from wrong


class _MessageTypes:
    """Finds the Arrow type of each field, and builds the functions that convert messages."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._converts: dict[str, Convert] = {}

    # --- types -----------------------------------------------------------------------

    def struct_of(
        self, found: Descriptor, where: str, within: tuple[str, ...], depth: int
    ) -> pa.StructType:
        """Return the type of a message. Raises ValueError if no column can have it."""
        if found.full_name in within:
            raise ValueError(
                f"{where} is a {found.full_name} inside of itself, which no column can have"
            )
        if where and not found.fields:
            raise ValueError(f"{where} is a message without fields, which no column can have")
        around = (*within, found.full_name)
        return pa.struct(
            [
                pa.field(
                    each.name,
                    self._type_of(each, f"{where}.{each.name}".lstrip("."), around, depth),
                )
                for each in found.fields
            ]
        )

    def _type_of(
        self, field: FieldDescriptor, where: str, within: tuple[str, ...], depth: int
    ) -> pa.DataType:
        if _is_map(field):
            parts = field.message_type.fields_by_name
            return pa.map_(
                self._single(parts["key"], where, within, depth),
                self._single(parts["value"], f"{where}{{}}", within, depth),
            )
        single = self._single(field, where, within, depth)
        return pa.list_(single) if field.is_repeated else single

    def _single(
        self, field: FieldDescriptor, where: str, within: tuple[str, ...], depth: int
    ) -> pa.DataType:
        self._budget.spend(where, depth)
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
        if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
            return _TYPES[field.cpp_type]
        if field.message_type.full_name == _TIMESTAMP:
            return pa.timestamp("us", tz="UTC")
        return self.struct_of(field.message_type, where, within, depth + 1)

    # --- values ----------------------------------------------------------------------

    def message(self, found: Descriptor) -> Convert:
        """Return a function that converts a message of this type to a dict."""
        known = self._converts.get(found.full_name)
        if known is not None:
            return known
        fields = [(each.name, each.has_presence, self._field(each)) for each in found.fields]

        def convert(message: Any) -> object:  # noqa: ANN401 - made at run time
            return {
                name: None
                if has_presence and not message.HasField(name)
                else one(getattr(message, name))
                for name, has_presence, one in fields
            }

        self._converts[found.full_name] = convert
        return convert

    def _field(self, field: FieldDescriptor) -> Convert:
        if _is_map(field):
            parts = field.message_type.fields_by_name
            key, value = self._one(parts["key"]), self._one(parts["value"])
            return lambda found: {key(name): value(found[name]) for name in found}
        one = self._one(field)
        return (lambda found: [one(each) for each in found]) if field.is_repeated else one

    def _one(self, field: FieldDescriptor) -> Convert:
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            is_time = field.message_type.full_name == _TIMESTAMP
            return _moment if is_time else self.message(field.message_type)
        if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            names = {
                number: value.name for number, value in field.enum_type.values_by_number.items()
            }
            return lambda number: names.get(number, str(number))
        return Decimal if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else _same


def _is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE else None
    return kind is not None and field.is_repeated and kind.GetOptions().map_entry


def _same(value: object) -> object:
    return value


def _moment(stamp: Any) -> datetime:  # noqa: ANN401 - made at run time
    if not (_SECONDS_MIN <= stamp.seconds <= _SECONDS_MAX and 0 <= stamp.nanos < _NANOS):
        raise ValueError(f"{stamp.seconds} s and {stamp.nanos} ns is no point of time")
    return _EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)
