"""A topic's ledgers opened for reading: as they are, whoever writes them."""

from __future__ import annotations

import msgspec
import trio

from ledger_client.bookies import Bookies
from ledger_client.catalogue import Catalogue
from ledger_client.creation import DIGESTS
from ledger_client.options import Options
from ledger_client.reader import LedgerReader
from ledger_client.source import LedgerSource
from ledger_client.view import LedgerView
from native.digest import Digest

SETTLE_S = 0.03
"""A quiet writer tells bookies within a third of this how far it is confirmed."""
READ_SIZE_MIN = 64 << 10
READ_SIZE_MAX = 2 << 20


class LedgerOpener:
    """Opens ledgers; nobody's writer is fenced."""

    def __init__(
        self, *, catalogue: Catalogue, bookies: Bookies, nursery: trio.Nursery, options: Options
    ) -> None:
        self._catalogue = catalogue
        self._bookies = bookies
        self._nursery = nursery
        self._options = options

    def share(self, size: int, readers: int) -> None:
        """Let what is opened from now on read ahead by *size* bytes, shared by *readers*."""
        each = size // max(readers, 1)
        batch_size = min(max(each // 4, READ_SIZE_MIN), READ_SIZE_MAX)
        self._options = msgspec.structs.replace(
            self._options,
            read_batch_size=batch_size,
            reads_in_flight=min(max(each // batch_size, 1), 4),
        )

    async def open(self, ledger_id: int) -> LedgerReader:
        """Open a ledger; of one that is not closed, ask how far it is confirmed.

        Raises:
            NoSuchLedger: it was removed.
            ReplicasUnavailable: it is not closed, and none of its bookies answered.
            MetadataUnavailable: the store did not answer in time.
        """
        record, _ = await self._catalogue.get(ledger_id)
        digest = Digest(DIGESTS[record.digest], record.password_bytes)
        source = LedgerSource(record, digest=digest, bookies=self._bookies, options=self._options)
        view = LedgerView(source, self._catalogue, self._nursery)
        await view.learn_confirmed()
        return LedgerReader(view)


async def settle(reader: LedgerReader) -> int:
    """Return the last entry that was acknowledged before this was called, -1 for none.

    The last confirmed entry follows acknowledgements by some milliseconds; so of a
    ledger that is written, it is asked for again. What a writer left unconfirmed when
    it died is known once its lane is taken over.

    Raises:
        NoSuchLedger, ReplicasUnavailable, MetadataUnavailable: as LedgerReader.refresh().
    """
    if reader.closed:
        return reader.last_confirmed
    await trio.sleep(SETTLE_S)
    return await reader.refresh()
