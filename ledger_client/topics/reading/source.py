"""The raw ledgers of a lane as a source of entries, forward and in reverse.

    rows ──► ledger ──► entries ──► put
      ▲         │ its record says that it has ended
      └─────────┘

A closed ledger is read ahead of its consumer. An open one is followed by a read that is parked at
a bookie. After a ledger's end the lane goes on in the next row; until there is one, a watch wakes
the source, and it also looks every LOOK_S seconds.

Rows disappear, the oldest first, while they are read: ledger_rows.py works out which messages are
missing then. Messages deleted from a ledger during the read are skipped after the next look at its
row: a second later, or where a watch tells of changes, once it did. While it cannot tell, the row
is looked at every UNTOLD_S seconds.

In reverse, entries are read in blocks of bounded size; the next block is read while the consumer
takes the previous one.

A source hands everything to *put*, in order, and returns at the end of its range. Its errors
are those of reading a ledger. Once entries were put, the source counts them as read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

import trio

from ledger_client.errors import (
    EntryLost,
    Gap,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    ReplicasUnavailable,
)
from ledger_client.ledgers.entries import EntryBatch
from ledger_client.ledgers.opener import LedgerOpener
from ledger_client.ledgers.reader import LedgerReader, settle
from ledger_client.topics.lanes.ledger_rows import (
    LedgerRows,
    Row,
    gap_after,
    gap_before,
    gap_of_ledger,
    kept_entries,
    kept_messages,
)
from ledger_client.topics.messages import MessageBatch, open_batch
from ledger_client.topics.positions import EARLIEST, UNKNOWN, LaneRef, Place
from ledger_client.topics.reading.compacted import open_compacted
from metadata.topics import LaneRecord

LOOK_S = 600.0
"""Seconds between two looks at a lane's rows without a hint, which a store should never lose."""
LOOK_AGAIN_S = 1.0
"""Seconds between two looks at the row of the ledger that is being read, if it may have changed."""
UNTOLD_S = 10.0
"""Seconds until it may have changed, while the watch of a lane that is followed cannot tell."""
LOOK_LIMIT_S = 0.5
BLOCK_SIZE = 2 << 20
"""Bytes of a block that is read in reverse, about."""
BLOCK_ENTRIES_MAX = 16384
FIRST_BLOCK_ENTRIES = 16


class OpenedEntry(NamedTuple):
    """An entry as a batch of messages, and the ranges of it to be read."""

    batch: MessageBatch | None
    """`None` if the entry has no messages"""
    kept: list[tuple[int, int]]
    """ranges of its messages, each from the first to before the second; the rest is deleted"""
    before: Place
    after: Place


class RawEntries(NamedTuple):
    """Consecutive entries of a raw ledger of the lane."""

    row: Row
    batch: EntryBatch

    def open(self, lane: LaneRef, index: int) -> OpenedEntry:
        """Decode one of the entries. Raises MessagesLost."""
        place = self.row.place(self.batch.first_entry + index)
        found = open_batch(lane, place, self.batch.payload(index), self.row.ledger.stamp)
        kept = []
        if found is not None:
            kept = kept_messages(self.row.ledger.removed, place.entry, 0, found.count)
        return OpenedEntry(found, kept, place, self.row.place(place.entry + 1))


class CompactedEntries(NamedTuple):
    """Consecutive entries of a compacted ledger of the lane."""

    batch: EntryBatch
    start: Place | None = None
    """messages before it were read already"""
    stop: Place | None = None
    """messages after it were read already, in reverse"""

    def open(self, lane: LaneRef, index: int) -> OpenedEntry:
        """Decode one of the entries. Raises MessagesLost."""
        stored = self.batch.ledger_id, self.batch.first_entry + index
        found = open_compacted(lane, stored, self.batch.payload(index))
        first = 0 if self.start is None else found.count_before(self.start)
        last = found.count if self.stop is None else found.count_before(self.stop)
        return OpenedEntry(found, [(first, last)], found.place, found.after(found.count))


class Edge(NamedTuple):
    """Marks the live edge: entries after it arrived after reading began."""

    version: int = UNKNOWN
    """entries before this version were put, or are gone"""


Entries = RawEntries | CompactedEntries
Put = Callable[[Entries | Gap | Edge], Awaitable[None]]
"""Takes the entries that a source has read; waits while the consumer is behind."""


class RowWatch(Protocol):
    """Tells of changes of rows: TopicWatch."""

    @property
    def tells(self) -> bool:
        """Whether it tells of each change at once; otherwise later."""

    def news(self, prefix: str) -> trio.Event:
        """Return an event that is set when rows with *prefix* may have changed."""


class RawSource:
    """Reads a lane forward.

    Args:
        rows: the lane's rows.
        opener: opens its ledgers.
        start: the place to begin at.
        end: the place to end at; `None` leaves the end to *last_number*.
        end_was_confirmed: entries before *end* were confirmed once, even if the bookies that
            answer now confirm fewer.
        last_number: the last ledger to read; `None` follows the lane, for ever or up to *end*.
        watch: reports new rows; needed to follow.
    """

    def __init__(
        self,
        rows: LedgerRows,
        opener: LedgerOpener,
        start: Place,
        *,
        end: Place | None = None,
        end_was_confirmed: bool = False,
        last_number: int | None = None,
        watch: RowWatch | None = None,
    ) -> None:
        self._rows = rows
        self._opener = opener
        self._place = start
        self._number = start.number
        """number of the ledger to read next"""
        self._end = end
        self._end_was_confirmed = end_was_confirmed
        self._last_number = last_number
        self._watch = watch
        self._looked_at = 0.0
        self._pause_s = LOOK_AGAIN_S
        """until the next look; longer after each one that held the reader up in vain"""
        self._changed = trio.Event()
        """set if the row of the ledger that is being read may have changed"""

    async def run(self, put: Put) -> None:
        """Read up to the end. Raises LedgerError when reading fails."""
        while (row := await self._next_row(put)) is not None:
            if await self._read(row, put):
                self._number = row.number + 1
            # Otherwise its row disappeared meanwhile: look up the next one there is.

    async def _next_row(self, put: Put) -> Row | None:
        while not self._is_over():
            news = self._next_news()
            row, record = await self._first_readable(), None
            if row is None:
                # Every ledger begun before the lane's record was read is listed, or deleted, by
                # the second look.
                record = await self._rows.record()
                row = await self._first_readable()
            if row is not None and row.number == self._number:
                self._changed, self._pause_s = news, LOOK_AGAIN_S
                return row
            gap = await gap_after(self._rows, self._number, self._place, row, record)
            if gap is not None:
                await put(gap)
            if row is not None:
                self._place, self._number = row.place(0), row.number
            elif gap is not None:
                self._number += 1
                if gap.missing is not None:  # do not report the same entries twice
                    reached = self._place.version + gap.missing
                    self._place = self._place._replace(version=reached)
            elif self._last_number is not None or await self._is_removed(record):
                return None
            else:
                # Ledgers before the next version were listed, if they are still there.
                version = UNKNOWN if record is None else record.next_version
                await put(Edge(max(self._place.version, version)))
                with trio.move_on_after(LOOK_S):
                    await news.wait()
        return None

    async def _is_removed(self, record: LaneRecord | None) -> bool:
        """True if nothing is left, or will come, before the end: all its ledgers were deleted."""
        if self._end is None or record is None or (record.current + 1, 0, 0) < self._end.at:
            return False
        return await self._rows.first_from(self._number) is None

    async def _first_readable(self) -> Row | None:
        row = await self._rows.first_from(self._number)
        return row if row is not None and row.readable else None

    def _is_over(self) -> bool:
        if self._last_number is not None and self._number > self._last_number:
            return True
        reached = max(self._place.at, (self._number, 0, 0))
        return self._end is not None and reached >= self._end.at

    async def _read(self, row: Row, put: Put) -> bool:
        """Read the rest of a ledger; False if it was deleted meanwhile, and its row with it."""
        self._looked_at = trio.current_time()
        try:
            is_known = self._end_was_confirmed and self._last_number is not None
            reader = await self._opener.open(
                row.ledger.ledger_id, confirmed=self._last_wanted(row) if is_known else UNKNOWN
            )
            try:
                await self._read_open(row, reader, put)
            except (EntryLost, NoSuchEntry, ReplicasUnavailable) as failure:
                # A read covers many entries. Those before the failed one may be readable.
                await self._read_range(row, reader, failure.entry_id - 1, put)
                raise
            finally:
                reader.unwatch()
        except NoSuchLedger:
            found = await self._rows.at(row.number)
            if found is None:
                return False
            if found.ledger.state != "closed":
                raise  # a row without its ledger: the contents are unknown
            await self._skip(found, put)
        return True

    async def _skip(self, row: Row, put: Put) -> None:
        """Skip a closed ledger that an operator deleted; report what is missing."""
        if self._number != self._place.number:
            self._place = row.place(0)
        last = self._last_of(row, row.ledger.entries - 1)
        gap = await gap_of_ledger(self._rows, row, self._place.entry, last, place=self._place)
        if gap is not None:
            await put(gap)
        self._place = max(self._place, row.place(last + 1), key=lambda place: place.at)

    async def _read_open(self, row: Row, reader: LedgerReader, put: Put) -> None:
        if self._number != self._place.number:
            self._place = row.place(0)
        if self._last_number is not None and not self._ends_before(row, reader.last_confirmed + 1):
            await settle(reader, self._rows.is_written)
        if reader.closed or self._last_number is not None:
            last = self._last_of(row, reader.last_confirmed)
            await self._read_range(row, reader, last, put)
        else:
            await self._follow(row, reader, put)
            last = reader.last_confirmed
        # The next ledger's versions follow the last entry's, even if that entry was deleted.
        self._place = max(self._place, row.place(last + 1), key=lambda place: place.at)

    async def _follow(self, row: Row, reader: LedgerReader, put: Put) -> None:
        follower = reader.follow(self._place.entry)
        while not self._is_over():
            if self._place.entry > reader.last_confirmed:
                await put(Edge(self._place.version))
            batch = await follower.next_batch()
            if batch is None:
                return
            row = await self._put(row, batch, put)

    async def _read_range(self, row: Row, reader: LedgerReader, last: int, put: Put) -> None:
        for first, stop in kept_entries(row.ledger.removed, self._place.entry, last):
            async for batch in reader.read_batches(first, stop):
                row = await self._put(row, batch, put)

    def _last_of(self, row: Row, last: int) -> int:
        if self._end is None or self._end.number != row.number:
            return last
        return min(last, self._last_wanted(row))

    def _ends_before(self, row: Row, entry: int) -> bool:
        """True if the read ends in this ledger before an entry, wherever the ledger itself ends."""
        return (
            self._end is not None
            and self._end.number == row.number
            and self._last_wanted(row) < entry
        )

    def _last_wanted(self, row: Row) -> int:
        """Return the last entry before the end, -1 if the end is in another ledger."""
        if self._end is None or self._end.number != row.number:
            return -1
        return self._end.entry if self._end.skip else self._end.entry - 1

    async def _put(self, row: Row, batch: EntryBatch, put: Put) -> Row:
        """Hand entries over; return the ledger's row, read again if it is old.

        Raises:
            NoSuchLedger: the row is gone.
        """
        if trio.current_time() - self._looked_at > self._looks_after_s():
            row = await self._look_again(row)
            self._looked_at = trio.current_time()
        await put(RawEntries(row, batch))
        self._place = row.place(batch.last_entry + 1)
        return row

    def _looks_after_s(self) -> float:
        """Return how long after a look at the row of the ledger that is read there is another."""
        if self._watch is None or self._changed.is_set():
            return self._pause_s
        return LOOK_S if self._watch.tells else UNTOLD_S

    def _next_news(self) -> trio.Event:
        """Return an event that is set when the lane's rows may have changed from now on."""
        return trio.Event() if self._watch is None else self._watch.news(self._rows.prefix)

    async def _look_again(self, row: Row) -> Row:
        found: Row | None = row
        news = self._next_news()
        self._changed = trio.Event()
        self._changed.set()  # until there is an answer
        longer_s, self._pause_s = min(2 * self._pause_s, UNTOLD_S), LOOK_AGAIN_S
        with trio.move_on_after(LOOK_LIMIT_S) as limit, suppress(MetadataUnavailable):
            found = await self._rows.at(row.number)  # reading goes on without the store
            self._changed = news
        if limit.cancelled_caught:
            self._pause_s = longer_s
        if found is None:
            raise NoSuchLedger(ledger_id=row.ledger.ledger_id)
        return found


class ReverseSource:
    """Reads a lane from *start* back to *end*, or to its first entry.

    If rows disappear meanwhile, the lane's beginning as it was when the read began is missing,
    and reported as a Gap.
    """

    def __init__(
        self, rows: LedgerRows, opener: LedgerOpener, start: Place, *, end: Place | None = None
    ) -> None:
        self._rows = rows
        self._opener = opener
        self._place = start
        self._end = end
        self._block = FIRST_BLOCK_ENTRIES
        self._floor = UNKNOWN
        """version of the first entry to be read"""

    async def run(self, put: Put) -> None:
        """Read back to the end. Raises LedgerError when reading fails."""
        if self._place.number == UNKNOWN:
            return
        await self._learn_floor()
        number = self._place.number
        while number >= 0 and (self._end is None or number >= self._end.number):
            row = await self._rows.at(number) or await self._rows.last_up_to(number)
            if row is not None and self._end is not None and row.number < self._end.number:
                row = None
            if row is None or row.number < number or number < self._place.number:
                gap = await gap_before(self._rows, row, self._place, self._floor)
                if gap is not None:
                    await put(gap)
            if row is None:
                return
            if not await self._read(row, put):
                continue  # its row disappeared meanwhile: look up the next one there is
            self._place, number = row.place(0), row.number - 1

    async def _learn_floor(self) -> None:
        if self._end is not None and self._end != EARLIEST:
            self._floor = self._end.version
        elif (first := await self._rows.first_from(0)) is not None:
            self._floor = first.ledger.base_version

    async def _read(self, row: Row, put: Put) -> bool:
        """Read a ledger back to its first entry; False if it was deleted with its row."""
        try:
            reader = await self._opener.open(row.ledger.ledger_id)
            try:
                await self._read_back(row, reader, put)
            finally:
                reader.unwatch()
        except NoSuchLedger:
            found = await self._rows.at(row.number)
            if found is None:
                return False
            if found.ledger.state != "closed":
                raise  # a row without its ledger: the contents are unknown
            await self._skip(found, put)
        return True

    async def _skip(self, row: Row, put: Put) -> None:
        """Skip a closed ledger that an operator deleted; report what is missing."""
        bottom, stop = self._bounds(row, row.ledger.entries)
        place = self._place if row.number == self._place.number else row.place(stop)
        gap = await gap_of_ledger(self._rows, row, bottom, stop - 1, place=place)
        if gap is not None:
            await put(gap)

    async def _read_back(self, row: Row, reader: LedgerReader, put: Put) -> None:
        stop = reader.last_confirmed + 1
        if row.number == self._place.number:
            asked = self._place.entry + (self._place.skip > 0)
            if asked > stop:
                stop = await settle(reader, self._rows.is_written) + 1
        bottom, stop = self._bounds(row, stop)
        for start, last in reversed([*kept_entries(row.ledger.removed, bottom, stop - 1)]):
            await self._read_range(row, reader, start, last + 1, put)

    def _bounds(self, row: Row, stop: int) -> tuple[int, int]:
        """Return the first entry to read of a ledger of *stop* entries, and the end."""
        if row.number == self._place.number:
            stop = min(stop, self._place.entry + (self._place.skip > 0))
        is_last = self._end is not None and self._end.number == row.number
        return self._end.entry if self._end is not None and is_last else 0, stop

    async def _read_range(
        self, row: Row, reader: LedgerReader, bottom: int, stop: int, put: Put
    ) -> None:
        while stop > bottom:
            first = max(stop - self._block, bottom)
            try:
                await self._read_block(row, reader, first, stop, put)
            except (EntryLost, NoSuchEntry, ReplicasUnavailable) as failure:
                # A block is read as a whole. Entries after the failed one may be readable.
                await self._read_block(row, reader, failure.entry_id + 1, stop, put)
                raise
            stop = first

    async def _read_block(
        self, row: Row, reader: LedgerReader, first: int, stop: int, put: Put
    ) -> None:
        block = [batch async for batch in reader.read_batches(first, stop - 1)]
        for batch in reversed(block):
            await put(RawEntries(row, batch))
            self._place = row.place(batch.first_entry)
        self._learn_sizes(block)

    def _learn_sizes(self, block: list[EntryBatch]) -> None:
        entries, size = sum(map(len, block)), sum(batch.size for batch in block)
        if entries:
            fitting = BLOCK_SIZE * entries // max(size, 1)
            self._block = max(1, min(fitting, 4 * self._block, BLOCK_ENTRIES_MAX))
