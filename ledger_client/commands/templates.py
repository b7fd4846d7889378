r"""Templates of a message's output, as kcat has them: ``quire read --format '%k %v %t %i\n'``.

    %v, %s  value           %S  its size, -1 of null
    %k      key             %K  its size, -1 of null
    %t      topic           %p  partition           %l  lane           %i  message id
    %T      publish time, in milliseconds since 1970
    %e      event time, in nanoseconds since 1970
    %h      headers, as name=value,name=value
    %%      a percent sign

\n, \t, \r, \\ and \xHH stand for bytes. Nothing is added: a line ends with \n only if the
template does. Null is printed as NULL, and an empty value as nothing; %S and %K tell null
from the text "NULL". Values are printed as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

from ledger_client.topics.messages import Message

NULL = b"NULL"
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\"}
_TOKEN = re.compile(r"%(.?)|\\(x[0-9A-Fa-f]{2}|.?)", re.DOTALL)

Piece = bytes | Callable[[Message], bytes]


def _text(value: object) -> bytes:
    return NULL if value is None else str(value).encode()


def _or_null(value: bytes | None) -> bytes:
    return NULL if value is None else bytes(value)


def _size(value: bytes | None) -> bytes:
    return b"%d" % (-1 if value is None else len(value))


def _headers(message: Message) -> bytes:
    return b",".join(
        name.encode() + b"=" + _or_null(value) for name, value in message.headers.items()
    )


_FIELDS: dict[str, Callable[[Message], bytes]] = {
    "v": lambda message: _or_null(message.value),
    "s": lambda message: _or_null(message.value),
    "S": lambda message: _size(message.value),
    "k": lambda message: _or_null(message.key),
    "K": lambda message: _size(message.key),
    "t": lambda message: _text(message.topic),
    "p": lambda message: _text(message.id.partition),
    "l": lambda message: _text(message.lane),
    "i": lambda message: _text(message.id),
    "T": lambda message: _text(message.publish_time),
    "e": lambda message: _text(message.event_time),
    "h": _headers,
    "%": lambda _message: b"%",
}


class Template:
    """A parsed template."""

    def __init__(self, text: str) -> None:
        """Raises ValueError for an unknown field or escape."""
        self._pieces = list(_parsed(text))

    def text_of(self, messages: Sequence[Message]) -> bytes:
        """Return the messages, each as the template shows it."""
        return b"".join(
            piece if isinstance(piece, bytes) else piece(message)
            for message in messages
            for piece in self._pieces
        )


def unescaped(text: str) -> bytes:
    """Return *text* with its escapes replaced. Raises ValueError for an unknown one."""
    return b"".join(
        piece if isinstance(piece, bytes) else b"%" for piece in _parsed(text.replace("%", "%%"))
    )


def _parsed(text: str) -> list[Piece]:
    pieces: list[Piece] = []
    end = 0
    for found in _TOKEN.finditer(text):
        pieces.append(os.fsencode(text[end : found.start()]))
        pieces.append(_field(found[1]) if found[1] is not None else _escape(found[2]))
        end = found.end()
    pieces.append(os.fsencode(text[end:]))
    return [piece for piece in pieces if piece]


def _field(name: str) -> Callable[[Message], bytes]:
    if name not in _FIELDS:
        raise ValueError(f"%{name} is no field; there are %{' %'.join(_FIELDS)}")
    return _FIELDS[name]


def _escape(name: str) -> bytes:
    if name.startswith("x") and len(name) > 1:
        return bytes.fromhex(name[1:])
    if name not in _ESCAPES:
        raise ValueError(rf"\{name} is no escape; there are \n \t \r \\ and \xHH")
    return _ESCAPES[name]
