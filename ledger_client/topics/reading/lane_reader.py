"""One lane read forward: its ledgers one after the other, the open one as it grows.

    rows ──► ledger ──► entries ──► Intake
      ▲         │ its record says that it ended
      └─────────┘

A closed ledger is read ahead of whoever takes the entries; an open one is followed, by a
read that is parked at a bookie. After the end of a ledger the lane goes on in the next
row. Until there is one a watch wakes the reader, and it looks by itself now and then.

Rows go away, the oldest first, while somebody reads: removed.py tells what is missing then.
What is deleted out of a ledger while it is read is passed over from the next look at its row on,
a second later at most.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio

from ledger_client.entries import EntryBatch
from ledger_client.errors import (
    EntryLost,
    LedgerError,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    ReplicasUnavailable,
)
from ledger_client.reader import LedgerReader
from ledger_client.topics.lanes.ledger_rows import LedgerRows, Row
from ledger_client.topics.reading.holes import kept_entries
from ledger_client.topics.reading.intake import Ended, Failed, Intake, Taken
from ledger_client.topics.reading.opening import LedgerOpener, settle
from ledger_client.topics.reading.places import LaneRef, Place
from ledger_client.topics.reading.removed import gap_behind, gap_of_ledger
from ledger_client.topics.reading.times import place_of
from ledger_client.topics.reading.topic_watch import LOOK_S

LOOK_AGAIN_S = 1.0
"""Between two looks at the row of the ledger that is read."""
LOOK_LIMIT_S = 0.5
News = Callable[[str], trio.Event]
"""Returns what is set when rows with the prefix may have changed."""


class LaneReader:
    """Reads a lane from a place on, into an intake.

    Args:
        lane: which.
        rows: its rows.
        opener: opens its ledgers.
        intake: takes what is read.
        start: where to begin.
        end: where to end; None: at the end of what is there.
        end_was_confirmed: what lies before *end* was confirmed once, whatever bookies know now.
        last_number: the last ledger to read; None: follow, for ever or up to *end*.
        news: tells of new rows; needed to follow.
    """

    def __init__(
        self,
        lane: LaneRef,
        *,
        rows: LedgerRows,
        opener: LedgerOpener,
        intake: Intake,
        start: Place,
        end: Place | None = None,
        end_was_confirmed: bool = False,
        last_number: int | None = None,
        news: News | None = None,
    ) -> None:
        self._lane = lane
        self._rows = rows
        self._opener = opener
        self._intake = intake
        self._place = start
        self._number = start.number
        """of the ledger to read next: after the end of one, that of the next"""
        self._end = end
        self._end_was_confirmed = end_was_confirmed
        self._last_number = last_number
        self._news = news
        self._looked_at = 0.0

    async def run(self) -> None:
        """Read until the end, or until something fails: the intake tells."""
        try:
            while (row := await self._next_row()) is not None:
                if not await self._read(row):
                    continue  # it was removed meanwhile: look for what is there
                self._number = row.number + 1
            await self._intake.put(Ended())
        except LedgerError as failure:
            await self._intake.put(Failed(failure))

    async def _next_row(self) -> Row | None:
        while not self._is_over():
            news = self._news(self._rows.prefix) if self._news is not None else trio.Event()
            row, record = await self._first_readable(), None
            if row is None:
                # What the lane has begun by now is there, or gone, when one looks again.
                record = await self._rows.record()
                row = await self._first_readable()
            if row is not None and row.number == self._number:
                return row
            gap = await gap_behind(self._rows, self._number, self._place, row, record)
            if gap is not None:
                await self._intake.put(Failed(gap))
            if row is not None:
                self._place, self._number = place_of(row, 0), row.number
            elif gap is not None:
                self._number += 1
                if gap.missing is not None:  # all of it is told now
                    reached = self._place.version + gap.missing
                    self._place = self._place._replace(version=reached)
            elif self._last_number is not None:
                return None
            else:
                self._intake.mark_edge()
                with trio.move_on_after(LOOK_S):
                    await news.wait()
        return None

    async def _first_readable(self) -> Row | None:
        row = await self._rows.first_from(self._number)
        return row if row is not None and row.readable else None

    def _is_over(self) -> bool:
        if self._last_number is not None and self._number > self._last_number:
            return True
        reached = max(self._place.at, (self._number, 0, 0))
        return self._end is not None and reached >= self._end.at

    async def _read(self, row: Row) -> bool:
        """Read the rest of a ledger; False: it was removed on the way, and its row with it."""
        self._looked_at = trio.current_time()
        try:
            reader = await self._opener.open(row.ledger.ledger_id)
            try:
                await self._read_on(row, reader)
            except (EntryLost, NoSuchEntry, ReplicasUnavailable) as failure:
                # Reads ask for many entries at once: those before it are to be had.
                await self._read_range(row, reader, failure.entry_id - 1)
                raise
            finally:
                reader.close()
        except NoSuchLedger:
            found = await self._rows.at(row.number)
            if found is None:
                return False
            if found.ledger.state != "closed":
                raise  # a row without its ledger, and nobody knows what it held
            await self._pass(found)
        return True

    async def _pass(self, row: Row) -> None:
        """Go on behind a closed ledger that a person deleted by itself; tell what is missing."""
        if self._number != self._place.number:
            self._place = place_of(row, 0)
        last = self._last_of(row, row.ledger.entries - 1)
        gap = await gap_of_ledger(self._rows, row, self._place.entry, last, place=self._place)
        if gap is not None:
            await self._intake.put(Failed(gap))
        self._place = max(self._place, place_of(row, last + 1), key=lambda place: place.at)

    async def _read_on(self, row: Row, reader: LedgerReader) -> None:
        if self._number != self._place.number:
            self._place = place_of(row, 0)
        if self._last_number is not None:
            if self._end_was_confirmed:
                reader.trust(self._last_wanted(row))
            await settle(reader)
        if reader.closed or self._last_number is not None:
            last = self._last_of(row, reader.last_confirmed)
            await self._read_range(row, reader, last)
        else:
            await self._follow(row, reader)
            last = reader.last_confirmed
        # Versions go on behind the last entry, also where that was deleted.
        self._place = max(self._place, place_of(row, last + 1), key=lambda place: place.at)

    async def _follow(self, row: Row, reader: LedgerReader) -> None:
        follower = reader.follow(self._place.entry)
        while not self._is_over():
            if self._place.entry > reader.last_confirmed:
                self._intake.mark_edge()
            batch = await follower.next_batch()
            if batch is None:
                return
            row = await self._put(row, batch)

    async def _read_range(self, row: Row, reader: LedgerReader, last: int) -> None:
        for first, stop in kept_entries(row.ledger.removed, self._place.entry, last):
            async for batch in reader.read_batches(first, stop):
                row = await self._put(row, batch)

    def _last_of(self, row: Row, last: int) -> int:
        if self._end is None or self._end.number != row.number:
            return last
        return min(last, self._last_wanted(row))

    def _last_wanted(self, row: Row) -> int:
        """Return the last entry before the end, -1 where that is in another ledger."""
        if self._end is None or self._end.number != row.number:
            return -1
        return self._end.entry if self._end.skip else self._end.entry - 1

    async def _put(self, row: Row, batch: EntryBatch) -> Row:
        """Hand entries on; return the row as it is now. Raises NoSuchLedger: it is gone."""
        if trio.current_time() - self._looked_at > LOOK_AGAIN_S:
            row = await self._look_again(row)
            self._looked_at = trio.current_time()
        await self._intake.put(Taken(row, batch))
        self._place = place_of(row, batch.last_entry + 1)
        return row

    async def _look_again(self, row: Row) -> Row:
        found: Row | None = row
        with trio.move_on_after(LOOK_LIMIT_S), suppress(MetadataUnavailable):
            found = await self._rows.at(row.number)  # without the store one reads on
        if found is None:
            raise NoSuchLedger(ledger_id=row.ledger.ledger_id)
        return found
