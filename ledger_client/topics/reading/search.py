"""Search for times, versions and messages in a lane, raw or compacted.

A time stands for the place before the lane's first message at that time or later. The rows come
first: they hold the first and last times of closed ledgers. Then the ledger with the place is
opened and searched by halves: the header of a batch names its last time without decompressing it.
Last, that batch is opened. If the lane is not ordered by event time, every ledger that may hold
such a message is scanned up to the first one.

The entries of all compacted ledgers, one after the other, are in order. So they are searched by
halves too, for a message, a version or a time, or for the first survivor after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import NamedTuple

from ledger_client.errors import NoSuchLedger
from ledger_client.ledgers.opener import LedgerOpener
from ledger_client.ledgers.reader import LedgerReader
from ledger_client.message_id import NOT_BATCHED, MessageId
from ledger_client.topics.lanes.ledger_rows import LedgerRows, Row, past
from ledger_client.topics.messages import MessageBatch, message_header, open_batch
from ledger_client.topics.positions import EARLIEST, LaneRef, Place, Version
from ledger_client.topics.reading.compacted import (
    CompactedBatch,
    CompactedRange,
    compacted_header,
    lost,
    open_compacted,
)
from ledger_client.topics.times import AnyTime, Time
from native.batch import BatchHeader

Reached = Callable[[Place], bool]
"""A predicate on the place before a message: is it the wanted message, or a later one?"""


class FoundPlace(NamedTuple):
    """The place before the first message at a time or later."""

    place: Place
    exact: bool
    """False if no message has reached the time; then *place* is the lane's end"""


class TimeSearch:
    """Finds times in the raw ledgers of a lane. Raises MessagesLost, and the errors of reading.

    *confirmed*: entries before this version are confirmed, which bookies may not know.
    """

    def __init__(
        self, lane: LaneRef, rows: LedgerRows, opener: LedgerOpener, *, confirmed: int = 0
    ) -> None:
        self._lane = lane
        self._rows = rows
        self._opener = opener
        self._confirmed = confirmed

    async def find(self, time: AnyTime, *, start: Place = EARLIEST) -> FoundPlace:
        """Return the place before the first message at *time* or later, from *start* on."""
        end = start
        number = max(start.number, 0)
        while rows := await self._rows.page(number):
            for row in rows:
                if not row.readable:
                    return FoundPlace(end, False)
                begin = start if row.number == start.number else row.place(0)
                place, end = await self._look_at(row, time, begin)
                if place is not None:
                    return FoundPlace(place, True)
                if row.ledger.state != "closed":
                    return FoundPlace(end, False)  # more may be in it, before what follows it
            number = end.number + 1
        return FoundPlace(end, False)

    async def _look_at(self, row: Row, time: AnyTime, begin: Place) -> tuple[Place | None, Place]:
        """Return the place if it is in this ledger, and the ledger's end."""
        end = row.place(row.ledger.entries)
        if row.ledger.state == "closed":
            if not time.is_in(row.ledger):
                return None, end
            if time.rises(self._lane) and time.is_before(row.ledger):
                return begin, end
        known = self._confirmed - row.ledger.base_version - 1
        try:
            reader = await self._opener.open(row.ledger.ledger_id, confirmed=known)
        except NoSuchLedger:
            found = await self._rows.at(row.number)
            if found is None or found.ledger.state != "closed":
                raise
            return begin, end  # deleted by an operator: reading on from here reports the gap
        try:
            last = reader.last_confirmed  # what is confirmed during the search is not searched
            search = LedgerSearch(self._lane, row, reader)
            place = await search.first(time, begin)
            return place, row.place(last + 1)
        finally:
            reader.unwatch()


class Halving(ABC):
    """Binary search over the headers of entries that are in order."""

    _last: int
    """the last entry"""

    @abstractmethod
    async def header(self, entry: int) -> BatchHeader | None:
        """Return the header of an entry, `None` if it has no messages."""

    async def halve(self, time: AnyTime, start: int = 0) -> int | None:
        """Return the first entry with a message at *time* or later; times must rise."""
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
        """Return the first entry from *entry* to before *end* with such times, and its answer."""
        while entry < end:
            header = await self.header(entry)
            reached = None if header is None else time.reached_by(header)
            if reached is not None:
                return entry, reached
            entry += 1
        return end, None


class LedgerSearch(Halving):
    """Searches the entries of one raw ledger."""

    def __init__(self, lane: LaneRef, row: Row, reader: LedgerReader) -> None:
        self._lane = lane
        self._row = row
        self._stamp = row.ledger.stamp
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
                start, skip = entry + 1, 0  # only messages before *begin* have the time
                continue
            kept = past(self._row.ledger.removed, (entry, index))
            if kept == (entry, index):
                return self._row.place(entry)._replace(skip=index)
            start, skip = kept
        return None

    async def look_through(self, time: AnyTime, start: int = 0) -> int | None:
        """Return the first entry with a message at *time* or later; scans all of them."""
        async for entries in self._reader.read_batches(start, self._last):
            for index in range(len(entries)):
                place = self._row.place(entries.first_entry + index)
                header = message_header(self._lane, place, entries.payload(index), self._stamp)
                if header is not None and time.reached_by(header):
                    return place.entry
        return None

    async def batch(self, entry: int) -> MessageBatch:
        """Return the messages of an entry, which must have some."""
        found = await self._reader.read(entry, entry)
        payload = memoryview(found[0].payload)
        batch = open_batch(self._lane, self._row.place(entry), payload, self._stamp)
        assert batch is not None
        return batch

    async def header(self, entry: int) -> BatchHeader | None:
        """Return the header of an entry, `None` if it has no messages."""
        found = await self._reader.read(entry, entry)
        payload = memoryview(found[0].payload)
        return message_header(self._lane, self._row.place(entry), payload, self._stamp)


async def find_compacted(
    lane: LaneRef, compacted: CompactedRange, opener: LedgerOpener, start: object, *, after: bool
) -> Place | None:
    """Return the place of a message or version, or *after* it; `None` if it is not compacted.

    If the message did not survive, return the place before the next survivor.

    Raises:
        MessagesLost: a compacted ledger is gone.
        LedgerError: as reading does.
    """
    reached = _reached(compacted, start, after)
    if reached is None:
        return None
    async with searching(lane, compacted, opener) as search:
        return await search.place(reached) or compacted.horizon


async def find_time_compacted(
    lane: LaneRef, compacted: CompactedRange, opener: LedgerOpener, time: Time, start: Place
) -> Place | None:
    """Return the place of the first survivor at *time* or later, from *start* on.

    Raises as find_compacted().
    """
    async with searching(lane, compacted, opener) as search:
        return await search.time(time, start)


@asynccontextmanager
async def searching(
    lane: LaneRef, compacted: CompactedRange, opener: LedgerOpener
) -> AsyncIterator[CompactedSearch]:
    """Search for the length of the block. Raises MessagesLost when a ledger is gone."""
    search = CompactedSearch(lane, compacted, opener)
    try:
        yield search
    except NoSuchLedger as gone:
        raise lost(lane, gone) from gone
    finally:
        search.close()


def _reached(compacted: CompactedRange, start: object, after: bool) -> Reached | None:
    """Return the predicate of *start*, `None` if *start* is after the compacted messages."""
    if isinstance(start, Version) and start.number + after < compacted.horizon.version:
        version = start.number + after
        return lambda place: place.version >= version
    if isinstance(start, MessageId) and start.ledger_id <= compacted.last_ledger_id:
        ledger, entry, _, index = start
        wanted = (ledger, entry, index + after)
        if index == NOT_BATCHED:
            wanted = (ledger, entry + after, 0)
        return lambda place: (place.ledger_id, place.entry, place.skip) >= wanted
    return None


class CompactedSearch(Halving):
    """Searches compacted entries, numbered from 0 through all ledgers. Close it after use.

    Every call may raise NoSuchLedger, MessagesLost, and the errors of LedgerReader.read().
    """

    def __init__(self, lane: LaneRef, compacted: CompactedRange, opener: LedgerOpener) -> None:
        self._lane = lane
        self._compacted = compacted
        self._opener = opener
        self._ends = list(accumulate(ledger.entries for ledger in compacted.ledgers))
        self._last = self._ends[-1] - 1 if self._ends else -1
        self._readers: dict[int, LedgerReader] = {}

    def close(self) -> None:
        """Close the ledgers that were opened."""
        for reader in self._readers.values():
            reader.unwatch()

    async def place(self, reached: Reached) -> Place | None:
        """Return the place before the first wanted message, `None` if there is none."""
        index = await self.entry(reached)
        if index is None:
            return None
        batch = await self.batch(index)
        at = bisect_left(range(batch.count), True, key=lambda i: reached(batch.before(i)))
        return batch.before(at)

    async def entry(self, reached: Reached) -> int | None:
        """Return the first entry with a wanted message, `None` if there is none."""
        low, high = 0, self._last + 1
        while low < high:
            middle = (low + high) // 2
            batch = await self.batch(middle)
            if reached(batch.before(batch.count - 1)):
                high = middle
            else:
                low = middle + 1
        return low if low <= self._last else None

    async def time(self, time: Time, start: Place) -> Place | None:
        """Return the place before the first message at *time* or later, from *start* on."""
        look = self.halve if time.rises(self._lane) else self.look_through
        begin = await self.entry(lambda place: place.at >= start.at)
        while begin is not None and (found := await look(time, begin)) is not None:
            batch = await self.batch(found)
            index = time.index_in(batch, batch.count_before(start))
            if index < batch.count:
                return batch.before(index)
            begin = found + 1
        return None

    def stored(self, index: int) -> tuple[int, int]:
        """Return the index of an entry's ledger, and the entry's id in it."""
        ledger = bisect_right(self._ends, index)
        return ledger, index - (self._ends[ledger] - self._compacted.ledgers[ledger].entries)

    async def batch(self, entry: int) -> CompactedBatch:
        """Return the messages of an entry."""
        stored, payload = await self._payload(entry)
        return open_compacted(self._lane, stored, payload)

    async def header(self, entry: int) -> BatchHeader | None:
        """Return the header of the messages of an entry."""
        stored, payload = await self._payload(entry)
        return compacted_header(self._lane, stored, payload).batch

    async def look_through(self, time: Time, start: int = 0) -> int | None:
        """Return the first entry with a message at *time* or later; scans all of them."""
        index = start
        while index <= self._last:
            ledger, first = self.stored(index)
            reader = await self._opened(ledger)
            last = self._compacted.ledgers[ledger].entries - 1
            async for entries in reader.read_batches(first, last):
                for at in range(len(entries)):
                    stored = entries.ledger_id, entries.first_entry + at
                    header = compacted_header(self._lane, stored, entries.payload(at))
                    if time.reached_by(header.batch):
                        return index
                    index += 1
        return None

    async def _payload(self, index: int) -> tuple[tuple[int, int], memoryview]:
        ledger, entry = self.stored(index)
        found = await (await self._opened(ledger)).read(entry, entry)
        stored = self._compacted.ledgers[ledger].ledger_id, entry
        return stored, memoryview(found[0].payload)

    async def _opened(self, ledger: int) -> LedgerReader:
        if ledger not in self._readers:
            opened = await self._opener.open(self._compacted.ledgers[ledger].ledger_id)
            self._readers[ledger] = opened
        return self._readers[ledger]
