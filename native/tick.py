"""Ticks of a topic as entries, which batch.h lays out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from native._core import ffi, lib
from native.batch import BatchKind, encode_control
from native.columns import Buffer
from native.errors import Corrupt, TooLarge, check

LaneIndex = tuple[int, int]
"""Partition and lane."""
Covers = Mapping[LaneIndex, int]
"""By lane: the version before which its messages up to a timestamp lie."""
WHOLE_EVERY: int = lib.BK_TICK_WHOLE_EVERY
"""An entry whose id is a multiple of this says all covers."""
COVERS_MAX: int = lib.BK_TICK_COVERS_MAX


class TickEntry(NamedTuple):
    """A tick as its entry keeps it."""

    timestamp: int
    covers: dict[LaneIndex, int]
    is_whole: bool
    """False: only the covers that differ from the ledger's previous tick"""
    created_ms: int
    """Unix milliseconds, by the store's clock"""


def encode_tick(timestamp: int, covers: Covers, *, is_whole: bool, created_ms: int = 0) -> bytes:
    """Return the payload of a tick's entry.

    Raises:
        TooLarge: more than COVERS_MAX covers.
    """
    if len(covers) > COVERS_MAX:
        raise TooLarge("a tick's covers", size=len(covers), size_max=COVERS_MAX)
    raw = ffi.new("bk_cover[]", [(*lane, covers[lane]) for lane in sorted(covers)])
    size = lib.BK_TICK_HEAD_SIZE + len(covers) * lib.BK_TICK_COVER_SIZE
    body = ffi.new("uint8_t[]", size)
    lib.bk_tick_write(raw, len(covers), lib.BK_TICK_WHOLE if is_whole else 0, body)
    return encode_control(
        BatchKind.TICK, bytes(ffi.buffer(body)), created_ms=created_ms, last_timestamp=timestamp
    )


def decode_tick(payload: Buffer) -> TickEntry:
    """Return the tick that an entry keeps. Raises Corrupt."""
    raw = ffi.new("bk_batch_header *")
    flags, count = ffi.new("uint32_t *"), ffi.new("uint32_t *")
    with ffi.from_buffer(payload) as lent:
        check(lib.bk_batch_read_header(lent, len(lent), raw), "a tick's header")
        if raw.body_offset != lib.BK_BATCH_HEAD_SIZE:
            raise Corrupt("a tick with a producer")
        body, size = lent + raw.body_offset, len(lent) - raw.body_offset
        check(lib.bk_tick_check(raw, body, size, flags, count), "a tick's body")
        covers = ffi.new("bk_cover[]", count[0])
        lib.bk_tick_read(body, count[0], covers)
    return TickEntry(
        raw.last_timestamp,
        {(cover.partition, cover.lane): cover.version for cover in covers},
        bool(flags[0] & lib.BK_TICK_WHOLE),
        raw.created_ms,
    )
