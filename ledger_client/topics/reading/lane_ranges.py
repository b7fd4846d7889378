"""Lanes that were looked up, and the range of each that is to be read."""

from __future__ import annotations

from typing import NamedTuple

from ledger_client.errors import Gap
from ledger_client.topics.lanes.ledger_rows import LedgerRows
from ledger_client.topics.positions import LaneRef, Place
from ledger_client.topics.reading.compacted import CompactedRange
from ledger_client.topics.times import Time
from metadata.topics import LaneRecord


class KnownLane(NamedTuple):
    """A lane that exists, with its record when it was looked up."""

    lane: LaneRef
    rows: LedgerRows
    record: LaneRecord
    compacted: CompactedRange | None = None
    """its compacted beginning, if that is read"""
    name: str = ""
    """set only if lanes are chosen or ordered by it"""


class LaneStart(NamedTuple):
    """The place at which to begin in a lane."""

    place: Place
    since: Time | None = None
    """leave out messages before this time: none had reached it when the place was looked up"""
    gap: Gap | None = None
    """set if the requested place is gone"""


class LaneRange(NamedTuple):
    """A lane, and the range of it to be read."""

    known: KnownLane
    begin: LaneStart
    end: Place | None = None
    end_was_confirmed: bool = False
    """entries before *end* were confirmed once, as when it comes from a kept position"""
