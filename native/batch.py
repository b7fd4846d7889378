"""Batches, as batch.h lays them out: columns of messages, cut, encoded, decoded.

    sequences ──► Columns ──► route, cut ──► encode ──► payload of an entry
    memoryviews ◄── Columns ◄── decode ◄──────────────────┘

Nothing here runs once per message in Python, except the conversion between lists and columns.
"""

from __future__ import annotations

import enum
from array import array
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from native._core import ffi, lib
from native.cdata import CData
from native.columns import Binary, Buffer, Columns, Headers, address_of_rows, check_columns, nulls
from native.errors import Corrupt, TooLarge, check
from native.route import NO_PARTITION, murmur3, route, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "NO_PARTITION",
    "BatchHeader",
    "BatchKind",
    "Binary",
    "Columns",
    "Decoded",
    "Headers",
    "cut",
    "decode",
    "decode_control",
    "encode",
    "encode_control",
    "murmur3",
    "read_header",
    "route",
    "rows_of",
]

SIZE_MAX = int(lib.BK_BATCH_SIZE_MAX)
"""Bytes of the largest payload, also before it is compressed."""
COUNT_MAX = int(lib.BK_BATCH_COUNT_MAX)
NO_TIME = -(1 << 63)

Compression = Literal["none", "zstd", "lz4"]
_NAMES: list[Compression] = ["none", "zstd", "lz4"]
_CODECS = {"zstd": "zstd", "lz4": "lz4_raw"}
_ENDS_MAX = 4096
_NAME_SIZE_MAX = 0xFFFF
_new_uncleared = ffi.new_allocator(should_clear_after_alloc=False)


class BatchKind(enum.IntEnum):
    """The kind of a lane's entry: messages, or a control entry."""

    MESSAGES = lib.BK_BATCH_MESSAGES
    LANE_STATE = lib.BK_BATCH_LANE_STATE
    TICK = lib.BK_BATCH_TICK


class BatchHeader(msgspec.Struct, frozen=True):
    """The facts about a batch that need no decompression."""

    kind: int
    """A BatchKind."""
    compression: Compression
    batched: bool
    """False: one message alone, whose batch index is -1."""
    count: int
    body_size: int
    """Bytes of the body, not compressed."""
    producer: str
    sequence: int
    """Of the first message; each next one is one more. -1: not counted."""
    epoch: int
    created_ms: int
    last_timestamp: int
    """The greatest, 0 for none."""
    event_time_min: int | None
    event_time_max: int | None

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last message, -1 if messages have none."""
        return -1 if self.sequence < 0 else self.sequence + self.count - 1


class Decoded(NamedTuple):
    """A batch as decode() returns it: its columns lie over the payload."""

    header: BatchHeader
    columns: Columns


# --- encoding ---------------------------------------------------------------------


def encode(
    columns: Columns,
    start: int,
    stop: int,
    *,
    rows: array[int] | None = None,
    compression: Compression = "none",
    batched: bool = True,
    producer: bytes = b"",
    sequence: int = -1,
    epoch: int = 0,
    created_ms: int = 0,
) -> bytes:
    """Return the payload of one batch: the messages from *start* to before *stop*.

    With *rows*, an array "I" of row numbers in *columns*, the batch has the rows
    ``rows[start:stop]``, in that order. A body that compression would not make smaller is stored
    uncompressed. The buffers must not change during the call.

    Raises:
        TooLarge: the batch exceeds SIZE_MAX or COUNT_MAX; cut() prevents that.
        ValueError: the batch has no messages or too many, *batched* is False and it has not exactly
            one, an event time is -2**63, or the columns do not fit together.
    """
    which = _rows(columns, start, stop, rows)
    if stop - start < 1 or not (batched or stop - start == 1):
        raise ValueError(f"{stop - start} messages in a batch, batched={batched}")
    header, layout = ffi.new("bk_batch_header *"), ffi.new("bk_batch_layout *")
    header.producer_size = _name_size(producer)
    result = lib.bk_batch_plan(columns.loan.pointer, *which, header, layout)
    if result == lib.BK_SMALL:
        raise TooLarge("a batch", size=layout.size, size_max=SIZE_MAX)
    check_columns(result)
    header.flags |= lib.BK_BATCH_BATCHED if batched else 0
    _fill(header, BatchKind.MESSAGES, sequence, epoch, created_ms)
    out = _new_uncleared("uint8_t[]", header.body_offset + header.body_size)
    body = out + header.body_offset
    lib.bk_batch_write_body(columns.loan.pointer, *which, header, layout, body)
    return _finish(header, producer, out, compression)


def encode_control(
    kind: BatchKind,
    body: bytes,
    *,
    compression: Compression = "none",
    producer: bytes = b"",
    epoch: int = 0,
    created_ms: int = 0,
    last_timestamp: int = 0,
) -> bytes:
    """Return the payload of a control entry, which holds *body* and no messages.

    Raises:
        TooLarge: the payload exceeds SIZE_MAX.
    """
    header = ffi.new("bk_batch_header *")
    header.producer_size = _name_size(producer)
    header.body_offset = lib.bk_batch_body_offset(header.producer_size)
    size = header.body_offset + len(body)
    if size > SIZE_MAX:
        raise TooLarge("a control entry", size=size, size_max=SIZE_MAX)
    header.body_size = len(body)
    header.last_timestamp = last_timestamp
    header.event_time_min = header.event_time_max = NO_TIME
    _fill(header, kind, -1, epoch, created_ms)
    out = _new_uncleared("uint8_t[]", size)
    ffi.memmove(out + header.body_offset, body, len(body))
    return _finish(header, producer, out, compression)


def _fill(header: CData, kind: int, sequence: int, epoch: int, created_ms: int) -> None:
    if not -1 <= sequence < 1 << 63:
        raise ValueError(f"{sequence} is no sequence number")
    header.kind = kind
    header.sequence = sequence
    header.epoch = epoch
    header.created_ms = created_ms


def _finish(header: CData, producer: bytes, out: CData, compression: Compression) -> bytes:
    """Compress the body in *out* if that makes it smaller, and write the header before it."""
    if compression != "none":
        body = ffi.buffer(out + header.body_offset, header.body_size)
        smaller = bytes(codec(compression).compress(body, asbytes=True))
        if len(smaller) < header.body_size:
            header.compression = _NAMES.index(compression)
            lib.bk_batch_write_header(out, header, producer)
            return bytes(ffi.buffer(out, header.body_offset)) + smaller
    lib.bk_batch_write_header(out, header, producer)
    return bytes(ffi.buffer(out))


def _name_size(producer: bytes) -> int:
    producer.decode()  # a ValueError here, rather than an entry that nobody can read
    if len(producer) > _NAME_SIZE_MAX:
        raise ValueError(f"a producer's name of {len(producer)} bytes; {_NAME_SIZE_MAX} at most")
    return len(producer)


@cache
def codec(compression: str) -> pa.Codec:
    """Return pyarrow's codec; the first call imports pyarrow, which takes long."""
    import pyarrow as pa

    return pa.Codec(_CODECS[compression])


# --- selecting messages -----------------------------------------------------------


def cut(
    columns: Columns,
    *,
    size_max: int,
    count_max: int,
    rows: array[int] | None = None,
    producer: bytes = b"",
) -> array[int]:
    """Return the ends of batches: each batch begins at the previous end and excludes its own.

    A batch has at most *count_max* messages, and at most *size_max* uncompressed bytes unless a
    single message is larger. With *rows*, ends are indexes in *rows*.

    Raises:
        TooLarge: a message does not fit a batch; the error's *index* is its row.
        ValueError: the columns do not fit together.
    """
    total = columns.count if rows is None else len(rows)
    name_size = _name_size(producer)
    limits = min(size_max, SIZE_MAX), max(1, min(count_max, COUNT_MAX))
    room = min(total, _ENDS_MAX)
    some = _new_uncleared("uint32_t[]", room)
    said = ffi.new("uint64_t[3]")
    ends = array("I")
    start = 0
    while start < total:
        which = _rows(columns, start, total, rows)
        result = lib.bk_batch_cut(
            columns.loan.pointer, *which, name_size, *limits, some, room, said, said + 1, said + 2
        )
        if result == lib.BK_SMALL:
            raise TooLarge("a message", size=said[2], size_max=SIZE_MAX, index=said[1])
        check_columns(result)
        ends.frombytes(ffi.buffer(some, 4 * said[0]))
        start = ends[-1]
    return ends


def _rows(
    columns: Columns, start: int, stop: int, rows: array[int] | None
) -> tuple[CData, int, int]:
    """Return the three C arguments that select messages."""
    total = columns.count if rows is None else len(rows)
    if not 0 <= start <= stop <= total:
        raise ValueError(f"messages {start} to {stop} of {total}")
    return ffi.NULL if rows is None else address_of_rows(rows), start, stop


# --- decoding ---------------------------------------------------------------------


def read_header(payload: Buffer) -> BatchHeader:
    """Return the header of a batch; nothing is decompressed.

    Raises:
        Corrupt: the entry is not a batch, or has another version.
    """
    return _take_header(_read_head(payload), payload)


def decode(payload: Buffer) -> Decoded:
    """Decode a batch of messages; its columns are memoryviews of *payload*.

    So they keep the payload, and the buffer it is part of, in memory. Offsets and times are copied
    if they are not aligned to 8 bytes, as Arrow may rely on that; keys and values are never copied.
    A compressed body is decompressed into a new buffer.

    Raises:
        Corrupt: the entry is not a sound batch of messages.
    """
    return _decode(_read_head(payload), payload)


def decode_messages(payload: Buffer) -> Decoded | None:
    """Decode an entry as decode() does; return `None` for a control entry.

    Raises:
        Corrupt: the entry is neither.
    """
    raw = _read_head(payload)
    if raw.kind == BatchKind.MESSAGES:
        return _decode(raw, payload)
    _take_header(raw, payload)  # to find the fault
    return None


def _read_head(payload: Buffer) -> CData:
    raw = ffi.new("bk_batch_header *")
    with ffi.from_buffer(payload) as lent:
        check(lib.bk_batch_read_header(lent, len(lent), raw), "a batch's header")
    return raw


def _decode(raw: CData, payload: Buffer) -> Decoded:
    header = _take_header(raw, payload)
    body = _body(raw, payload)
    layout = ffi.new("bk_batch_layout *")
    with ffi.from_buffer(body) as lent:
        check(lib.bk_batch_map(raw, lent, layout), "a batch's body")
        moved = int(ffi.cast("uintptr_t", lent)) % 8 != 0
    fixed = memoryview(bytes(body[: layout.fixed_size])) if moved else body
    return Decoded(header, _take_columns(header.count, raw.flags, layout, fixed, body))


def decode_control(payload: Buffer) -> tuple[BatchHeader, bytes]:
    """Return header and body of an entry that holds no messages.

    Raises:
        Corrupt: the entry is not a control entry.
    """
    raw = ffi.new("bk_batch_header *")
    with ffi.from_buffer(payload) as lent:
        check(lib.bk_batch_read_header(lent, len(lent), raw), "a control entry's header")
    if raw.kind == BatchKind.MESSAGES:
        raise Corrupt("a batch of messages, not a control entry")
    return _take_header(raw, payload), bytes(_body(raw, payload))


def _take_header(raw: CData, payload: Buffer) -> BatchHeader:
    producer = ""
    if raw.producer_size:
        head = int(lib.BK_BATCH_HEAD_SIZE)
        name = bytes(memoryview(payload)[head : head + raw.producer_size])
        try:
            producer = name.decode()
        except UnicodeDecodeError as wrong:
            raise Corrupt(f"a batch's producer: {wrong}") from wrong
    timed = raw.event_time_min != NO_TIME
    return BatchHeader(
        raw.kind,
        _NAMES[raw.compression],
        raw.flags & lib.BK_BATCH_BATCHED != 0,
        raw.count,
        raw.body_size,
        producer,
        raw.sequence,
        raw.epoch,
        raw.created_ms,
        raw.last_timestamp,
        raw.event_time_min if timed else None,
        raw.event_time_max if timed else None,
    )


def _body(raw: CData, payload: Buffer) -> memoryview:
    body = memoryview(payload).cast("B")[raw.body_offset :]
    if raw.compression == lib.BK_BATCH_PLAIN:
        return body
    if raw.compression == lib.BK_BATCH_LZ4:
        with ffi.from_buffer(body) as lent:
            if lib.bk_lz4_size(lent, len(lent)) != raw.body_size:
                raise Corrupt("a batch's body: its LZ4 block has another size")
    try:
        return memoryview(codec(_NAMES[raw.compression]).decompress(body, raw.body_size))
    except OSError as wrong:
        raise Corrupt(f"a batch's body: {wrong}") from wrong


def _take_columns(
    count: int,
    flags: int,
    layout: CData,
    fixed: memoryview,
    body: memoryview,
) -> Columns:
    """Return the columns of a checked body; *fixed* is its aligned part."""
    offsets_size, bitmap_size = 4 * count + 4, (count + 7) // 8

    def bitmap(flag: int, at: int) -> memoryview | None:
        return fixed[at : at + bitmap_size] if flags & flag else None

    def words(flag: int, at: int, kind: Literal["q", "Q"]) -> memoryview | None:
        return fixed[at : at + 8 * count].cast(kind) if flags & flag else None

    def strings(at: int, data: int, size: int, validity: memoryview | None) -> Binary:
        offsets = fixed[at : at + offsets_size].cast("i")
        return Binary(offsets, body[data : data + size], validity)

    values, keys, headers = nulls(count) if not flags & lib.BK_BATCH_VALUES else None, None, None
    if values is None:
        validity = bitmap(lib.BK_BATCH_NULL_VALUES, layout.value_validity)
        values = strings(layout.value_offsets, layout.values, layout.values_size, validity)
    if flags & lib.BK_BATCH_KEYS:
        validity = bitmap(lib.BK_BATCH_NULL_KEYS, layout.key_validity)
        keys = strings(layout.key_offsets, layout.keys, layout.keys_size, validity)
    if flags & lib.BK_BATCH_HEADERS:
        headers = _take_headers(count, layout, fixed, body)
    return Columns(
        count=count,
        values=values,
        keys=keys,
        event_times=words(lib.BK_BATCH_EVENT_TIMES, layout.event_times, "q"),
        event_time_validity=bitmap(lib.BK_BATCH_NULL_EVENT_TIMES, layout.event_time_validity),
        timestamps=words(lib.BK_BATCH_TIMESTAMPS, layout.timestamps, "Q"),
        headers=headers,
    )


def _take_headers(
    count: int,
    layout: CData,
    fixed: memoryview,
    body: memoryview,
) -> Headers:
    def offsets(at: int, items: int) -> memoryview:
        return fixed[at : at + 4 * items + 4].cast("i")

    names = body[layout.names : layout.names + layout.names_size]
    values = body[layout.header_values : layout.header_values + layout.header_values_size]
    return Headers(
        offsets(layout.header_offsets, count),
        Binary(offsets(layout.name_offsets, layout.header_count), names),
        Binary(offsets(layout.header_value_offsets, layout.header_count), values),
    )
