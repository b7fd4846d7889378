"""Protocol buffers by hand: the binary form, and the text form that BookKeeper also stores.

A message is a list of fields. In binary, each field is a varint ``number << 3 | wire type``
followed by its value:

    wire type   value
    ---------   ------------------------------------------------------
    0 VARINT    7 bits a byte, lowest first, top bit: another follows
    1 FIXED64   8 bytes
    2 BYTES     varint size, then that many bytes: text, or a message
    5 FIXED32   4 bytes

``15 02`` would be the field 2 of type FIXED32; ``10 96 01`` is field 2, the number 150.

The three messages that are needed here have twenty fields in all, and a record must keep fields
of a later version byte for byte, which the protobuf runtime does only for whole messages it
generated classes for. So the runtime is not required for this.

Readers raise BadRecord for everything that is not of this form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from metadata.errors import BadRecord

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
_VARINT_SIZE_MAX = 10
_UINT64 = (1 << 64) - 1
_NUMBER_MAX = (1 << 29) - 1


class Field(NamedTuple):
    """One field of a message; *raw* is all of it as it was read."""

    number: int
    wire_type: int
    value: int | bytes
    raw: bytes

    @property
    def integer(self) -> int:
        """The value of an int32, int64, uint or enum. Raises BadRecord for another wire type."""
        if not isinstance(self.value, int):
            raise BadRecord(f"field {self.number} is not a number")
        return self.value - (1 << 64) if self.value >> 63 else self.value

    @property
    def bytes(self) -> bytes:
        """The value of a bytes field or message. Raises BadRecord for another wire type."""
        if self.wire_type != BYTES or isinstance(self.value, int):
            raise BadRecord(f"field {self.number} is not a run of bytes")
        return self.value

    @property
    def text(self) -> str:
        """The value of a string. Raises BadRecord for another wire type, or bytes not UTF-8."""
        try:
            return self.bytes.decode()
        except UnicodeDecodeError:
            raise BadRecord(f"field {self.number} is not text") from None


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of *message* in order. Raises BadRecord."""
    at = 0
    while at < len(message):
        key, behind = message[at], at + 1
        if key >= 0x80:
            key, behind = read_varint(message, at)
        number, wire_type = key >> 3, key & 7
        if not 1 <= number <= _NUMBER_MAX:
            raise BadRecord(f"no field has the number {number}")
        value: int | bytes
        if wire_type == VARINT:
            value, end = read_varint(message, behind)
        else:
            if wire_type == BYTES:
                size, behind = read_varint(message, behind)
            elif wire_type in _FIXED_SIZES:
                size = _FIXED_SIZES[wire_type]
            else:
                raise BadRecord(f"field {number} has the wire type {wire_type}")
            end = behind + size
            if end > len(message):
                raise BadRecord(f"field {number} is cut off")
            value = message[behind:end]
        yield Field(number, wire_type, value, message[at:end])
        at = end


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at offset *at*, and the offset behind it. Raises BadRecord."""
    if at < len(data) and data[at] < 0x80:  # most are
        return data[at], at + 1
    value = 0
    for index, byte in enumerate(data[at : at + _VARINT_SIZE_MAX]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & _UINT64, at + index + 1
    raise BadRecord("a number is cut off" if at + _VARINT_SIZE_MAX > len(data) else "no varint")


def varint(value: int) -> bytes:
    """Return *value* as a varint; a negative one in 64 bits, as int32 and int64 have it."""
    value &= _UINT64
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def number_field(number: int, value: int) -> bytes:
    """Return an int32, int64, uint or enum field."""
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, value: bytes | str) -> bytes:
    """Return a string, bytes or message field."""
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | BYTES) + varint(len(value)) + value


# --- the text form -----------------------------------------------------------------------

TextValue = int | str | bytes | list[tuple[str, "TextValue"]]
"""A number, the name of an enum's value, a quoted string, or the fields of a message."""

TextFields = list[tuple[str, TextValue]]

_DEPTH_MAX = 4
_TOKEN = re.compile(
    rb"[\s,;]+|#[^\n]*|(?P<name>[A-Za-z_]\w*)|(?P<number>-?[0-9]{1,20}(?![\w.]))"
    rb"|(?P<mark>[{}<>:])|(?P<string>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_ESCAPED = {
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
    b"\\": b"\\",
    b"'": b"'",
    b'"': b'"',
    b"?": b"?",
}
_Token = tuple[str, bytes]


def read_text(data: bytes) -> TextFields:
    """Return the fields of a message in text form, in order. Raises BadRecord."""
    tokens = list(_tokens(data))
    found, at = _read_fields(tokens, 0, 0)
    if at < len(tokens):
        raise BadRecord("a bracket closes that was never opened")
    return found


def quoted(text: str) -> str:
    """Return *text* as a string of the text form."""
    shown = []
    for byte in text.encode():
        character = chr(byte)
        if character in "\"'\\":
            shown.append("\\" + character)
        elif 0x20 <= byte < 0x7F:
            shown.append(character)
        else:
            shown.append(f"\\{byte:03o}")
    return '"' + "".join(shown) + '"'


def _tokens(data: bytes) -> Iterator[_Token]:
    at = 0
    while at < len(data):
        match = _TOKEN.match(data, at)
        if match is None:
            raise BadRecord(f"{data[at : at + 20]!r} is not the text of a message")
        if match.lastgroup is not None:
            yield match.lastgroup, match.group()
        at = match.end()


def _read_fields(tokens: list[_Token], at: int, depth: int) -> tuple[TextFields, int]:
    """Return the fields from token *at* on, and the token behind them: a bracket or the end."""
    if depth > _DEPTH_MAX:
        raise BadRecord("a message lies too deep in others")
    found: TextFields = []
    while at < len(tokens) and tokens[at][1] not in (b"}", b">"):
        kind, name = tokens[at]
        if kind != "name":
            raise BadRecord(f"{name[:40]!r} is not the name of a field")
        value, at = _read_value(tokens, at + 1, depth)
        found.append((name.decode(), value))
    return found, at


def _read_value(tokens: list[_Token], at: int, depth: int) -> tuple[TextValue, int]:
    colon = tokens[at : at + 1] == [("mark", b":")]
    at += colon
    kind, token = tokens[at] if at < len(tokens) else ("", b"")
    if token in (b"{", b"<") and kind == "mark":
        message, at = _read_fields(tokens, at + 1, depth + 1)
        if tokens[at : at + 1] != [("mark", b"}" if token == b"{" else b">")]:
            raise BadRecord("a bracket is not closed")
        return message, at + 1
    if not colon or kind not in ("name", "number", "string"):
        raise BadRecord("a field has no value")
    if kind == "number":
        return int(token), at + 1
    if kind == "name":
        return token.decode(), at + 1
    text = b""
    while at < len(tokens) and tokens[at][0] == "string":
        text += _ESCAPE.sub(_unescape, tokens[at][1][1:-1])
        at += 1
    return text, at


def _unescape(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, other = match.groups()
    if other is None:
        return bytes([int(octal, 8) & 0xFF if octal else int(hexadecimal, 16)])
    if other not in _ESCAPED:
        raise BadRecord(f"{match.group()!r} is not an escape")
    return _ESCAPED[other]
