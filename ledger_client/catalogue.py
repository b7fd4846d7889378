"""The ledgers and bookies that metadata knows, in this package's terms.

Here, once, errors of the store become errors of a ledger, and every call gets
its deadline. Changes of a ledger are made by compare-and-set.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import msgspec
import trio

from ledger_client.errors import (
    LedgerClosed,
    LedgerExists,
    LedgerFenced,
    MetadataBroken,
    MetadataUnavailable,
    NoSuchLedger,
)
from metadata import errors as metadata_errors
from metadata.records import (
    BOOKIES,
    LEDGER_COUNTER,
    LEDGERS,
    BookieRecord,
    LedgerRecord,
    LedgerState,
    decode_bookie,
    decode_ledger,
    encode_record,
    ledger_key,
)
from metadata.store import ABSENT, MetadataStore

RETRY_S = 0.1
"""Between two attempts to close a ledger while the store is away."""


class Catalogue:
    """Ledger records and registered bookies of one cluster.

    Every call may raise MetadataUnavailable and MetadataBroken; other errors
    are named where they can happen.
    """

    def __init__(self, store: MetadataStore, *, timeout_s: float) -> None:
        self._store = store
        self._timeout_s = timeout_s

    async def new_id(self) -> int:
        """Return a ledger id that was never given before."""
        with self._translated():
            return await self._store.next_id(LEDGER_COUNTER)

    async def create(self, record: LedgerRecord) -> int:
        """Add *record* and return its version.

        Raises:
            LedgerExists: the id is taken.
        """
        key = ledger_key(record.ledger_id)
        try:
            with self._translated():
                return await self._store.put(key, encode_record(record), expected=ABSENT)
        except metadata_errors.VersionConflict:
            raise LedgerExists(record.ledger_id) from None

    async def get(self, ledger_id: int) -> tuple[LedgerRecord, int]:
        """Return the ledger's record and version.

        Raises:
            NoSuchLedger: there is none.
        """
        if ledger_id < 0:
            raise NoSuchLedger(ledger_id)
        key = ledger_key(ledger_id)
        with self._translated():
            found = await self._store.get(key)
            if found is None:
                raise NoSuchLedger(ledger_id)
            return decode_ledger(key, found.value), found.version

    async def close(self, ledger_id: int, last_entry: int, length: int) -> LedgerRecord:
        """Seal the ledger at *last_entry* with *length* payload bytes.

        Sealing it again at the same end changes nothing. While the store is
        away it is tried again: a deadline is the caller's.

        Raises:
            LedgerFenced: another client recovers it.
            LedgerClosed: another client sealed it at another end.
            NoSuchLedger: it was deleted.
        """
        while True:
            try:
                record, version = await self.get(ledger_id)
                sealed = _sealed(record, last_entry, length)
                if sealed is record:
                    return record
                await self._replace(sealed, version)
            except metadata_errors.VersionConflict:
                continue  # somebody was faster: look at what they did
            except MetadataUnavailable:
                await trio.sleep(RETRY_S)  # the change may have been made: look first
            else:
                return sealed

    async def delete(self, ledger_id: int) -> None:
        """Remove the ledger; bookies collect its entries later.

        Raises:
            NoSuchLedger: there is none.
        """
        while True:
            _, version = await self.get(ledger_id)
            try:
                with self._translated():
                    await self._store.delete(ledger_key(ledger_id), expected=version)
            except metadata_errors.VersionConflict:
                continue
            return

    async def page(self, after: str) -> tuple[list[LedgerRecord], str]:
        """Return some ledgers with keys above *after*, in order, and the last key.

        No ledgers: the listing is over.
        """
        with self._translated():
            items = await self._store.list(LEDGERS, after=after)
            records = [decode_ledger(key, found.value) for key, found in items]
        return records, items[-1][0] if items else after

    async def bookies(self) -> list[BookieRecord]:
        """Return the bookies that hold a lease now."""
        records: list[BookieRecord] = []
        after = ""
        with self._translated():
            while leases := await self._store.leases(BOOKIES, after=after):
                records += [decode_bookie(lease.name, lease.value) for lease in leases]
                after = leases[-1].name
        return records

    def watch(self, ledger_id: int) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[str]]:
        """Watch the ledger's record, as MetadataStore.watch does: a hint, never more."""
        return self._store.watch(ledger_key(ledger_id))

    async def _replace(self, record: LedgerRecord, version: int) -> None:
        with self._translated():
            key = ledger_key(record.ledger_id)
            await self._store.put(key, encode_record(record), expected=version)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with trio.fail_after(self._timeout_s):
                yield
        except trio.TooSlowError:
            raise MetadataUnavailable(f"metadata: no answer in {self._timeout_s:g} s") from None
        except metadata_errors.MetadataUnavailable as wrong:
            raise MetadataUnavailable(f"metadata: {wrong}") from wrong
        except metadata_errors.VersionConflict:
            raise  # dealt with by every caller
        except metadata_errors.MetadataError as wrong:
            raise MetadataBroken(f"metadata: {wrong}") from wrong


def _sealed(record: LedgerRecord, last_entry: int, length: int) -> LedgerRecord:
    """Return *record* closed at this end; *record* itself when it is so already."""
    if record.state is LedgerState.IN_RECOVERY:
        raise LedgerFenced(record.ledger_id)
    if record.state is LedgerState.CLOSED:
        if (record.last_entry, record.length) != (last_entry, length):
            raise LedgerClosed(record.ledger_id, record.last_entry)
        return record
    return msgspec.structs.replace(
        record, state=LedgerState.CLOSED, last_entry=last_entry, length=length
    )
