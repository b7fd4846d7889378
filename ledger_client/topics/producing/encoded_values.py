"""Values of messages as bytes: as they were given, or as the producer's encoder returns them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from native.columns import Buffer, Column

ValueEncoder = Callable[[Any], Buffer | None]


def encoded(encoder: ValueEncoder, value: object) -> bytes | None:
    """Return a value as *encoder* encodes it; null stays null.

    Raises TypeError if the encoder returns no bytes, and whatever it raises.
    """
    if value is None:
        return None
    found = cast("object", encoder(value))  # whatever a user's function returns
    if found is None or isinstance(found, Buffer):
        return as_bytes(found)
    name = getattr(encoder, "__qualname__", type(encoder).__qualname__)
    raise not_bytes(type(found).__name__, f", as value_encoder {name} returned")


def encoded_all(encoder: ValueEncoder | None, values: Column[object]) -> Column[Buffer | None]:
    """Return the values of one call as *encoder* encodes them. Raises as encoded().

    Without an encoder they stay as they are, and so does an Arrow array, which has bytes.
    """
    if encoder is None or _is_arrow(values):
        return cast("Column[Buffer | None]", values)  # MessageColumns looks at their types
    return [encoded(encoder, value) for value in cast("Iterable[object]", values)]


def as_bytes(value: object) -> bytes | None:
    """Return a value or key as bytes. Raises TypeError unless it is bytes-like, or None."""
    if value is None:
        return None
    if not isinstance(value, Buffer):
        raise not_bytes(type(value).__name__)
    return bytes(value)


def not_bytes(kind: str, origin: str = "") -> TypeError:
    """The error for a value or key of another type; *origin* says where it comes from."""
    advice = ': encode it, as in "text".encode()' if kind == "str" else ""
    return TypeError(f"values and keys are bytes, not {kind}{origin}{advice}")


def _is_arrow(values: Column[object]) -> bool:
    if isinstance(values, Sequence):
        return False
    import pyarrow as pa  # takes long: only when needed

    return isinstance(values, pa.Array | pa.ChunkedArray)
