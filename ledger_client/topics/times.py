"""Points in time, as users name them and as a lane is searched for them.

Each kind of time answers the same questions, from coarse to fine: can a ledger hold a message at
this time or later, by its row? Does a batch hold one, by its header? Which message is the first?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ledger_client.topics.messages import MessageBatch
from ledger_client.topics.positions import LaneRef
from metadata.time.timestamps import LOGICAL_BITS
from metadata.topics import LaneLedger
from native.batch import BatchHeader

CLOCKS_APART_MS = 60_000
"""How far the clocks of a producer and of the process that closes its ledger may differ."""


class EventTime(NamedTuple):
    """Nanoseconds, set by the producer. A message without an event time is never found."""

    ns: int

    def next(self) -> EventTime:
        """Return the next point in time."""
        return EventTime(self.ns + 1)

    def rises(self, lane: LaneRef) -> bool:
        """True if the lane is ordered by event time."""
        return lane.ordered

    def is_in(self, row: LaneLedger) -> bool:
        """True if a closed ledger holds a message at this time or later."""
        return row.last_event_time is not None and row.last_event_time >= self.ns

    def is_before(self, row: LaneLedger) -> bool:
        """True if the ledger is known to begin at this time or later."""
        return row.first_event_time is not None and row.first_event_time >= self.ns

    def reached_by(self, header: BatchHeader) -> bool | None:
        """True if a message of the batch has this time or a later one; `None` without any."""
        return None if header.event_time_max is None else header.event_time_max >= self.ns

    def index_in(self, batch: MessageBatch, start: int = 0) -> int:
        """Return the index of the first such message from *start* on, or the batch's count."""
        return _first(batch.event_times, start, lambda time: time is not None and time >= self.ns)


class Timestamp(NamedTuple):
    """46 bits of Unix milliseconds and 18 more, assigned by the cluster. 0 means none."""

    value: int

    def next(self) -> Timestamp:
        """Return the next point in time."""
        return Timestamp(self.value + 1)

    def rises(self, lane: LaneRef) -> bool:
        """Always true: timestamps of a lane rise."""
        return True

    def is_in(self, row: LaneLedger) -> bool:
        """True if a closed ledger holds a message with this timestamp or a later one."""
        return 0 < row.last_timestamp >= self.value

    def is_before(self, row: LaneLedger) -> bool:
        """True if the ledger is known to begin at this timestamp or a later one."""
        return 0 < row.first_timestamp >= self.value

    def reached_by(self, header: BatchHeader) -> bool | None:
        """True if a message has this timestamp or a later one; `None` without timestamps."""
        return None if header.last_timestamp == 0 else header.last_timestamp >= self.value

    def index_in(self, batch: MessageBatch, start: int = 0) -> int:
        """Return the index of the first such message from *start* on, or the batch's count."""
        return _first(
            batch.timestamps, start, lambda stamp: stamp is not None and 0 < stamp >= self.value
        )


class PublishTime(NamedTuple):
    """Unix milliseconds of the producer's clock when it made the batch.

    If that clock was set back, a search finds a place near the right one.
    """

    ms: int

    def next(self) -> PublishTime:
        """Return the next point in time."""
        return PublishTime(self.ms + 1)

    def rises(self, lane: LaneRef) -> bool:
        """Always true: times are assumed to rise."""
        return True

    def is_in(self, row: LaneLedger) -> bool:
        """True if a closed ledger can hold a batch made at this time or later."""
        return row.closed_ms == 0 or row.closed_ms >= self.ms

    def is_before(self, row: LaneLedger) -> bool:
        """Always false: batches can be older than their ledger."""
        return False

    def reached_by(self, header: BatchHeader) -> bool | None:
        """True if the batch was made at this time or later; never `None`."""
        return header.created_ms >= self.ms

    def index_in(self, batch: MessageBatch, start: int = 0) -> int:
        """Return the index of the first such message from *start* on, or the batch's count."""
        return _first(batch.publish_times(), start, lambda ms: ms is not None and ms >= self.ms)


class EntryTime(NamedTuple):
    """Unix milliseconds of an entry: of its last timestamp, else of its producer's clock.

    All messages of the entry share it. Replays merge by it; users cannot name it as a place.
    """

    ms: int

    def rises(self, lane: LaneRef) -> bool:
        """Always true: times are assumed to rise."""
        return True

    def is_in(self, row: LaneLedger) -> bool:
        """True if a closed ledger can hold such an entry, allowing for CLOCKS_APART_MS."""
        newest_ms = max(row.closed_ms + CLOCKS_APART_MS, row.last_timestamp >> LOGICAL_BITS)
        return row.closed_ms == 0 or newest_ms >= self.ms

    def is_before(self, row: LaneLedger) -> bool:
        """Always false: entries can be older than their ledger."""
        return False

    def reached_by(self, header: BatchHeader) -> bool | None:
        """True if the entry has this time or a later one; never `None`."""
        return entry_ms(header) >= self.ms

    def index_in(self, batch: MessageBatch, start: int = 0) -> int:
        """Return *start*, or the batch's count if the entry is earlier."""
        return start if entry_ms(batch.header) >= self.ms else batch.count


def entry_ms(header: BatchHeader) -> int:
    """Return the time of an entry in Unix milliseconds; see EntryTime."""
    return header.last_timestamp >> LOGICAL_BITS or header.created_ms


Time = EventTime | Timestamp | PublishTime
AnyTime = Time | EntryTime
TIMES = (EventTime, Timestamp, PublishTime)


def _first(times: Sequence[int | None], start: int, reached: Callable[[int | None], bool]) -> int:
    return next((i for i in range(start, len(times)) if reached(times[i])), len(times))
