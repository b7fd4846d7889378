"""Batches, as batch.h lays them out: columns of messages, cut and encoded (columns.py), decoded.

    sequences ──► Columns ──► route, cut ──► encode ──► payload of an entry
    memoryviews ◄── Columns ◄── decode ◄──────────────────┘

Nothing here runs once per message in Python, except the conversion between lists and columns.
"""

from __future__ import annotations

import enum
from array import array
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from native._core import ffi, lib
from native.cdata import CData
from native.columns import (
    COMPRESSIONS,
    COUNT_MAX,
    NO_TIME,
    SIZE_MAX,
    Binary,
    Buffer,
    Columns,
    Compression,
    Headers,
    codec,
    cut,
    encode,
    encode_control,
    nulls,
    stamp,
)
from native.errors import Corrupt, check
from native.route import NO_PARTITION, murmur3, route, rows_of

if TYPE_CHECKING:
    pass

__all__ = [
    "COUNT_MAX",
    "NO_PARTITION",
    "SIZE_MAX",
    "BatchHeader",
    "BatchKind",
    "Binary",
    "Columns",
    "Compression",
    "Decoded",
    "Headers",
    "codec",
    "cut",
    "decode",
    "decode_control",
    "encode",
    "encode_control",
    "murmur3",
    "read_header",
    "route",
    "rows_of",
    "stamp",
]


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

    def stamped(self, timestamp: int) -> BatchHeader:
        """Return the header of the batch if all its messages have one timestamp."""
        return msgspec.structs.replace(self, last_timestamp=timestamp)


class Decoded(NamedTuple):
    """A batch as decode() returns it: its columns lie over the payload."""

    header: BatchHeader
    columns: Columns

    def stamped(self, timestamp: int) -> Decoded:
        """Return the batch with one timestamp for all its messages; the payload stays as it is."""
        stamps = memoryview(array("Q", [timestamp]) * self.header.count)
        columns = msgspec.structs.replace(self.columns, timestamps=stamps)
        return Decoded(self.header.stamped(timestamp), columns)


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
    return Decoded(header, _take_columns(raw, layout, fixed, body))


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
        COMPRESSIONS[raw.compression],
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
        return memoryview(codec(COMPRESSIONS[raw.compression]).decompress(body, raw.body_size))
    except OSError as wrong:
        raise Corrupt(f"a batch's body: {wrong}") from wrong


def _take_columns(raw: CData, layout: CData, fixed: memoryview, body: memoryview) -> Columns:
    """Return the columns of a checked body; *fixed* is its aligned part."""
    count, flags = raw.count, raw.flags
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
    timestamps = words(lib.BK_BATCH_TIMESTAMPS, layout.timestamps, "Q")
    if flags & lib.BK_BATCH_CONSECUTIVE:
        timestamps = _consecutive(raw)
    return Columns(
        count=count,
        values=values,
        keys=keys,
        event_times=words(lib.BK_BATCH_EVENT_TIMES, layout.event_times, "q"),
        event_time_validity=bitmap(lib.BK_BATCH_NULL_EVENT_TIMES, layout.event_time_validity),
        timestamps=timestamps,
        headers=headers,
    )


def _consecutive(raw: CData) -> memoryview:
    """Return the timestamps of a batch that says the last one alone."""
    room = bytearray(8 * raw.count)
    with ffi.from_buffer("uint64_t[]", room, require_writable=True) as lent:
        lib.bk_batch_timestamps(raw, lent)
    return memoryview(bytes(room)).cast("Q")


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
