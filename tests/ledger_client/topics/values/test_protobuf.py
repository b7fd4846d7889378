"""Values that are protobuf messages: what fields they have, and what is made of what is none."""

from __future__ import annotations

import datetime
import sys
from decimal import Decimal

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given, settings, strategies as st

from ledger_client.errors import BadSchema
from ledger_client.topics.values.decoder import open_decoder, struct_array
from ledger_client.topics.values.kinds import ProtobufDefinition
from metadata.topics import Schema

F = descriptor_pb2.FieldDescriptorProto
MOMENT = datetime.datetime(2024, 5, 1, 12, 0, 0, 5, tzinfo=datetime.UTC)


def field(
    name: str,
    number: int,
    kind: int,
    *,
    type_name: str = "",
    repeated: bool = False,
    optional: bool = False,
) -> descriptor_pb2.FieldDescriptorProto:
    label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
    made = F(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    if optional:
        made.proto3_optional, made.oneof_index = True, 0
    return made


def file_of(*messages: descriptor_pb2.DescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto(
        name="order.proto",
        package="shop",
        syntax="proto3",
        message_type=messages,
        dependency=["google/protobuf/timestamp.proto"],
        enum_type=[
            descriptor_pb2.EnumDescriptorProto(
                name="State",
                value=[
                    descriptor_pb2.EnumValueDescriptorProto(name="NEW", number=0),
                    descriptor_pb2.EnumValueDescriptorProto(name="OLD", number=1),
                ],
            )
        ],
    )


def descriptors(*messages: descriptor_pb2.DescriptorProto, whole: bool = True) -> bytes:
    files = descriptor_pb2.FileDescriptorSet()
    if whole:
        timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    files.file.append(file_of(*messages))
    return bytes(files.SerializeToString())


def message(
    name: str, *fields: descriptor_pb2.FieldDescriptorProto, **more: object
) -> descriptor_pb2.DescriptorProto:
    return descriptor_pb2.DescriptorProto(name=name, field=fields, **more)


ITEM = message("Item", field("sku", 1, F.TYPE_STRING))
ORDER = message(
    "Order",
    field("id", 1, F.TYPE_INT64),
    field("big", 2, F.TYPE_UINT64),
    field("small", 3, F.TYPE_UINT32),
    field("paid", 4, F.TYPE_BOOL),
    field("weight", 5, F.TYPE_DOUBLE),
    field("data", 6, F.TYPE_BYTES),
    field("state", 7, F.TYPE_ENUM, type_name=".shop.State"),
    field("at", 8, F.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp"),
    field("items", 9, F.TYPE_MESSAGE, type_name=".shop.Item", repeated=True),
    field("first", 10, F.TYPE_MESSAGE, type_name=".shop.Item"),
    field("notes", 11, F.TYPE_MESSAGE, type_name=".shop.Order.NotesEntry", repeated=True),
    field("counts", 12, F.TYPE_INT32, repeated=True),
    field("comment", 13, F.TYPE_STRING, optional=True),
    nested_type=[
        message(
            "NotesEntry",
            field("key", 1, F.TYPE_STRING),
            field("value", 2, F.TYPE_INT32),
            options=descriptor_pb2.MessageOptions(map_entry=True),
        )
    ],
    oneof_decl=[descriptor_pb2.OneofDescriptorProto(name="_comment")],
)


def schema(told: bytes, name: str = "shop.Order") -> Schema:
    return Schema(kind="protobuf", definition=ProtobufDefinition.of(told, name).encode())


def new_order() -> object:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors(ITEM, ORDER))
    for each in files.file:
        pool.Add(each)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))()


def some_order() -> bytes:
    order: object = new_order()
    values = {"id": -5, "big": (1 << 64) - 1, "small": (1 << 32) - 1, "paid": True, "weight": 1.5}
    for name, value in (values | {"data": b"\xff", "state": 1}).items():
        setattr(order, name, value)
    order.at.FromDatetime(MOMENT)  # type: ignore[attr-defined]  # made at run time
    order.items.add(sku="a")  # type: ignore[attr-defined]
    order.notes["x"] = 7  # type: ignore[attr-defined]
    order.counts.extend([1, 2])  # type: ignore[attr-defined]
    return bytes(order.SerializeToString())  # type: ignore[attr-defined]


EXPECTED = {
    "id": -5,
    "big": Decimal((1 << 64) - 1),
    "small": (1 << 32) - 1,
    "paid": True,
    "weight": 1.5,
    "data": b"\xff",
    "state": "OLD",
    "at": MOMENT,
    "items": [{"sku": "a"}],
    "first": None,
    "notes": {"x": 7},
    "counts": [1, 2],
    "comment": None,
}


def test_each_type_is_a_column_of_its_own() -> None:
    decoder = open_decoder("s/t", schema(descriptors(ITEM, ORDER)))
    assert decoder.decode(some_order()) == EXPECTED
    types = {each.name: each.type for each in decoder.fields}
    item = pa.struct([pa.field("sku", pa.string())])
    assert types == {
        "id": pa.int64(),
        "big": pa.decimal128(20, 0),
        "small": pa.int64(),
        "paid": pa.bool_(),
        "weight": pa.float64(),
        "data": pa.binary(),
        "state": pa.string(),
        "at": pa.timestamp("us", tz="UTC"),
        "items": pa.list_(item),
        "first": item,
        "notes": pa.map_(pa.string(), pa.int32()),
        "counts": pa.list_(pa.int32()),
        "comment": pa.string(),
    }
    (row,) = pa.array([decoder.decode(some_order())], pa.struct(decoder.fields)).to_pylist()
    assert row == EXPECTED | {"notes": [("x", 7)]}


def test_what_is_not_there_is_a_default_or_null() -> None:
    """The empty message is a value: nothing of it is missing."""
    found = open_decoder("s/t", schema(descriptors(ITEM, ORDER))).decode(b"")
    assert (found["id"], found["state"], found["items"]) == (0, "NEW", [])
    assert (found["at"], found["first"], found["comment"]) == (None, None, None)


def test_a_number_that_no_enum_has_is_its_digits_and_a_time_out_of_bounds_is_bad() -> None:
    decoder = open_decoder("s/t", schema(descriptors(ITEM, ORDER)))
    assert decoder.decode(b"\x38\x63")["state"] == "99"
    order: object = new_order()
    order.at.seconds = 1 << 60  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="no point of time"):
        decoder.decode(bytes(order.SerializeToString()))  # type: ignore[attr-defined]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 7))
def test_no_bytes_do_more_than_raise_bad_value(data: bytes, place: int, bit: int) -> None:
    decoder = open_decoder("s/t", schema(descriptors(ITEM, ORDER)))
    flipped = bytearray(some_order())
    flipped[place % len(flipped)] ^= 1 << bit
    told: list[bytes] = []
    values = [data, bytes(flipped), some_order()]
    kind = pa.struct(decoder.fields)
    found = struct_array(decoder, kind, values, lambda value, _: told.append(value)).to_pylist()
    assert found[2] is not None
    assert [value for value, row in zip(values, found, strict=True) if row is None] == told


LOOP = message("Loop", field("next", 1, F.TYPE_MESSAGE, type_name=".shop.Loop"))
EMPTY = message("Empty")
HOLDER = message("Holder", field("f", 1, F.TYPE_MESSAGE, type_name=".shop.Empty"))


@pytest.mark.parametrize(
    ("told", "name", "words"),
    [
        (descriptors(ITEM, ORDER), "shop.Nothing", "have no message 'shop.Nothing'"),
        (descriptors(ITEM, ORDER, whole=False), "shop.Order", "protoc --include_imports"),
        (descriptors(LOOP), "shop.Loop", "next is a shop.Loop inside of itself"),
        (descriptors(EMPTY, HOLDER), "shop.Holder", "f is a message without fields"),
        (b"\xff", "shop.Order", "no FileDescriptorSet"),
        (b"", "shop.Order", "have no message"),
    ],
)
def test_what_no_columns_can_be_made_of_is_told(told: bytes, name: str, words: str) -> None:
    with pytest.raises(BadSchema, match=words) as refused:
        open_decoder("s/t", schema(told, name))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "definition", ["x", "{}", '{"message": "a", "descriptors": "*"}', '{"message": 1}']
)
def test_a_definition_that_is_none_is_told(definition: str) -> None:
    with pytest.raises(BadSchema):
        open_decoder("s/t", Schema(kind="protobuf", definition=definition))


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    monkeypatch.delitem(sys.modules, "ledger_client.topics.values.protobuf", raising=False)
    with pytest.raises(BadSchema, match=r"protobuf, .*: pip install '\.\[schemas\]'"):
        open_decoder("s/t", schema(b""))
