"""Places and times looked for in what compaction left of a lane.

The entries of all of its ledgers, one after the other, are in the order of what they hold:
so a few of them, by halves, tell where a message, a version or a time is, or the first one
behind it that is left.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import accumulate

from ledger_client.errors import NoSuchLedger
from ledger_client.reader import LedgerReader
from ledger_client.topics.message_id import NOT_BATCHED, MessageId
from ledger_client.topics.reading.compacted_batch import (
    CompactedBatch,
    compacted_header,
    open_compacted,
)
from ledger_client.topics.reading.compacted_part import CompactedPart, lost
from ledger_client.topics.reading.opening import LedgerOpener
from ledger_client.topics.reading.places import LaneRef, Place, Version
from ledger_client.topics.reading.times import Halving, Time
from native.batch import BatchHeader

Reached = Callable[[Place], bool]
"""Tells of the place before a message whether the message is one that is looked for, or behind
it."""


async def find_in_part(
    lane: LaneRef, part: CompactedPart, opener: LedgerOpener, start: object, *, behind: bool
) -> Place | None:
    """Return the place of a message or version, or *behind* it, in *part*; None: not in it.

    Where the message itself is not left, it is the place before the first one behind it.

    Raises:
        CompactedSetLost: a ledger of the part is gone.
        LedgerError: as reading does.
    """
    reached = _reached(part, start, behind)
    if reached is None:
        return None
    async with searching(lane, part, opener) as search:
        return await search.place(reached) or part.horizon


async def find_time_in_part(
    lane: LaneRef, part: CompactedPart, opener: LedgerOpener, time: Time, start: Place
) -> Place | None:
    """Return the place of the first message at *time* or later, from *start* on, in *part*.

    Raises as find_in_part().
    """
    async with searching(lane, part, opener) as search:
        return await search.time(time, start)


@asynccontextmanager
async def searching(
    lane: LaneRef, part: CompactedPart, opener: LedgerOpener
) -> AsyncIterator[PartSearch]:
    """Look into *part* for the block, which raises CompactedSetLost for a ledger that is gone."""
    search = PartSearch(lane, part, opener)
    try:
        yield search
    except NoSuchLedger as gone:
        raise lost(lane, gone) from gone
    finally:
        search.close()


def _reached(part: CompactedPart, start: object, behind: bool) -> Reached | None:
    """Return what tells messages before *start* from others; None: it is behind the part."""
    if isinstance(start, Version) and start.number + behind < part.horizon.version:
        version = start.number + behind
        return lambda place: place.version >= version
    if isinstance(start, MessageId) and start.ledger_id <= part.last_ledger_id:
        ledger, entry, _, index = start
        wanted = (ledger, entry, index + behind)
        if index == NOT_BATCHED:
            wanted = (ledger, entry + behind, 0)
        return lambda place: (place.ledger_id, place.entry, place.skip) >= wanted
    return None


class PartSearch(Halving):
    """Looks into the entries of *part*, numbered from 0 through all of its ledgers.

    Every call may raise NoSuchLedger, BadBatch, and as LedgerReader.read(). To be closed.
    """

    def __init__(self, lane: LaneRef, part: CompactedPart, opener: LedgerOpener) -> None:
        self._lane = lane
        self._part = part
        self._opener = opener
        self._ends = list(accumulate(ledger.entries for ledger in part.ledgers))
        self._last = self._ends[-1] - 1 if self._ends else -1
        self._readers: dict[int, LedgerReader] = {}

    def close(self) -> None:
        """Close the ledgers that were looked into."""
        for reader in self._readers.values():
            reader.close()

    async def place(self, reached: Reached) -> Place | None:
        """Return the place before the first message that is looked for, None if none is."""
        index = await self.entry(reached)
        if index is None:
            return None
        batch = await self.batch(index)
        at = bisect_left(range(batch.count), True, key=lambda i: reached(batch.before(i)))
        return batch.before(at)

    async def entry(self, reached: Reached) -> int | None:
        """Return the first entry with a message that is looked for."""
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
        """Return which ledger of the part an entry is in, and which entry of it it is."""
        ledger = bisect_right(self._ends, index)
        return ledger, index - (self._ends[ledger] - self._part.ledgers[ledger].entries)

    async def batch(self, entry: int) -> CompactedBatch:
        """Return an entry, opened."""
        stored, payload = await self._payload(entry)
        return open_compacted(self._lane, stored, payload)

    async def header(self, entry: int) -> BatchHeader | None:
        """Return the header of the messages of an entry."""
        stored, payload = await self._payload(entry)
        return compacted_header(self._lane, stored, payload).batch

    async def look_through(self, time: Time, start: int = 0) -> int | None:
        """Return the first entry with a message at *time* or later, whatever the order."""
        index = start
        while index <= self._last:
            ledger, first = self.stored(index)
            reader = await self._opened(ledger)
            last = self._part.ledgers[ledger].entries - 1
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
        stored = self._part.ledgers[ledger].ledger_id, entry
        return stored, memoryview(found[0].payload)

    async def _opened(self, ledger: int) -> LedgerReader:
        if ledger not in self._readers:
            opened = await self._opener.open(self._part.ledgers[ledger].ledger_id)
            self._readers[ledger] = opened
        return self._readers[ledger]
