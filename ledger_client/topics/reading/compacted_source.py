"""A lane with its beginning compacted as a source: first the survivors, then the raw ledgers.

    set ──► compacted ledgers ──► put
     ▲               │ horizon     ▲
     └── a later one ┴─► raw ledgers ──┘

Ledgers are deleted while they are read: compacted ones ten minutes after the next generation was
published, raw ones by retention. A later generation may hold the survivors of both. So before a
gap is reported the source looks for one, and goes on in it at the same place.
"""

from __future__ import annotations

from collections.abc import Callable

from ledger_client.errors import Gap, NoSuchLedger
from ledger_client.ledgers.entries import EntryBatch
from ledger_client.ledgers.opener import LedgerOpener
from ledger_client.topics.lanes.ledger_rows import LedgerRows
from ledger_client.topics.positions import EARLIEST, Place
from ledger_client.topics.reading.compacted import (
    CompactedRange,
    CompactedSets,
    compacted_header,
)
from ledger_client.topics.reading.search import CompactedSearch
from ledger_client.topics.reading.source import (
    BLOCK_SIZE,
    CompactedEntries,
    Edge,
    Entries,
    Put,
    RawEntries,
    RawSource,
    ReverseSource,
)
from metadata.compaction import CompactedLedger
from native.compacted import CompactedHeader

RawFrom = Callable[[Place], RawSource]
"""Returns a source of the raw ledgers from a place on."""


class CompactedSource:
    """Reads a lane from a place on, or back from it.

    Args:
        rows: the lane's rows.
        opener: opens its ledgers, raw and compacted.
        sets: looks up compacted sets.
        compacted: the compacted beginning of the lane as it was when reading began; `None` if
            all of the lane was raw.
        start: the place to begin at.
        end: the place to end at.
        raw_from: returns a source of the raw ledgers from a place on; `None` reads in reverse,
            and *end* lies before *start* then.
    """

    def __init__(
        self,
        rows: LedgerRows,
        opener: LedgerOpener,
        *,
        sets: CompactedSets,
        compacted: CompactedRange | None,
        start: Place,
        end: Place | None = None,
        raw_from: RawFrom | None = None,
    ) -> None:
        self._lane = rows.lane
        self._rows = rows
        self._opener = opener
        self._sets = sets
        self._compacted = compacted
        self._place = start
        self._end = end
        self._raw_from = raw_from
        self._backward = raw_from is None

    async def run(self, put: Put) -> None:
        """Read up to the end, or back to it. Raises LedgerError when reading fails."""
        if self._raw_from is None:
            await self._read_raw_back(put)
            await self._read_compacted_back(put)
        else:
            while not await self._read_on(self._raw_from, put):
                pass

    # --- forward -----------------------------------------------------------------------

    async def _read_on(self, raw_from: RawFrom, put: Put) -> bool:
        """Read the compacted ledgers, then the raw ones; False if the raw ones were compacted."""
        await self._read_compacted(put)
        if self._is_over():
            return True
        return await self._run_raw(raw_from(self._place), put)

    def _is_over(self) -> bool:
        return self._end is not None and self._place.at >= self._end.at

    async def _read_compacted(self, put: Put) -> None:
        """Read the compacted ledgers; in the next generation, where this one is deleted."""
        compacted = self._compacted
        while compacted is not None and compacted.holds(self._place) and not self._is_over():
            try:
                await self._read_ledgers(compacted, put)
            except NoSuchLedger as gone:
                compacted = await self._sets.after(self._lane, compacted, gone)
            else:
                if not self._is_over():
                    self._place = compacted.horizon

    async def _read_ledgers(self, compacted: CompactedRange, put: Put) -> None:
        first, start = await self._first_entry(compacted), self._place
        for index, ledger in enumerate(compacted.ledgers):
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
                    await put(CompactedEntries(batch, start=start))
                    self._place = _after(self._header(batch, len(batch) - 1))
            finally:
                reader.unwatch()

    async def _first_entry(self, compacted: CompactedRange) -> tuple[int, int]:
        """Return the first ledger, and its first entry, with a message after the place."""
        if not compacted.ledgers or self._place.at[:2] <= compacted.ledgers[0].first.at:
            return 0, 0
        return await self._entry_at_place(compacted) or (len(compacted.ledgers), 0)

    async def _entry_at_place(self, compacted: CompactedRange) -> tuple[int, int] | None:
        """Return the ledger and the entry with the first message from the place on."""
        place = self._place
        search = CompactedSearch(self._lane, compacted, self._opener)
        try:
            found = await search.entry(lambda before: before.at >= place.at)
        finally:
            search.close()
        return None if found is None else search.stored(found)

    def _header(self, batch: EntryBatch, index: int) -> CompactedHeader:
        stored = batch.ledger_id, batch.first_entry + index
        return compacted_header(self._lane, stored, batch.payload(index))

    # --- the raw ledgers ---------------------------------------------------------------

    async def _run_raw(self, raw: RawSource | ReverseSource, put: Put) -> bool:
        """Read raw ledgers; False if a gap in them was compacted since reading began."""
        compacted: Gap | None = None

        async def put_raw(item: Entries | Gap | Edge) -> None:
            nonlocal compacted
            if isinstance(item, Gap) and await self._has_survivors():
                compacted = item
                raise item  # it ends raw.run()
            await put(item)
            if isinstance(item, RawEntries):
                batch = item.batch
                entry = batch.first_entry if self._backward else batch.last_entry + 1
                self._place = item.row.place(entry)

        try:
            await raw.run(put_raw)
        except Gap as gap:
            if gap is not compacted:
                raise
            return False
        return True

    async def _has_survivors(self) -> bool:
        """Switch to a later generation if that holds what is missing at the place."""
        found, place = await self._sets.of(self._lane), self._place
        if found is None or place == EARLIEST:
            return False
        if not found.holds(place) and not (self._backward and place.at == found.horizon.at):
            return False
        self._compacted = found
        return True

    # --- in reverse --------------------------------------------------------------------

    async def _read_raw_back(self, put: Put) -> None:
        compacted = self._compacted
        if compacted is not None and self._place.at <= compacted.horizon.at:
            return
        end = None if compacted is None else compacted.horizon
        if self._end is not None and (end is None or self._end.at > end.at):
            end = self._end
        raw = ReverseSource(self._rows, self._opener, self._place, end=end)
        await self._run_raw(raw, put)

    async def _read_compacted_back(self, put: Put) -> None:
        compacted = self._compacted
        while compacted is not None and compacted.ledgers and not self._is_over_back():
            try:
                await self._read_ledgers_back(compacted, put)
            except NoSuchLedger as gone:
                compacted = await self._sets.after(self._lane, compacted, gone)
            else:
                return

    def _is_over_back(self) -> bool:
        return self._place == EARLIEST or (self._end is not None and self._place.at <= self._end.at)

    async def _read_ledgers_back(self, compacted: CompactedRange, put: Put) -> None:
        last, start = await self._last_entry(compacted), self._place
        for index in range(last[0], -1, -1):
            ledger = compacted.ledgers[index]
            stop = last[1] + 1 if index == last[0] else ledger.entries
            await self._read_ledger_back(ledger, stop, start, put)
            if self._is_over_back():
                return

    async def _last_entry(self, compacted: CompactedRange) -> tuple[int, int]:
        """Return the last ledger, and its last entry, that may have a message before the place."""
        end = len(compacted.ledgers) - 1, compacted.ledgers[-1].entries - 1
        if not compacted.holds(self._place):
            return end
        return await self._entry_at_place(compacted) or end

    async def _read_ledger_back(
        self, ledger: CompactedLedger, stop: int, start: Place, put: Put
    ) -> None:
        block = max(1, BLOCK_SIZE * ledger.entries // max(ledger.size, 1))
        reader = await self._opener.open(ledger.ledger_id)
        try:
            while stop > 0 and not self._is_over_back():
                first = max(stop - block, 0)
                batches = [batch async for batch in reader.read_batches(first, stop - 1)]
                for batch in reversed(batches):
                    await put(CompactedEntries(batch, stop=start))
                    self._place = _before(self._header(batch, 0))
                stop = first
        finally:
            reader.unwatch()


def _after(header: CompactedHeader) -> Place:
    number, entry, index = header.last
    return Place(number, entry, max(index, 0) + 1)


def _before(header: CompactedHeader) -> Place:
    number, entry, index = header.first
    return Place(number, entry, max(index, 0))
