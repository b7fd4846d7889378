"""Batches as Arrow data, and Arrow data as messages, without copying values or keys.

A RecordBatch made here points into the payload of its entry, so it keeps the response that the
entry came in in memory. Arrow arrays may lie anywhere in memory, but Arrow's C++ code must not
load unaligned numbers: decode() aligns every column of fixed width.

pyarrow takes long to import, so import this module only inside functions that need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Literal, TypedDict, TypeVar

import pyarrow as pa

from native.batch import Binary, Columns, Decoded, Headers
from native.columns import Buffer, Column, slice_bits, words_of
from native.compacted import Origins

HEADERS = pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("partition", pa.int32()),
        pa.field("batch_index", pa.int32()),
        pa.field("timestamp", pa.uint64()),
        pa.field("event_time", pa.int64()),
        pa.field("publish_time", pa.int64()),
        pa.field("producer", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)
"""The schema of every RecordBatch of messages. event_time is in nanoseconds, publish_time in Unix
milliseconds; timestamp, event_time, producer, key and headers are null if a message has none."""

T = TypeVar("T")


class HeaderStruct(TypedDict):
    """A header in a list of HEADERS, as Arrow converts it to Python."""

    name: str
    value: bytes


_KEPT_BITS_MAX = 16  # constant arrays of at most 2**16 items are built once and sliced
_NOT_BATCHED = -1


def record_batch(
    decoded: Decoded, *, ledger_id: int, entry_id: int, partition: int = -1
) -> pa.RecordBatch:
    """Return the messages of one entry, with SCHEMA."""
    header, columns = decoded
    count = columns.count
    return pa.RecordBatch.from_arrays(
        [
            _constant(pa.int64(), ledger_id, count),
            _constant(pa.int64(), entry_id, count),
            _constant(pa.int32(), partition, count),
            _indexes(count) if header.batched else _constant(pa.int32(), _NOT_BATCHED, count),
            _words(pa.uint64(), columns.timestamps, None, count),
            _words(pa.int64(), columns.event_times, columns.event_time_validity, count),
            _constant(pa.int64(), header.created_ms, count),
            _producers(header.producer, count),
            _strings(pa.binary(), columns.keys, count),
            _strings(pa.binary(), columns.values, count),
            _headers(columns.headers, count),
        ],
        schema=SCHEMA,
    )


def compacted_record_batch(
    decoded: Decoded, origins: Origins, batch_indexes: memoryview, *, partition: int = -1
) -> pa.RecordBatch:
    """Return the messages of a compacted entry, with SCHEMA."""
    columns = decoded.columns
    count = columns.count

    def each(words: memoryview) -> pa.Array:
        return _words(pa.int64(), origins.spread(words), None, count)

    return pa.RecordBatch.from_arrays(
        [
            each(origins.ledger_ids),
            each(origins.entry_ids),
            _constant(pa.int32(), partition, count),
            _words(pa.int32(), batch_indexes, None, count),
            _words(pa.uint64(), columns.timestamps, None, count),
            _words(pa.int64(), columns.event_times, columns.event_time_validity, count),
            each(origins.created_ms),
            _names(origins, count),
            _strings(pa.binary(), columns.keys, count),
            _strings(pa.binary(), columns.values, count),
            _headers(columns.headers, count),
        ],
        schema=SCHEMA,
    )


def columns_of(
    values: Column[Buffer | None],
    *,
    keys: Column[Buffer | None] | None = None,
    event_times: Column[int | None] | None = None,
    timestamps: Column[int] | None = None,
    headers: Column[Mapping[str, bytes] | None] | None = None,
) -> Columns:
    """Return the columns of messages from sequences, Arrow arrays, or objects convertible to them.

    Arrow arrays with 32-bit offsets are not copied. Values and keys may be binary or strings of
    any Arrow type; event times integers (nanoseconds) or times of any unit; headers
    dictionaries, lists of structs with name and value, or maps.

    Raises:
        ValueError: the columns differ in length, or a number is out of bounds.
        TypeError: a column is of a wrong type.
        TooLarge: values or keys have 2 GiB or more.
    """
    times, time_validity = _take_words("q", pa.int64(), event_times)
    stamps, _ = _take_words("Q", pa.uint64(), timestamps)
    found = _take_strings(values)
    return Columns(
        count=found.length,
        values=found,
        keys=None if keys is None else _take_strings(keys),
        event_times=times,
        event_time_validity=time_validity,
        timestamps=stamps,
        headers=None if headers is None else _take_headers(headers),
    )


# --- from columns -------------------------------------------------------------------


def _constant(kind: pa.DataType, number: int, count: int) -> pa.Array:
    width = kind.bit_width // 8
    cells = number.to_bytes(width, "little", signed=True) * count
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(cells)], 0)


def _indexes(count: int) -> pa.Array:
    if count > 1 << _KEPT_BITS_MAX:
        return pa.array(range(count), pa.int32())
    return _count_up(_bits(count)).slice(0, count)


def _nulls(kind: pa.DataType, count: int) -> pa.Array:
    if count > 1 << _KEPT_BITS_MAX:
        return pa.nulls(count, kind)
    return _kept_nulls(kind, _bits(count)).slice(0, count)


def _bits(count: int) -> int:
    return (count - 1).bit_length()


@cache
def _count_up(bits: int) -> pa.Array:
    return pa.array(range(1 << bits), pa.int32())


@cache
def _kept_nulls(kind: pa.DataType, bits: int) -> pa.Array:
    return pa.nulls(1 << bits, kind)


def _words(
    kind: pa.DataType,
    words: memoryview | None,
    validity: Buffer | None,
    count: int,
) -> pa.Array:
    if words is None:
        return _nulls(kind, count)
    return pa.Array.from_buffers(
        kind, count, [_buffer(validity), pa.py_buffer(words)], -1 if validity else 0
    )


def _strings(kind: pa.DataType, strings: Binary | None, count: int) -> pa.Array:
    if strings is None:
        return _nulls(kind, count)
    validity = strings.validity
    return pa.Array.from_buffers(
        kind,
        count,
        [_buffer(validity), pa.py_buffer(strings.offsets), pa.py_buffer(strings.data)],
        -1 if validity else 0,
    )


def _buffer(validity: Buffer | None) -> pa.Buffer | None:
    return None if validity is None else pa.py_buffer(validity)


def _producers(producer: str, count: int) -> pa.Array:
    if not producer:
        return _nulls(pa.string(), count)
    if count > 1 << _KEPT_BITS_MAX:
        return pa.array([producer] * count, pa.string())
    return _kept_names(producer, _bits(count)).slice(0, count)


def _names(origins: Origins, count: int) -> pa.Array:
    """Return the producer's name of each message, null if it has none."""
    if len(origins.names) == 1:
        return _producers(origins.names[0], count)
    names = pa.array([name or None for name in origins.names], pa.string())
    return names.take(_words(pa.int32(), origins.spread(origins.producers), None, count))


@lru_cache(maxsize=64)
def _kept_names(producer: str, bits: int) -> pa.Array:
    return pa.array([producer] * (1 << bits), pa.string())


def _headers(headers: Headers | None, count: int) -> pa.Array:
    if headers is None:
        return _nulls(HEADERS, count)
    total = headers.names.length
    pairs = pa.StructArray.from_buffers(
        HEADERS.value_type,
        total,
        [None],
        0,
        children=[
            _strings(pa.string(), headers.names, total),
            _strings(pa.binary(), headers.values, total),
        ],
    )
    return pa.ListArray.from_buffers(
        HEADERS, count, [None, pa.py_buffer(headers.offsets)], 0, children=[pairs]
    )


# --- to columns ---------------------------------------------------------------------


def _take_array(given: Column[T]) -> pa.Array | Sequence[T]:
    """Return one Arrow array; an ordinary sequence is returned as it is."""
    if isinstance(given, pa.ChunkedArray):
        return given.combine_chunks()
    if isinstance(given, pa.Array):
        return given
    if hasattr(given, "__arrow_c_array__") or hasattr(given, "__array__"):
        return pa.array(given)
    return given


def _cast(found: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return found if found.type == kind else found.cast(kind)
    except pa.ArrowNotImplementedError as wrong:  # Arrow has no cast between these types
        raise TypeError(f"a column of {found.type} where {kind} is needed") from wrong


def _take_strings(given: Column[Buffer | None]) -> Binary:
    found = _take_array(given)
    if not isinstance(found, pa.Array):
        return Binary.of(found)
    if found.type != pa.string():
        found = _cast(found, pa.binary())
    validity, offsets, data = found.buffers()
    if len(found) == 0 or offsets is None:
        return Binary.of([])
    return Binary.of_buffers(
        offsets,
        b"" if data is None else data,
        validity if found.null_count else None,
        first=found.offset,
        count=len(found),
    )


def _take_words(
    code: Literal["q", "Q"],
    kind: pa.DataType,
    given: Column[int | None] | None,
) -> tuple[memoryview | None, Buffer | None]:
    """Return 64-bit numbers, and a validity bitmap if some are null."""
    if given is None:
        return None, None
    found = _take_array(given)
    if not isinstance(found, pa.Array):
        return words_of(code, found)
    if pa.types.is_timestamp(found.type):
        found = _cast(found, pa.timestamp("ns", found.type.tz))
    elif not (pa.types.is_integer(found.type) or pa.types.is_null(found.type)):
        raise TypeError(f"a column of {found.type} where whole numbers or times are needed")
    found = _cast(found, kind)
    validity, cells = found.buffers()
    if len(found) == 0:
        return memoryview(b"").cast(code), None
    words = memoryview(cells).cast("B")[8 * found.offset : 8 * (found.offset + len(found))]
    if not found.null_count:
        return words.cast(code), None
    return words.cast(code), slice_bits(validity, found.offset, len(found))


def _take_headers(given: Column[Mapping[str, bytes] | None]) -> Headers:
    found = _take_array(given)
    if not isinstance(found, pa.Array):
        return Headers.of(found)
    is_map = isinstance(found, pa.MapArray)
    if not is_map:
        found = _cast(found, HEADERS)
    if found.null_count or not len(found):  # a null list may still own some headers
        return Headers.of(
            [None if pairs is None else dict_of(pairs) for pairs in found.to_pylist()]
        )
    pairs = (found.keys, found.items) if is_map else found.values.flatten()
    names, values = pairs
    return Headers(
        memoryview(found.offsets.buffers()[1])
        .cast("B")[4 * found.offset : 4 * (found.offset + len(found) + 1)]
        .cast("i"),
        _take_strings(_cast(names, pa.string())),
        _take_strings(values),
    )


def dict_of(pairs: Iterable[HeaderStruct | tuple[str, bytes]]) -> dict[str, bytes]:
    """Return headers as a dictionary, from Arrow's list of structs or its map."""
    return dict((pair["name"], pair["value"]) if isinstance(pair, dict) else pair for pair in pairs)
