"""One lane read in reverse: its ledgers from the last to the first, each from its end.

Entries are read in blocks of a bounded size, and while one is being taken the next is read.
What is removed under the reader is a Gap: so is the beginning of the lane, as it was when
reading began.
"""

from __future__ import annotations

from ledger_client.entries import EntryBatch
from ledger_client.errors import (
    EntryLost,
    LedgerError,
    NoSuchEntry,
    NoSuchLedger,
    ReplicasUnavailable,
)
from ledger_client.reader import LedgerReader
from ledger_client.topics.lanes.ledger_rows import LedgerRows, Row
from ledger_client.topics.reading.holes import kept_entries
from ledger_client.topics.reading.intake import Ended, Failed, Intake, Taken
from ledger_client.topics.reading.opening import LedgerOpener
from ledger_client.topics.reading.places import EARLIEST, UNKNOWN, LaneRef, Place
from ledger_client.topics.reading.removed import gap_before, gap_of_ledger
from ledger_client.topics.reading.times import place_of

BLOCK_SIZE = 2 << 20
BLOCK_ENTRIES_MAX = 16384
FIRST_BLOCK_ENTRIES = 16


class BackwardReader:
    """Reads a lane from a place back to *end*, or to its beginning, into an intake."""

    def __init__(
        self,
        lane: LaneRef,
        *,
        rows: LedgerRows,
        opener: LedgerOpener,
        intake: Intake,
        start: Place,
        end: Place | None = None,
    ) -> None:
        self._lane = lane
        self._rows = rows
        self._opener = opener
        self._intake = intake
        self._place = start
        self._end = end
        self._block = FIRST_BLOCK_ENTRIES
        self._floor = UNKNOWN
        """Version with which what is to be read begins."""

    async def run(self) -> None:
        """Read until the end, or until something fails: the intake tells."""
        try:
            if self._place.number != UNKNOWN:
                await self._read_ledgers()
            await self._intake.put(Ended())
        except LedgerError as failure:
            await self._intake.put(Failed(failure))

    async def _read_ledgers(self) -> None:
        await self._learn_floor()
        number = self._place.number
        while number >= 0 and (self._end is None or number >= self._end.number):
            row = await self._rows.at(number) or await self._rows.last_up_to(number)
            if row is not None and self._end is not None and row.number < self._end.number:
                row = None
            if row is None or row.number < number or number < self._place.number:
                gap = await gap_before(self._rows, row, self._place, self._floor)
                if gap is not None:
                    await self._intake.put(Failed(gap))
            if row is None:
                return
            if not await self._read(row):
                continue  # it was removed meanwhile: look for what is there
            self._place, number = place_of(row, 0), row.number - 1

    async def _learn_floor(self) -> None:
        if self._end is not None and self._end != EARLIEST:
            self._floor = self._end.version
        elif (first := await self._rows.first_from(0)) is not None:
            self._floor = first.ledger.base_version

    async def _read(self, row: Row) -> bool:
        """Read a ledger back to its first entry; False: it was removed on the way."""
        try:
            reader = await self._opener.open(row.ledger.ledger_id)
            try:
                await self._read_back(row, reader)
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
        """Go on before a closed ledger that a person deleted by itself; tell what is missing."""
        bottom, stop = self._bounds(row, row.ledger.entries)
        place = self._place if row.number == self._place.number else place_of(row, stop)
        gap = await gap_of_ledger(self._rows, row, bottom, stop - 1, place=place)
        if gap is not None:
            await self._intake.put(Failed(gap))

    async def _read_back(self, row: Row, reader: LedgerReader) -> None:
        stop = reader.last_confirmed + 1
        if row.number == self._place.number:
            asked = self._place.entry + (self._place.skip > 0)
            if asked > stop:
                stop = await reader.refresh() + 1
        bottom, stop = self._bounds(row, stop)
        for start, last in reversed([*kept_entries(row.ledger.removed, bottom, stop - 1)]):
            await self._read_run(row, reader, start, last + 1)

    def _bounds(self, row: Row, stop: int) -> tuple[int, int]:
        """Return the first entry to be read of a ledger of *stop* entries, and before which."""
        if row.number == self._place.number:
            stop = min(stop, self._place.entry + (self._place.skip > 0))
        is_last = self._end is not None and self._end.number == row.number
        return self._end.entry if self._end is not None and is_last else 0, stop

    async def _read_run(self, row: Row, reader: LedgerReader, bottom: int, stop: int) -> None:
        while stop > bottom:
            first = max(stop - self._block, bottom)
            try:
                await self._read_block(row, reader, first, stop)
            except (EntryLost, NoSuchEntry, ReplicasUnavailable) as failure:
                # A block is read as a whole: what lies behind the entry is to be had.
                await self._read_block(row, reader, failure.entry_id + 1, stop)
                raise
            stop = first

    async def _read_block(self, row: Row, reader: LedgerReader, first: int, stop: int) -> None:
        block = [batch async for batch in reader.read_batches(first, stop - 1)]
        for batch in reversed(block):
            await self._intake.put(Taken(row, batch))
            self._place = place_of(row, batch.first_entry)
        self._learn_sizes(block)

    def _learn_sizes(self, block: list[EntryBatch]) -> None:
        entries, size = sum(map(len, block)), sum(batch.size for batch in block)
        if entries:
            fitting = BLOCK_SIZE * entries // max(size, 1)
            self._block = max(1, min(fitting, 4 * self._block, BLOCK_ENTRIES_MAX))
