"""Encoders and decoders of values: text, and JSON by msgspec.

    client.producer("shop/orders", value_encoder=values.encode_json)
    client.reader("shop/orders", value_decoder=values.json_decoder(Order))

Any other function of one argument does, too. Null is neither encoded nor decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def encode_text(value: str) -> bytes:
    """Return a text in UTF-8. Raises TypeError if it is no str."""
    if not isinstance(value, str):
        raise TypeError(f"encode_text takes a str, not {value!r} ({type(value).__name__})")
    return value.encode()


def decode_text(value: bytes) -> str:
    """Return the text that is encoded in UTF-8. Raises UnicodeDecodeError."""
    return value.decode()


def encode_json(value: object) -> bytes:
    """Return a value as JSON.

    It may be what msgspec encodes: dicts, lists, texts, numbers, times, a msgspec.Struct, a
    dataclass. Raises TypeError for anything else.
    """
    return msgspec.json.encode(value)


def decode_json(value: bytes) -> Any:  # noqa: ANN401  # whatever JSON has
    """Return dicts, lists, texts and numbers from JSON. Raises msgspec.DecodeError."""
    return msgspec.json.decode(value)


def json_decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Return a decoder of JSON that checks each value to be a *kind*.

    *kind* is a type that msgspec knows: a msgspec.Struct, a dataclass, ``list[int]``. Raises
    TypeError for any other. The decoder raises msgspec.DecodeError or ValidationError.
    """
    return msgspec.json.Decoder(kind).decode
