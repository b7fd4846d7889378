"""Points in time, as users name them and as a lane is searched for them.

Each kind of time answers the same questions, from coarse to fine: can a ledger hold a message at
this time or later, by its row? Does a batch hold one, by its header? Which message is the first?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from operator import index
from typing import NamedTuple, Self

from ledger_client.topics.messages import MessageBatch
from ledger_client.topics.positions import LaneRef
from metadata.time.timestamps import LOGICAL_BITS
from metadata.topics import LaneLedger
from native.batch import BatchHeader

CLOCKS_APART_MS = 60_000
"""How far the clocks of a producer and of the process that closes its ledger may differ."""


class _EventTime(NamedTuple):
    ns: int


class EventTime(_EventTime):
    """Nanoseconds since 1970, set by the producer. A message without an event time is never found.

    A datetime with a time zone may be given instead of a number.

    Attributes:
        ns: nanoseconds since 1970, an int.

    Raises:
        TypeError: it is neither a number nor a datetime with a time zone.
    """

    __slots__ = ()

    def __new__(cls, ns: int | datetime) -> Self:
        """Convert a datetime."""
        return super().__new__(cls, ns if type(ns) is int else _as_ns(ns, "event time"))

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


class _Timestamp(NamedTuple):
    value: int


class Timestamp(_Timestamp):
    """46 bits of Unix milliseconds and 18 more, assigned by the cluster. 0 means none.

    Attributes:
        value: the 64 bits, an int.

    Raises:
        TypeError: it is no integer.
        ValueError: it is not from 0 to 2**64 - 1.
    """

    __slots__ = ()

    def __new__(cls, value: int) -> Self:
        """Check the value."""
        number = _as_int(value, "a timestamp is 64 bits as an int")
        if not 0 <= number < 1 << 64:
            raise ValueError(f"a timestamp is from 0 to 2**64 - 1, and not {value}")
        return super().__new__(cls, number)

    def next(self) -> Timestamp:
        """Return the next point in time; the last one has a next one, too."""
        return Timestamp._make((self.value + 1,))

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


class _PublishTime(NamedTuple):
    ms: int


class PublishTime(_PublishTime):
    """Unix milliseconds of the cluster's clock when the producer made the batch.

    A datetime with a time zone may be given instead of a number; it is rounded up to milliseconds.
    If that clock was set back, a search finds a place near the right one.

    Attributes:
        ms: milliseconds since 1970, an int.

    Raises:
        TypeError: it is neither a number nor a datetime with a time zone.
    """

    __slots__ = ()

    def __new__(cls, ms: int | datetime) -> Self:
        """Convert a datetime."""
        return super().__new__(cls, ms if type(ms) is int else _as_ms(ms))

    def next(self) -> PublishTime:
        """Return the next point in time."""
        return PublishTime(self.ms + 1)

    def rises(self, lane: LaneRef) -> bool:
        """Always true: times are assumed to rise."""
        return True

    def is_in(self, row: LaneLedger) -> bool:
        """True if a closed ledger can hold a batch made at this time or later.

        Its times are those of two processes: who wrote it, and who closed it. CLOCKS_APART_MS.
        """
        return row.closed_ms == 0 or row.closed_ms + CLOCKS_APART_MS >= self.ms

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
    """Unix milliseconds of an entry: of its last timestamp, else of the time it was made.

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


# --- event times as producers name them -------------------------------------------------

EVENT_TIME_MIN, EVENT_TIME_MAX = -(1 << 63) + 1, (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_OR_DATETIME = "since 1970 as an int, or a datetime with a time zone"


def event_time_ns(time: object) -> int:
    """Return an event time in nanoseconds since 1970.

    Args:
        time: nanoseconds, or a datetime with a time zone.

    Raises:
        TypeError: it is neither.
        ValueError: it does not fit 64 bits.
    """
    if type(time) is not int:
        time = _as_ns(time, "event time")
    if not EVENT_TIME_MIN <= time <= EVENT_TIME_MAX:
        raise ValueError(f"event time {time} does not fit 64 bits")
    return time


def _as_ns(time: object, kind: str) -> int:
    if isinstance(time, datetime):
        if time.utcoffset() is None:
            raise TypeError(
                f"the {kind} {time} has no time zone: name one, as in datetime.now(UTC)"
            )
        return (time - _EPOCH) // _MICROSECOND * 1000
    return _as_int(time, f"an {kind} is nanoseconds {_OR_DATETIME}")


def _as_ms(time: object) -> int:
    if isinstance(time, datetime):
        return -(-_as_ns(time, "publish time") // 1_000_000)
    return _as_int(time, f"a publish time is milliseconds {_OR_DATETIME}")


def _as_int(time: object, wanted: str) -> int:
    try:
        return index(time)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{wanted}, not {time!r} ({type(time).__name__})") from None


Time = EventTime | Timestamp | PublishTime
AnyTime = Time | EntryTime
TIMES = (EventTime, Timestamp, PublishTime)


def _first(times: Sequence[int | None], start: int, reached: Callable[[int | None], bool]) -> int:
    return next((i for i in range(start, len(times)) if reached(times[i])), len(times))
