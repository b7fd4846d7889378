"""Ticks of a topic with timesync: the moments up to which its messages are complete.

A tick (T, covers) says: each message of the topic with a timestamp up to T is durable and lies
before the version that covers its lane. It never proves wrong later, whatever fails.

    stored ticks:  10 ───── 20 ───── 30         kept in the topic's tick ledgers (native/batch.h)
                                      └ 31, 32  idle ticks: nothing came since 30, not stored

An ordered reader releases messages up to each stored tick, so it cuts its batches at the same
places whenever and wherever it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from native.errors import Corrupt
from native.tick import Covers, LaneIndex, TickEntry, decode_tick, encode_tick

__all__ = ["Covers", "LaneIndex", "Tick", "TickSource", "changed", "entry_of", "unfolded"]


class Tick(msgspec.Struct, frozen=True):
    """The messages of a topic up to one timestamp."""

    timestamp: int
    covers: Mapping[LaneIndex, int]
    """by partition and lane: the version before which its messages up to the timestamp lie. A
    lane that is not here has no such message."""
    stored: int
    """timestamp of the newest stored tick up to this one, which has the same covers; equal to
    *timestamp* if this one is stored, 0 if none is stored (then there are no covers)"""


class TickSource(Protocol):
    """The ticks of one topic, from a place on."""

    async def read(self) -> list[Tick]:
        """Return the next stored ticks, rising and none left out; wait until there is one.

        An empty list means the end: the topic was deleted.

        Raises:
            LedgerError: ticks cannot be read now. The place stays before them.
        """

    async def newest(self, after: int = 0) -> Tick:
        """Return the newest tick, which may be idle; wait until it is later than *after*.

        Raises:
            MetadataUnavailable: no leader had one in time.
            NoSuchTopic: the topic was deleted.
        """


def changed(before: Covers, after: Covers) -> dict[LaneIndex, int]:
    """Return the covers of *after* that differ from those of *before*."""
    return {lane: version for lane, version in after.items() if before.get(lane) != version}


def entry_of(tick: Tick, before: Covers | None, *, created_ms: int) -> bytes:
    """Return the entry of a tick; *before*: covers of the ledger's last tick, None for a whole one.

    Raises:
        TooLarge: the topic has too many lanes.
    """
    covers = tick.covers if before is None else changed(before, tick.covers)
    return encode_tick(tick.timestamp, covers, is_whole=before is None, created_ms=created_ms)


def unfolded(payloads: Iterable[bytes], before: TickEntry | None = None) -> Iterator[TickEntry]:
    """Decode consecutive entries of a tick ledger, and give each one all covers.

    *before* is the entry in front of the first one, with all covers; the first must be whole
    without it.

    Raises:
        Corrupt: an entry is no tick, or the ticks contradict each other.
    """
    for payload in payloads:
        entry = decode_tick(payload)
        known: Mapping[LaneIndex, int] = {} if before is None else before.covers
        if before is None and not entry.is_whole:
            raise Corrupt("a tick says only changes, and the one before it is not known")
        if before is not None and entry.timestamp <= before.timestamp:
            raise Corrupt(f"tick {entry.timestamp} follows tick {before.timestamp}")
        if any(version < known.get(lane, 0) for lane, version in entry.covers.items()) or (
            entry.is_whole and not known.keys() <= entry.covers.keys()
        ):
            raise Corrupt(f"tick {entry.timestamp} covers less than the one before it")
        before = entry._replace(covers={**known, **entry.covers})
        yield before
