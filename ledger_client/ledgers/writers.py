"""Opening writers, and closing them with the block that uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from weakref import WeakValueDictionary

import msgspec
import trio

from ledger_client.background import Alarms
from ledger_client.errors import LedgerError, LedgerFenced
from ledger_client.ledgers.catalogue import Catalogue
from ledger_client.ledgers.entries import digest_of
from ledger_client.ledgers.placement import Placement
from ledger_client.ledgers.writer import ChangeEnsemble, WriteDriver
from ledger_client.options import Options
from ledger_client.wire.bookies import Bookies
from metadata.records import LedgerRecord
from native.frame import Flag
from native.link import Writer


class Writers:
    """Opens writers for ledgers whose records exist."""

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        bookies: Bookies,
        placement: Placement,
        options: Options,
        nursery: trio.Nursery,
    ) -> None:
        self._catalogue = catalogue
        self._bookies = bookies
        self._placement = placement
        self._options = options
        # Until a recovered ledger is closed, readers must not see entries that were added again.
        self._quiet = msgspec.structs.replace(options, explicit_lac_s=0.0)
        self._nursery = nursery
        self._alarms = Alarms(nursery)
        self._open: WeakValueDictionary[int, WriteDriver] = WeakValueDictionary()

    def open(
        self,
        record: LedgerRecord,
        *,
        change: ChangeEnsemble | None = None,
        first_entry: int = 0,
        length: int = 0,
        flags: int = 0,
    ) -> WriteDriver:
        """Return a writer that appends to the last fragment of *record*.

        A connection counts acknowledgements for one writer of a ledger. So a writer that
        recovers the ledger ends this client's earlier one, which could not acknowledge
        anything any more.

        Args:
            record: the ledger; the caller has made sure that no other client writes to it.
            change: publishes changes of the ensemble; by default in metadata.
            first_entry: id of the first entry to append.
            length: payload bytes of the entries before it.
            flags: of every ADD frame, as native.frame.Flag.
        """
        earlier = self._open.get(record.ledger_id)
        if earlier is not None and flags & Flag.RECOVERY:
            earlier.fail(LedgerFenced(record.ledger_id))
        token = self._bookies.new_token()
        digest = digest_of(record)
        native = Writer(
            record.ledger_id,
            record.ensemble_size,
            record.write_quorum,
            record.ack_quorum,
            digest,
            first_entry=first_entry,
            length=length,
            token=token,
            flags=flags,
        )
        writer = WriteDriver(
            record,
            native=native,
            key=digest.master_key,
            token=token,
            change=change or self._change_in_metadata(record),
            catalogue=self._catalogue,
            bookies=self._bookies,
            placement=self._placement,
            options=self._quiet if flags & Flag.RECOVERY else self._options,
            nursery=self._nursery,
            alarms=self._alarms,
        )
        self._open[record.ledger_id] = writer
        return writer

    def _change_in_metadata(self, record: LedgerRecord) -> ChangeEnsemble:
        return partial(
            self._catalogue.change_ensemble, record.ledger_id, incarnation=record.incarnation
        )


@asynccontextmanager
async def sealed_after(writer: WriteDriver) -> AsyncIterator[WriteDriver]:
    """Lend *writer* to the block, then close it, however the block ends.

    Raises:
        LedgerError: as LedgerWriter.close(); an error of the block itself takes precedence.
    """
    try:
        try:
            yield writer
        except Exception as error:
            await _close_after(error, writer.close)
            raise
        await writer.close()
    except BaseException as error:
        if not isinstance(error, Exception):  # cancelled or interrupted: be quick
            await _close_after(error, writer.abort)
        raise


async def _close_after(error: BaseException, close: Callable[[], Awaitable[None]]) -> None:
    """Close a ledger whose block failed; a failure to close becomes a note of *error*."""
    try:
        await close()
    except LedgerError as failure:
        error.add_note(f"the ledger was not closed: {failure}")
