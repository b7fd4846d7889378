"""A stretch of a ledger, read in order, wherever its copies are by now.

Repair and rebalancing move copies while readers hold the record that they opened with,
and the old copies are deleted after that. So when no listed bookie serves an entry, the
record is read again; if it names others, they are asked. While the metadata is away
nobody can tell whether an entry is gone or only somewhere else.
"""

from __future__ import annotations

from ledger_client.entries import EntryBatch
from ledger_client.errors import (
    EntryLost,
    LedgerError,
    MetadataUnavailable,
    NoSuchEntry,
    ReplicasUnavailable,
)
from ledger_client.parts import Parts
from ledger_client.view import LedgerView


class Stretch:
    """Entries *first* to *last* of what a view shows, as far as they are confirmed."""

    def __init__(self, view: LedgerView, first: int, last: int) -> None:
        self._view = view
        self._position = first
        self._last = last
        self._begin()

    async def next(self) -> EntryBatch | None:
        """Return the next batch, or None after the last.

        Raises:
            NoSuchEntry, EntryLost, ReplicasUnavailable: about its first entry, and the
                record names nobody else.
            MetadataUnavailable: those who were listed lack it; there may be others.
            NoSuchLedger: the ledger was deleted, and its copies with it.
        """
        while True:
            try:
                batch = await self._parts.next()
            except (EntryLost, NoSuchEntry, ReplicasUnavailable) as failure:
                if not await self._moved(failure):
                    raise
                self._begin()
                continue
            if batch is not None:
                self._position = batch.last_entry + 1
            return batch

    async def _moved(self, failure: LedgerError) -> bool:
        try:
            return await self._view.moved_since(self._record)
        except MetadataUnavailable:
            if isinstance(failure, ReplicasUnavailable):
                return False  # it says by itself that the entry may be there
            raise

    def _begin(self) -> None:
        self._record = self._view.source.record
        self._parts = Parts(self._view.source, self._position, self._last)
