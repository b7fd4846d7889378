"""One lane read with its beginning compacted: what compaction left, then the raw ledgers.

    set ──► ledgers of survivors ──► Intake
     ▲               │ horizon         ▲
     └── a later one ┴─► raw ledgers ──┘

Whatever is removed under the reader, a later generation may hold what is left of it: so before
a reader tells that something is missing, it looks whether there is one, and goes on in that at
its place.
"""

from __future__ import annotations

from ledger_client.entries import EntryBatch
from ledger_client.errors import LedgerError, NoSuchLedger
from ledger_client.topics.lanes.ledger_rows import LedgerRows
from ledger_client.topics.reading.backward import BLOCK_SIZE, BackwardReader
from ledger_client.topics.reading.compacted_batch import compacted_header
from ledger_client.topics.reading.compacted_part import CompactedPart, CompactedParts
from ledger_client.topics.reading.intake import Ended, Failed, Intake, Survived
from ledger_client.topics.reading.lane_reader import LaneReader, News
from ledger_client.topics.reading.opening import LedgerOpener
from ledger_client.topics.reading.part_search import PartSearch
from ledger_client.topics.reading.places import EARLIEST, LaneRef, Place
from ledger_client.topics.reading.raw_leg import RawLeg
from metadata.compaction import CompactedLedger
from native.compacted import CompactedHeader


class CompactedLane:
    """Reads a lane from a place on, or back from it, into an intake.

    Args:
        lane: which.
        rows: its rows.
        opener: opens its ledgers, and those of what compaction left.
        intake: takes what is read.
        parts: looks up what compaction left.
        part: what it had left when reading began; None: nothing was compacted.
        start: where to begin.
        end: where to end.
        end_was_confirmed: as LaneReader has it.
    """

    def __init__(
        self,
        lane: LaneRef,
        *,
        rows: LedgerRows,
        opener: LedgerOpener,
        intake: Intake,
        parts: CompactedParts,
        part: CompactedPart | None,
        start: Place,
        end: Place | None = None,
        end_was_confirmed: bool = False,
    ) -> None:
        self._lane = lane
        self._rows = rows
        self._opener = opener
        self._intake = intake
        self._parts = parts
        self._part = part
        self._place = start
        self._end = end
        self._end_was_confirmed = end_was_confirmed

    # --- forward -----------------------------------------------------------------------

    async def run(self, *, last_number: int | None, news: News | None) -> None:
        """Read until the end, or until something fails: the intake tells.

        *last_number* is that of the last ledger to read; None: follow, told by *news*.
        """
        try:
            while True:
                await self._read_part()
                if self._is_over():
                    await self._intake.put(Ended())
                    return
                leg = RawLeg(self._intake, self._lane, self._parts, self._place)
                await LaneReader(
                    self._lane,
                    rows=self._rows,
                    opener=self._opener,
                    intake=leg,
                    start=self._place,
                    end=self._end,
                    end_was_confirmed=self._end_was_confirmed,
                    last_number=last_number,
                    news=news,
                ).run()
                if leg.covered_by is None:
                    return
                self._part, self._place = leg.covered_by, leg.place
        except LedgerError as failure:
            await self._intake.put(Failed(failure))

    def _is_over(self) -> bool:
        return self._end is not None and self._place.at >= self._end.at

    async def _read_part(self) -> None:
        """Read what is compacted, of another generation where the one begun is gone."""
        part = self._part
        while part is not None and part.holds(self._place) and not self._is_over():
            try:
                await self._read_ledgers(part)
            except NoSuchLedger as gone:
                part = await self._parts.after(self._lane, part, gone)
            else:
                if not self._is_over():
                    self._place = part.horizon

    async def _read_ledgers(self, part: CompactedPart) -> None:
        first, start = await self._first_entry(part), self._place
        for index, ledger in enumerate(part.ledgers):
            if index < first[0]:
                continue
            if self._is_over():
                return
            entry = first[1] if index == first[0] else 0
            reader = await self._opener.open(ledger.ledger_id)
            try:
                async for batch in reader.read_batches(entry, ledger.entries - 1):
                    if self._is_over():
                        return
                    await self._intake.put(Survived(batch, start=start))
                    self._place = _behind(self._header(batch, len(batch) - 1))
            finally:
                reader.close()

    async def _first_entry(self, part: CompactedPart) -> tuple[int, int]:
        """Return the first ledger, and the entry of it, with something behind the place."""
        place = self._place
        if not part.ledgers or place.at[:2] <= part.ledgers[0].first.at:
            return 0, 0
        search = PartSearch(self._lane, part, self._opener)
        try:
            found = await search.entry(lambda before: before.at >= place.at)
        finally:
            search.close()
        return (len(part.ledgers), 0) if found is None else search.stored(found)

    def _header(self, batch: EntryBatch, index: int) -> CompactedHeader:
        stored = batch.ledger_id, batch.first_entry + index
        return compacted_header(self._lane, stored, batch.payload(index))

    # --- in reverse --------------------------------------------------------------------

    async def run_back(self) -> None:
        """Read back to the end or the lane's beginning, or until something fails."""
        try:
            if await self._read_raw_back():
                await self._read_part_back()
                await self._intake.put(Ended())
        except LedgerError as failure:
            await self._intake.put(Failed(failure))

    async def _read_raw_back(self) -> bool:
        """Read the raw ledgers back to the horizon; False: it failed, and that is told."""
        part = self._part
        if part is not None and self._place.at <= part.horizon.at:
            return True
        floor = None if part is None else part.horizon
        if self._end is not None and (floor is None or self._end.at > floor.at):
            floor = self._end
        leg = RawLeg(self._intake, self._lane, self._parts, self._place, backward=True)
        await BackwardReader(
            self._lane,
            rows=self._rows,
            opener=self._opener,
            intake=leg,
            start=self._place,
            end=floor,
        ).run()
        if leg.covered_by is not None:
            self._part, self._place = leg.covered_by, leg.place
        return leg.covered_by is not None or leg.ended

    async def _read_part_back(self) -> None:
        part = self._part
        while part is not None and part.ledgers and not self._is_over_back():
            try:
                await self._read_ledgers_back(part)
            except NoSuchLedger as gone:
                part = await self._parts.after(self._lane, part, gone)
            else:
                return

    def _is_over_back(self) -> bool:
        return self._place == EARLIEST or (self._end is not None and self._place.at <= self._end.at)

    async def _read_ledgers_back(self, part: CompactedPart) -> None:
        last, start = await self._last_entry(part), self._place
        for index in range(last[0], -1, -1):
            ledger = part.ledgers[index]
            stop = last[1] + 1 if index == last[0] else ledger.entries
            await self._read_ledger_back(ledger, stop, start)
            if self._is_over_back():
                return

    async def _last_entry(self, part: CompactedPart) -> tuple[int, int]:
        """Return the last ledger, and the entry of it, that may have something before the place."""
        end = len(part.ledgers) - 1, part.ledgers[-1].entries - 1
        if not part.holds(self._place):
            return end
        place = self._place
        search = PartSearch(self._lane, part, self._opener)
        try:
            found = await search.entry(lambda before: before.at >= place.at)
        finally:
            search.close()
        return end if found is None else search.stored(found)

    async def _read_ledger_back(self, ledger: CompactedLedger, stop: int, start: Place) -> None:
        block = max(1, BLOCK_SIZE * ledger.entries // max(ledger.size, 1))
        reader = await self._opener.open(ledger.ledger_id)
        try:
            while stop > 0 and not self._is_over_back():
                first = max(stop - block, 0)
                batches = [batch async for batch in reader.read_batches(first, stop - 1)]
                for batch in reversed(batches):
                    await self._intake.put(Survived(batch, stop=start))
                    self._place = _before(self._header(batch, 0))
                stop = first
        finally:
            reader.close()


def _behind(header: CompactedHeader) -> Place:
    number, entry, index = header.last
    return Place(number, entry, max(index, 0) + 1)


def _before(header: CompactedHeader) -> Place:
    number, entry, index = header.first
    return Place(number, entry, max(index, 0))
