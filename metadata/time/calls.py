"""CALL messages to the oracle (metadata/calls.py).

A bookie that does not lead answers each of them with the failure NotLeader, which names the leader.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from metadata.time.timestamps import PER_MS, PHYSICAL_MAX

Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=PHYSICAL_MAX)]


class AllotTimestamps(msgspec.Struct, frozen=True, tag=True):
    """Take *count* consecutive timestamps. -> TimestampsAllotted."""

    count: Annotated[int, msgspec.Meta(ge=1, le=PER_MS)] = 1


class ResetTime(msgspec.Struct, frozen=True, tag=True):
    """Move the cluster's time forward to *to_ms*, by 24 h at most. -> TimeReset."""

    to_ms: Milliseconds


class TimestampsAllotted(msgspec.Struct, frozen=True, tag=True):
    """The caller owns the timestamps from *first* to *first* + *count* - 1.

    An answer that arrives later than *valid_s* seconds after the request was sent must be dropped:
    another bookie may lead by then, and may have issued greater timestamps.
    """

    first: Annotated[int, msgspec.Meta(ge=0)]
    count: Annotated[int, msgspec.Meta(ge=1, le=PER_MS)]
    valid_s: float


class TimeReset(msgspec.Struct, frozen=True, tag=True):
    """The cluster's time, in milliseconds since 1970, is this one now, or later."""

    physical_ms: Milliseconds


REPORTS_MAX = 10_000
"""Lanes in one message."""
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Timestamp = Annotated[int, msgspec.Meta(ge=0)]
LaneIndex = tuple[int, int]
"""Partition and lane."""


class LaneReport(msgspec.Struct, frozen=True, array_like=True):
    """What the writer of a lane's epoch knows for good.

    All its messages of the lane with timestamps up to *timestamp* are acknowledged, and lie before
    *version*; so does everything that the lane had before the epoch. Everything before *version* is
    durable.
    """

    uid: Count
    """of the topic"""
    partition: Annotated[int, msgspec.Meta(ge=-1)]
    lane: Count
    epoch: Count
    timestamp: Timestamp
    version: Count

    @property
    def index(self) -> LaneIndex:
        """The lane's partition and number."""
        return self.partition, self.lane


class ReportLanes(msgspec.Struct, frozen=True, tag=True):
    """Say how far open lanes of topics with timesync are acknowledged. -> LanesNoted."""

    reports: Annotated[list[LaneReport], msgspec.Meta(max_length=REPORTS_MAX)]


class NewestTick(msgspec.Struct, frozen=True, tag=True):
    """Ask for a topic's newest tick, whether it is stored or idle. -> TickNow."""

    uid: Count


class LanesNoted(msgspec.Struct, frozen=True, tag=True):
    """The leader counts with the reports."""


class TickNow(msgspec.Struct, frozen=True, tag=True):
    """A topic's newest tick."""

    timestamp: Timestamp
    """0 if there is none yet"""
    stored: Timestamp
    """of the newest stored tick, which has the same covers"""
    covers: list[tuple[int, int, int]]
    """partition, lane and version of each covered lane"""
    holder: str = ""
    """what holds the next tick back"""
    lane: LaneIndex | None = None
    """the lane that does; None if no lane does"""
    silent_s: float = 0.0
    """how long that lane's writer has reported nothing"""
    held_s: float = 0.0
    """how long ago this tick was made"""


TickRequest = ReportLanes | NewestTick
TickReply = LanesNoted | TickNow
TimeRequest = AllotTimestamps | ResetTime | TickRequest
TimeReply = TimestampsAllotted | TimeReset | TickReply
