"""Points in time, and the place in a lane where each begins.

A time stands for the place before the first message of the lane that has it, or a later
one. To find it, rows are looked through first: they name the first and last times of closed
ledgers. Then the one ledger that holds the place is opened, and halved by the headers of
its batches, which tell without being decompressed which times are in them; then the one
batch is opened. A lane without order by event time is looked through, in every ledger
that may hold such a message, up to the first one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ledger_client.errors import NoSuchLedger
from ledger_client.reader import LedgerReader
from ledger_client.topics.lanes.ledger_rows import LedgerRows, Row
from ledger_client.topics.messages import Batch, message_header, open_batch
from ledger_client.topics.reading.holes import past
from ledger_client.topics.reading.opening import LedgerOpener
from ledger_client.topics.reading.places import EARLIEST, LaneRef, Place
from metadata.topics import LaneLedger
from native.batch import BatchHeader

LOGICAL_BITS = 18
"""Of a timestamp; those above are Unix milliseconds."""
CLOCKS_APART_MS = 60_000
"""Between a producer and who closes its ledger, at most, that a search allows for."""


class EventTime(NamedTuple):
    """Nanoseconds, as producers give them. Messages without one are never found."""

    ns: int

    def next(self) -> EventTime:
        """Return the point right after this one."""
        return EventTime(self.ns + 1)

    def rises(self, lane: LaneRef) -> bool:
        """Whether the lane is ordered by event time."""
        return lane.ordered

    def is_in(self, row: LaneLedger) -> bool:
        """Whether a closed ledger holds a message of this time or later."""
        return row.last_event_time is not None and row.last_event_time >= self.ns

    def is_before(self, row: LaneLedger) -> bool:
        """Whether a ledger surely begins at this time or later."""
        return row.first_event_time is not None and row.first_event_time >= self.ns

    def reached_by(self, header: BatchHeader) -> bool | None:
        """Whether the batch holds such a message; None: its messages have no event times."""
        return None if header.event_time_max is None else header.event_time_max >= self.ns

    def index_in(self, batch: Batch, start: int = 0) -> int:
        """Return the place of the first such message from *start* on, or their number."""
        return _first(batch.event_times, start, lambda time: time is not None and time >= self.ns)


class Timestamp(NamedTuple):
    """46 bits of Unix milliseconds and 18 more, as topics give them. 0 is none."""

    value: int

    def next(self) -> Timestamp:
        """Return the point right after this one."""
        return Timestamp(self.value + 1)

    def rises(self, lane: LaneRef) -> bool:
        """Timestamps of a lane rise."""
        return True

    def is_in(self, row: LaneLedger) -> bool:
        """Whether a closed ledger holds a message of this timestamp or a later one."""
        return 0 < row.last_timestamp >= self.value

    def is_before(self, row: LaneLedger) -> bool:
        """Whether a ledger surely begins at this timestamp or a later one."""
        return 0 < row.first_timestamp >= self.value

    def reached_by(self, header: BatchHeader) -> bool | None:
        """Whether the batch holds such a message; None: it has no timestamps."""
        return None if header.last_timestamp == 0 else header.last_timestamp >= self.value

    def index_in(self, batch: Batch, start: int = 0) -> int:
        """Return the place of the first such message from *start* on, or their number."""
        return _first(
            batch.timestamps, start, lambda stamp: stamp is not None and 0 < stamp >= self.value
        )


class PublishTime(NamedTuple):
    """Unix milliseconds of the producer's clock when it made the batch.

    Where that clock was set back, the place is only near the right one.
    """

    ms: int

    def next(self) -> PublishTime:
        """Return the point right after this one."""
        return PublishTime(self.ms + 1)

    def rises(self, lane: LaneRef) -> bool:
        """It is taken as rising."""
        return True

    def is_in(self, row: LaneLedger) -> bool:
        """Whether a closed ledger may hold a batch made at this time or later."""
        return row.closed_ms == 0 or row.closed_ms >= self.ms

    def is_before(self, row: LaneLedger) -> bool:
        """Nobody knows: batches may be older than their ledger."""
        return False

    def reached_by(self, header: BatchHeader) -> bool | None:
        """Whether the batch was made at this time or later."""
        return header.created_ms >= self.ms

    def index_in(self, batch: Batch, start: int = 0) -> int:
        """Return the place of the first such message from *start* on, or their number."""
        return _first(batch.publish_times(), start, lambda ms: ms is not None and ms >= self.ms)


class EntryTime(NamedTuple):
    """Unix milliseconds of an entry: of its last timestamp, or of its producer's clock.

    All messages of an entry have it. It is no place that users name: replays merge by it.
    """

    ms: int

    def rises(self, lane: LaneRef) -> bool:
        """It is taken as rising."""
        return True

    def is_in(self, row: LaneLedger) -> bool:
        """Whether a closed ledger may hold such an entry; clocks may be a little apart."""
        newest_ms = max(row.closed_ms + CLOCKS_APART_MS, row.last_timestamp >> LOGICAL_BITS)
        return row.closed_ms == 0 or newest_ms >= self.ms

    def is_before(self, row: LaneLedger) -> bool:
        """Nobody knows: entries may be older than their ledger."""
        return False

    def reached_by(self, header: BatchHeader) -> bool | None:
        """Whether the entry has this time or a later one."""
        return entry_ms(header) >= self.ms

    def index_in(self, batch: Batch, start: int = 0) -> int:
        """Return *start*, or the number of messages if the entry is earlier."""
        return start if entry_ms(batch.header) >= self.ms else batch.count


def entry_ms(header: BatchHeader) -> int:
    """Return the time of an entry in Unix milliseconds."""
    return header.last_timestamp >> LOGICAL_BITS or header.created_ms


Time = EventTime | Timestamp | PublishTime
AnyTime = Time | EntryTime
TIMES = (EventTime, Timestamp, PublishTime)


class Found(NamedTuple):
    """Where a time begins; *exact* False: at the end of the lane, as nothing has it yet."""

    place: Place
    exact: bool


class TimeSearch:
    """Finds times in one lane. Raises as reading does; BadBatch too."""

    def __init__(self, lane: LaneRef, rows: LedgerRows, opener: LedgerOpener) -> None:
        self._lane = lane
        self._rows = rows
        self._opener = opener

    async def find(self, time: AnyTime, *, start: Place = EARLIEST) -> Found:
        """Return the place before the first message at *time* or later, from *start* on."""
        end = start
        number = max(start.number, 0)
        while rows := await self._rows.page(number):
            for row in rows:
                if not row.readable:
                    return Found(end, False)
                begin = start if row.number == start.number else place_of(row, 0)
                place, end = await self._look_at(row, time, begin)
                if place is not None:
                    return Found(place, True)
            number = end.number + 1
        return Found(end, False)

    async def _look_at(self, row: Row, time: AnyTime, begin: Place) -> tuple[Place | None, Place]:
        """Return the place in this ledger, if it is there, and that of the ledger's end."""
        end = place_of(row, row.ledger.entries)
        if row.ledger.state == "closed":
            if not time.is_in(row.ledger):
                return None, end
            if time.rises(self._lane) and time.is_before(row.ledger):
                return begin, end
        try:
            reader = await self._opener.open(row.ledger.ledger_id)
        except NoSuchLedger:
            found = await self._rows.at(row.number)
            if found is None or found.ledger.state != "closed":
                raise
            return begin, end  # a person deleted it: who reads on from here learns what is missing
        try:
            headers = Headers(self._lane, row, reader)
            place = await headers.first(time, begin)
            return place, place_of(row, reader.last_confirmed + 1)
        finally:
            reader.close()


class Halving(ABC):
    """Entries that are in order, looked into by halves."""

    _last: int
    """The last entry."""

    @abstractmethod
    async def header(self, entry: int) -> BatchHeader | None:
        """Return the header of an entry, None of one without messages."""

    async def halve(self, time: AnyTime, start: int = 0) -> int | None:
        """Return the first entry with a message at *time* or later, of a kind that rises."""
        low, high = start, self._last + 1
        while low < high:
            middle = (low + high) // 2
            probe, reached = await self._probe(middle, high, time)
            if reached or reached is None:
                high = middle
            else:
                low = probe + 1
        entry, reached = await self._probe(low, self._last + 1, time)
        return entry if reached else None

    async def _probe(self, entry: int, end: int, time: AnyTime) -> tuple[int, bool | None]:
        """Return the first entry from *entry* to before *end* that tells, and what it tells."""
        while entry < end:
            header = await self.header(entry)
            reached = None if header is None else time.reached_by(header)
            if reached is not None:
                return entry, reached
            entry += 1
        return end, None


class Headers(Halving):
    """The headers of the batches of one ledger."""

    def __init__(self, lane: LaneRef, row: Row, reader: LedgerReader) -> None:
        self._lane = lane
        self._row = row
        self._reader = reader
        self._last = reader.last_confirmed

    async def first(self, time: AnyTime, begin: Place) -> Place | None:
        """Return the place before the first message at *time* or later, from *begin* on."""
        look = self.halve if time.rises(self._lane) else self.look_through
        start, skip = begin.entry, begin.skip
        while (entry := await look(time, start)) is not None:
            batch = await self.batch(entry)
            index = time.index_in(batch, skip if entry == start else 0)
            if index >= batch.count:
                start, skip = entry + 1, 0  # only what lies before *begin* has the time
                continue
            kept = past(self._row.ledger.removed, (entry, index))
            if kept == (entry, index):
                return place_of(self._row, entry)._replace(skip=index)
            start, skip = kept
        return None

    async def look_through(self, time: AnyTime, start: int = 0) -> int | None:
        """Return the first entry with a message at *time* or later, whatever the order."""
        async for entries in self._reader.read_batches(start, self._last):
            for index in range(len(entries)):
                place = place_of(self._row, entries.first_entry + index)
                header = message_header(self._lane, place, entries.payload(index))
                if header is not None and time.reached_by(header):
                    return place.entry
        return None

    async def batch(self, entry: int) -> Batch:
        """Return the messages of an entry that has some."""
        found = await self._reader.read(entry, entry)
        payload = memoryview(found[0].payload)
        batch = open_batch(self._lane, place_of(self._row, entry), payload)
        assert batch is not None
        return batch

    async def header(self, entry: int) -> BatchHeader | None:
        """Return the header of an entry, None of one without messages."""
        found = await self._reader.read(entry, entry)
        payload = memoryview(found[0].payload)
        return message_header(self._lane, place_of(self._row, entry), payload)


def place_of(row: Row, entry: int) -> Place:
    """Return the place before an entry of a lane's ledger."""
    return Place(row.number, entry, 0, row.ledger.ledger_id, row.version(entry))


def _first(times: Sequence[int | None], start: int, reached: Callable[[int | None], bool]) -> int:
    return next((i for i in range(start, len(times)) if reached(times[i])), len(times))
