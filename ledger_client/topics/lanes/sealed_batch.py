"""A batch as a lane takes it: the payload of one entry, and what the lane keeps count of."""

from __future__ import annotations

import msgspec

from native import batch as native_batch
from native.batch import BatchHeader


class SealedBatch(msgspec.Struct, frozen=True):
    """An encoded batch of messages. Times are nanoseconds; *size* is bytes of the payload."""

    payload: bytes
    count: int
    size: int
    first_event_time: int | None = None
    """the lowest"""
    last_event_time: int | None = None
    """the greatest"""
    last_timestamp: int = 0
    """the greatest, 0 for none"""
    producer: str = ""
    sequence: int = -1
    """of its last message; -1: not counted"""

    @classmethod
    def of(cls, payload: bytes, header: BatchHeader | None = None) -> SealedBatch:
        """Return the batch that *payload* holds. Raises native.errors.Corrupt."""
        header = header or native_batch.read_header(payload)
        return cls(
            payload=payload,
            count=header.count,
            size=len(payload),
            first_event_time=header.event_time_min,
            last_event_time=header.event_time_max,
            last_timestamp=header.last_timestamp,
            producer=header.producer,
            sequence=header.last_sequence,
        )


def first_timestamp(payload: bytes) -> int:
    """Return the lowest timestamp of a batch, 0 for none; takes the batch apart."""
    timestamps = native_batch.decode(payload).columns.timestamps
    return 0 if timestamps is None else min((t for t in timestamps if t), default=0)
