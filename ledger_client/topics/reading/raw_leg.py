"""Raw ledgers read as a part of a lane that begins compacted.

A gap is told only when no generation of what compaction left holds what is missing.
"""

from __future__ import annotations

from ledger_client.errors import LedgerError
from ledger_client.topics.errors import Gap
from ledger_client.topics.reading.compacted_part import CompactedPart, CompactedParts
from ledger_client.topics.reading.intake import Ended, Failed, Intake, Item, Taken
from ledger_client.topics.reading.places import EARLIEST, LaneRef, Place
from ledger_client.topics.reading.times import place_of


class Covered(LedgerError):
    """What is missing was compacted meanwhile."""


class RawLeg(Intake):
    """The intake as raw ledgers fill it: where a gap begins, a later set is looked for.

    In reverse the end of the raw ledgers is not that of the lane.
    """

    def __init__(
        self,
        intake: Intake,
        lane: LaneRef,
        parts: CompactedParts,
        place: Place,
        *,
        backward: bool = False,
    ) -> None:
        super().__init__(lambda: None)
        self.place = place
        """Up to which all was put."""
        self.covered_by: CompactedPart | None = None
        self.ended = False
        self._intake = intake
        self._lane = lane
        self._parts = parts
        self._backward = backward

    async def put(self, item: Item) -> None:
        """Hand *item* on; raises what ends the reading of raw ledgers."""
        if isinstance(item, Failed):
            if isinstance(item.error, Covered):
                return
            if isinstance(item.error, Gap):
                await self._look(item.error)
        if isinstance(item, Ended):
            self.ended = True
            if self._backward:
                return
        await self._intake.put(item)
        if isinstance(item, Taken):
            batch = item.batch
            entry = batch.first_entry if self._backward else batch.last_entry + 1
            self.place = place_of(item.row, entry)

    def mark_edge(self) -> None:
        """Hand the edge on."""
        self._intake.mark_edge()

    async def _look(self, gap: Gap) -> None:
        """Raise Covered if a later set holds what is missing."""
        found, last = await self._parts.of(self._lane), self.place
        if found is None or last == EARLIEST:
            return
        if found.holds(last) or (self._backward and last.at == found.horizon.at):
            self.covered_by = found
            raise Covered(str(gap))
