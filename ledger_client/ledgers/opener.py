"""Opening many ledgers for reading, without fencing their writers."""

from __future__ import annotations

import msgspec
import trio

from ledger_client.ledgers.catalogue import Catalogue
from ledger_client.ledgers.reader import LedgerReader
from ledger_client.ledgers.records import digest_of
from ledger_client.ledgers.view import LedgerSource, LedgerView
from ledger_client.options import Options
from ledger_client.wire.bookies import Bookies

SETTLE_S = 0.03
"""A quiet writer reports its last confirmed entry to bookies within a third of this."""
READ_SIZE_MIN = 64 << 10
READ_SIZE_MAX = 2 << 20


class LedgerOpener:
    """Opens ledgers that one reader reads. No writer is fenced."""

    def __init__(
        self, *, catalogue: Catalogue, bookies: Bookies, nursery: trio.Nursery, options: Options
    ) -> None:
        self._catalogue = catalogue
        self._bookies = bookies
        self._nursery = nursery
        self._options = options

    def share(self, size: int, readers: int) -> None:
        """Share *size* bytes of read-ahead among *readers* ledgers opened from now on."""
        each = size // max(readers, 1)
        batch_size = min(max(each // 4, READ_SIZE_MIN), READ_SIZE_MAX)
        self._options = msgspec.structs.replace(
            self._options,
            read_batch_size=batch_size,
            reads_in_flight=min(max(each // batch_size, 1), 4),
        )

    async def open(self, ledger_id: int) -> LedgerReader:
        """Open a ledger. If it is not closed, ask its bookies for the last confirmed entry.

        Raises:
            NoSuchLedger: it was deleted.
            ReplicasUnavailable: it is not closed, and none of its bookies answered.
            MetadataUnavailable: the store did not answer in time.
        """
        record, _ = await self._catalogue.get(ledger_id)
        digest = digest_of(record)
        source = LedgerSource(record, digest=digest, bookies=self._bookies, options=self._options)
        view = LedgerView(source, self._catalogue, self._nursery)
        await view.learn_confirmed()
        return LedgerReader(view)


async def settle(reader: LedgerReader) -> int:
    """Return the last entry acknowledged before this call, -1 for none. Takes SETTLE_S.

    The last confirmed entry lags acknowledgements by some milliseconds, so for an open ledger it
    is asked for again after SETTLE_S. Entries that a dead writer left unconfirmed are known once
    its lane is taken over.

    Raises:
        NoSuchLedger, ReplicasUnavailable, MetadataUnavailable: as LedgerReader.refresh().
    """
    if reader.closed:
        return reader.last_confirmed
    await trio.sleep(SETTLE_S)
    return await reader.refresh()
