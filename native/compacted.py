"""Compacted entries, as compacted.h lays them out: kept messages and their origins.

Origins, batch indexes, Columns ──► encode ──► payload of an entry
                  Compacted ◄── decode ◄──────────────┘
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Literal, NamedTuple

import msgspec

from native._core import ffi, lib
from native.batch import (
    BatchHeader,
    Compression,
    Decoded,
    codec,
    decode as decode_batch,
    encode as encode_batch,
    read_header as read_batch_header,
)
from native.cdata import CData
from native.columns import Buffer, Columns
from native.errors import Corrupt, TooLarge, check
from native.origins import Origin, Origins

__all__ = [
    "SIZE_MAX",
    "Compacted",
    "CompactedHeader",
    "Origin",
    "Origins",
    "decode",
    "encode",
    "is_compacted",
    "read_header",
    "read_origins",
]

SIZE_MAX = int(lib.BK_COMPACTED_SIZE_MAX)
"""Bytes of the largest payload, also before it is compressed."""
_HEAD_SIZE = int(lib.BK_COMPACTED_HEAD_SIZE)
_COMPRESSIONS: list[Compression] = ["none", "zstd", "lz4"]
_PLACE = 8


class CompactedHeader(msgspec.Struct, frozen=True):
    """The facts about a compacted entry that need no decompression."""

    count: int
    origins: int
    first: tuple[int, int, int]
    """Of the first message: the number of its ledger, its entry id, its batch index or -1."""
    last: tuple[int, int, int]
    """The same of the last one."""
    batch: BatchHeader
    """Of the messages: their times. created_ms is the greatest, no producer, no numbers."""


class Compacted(NamedTuple):
    """A compacted entry as columns over its own bytes; nothing is copied."""

    header: CompactedHeader
    origins: Origins
    batch_indexes: memoryview
    """"i": of each message in the batch that it was in; -1: it was none"""
    decoded: Decoded
    """What the messages hold; its header is that of the batch inside."""


def is_compacted(payload: Buffer) -> bool:
    """Whether an entry begins like a compacted one; batches begin differently."""
    return bytes(memoryview(payload)[:2]) == b"QC"


# --- encoding ---------------------------------------------------------------------


def encode(
    origins: Origins,
    batch_indexes: Buffer | array[int],
    columns: Columns,
    *,
    rows: array[int] | None = None,
    compression: Compression = "none",
) -> bytes:
    """Return the payload of one compacted entry.

    It has the messages of *columns*, or with *rows*, an array "I", only these rows in that order.
    *origins* and *batch_indexes*, 4 signed bytes each, are where they were written first.

    Raises:
        TooLarge: the entry would exceed SIZE_MAX or COUNT_MAX of batches.
        ValueError: the origins are not in order, or the parts do not fit together.
    """
    count = columns.count if rows is None else len(rows)
    indexes = memoryview(batch_indexes).cast("B")
    if not len(origins) or count != origins.count or len(indexes) != 4 * count:
        raise ValueError(f"{count} messages, {origins.count} of origins, {len(indexes)} bytes")
    table, names_size = _table(origins, indexes)
    header = ffi.new("bk_compacted_header *")
    header.count, header.origins, header.names = count, len(origins), len(origins.names)
    header.table_size = header.stored_size = len(table)
    _check_table(header, table, names_size)
    batch = encode_batch(
        columns, 0, count, rows=rows, compression=compression, created_ms=max(origins.created_ms)
    )
    size = _HEAD_SIZE + _padded(len(table)) + _plain_size(batch)
    if size > SIZE_MAX:
        raise TooLarge("a compacted entry", size=size, size_max=SIZE_MAX)
    return _finish(header, table, batch, compression)


def _table(origins: Origins, indexes: memoryview) -> tuple[bytes, int]:
    names = [name.encode() for name in origins.names]
    offsets = array("i", [0])
    for name in names:
        offsets.append(offsets[-1] + len(name))
    words = (
        origins.ledger_ids,
        origins.numbers,
        origins.entry_ids,
        origins.versions,
        origins.created_ms,
        origins.sequences,
        origins.orders,
    )
    columns = [*words, origins.starts, origins.producers, indexes, memoryview(offsets)]
    return b"".join([*(column.cast("B") for column in columns), *names]), offsets[-1]


def _check_table(header: CData, table: bytes, names_size: int) -> None:
    """Refuse a table that no reader would accept, and record its offsets in the header."""
    layout = ffi.new("bk_compacted_layout *")
    if lib.bk_compacted_place(header, layout) + names_size != len(table):
        raise ValueError("columns of origins that differ in length")
    lib.bk_compacted_note(header, table)
    if lib.bk_compacted_map(header, table, layout) != lib.BK_OK:
        raise ValueError("origins or batch indexes that are not in order, or out of bounds")


def _finish(header: CData, table: bytes, batch: bytes, compression: Compression) -> bytes:
    if compression != "none":
        smaller = bytes(codec(compression).compress(table, asbytes=True))
        if len(smaller) < len(table):
            header.compression = _COMPRESSIONS.index(compression)
            table, header.stored_size = smaller, len(smaller)
    head = ffi.new("uint8_t[]", _HEAD_SIZE)
    lib.bk_compacted_write_header(head, header)
    return b"".join([bytes(ffi.buffer(head)), table, bytes(-len(table) % _PLACE), batch])


def _plain_size(batch: bytes) -> int:
    header = read_batch_header(batch)
    return int(lib.bk_batch_body_offset(0)) + header.body_size


def _padded(size: int) -> int:
    return size + -size % _PLACE


# --- decoding ---------------------------------------------------------------------


def read_header(payload: Buffer) -> CompactedHeader:
    """Return the header of a compacted entry; nothing is decompressed.

    Raises:
        Corrupt: the entry is not compacted, or has another version.
    """
    return _take_header(_read(payload), payload)


def read_origins(payload: Buffer) -> tuple[Origins, memoryview]:
    """Return origins and batch indexes of a compacted entry, without decoding its batch.

    Raises:
        Corrupt: the entry is not compacted, or its table is damaged.
    """
    return _take_table(_read(payload), payload)


def decode(payload: Buffer) -> Compacted:
    """Decode a compacted entry; its columns are memoryviews of *payload*.

    They keep the payload in memory, as those of batch.decode() do.

    Raises:
        Corrupt: the entry is not a sound compacted entry.
    """
    raw = _read(payload)
    origins, indexes = _take_table(raw, payload)
    decoded = decode_batch(memoryview(payload).cast("B")[raw.batch_offset :])
    return Compacted(_take_header(raw, payload), origins, indexes, decoded)


def _read(payload: Buffer) -> CData:
    raw, batch = ffi.new("bk_compacted_header *"), ffi.new("bk_batch_header *")
    with ffi.from_buffer(payload) as lent:
        result = lib.bk_compacted_read_header(lent, len(lent), raw, batch)
    check(result, "a compacted entry's header")
    return raw


def _take_header(raw: CData, payload: Buffer) -> CompactedHeader:
    return CompactedHeader(
        raw.count,
        raw.origins,
        (raw.first_number, raw.first_entry, raw.first_index),
        (raw.last_number, raw.last_entry, raw.last_index),
        read_batch_header(memoryview(payload).cast("B")[raw.batch_offset :]),
    )


def _take_table(raw: CData, payload: Buffer) -> tuple[Origins, memoryview]:
    layout = ffi.new("bk_compacted_layout *")
    table = _plain_table(raw, payload)
    with ffi.from_buffer(table) as lent:
        check(lib.bk_compacted_map(raw, lent, layout), "a compacted entry's table")
        moved = int(ffi.cast("uintptr_t", lent)) % _PLACE != 0
    if moved:
        table = memoryview(bytes(table))

    def column(at: int, count: int, kind: Literal["q", "i"]) -> memoryview:
        return table[at : at + count * (8 if kind == "q" else 4)].cast(kind)

    n = raw.origins
    origins = Origins(
        ledger_ids=column(layout.ledger_ids, n, "q"),
        numbers=column(layout.numbers, n, "q"),
        entry_ids=column(layout.entry_ids, n, "q"),
        versions=column(layout.versions, n, "q"),
        created_ms=column(layout.created, n, "q"),
        sequences=column(layout.sequences, n, "q"),
        orders=column(layout.orders, n, "q"),
        starts=column(layout.starts, n + 1, "i"),
        producers=column(layout.producers, n, "i"),
        names=_take_names(column(layout.name_offsets, raw.names + 1, "i"), table, layout),
    )
    return origins, column(layout.batch_indexes, raw.count, "i")


def _take_names(offsets: memoryview, table: memoryview, layout: CData) -> tuple[str, ...]:
    text = bytes(table[layout.name_bytes :])
    ends = offsets.tolist()
    return tuple(text[a:b].decode() for a, b in pairwise(ends))


def _plain_table(raw: CData, payload: Buffer) -> memoryview:
    stored = memoryview(payload).cast("B")[_HEAD_SIZE : _HEAD_SIZE + raw.stored_size]
    if raw.compression == lib.BK_BATCH_PLAIN:
        return stored
    if raw.compression == lib.BK_BATCH_LZ4:
        with ffi.from_buffer(stored) as lent:
            if lib.bk_lz4_size(lent, len(lent)) != raw.table_size:
                raise Corrupt("a compacted entry's table: its LZ4 block has another size")
    try:
        found = codec(_COMPRESSIONS[raw.compression]).decompress(stored, raw.table_size)
    except OSError as wrong:
        raise Corrupt(f"a compacted entry's table: {wrong}") from wrong
    return memoryview(found)
