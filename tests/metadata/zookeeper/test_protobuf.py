"""Protocol buffers by hand: the runtime's own bytes, damage, and the text form."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from hypothesis import given, strategies as st

from metadata.errors import BadRecord
from metadata.zookeeper.protobuf import (
    bytes_field,
    fields,
    number_field,
    quoted,
    read_text,
    read_varint,
    varint,
)


def test_the_documented_bytes_are_read() -> None:
    (field,) = fields(bytes.fromhex("109601"))
    assert (field.number, field.integer) == (2, 150)


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.text())
def test_fields_are_what_the_runtime_writes(number: int, text: str) -> None:
    message = FieldDescriptorProto(name=text, number=number)
    written = bytes_field(1, text) + number_field(3, number)
    assert written == message.SerializeToString(deterministic=True)
    one, two = fields(written)
    assert (one.text, two.integer) == (text, number)
    assert one.raw + two.raw == written


@pytest.mark.parametrize("value", [0, 127, 128, (1 << 63) - 1, -1])
def test_a_varint_comes_back_in_64_bits(value: int) -> None:
    data = varint(value)
    assert read_varint(data, 0) == (value & (1 << 64) - 1, len(data))


@pytest.mark.parametrize(
    "data",
    ["80", "0a", "0a05", "0d01", "0b", "00", "ff" * 11, "08" + "ff" * 10 + "01", "0907"],
)
def test_bytes_that_are_no_message_are_refused(data: str) -> None:
    with pytest.raises(BadRecord):
        list(fields(bytes.fromhex(data)))


def test_a_field_of_another_type_is_refused() -> None:
    number, text = fields(number_field(1, 5) + bytes_field(2, b"\xff"))
    for wrong in (lambda: number.text, lambda: text.integer, lambda: text.text):
        with pytest.raises(BadRecord):
            wrong()


@given(st.text(st.characters(codec="utf-8")))
def test_text_is_quoted_as_the_runtime_reads_it(text: str) -> None:
    shown = f"name: {quoted(text)}"
    assert text_format.Parse(shown, FieldDescriptorProto()).name == text
    assert read_text(shown.encode()) == [("name", text.encode())]


@given(st.text(), st.integers(-5, 5))
def test_text_of_the_runtime_is_read(text: str, number: int) -> None:
    message = FieldDescriptorProto(name=text, number=number, type="TYPE_INT32")
    shown = text_format.MessageToString(message).encode()
    assert dict(read_text(shown)) == {"name": text.encode(), "number": number, "type": "TYPE_INT32"}


def test_nested_text_comments_and_joined_strings_are_read() -> None:
    text = b"""# a comment
    a { b: "x" 'y\\x41\\101' } , c < d: -3; > e: OPEN"""
    assert read_text(text) == [
        ("a", [("b", b"xyAA")]),
        ("c", [("d", -3)]),
        ("e", "OPEN"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        b"a",
        b"a:",
        b"a: }",
        b"a { b: 1",
        b"a { b: 1 >",
        b"}",
        b'a: "x',
        b'a: "\\q"',
        b"a: 1.5",
        b"a: \xff",
        b"a 5",
        b"5: 5",
        b"a { " * 9,
    ],
)
def test_text_that_is_no_message_is_refused(text: bytes) -> None:
    with pytest.raises(BadRecord):
        read_text(text)
