"""Reading a ledger, closed or, opened with recover=False, while it is written.

A reader never returns an entry above the last confirmed one. Of an open ledger
that is what the bookies told last; ask again with refresh(), or follow(). Entries
that a writer left unconfirmed are read once the ledger is recovered.
"""

from __future__ import annotations

from ledger_client.entries import Entries, EntryBatch
from ledger_client.errors import NoSuchEntry
from ledger_client.follow import Follower
from ledger_client.stretch import Stretch
from ledger_client.view import LedgerView
from metadata.records import LedgerRecord


class LedgerReader:
    """One ledger, opened for reading by Client.open_ledger."""

    def __init__(self, view: LedgerView) -> None:
        self._view = view

    @property
    def id(self) -> int:
        """Id of the ledger."""
        return self._view.source.ledger_id

    @property
    def metadata(self) -> LedgerRecord:
        """The ledger's record as it was read last."""
        return self._view.source.record

    @property
    def closed(self) -> bool:
        """True when the ledger is known to be closed: it will not grow."""
        return self._view.closed

    @property
    def last_confirmed(self) -> int:
        """The greatest entry that may be read, as known here; -1 for none."""
        return self._view.last_confirmed

    async def refresh(self) -> int:
        """Ask metadata and bookies again; return the last confirmed entry.

        Raises:
            ReplicasUnavailable: no bookie of the open ledger answered.
            MetadataUnavailable: the store did not answer in time.
            NoSuchLedger: the ledger was deleted.
        """
        await self._view.refresh()
        return self.last_confirmed

    def trust(self, last_confirmed: int) -> None:
        """Take note that entries up to this one were called confirmed, here or elsewhere.

        The bookie that said so may be away, and the others say it a little later.
        """
        self._view.raise_confirmed(last_confirmed)

    async def read(self, first: int, last: int) -> Entries:
        """Return entries *first* to *last*, both included, all at once.

        They are held in memory in the form in which they came; an Entry is made
        when it is looked at. For more than memory can hold, see read_batches.

        Raises:
            NoSuchEntry: *last* is past the last confirmed entry.
            EntryLost: no replica of an entry is sound.
            ReplicasUnavailable: no replica could be asked for read_timeout_s.
            MetadataUnavailable: the bookies known here lack an entry; others may have it.
            NoSuchLedger: the ledger was deleted, and no copy of an entry is left.
        """
        return Entries([batch async for batch in self.read_batches(first, last)])

    def read_batches(self, first: int, last: int) -> BatchReads:
        """Return entries *first* to *last* as an async iterator of EntryBatch.

        Holds read_batch_size * reads_in_flight bytes or so. Raises as read().
        """
        return BatchReads(self._view, first, last)

    def follow(self, start: int = 0) -> Follower:
        """Return an async iterator over entries from *start* on.

        It waits for new ones and ends after the last entry of a closed ledger.
        Raises as read(), and NoSuchLedger when the ledger is deleted meanwhile.
        """
        if start < 0:
            raise NoSuchEntry(ledger_id=self.id, entry_id=start, last_confirmed=self.last_confirmed)
        return Follower(self._view, start)

    def close(self) -> None:
        """End what runs in the background for followers."""
        self._view.close()


class BatchReads:
    """The batches of a range of entries; an async iterator."""

    def __init__(self, view: LedgerView, first: int, last: int) -> None:
        self._view = view
        self._first = first
        self._last = last
        self._stretch: Stretch | None = None

    def __aiter__(self) -> BatchReads:
        return self

    async def __anext__(self) -> EntryBatch:
        if self._stretch is None:
            if self._first <= self._last:
                await self._view.check_range(self._first, self._last)
            self._stretch = Stretch(self._view, self._first, self._last)
        batch = await self._stretch.next()
        if batch is None:
            raise StopAsyncIteration
        return batch
