"""A ledger of a lane looked through: what is left of it, and what the lane was at some entry.

Headers tell of whole batches; a batch of which a part is left is taken apart.
"""

from __future__ import annotations

import msgspec

from ledger_client.topics.errors import BadBatch
from ledger_client.topics.lanes.lane_state import Figures, LaneState, greater, lower
from ledger_client.topics.lanes.ledger_rows import Row
from ledger_client.topics.lanes.sealed_batch import SealedBatch
from ledger_client.topics.messages import Batch, open_batch
from ledger_client.topics.reading.holes import Point, kept_parts
from ledger_client.topics.reading.opening import LedgerOpener
from ledger_client.topics.reading.places import LaneRef
from ledger_client.topics.reading.times import place_of
from metadata.topics import LaneLedger
from native.batch import BatchHeader, BatchKind, read_header
from native.errors import Corrupt


class LedgerScan:
    """Looks through one ledger up to the entries its row says.

    Attributes:
        figures: of what its row does not say is deleted.
        state: of the lane before the point *until*; None: the ledger does not tell.
    """

    def __init__(self, lane: LaneRef, row: Row, *, until: Point = (0, 0)) -> None:
        self.figures = Figures(named_ms=row.ledger.named_ms)
        self.state: LaneState | None = None
        self._lane = lane
        self._row = row
        self._until = until

    async def run(self, opener: LedgerOpener) -> LedgerScan:
        """Read the ledger; return this.

        Raises:
            NoSuchLedger: it is gone.
            BadBatch: an entry is damaged.
            LedgerError: as LedgerReader.read().
        """
        reader = await opener.open(self._row.ledger.ledger_id)
        try:
            async for entries in reader.read_batches(0, self._row.ledger.entries - 1):
                for index in range(len(entries)):
                    entry = entries.first_entry + index
                    try:
                        self._look_at(entry, entries.payload(index))
                    except Corrupt as wrong:
                        raise self._bad(entry, wrong) from wrong
        finally:
            reader.close()
        return self

    def _look_at(self, entry: int, payload: memoryview) -> None:
        header = read_header(payload)
        if header.kind == BatchKind.LANE_STATE and (entry == 0 or entry < self._until[0]):
            self.state = LaneState.decode(bytes(payload))
        if header.kind != BatchKind.MESSAGES:
            return
        batch = _Lazy(self._lane, self._row, entry, payload)
        for start, stop in kept_parts(self._row.ledger.removed, entry, 0, header.count):
            count_in(self.figures, header, batch, start, stop)
        before = header.count if entry < self._until[0] else self._until[1]
        if self.state is not None and entry <= self._until[0] and before > 0:
            self._note(self.state, header, batch, min(before, header.count))

    def _bad(self, entry: int, wrong: Corrupt) -> BadBatch:
        ledger_id = self._row.ledger.ledger_id
        return BadBatch(self._lane.topic, ledger_id=ledger_id, entry_id=entry, reason=str(wrong))

    def _note(self, state: LaneState, header: BatchHeader, batch: _Lazy, count: int) -> None:
        """Take the first *count* messages of a batch as the last of the lane."""
        figures = Figures()
        count_in(figures, header, batch, 0, count)
        counted = header.sequence >= 0
        sealed = SealedBatch(
            payload=b"",
            count=count,
            size=0,
            first_event_time=figures.first_event_time,
            last_event_time=figures.last_event_time,
            producer=header.producer,
            sequence=header.sequence + count - 1 if counted else -1,
        )
        state.note(sealed, header.created_ms)


class _Lazy:
    """A batch that is taken apart once somebody needs it."""

    def __init__(self, lane: LaneRef, row: Row, entry: int, payload: memoryview) -> None:
        self._given = (lane, place_of(row, entry), payload)
        self._batch: Batch | None = None

    def open(self) -> Batch:
        if self._batch is None:
            self._batch = open_batch(*self._given)
        assert self._batch is not None
        return self._batch


def count_in(figures: Figures, header: BatchHeader, lazy: _Lazy, start: int, stop: int) -> None:
    """Count the messages from *start* to before *stop* of a batch."""
    figures.messages += stop - start
    lowest, highest = header.event_time_min, header.event_time_max
    if stop - start < header.count and lowest is not None:
        times = [time for time in lazy.open().event_times[start:stop] if time is not None]
        lowest, highest = min(times, default=None), max(times, default=None)
    figures.first_event_time = lower(figures.first_event_time, lowest)
    figures.last_event_time = greater(figures.last_event_time, highest)
    if header.last_timestamp:
        stamps = [stamp for stamp in lazy.open().timestamps[start:stop] if stamp]
        first = min(stamps, default=0)
        figures.first_timestamp = figures.first_timestamp or first
        figures.last_timestamp = max(figures.last_timestamp, *stamps, 0)


def counted(row: LaneLedger, figures: Figures) -> LaneLedger:
    """Return a row with the counts and times of what is left."""
    return msgspec.structs.replace(
        row,
        messages=figures.messages,
        first_timestamp=figures.first_timestamp,
        last_timestamp=figures.last_timestamp,
        first_event_time=figures.first_event_time,
        last_event_time=figures.last_event_time,
    )
