"""The layout of a timestamp: an unsigned integer of 64 bits.

     63                              18 17                0
    ┌──────────────────────────────────┬──────────────────┐
    │ physical: milliseconds since     │ logical: counts  │
    │ 1970-01-01T00:00:00 UTC, 46 bits │ up, 18 bits      │
    └──────────────────────────────────┴──────────────────┘

So timestamps sort as integers, a millisecond has 262 144 of them, and they last until the year
4199. 0 means that a message has no timestamp. The layout is that of Milvus and TiKV's PD.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

PHYSICAL_BITS = 46
LOGICAL_BITS = 18
PHYSICAL_MAX = (1 << PHYSICAL_BITS) - 1
LOGICAL_MAX = (1 << LOGICAL_BITS) - 1
PER_MS = 1 << LOGICAL_BITS
"""Timestamps in one millisecond."""
TIMESTAMP_MAX = (1 << 64) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class Parts(NamedTuple):
    """A timestamp taken apart."""

    physical_ms: int
    """milliseconds since 1970, UTC"""
    logical: int


class TimestampRange(msgspec.Struct, frozen=True):
    """*count* consecutive timestamps from *first* on, which belong to one caller."""

    first: int
    count: int

    @property
    def last(self) -> int:
        """The greatest timestamp of the range."""
        return self.first + self.count - 1

    def timestamps(self) -> Iterator[int]:
        """Iterate over the timestamps, rising."""
        return iter(range(self.first, self.first + self.count))


def compose(physical_ms: int, logical: int = 0) -> int:
    """Return the timestamp with these parts. Raises ValueError if one is out of its bounds."""
    if not 0 <= physical_ms <= PHYSICAL_MAX:
        raise ValueError(f"{physical_ms} ms since 1970 is not within 0 to {PHYSICAL_MAX}")
    if not 0 <= logical <= LOGICAL_MAX:
        raise ValueError(f"the logical part {logical} is not within 0 to {LOGICAL_MAX}")
    return physical_ms << LOGICAL_BITS | logical


def split(timestamp: int) -> Parts:
    """Take a timestamp apart. Raises ValueError if it is not within 0 to 2**64 - 1."""
    if not 0 <= timestamp <= TIMESTAMP_MAX:
        raise ValueError(f"{timestamp} is not a timestamp: it is not within 0 to 2**64 - 1")
    return Parts(timestamp >> LOGICAL_BITS, timestamp & LOGICAL_MAX)


def first_at(moment: datetime) -> int:
    """Return the first timestamp of the millisecond that *moment* lies in.

    Raises:
        ValueError: *moment* has no time zone, or is before 1970 or after the year 4199.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone")
    return compose((moment - _EPOCH) // _MS)


def utc_of(timestamp: int) -> datetime:
    """Return the physical part as a time in UTC, exact to the millisecond.

    Raises:
        ValueError: *timestamp* is not within 0 to 2**64 - 1.
    """
    return _EPOCH + split(timestamp).physical_ms * _MS
