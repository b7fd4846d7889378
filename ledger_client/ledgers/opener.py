"""Opening ledgers for reading, with a share of the memory for reading ahead."""

from __future__ import annotations

import msgspec

from ledger_client.ledgers.catalogue import Catalogue
from ledger_client.ledgers.reader import LedgerReader, LedgerView, Settle
from ledger_client.ledgers.replica_reads import NOTHING_KNOWN, LedgerSource
from ledger_client.options import Options
from ledger_client.wire.bookies import Bookies
from metadata.records import LedgerRecord

READ_SIZE_MIN = 64 << 10
READ_SIZE_MAX = 2 << 20


class LedgerOpener:
    """Opens ledgers for reading, which fences no writer."""

    def __init__(
        self, *, catalogue: Catalogue, bookies: Bookies, options: Options, settle: Settle
    ) -> None:
        self._catalogue = catalogue
        self._bookies = bookies
        self._options = options
        self._settle = settle

    def sharing(self, size: int, readers: int) -> LedgerOpener:
        """Return an opener whose readers read ahead, *readers* of them together *size* bytes."""
        each = size // max(readers, 1)
        batch_size = min(max(each // 4, READ_SIZE_MIN), READ_SIZE_MAX)
        options = msgspec.structs.replace(
            self._options,
            read_batch_size=batch_size,
            reads_in_flight=min(max(each // batch_size, 1), 4),
        )
        return LedgerOpener(
            catalogue=self._catalogue, bookies=self._bookies, options=options, settle=self._settle
        )

    async def open(self, ledger_id: int, *, confirmed: int = NOTHING_KNOWN) -> LedgerReader:
        """Open a ledger. If it is not closed, ask its bookies for the last confirmed entry.

        The caller knows that entries up to *confirmed* are: the bookies that answer may not.

        Raises:
            NoSuchLedger: it was deleted.
            ReplicasUnavailable: it is not closed, and none of its bookies answered.
            MetadataUnavailable: the store did not answer in time.
        """
        record, _ = await self._catalogue.get(ledger_id)
        return await self.reader_of(record, confirmed=confirmed)

    async def reader_of(
        self, record: LedgerRecord, *, confirmed: int = NOTHING_KNOWN
    ) -> LedgerReader:
        """As open(), for a ledger whose record was read just now."""
        source = LedgerSource(record, bookies=self._bookies, options=self._options)
        view = LedgerView(source, self._catalogue, self._settle)
        await view.learn_confirmed()
        view.raise_confirmed(confirmed)
        return LedgerReader(view)
