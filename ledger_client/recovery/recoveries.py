"""The recoveries of one client: one at a time for each ledger."""

from __future__ import annotations

from weakref import WeakValueDictionary

import trio

from ledger_client.bookies import Bookies
from ledger_client.catalogue import Catalogue
from ledger_client.options import Options
from ledger_client.recovery.recovery import recover_ledger
from ledger_client.writers import Writers
from metadata.records import LedgerRecord, LedgerState


class Recoveries:
    """Recovers what is not closed; whoever asks meanwhile gets the same result."""

    def __init__(
        self, *, catalogue: Catalogue, bookies: Bookies, writers: Writers, options: Options
    ) -> None:
        self._catalogue = catalogue
        self._bookies = bookies
        self._writers = writers
        self._options = options
        self._turns: WeakValueDictionary[int, trio.Lock] = WeakValueDictionary()

    async def recovered(self, record: LedgerRecord) -> LedgerRecord:
        """Return the ledger's record, closed. Raises as recover_ledger()."""
        if record.state is LedgerState.CLOSED:
            return record
        # A connection counts acknowledgements for one writer of a ledger, so two would not do.
        turn = self._turns.setdefault(record.ledger_id, trio.Lock())
        async with turn:
            return await recover_ledger(
                record.ledger_id,
                record.incarnation,
                catalogue=self._catalogue,
                bookies=self._bookies,
                writers=self._writers,
                options=self._options,
            )
