"""Values that JSON has as text: times, dates and bytes.

Arrow's parser of JSON takes dates as numbers and bytes as they are, and refuses fractions of more
than six digits, which other writers of RFC 3339 write. The sink writes what msgspec and from_json
of Spark do: ISO 8601, and base64. So such fields are parsed as strings, and converted afterwards.

pyarrow takes long to import, so import this module where it is first needed.
"""

from __future__ import annotations

import base64
import binascii
from datetime import time

import pyarrow as pa
import pyarrow.compute as pc

_ZONED = r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"
_LONG_FRACTION = r"(\.\d{6})\d+"


def text_kind(kind: pa.DataType) -> pa.DataType:
    """Return the type as which JSON is parsed: *kind* with strings for what is text in JSON."""
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(text_kind(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(text_kind(kind.value_type)))
    is_text = pa.types.is_temporal(kind) and not pa.types.is_duration(kind)
    return pa.string() if is_text or pa.types.is_binary(kind) else kind


def from_text(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return what was parsed as text_kind() of *kind* as *kind*.

    Raises:
        pa.ArrowInvalid: a text is no value of its type.
    """
    if found.type == kind:
        return found
    if pa.types.is_struct(kind):
        parts = [from_text(found.field(index), each.type) for index, each in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=found.is_null())
    if pa.types.is_list(kind):
        values = from_text(found.values, kind.value_type)
        return pa.ListArray.from_arrays(found.offsets, values, type=kind, mask=found.is_null())
    if pa.types.is_timestamp(kind):
        return _timestamps(found, kind)
    if pa.types.is_binary(kind):
        return pa.array(map(_bytes, found.to_pylist()), kind)
    if pa.types.is_time(kind):
        return pa.array(map(_time, found.to_pylist()), kind)
    return found.cast(kind)


def _timestamps(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return times; those without a zone are in UTC."""
    texts = pc.replace_substring_regex(texts, _LONG_FRACTION, r"\1")
    is_zoned = pc.match_substring_regex(texts, _ZONED)
    none = pa.scalar(None, pa.string())
    zoned = pc.if_else(is_zoned, texts, none).cast(pa.timestamp(kind.unit, "UTC"))
    plain = pc.if_else(is_zoned, none, texts).cast(pa.timestamp(kind.unit))
    return pc.coalesce(zoned.cast(kind), plain.cast(kind))


def _bytes(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as wrong:  # the latter for what is not ASCII
        raise pa.ArrowInvalid(f"{text!r:.40} is not base64") from wrong


def _time(text: str | None) -> time | None:
    try:
        found = None if text is None else time.fromisoformat(text)
    except ValueError as wrong:
        raise pa.ArrowInvalid(str(wrong)) from wrong
    if found is not None and found.tzinfo is not None:
        raise pa.ArrowInvalid(f"{text!r:.40} has a time zone")
    return found
