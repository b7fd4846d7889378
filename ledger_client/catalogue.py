"""The ledgers and bookies that metadata knows, in this package's terms.

Every call has a deadline (see translation.py). Changes of a ledger are made by
compare-and-set.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager

import trio

from ledger_client.errors import LedgerExists, MetadataUnavailable, NoSuchLedger
from ledger_client.fragments import grown, sealed
from ledger_client.marks import Reason, marking, new_mark
from ledger_client.translation import translated
from metadata import errors as metadata_errors
from metadata.clock import StoreClock
from metadata.records import (
    LEDGER_COUNTER,
    LEDGERS,
    BookieRecord,
    Fragment,
    LedgerRecord,
    decode_ledger,
    encode_record,
    ledger_key,
)
from metadata.registrations import list_registrations
from metadata.store import ABSENT, MetadataStore, Op, Put, Versioned, Versions

RETRY_S = 0.1
"""Between two attempts to change a ledger while the store is away."""
CHANGE_S = 1.0
"""A change of the ensemble not answered for so long is looked for, and made again."""

_log = logging.getLogger(__name__)


class Catalogue:
    """Ledger records and registered bookies of one cluster.

    Every call may raise MetadataUnavailable and MetadataBroken; other errors
    are named where they can happen.

    Attributes:
        clock: the store's time, which decides what is old.
    """

    def __init__(self, store: MetadataStore, *, timeout_s: float) -> None:
        self.clock = StoreClock(store)
        self._store = store
        self._timeout_s = timeout_s
        self._unreadable: set[str] = set()
        """bookies whose registration was reported as undecodable"""

    async def refresh_clock(self) -> None:
        """Let *clock* tell the store's time: it is asked, unless it was lately."""
        with self._translated():
            await self.clock.refresh()

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

    async def get(self, ledger_id: int, incarnation: int = 0) -> tuple[LedgerRecord, int]:
        """Return the ledger's record and version.

        Raises:
            NoSuchLedger: there is none; or the one of this *incarnation* was deleted, and
                another has its id now.
        """
        if ledger_id < 0:
            raise NoSuchLedger(ledger_id)
        key = ledger_key(ledger_id)
        with self._translated():
            found = await self._store.get(key)
            if found is None:
                raise NoSuchLedger(ledger_id)
            record = decode_ledger(key, found.value)
        if record.is_another(incarnation):
            raise NoSuchLedger(ledger_id)
        return record, found.version

    async def replace(
        self,
        record: LedgerRecord,
        version: int,
        *,
        reason: Reason | None = None,
        limit_s: float = float("inf"),
    ) -> bool:
        """Put *record* in the place of *version*; False if somebody was faster: look again.

        With a *reason* the ledger is marked for repair by the same transaction. With
        MetadataUnavailable, also after *limit_s*, it may have been done or may be yet.
        """
        change = Put(ledger_key(record.ledger_id), encode_record(record), version)
        try:
            with self._translated(limit_s):
                if reason is None:
                    await self._store.put(change.key, change.value, expected=version)
                else:
                    mark = new_mark(record.ledger_id, reason, (), ())
                    marked = await marking(self._store, mark)
                    await self._store.transact([change, marked.put])
        except metadata_errors.VersionConflict:
            return False
        return True

    async def close(
        self,
        ledger_id: int,
        last_entry: int,
        length: int,
        *,
        reason: Reason | None = None,
        incarnation: int = 0,
    ) -> LedgerRecord:
        """Seal the ledger at *last_entry* with *length* payload bytes.

        With a *reason* to believe that copies are missing, it is marked for repair at
        once. Sealing it again at the same end changes nothing. While the store is away
        it is tried again: a deadline is the caller's.

        Raises:
            LedgerFenced: another client recovers it.
            LedgerClosed: another client sealed it at another end.
            NoSuchLedger: it was deleted.
        """
        while True:
            try:
                closed, ops = await self.sealing(
                    ledger_id, last_entry, length, reason=reason, incarnation=incarnation
                )
                if not ops or await self.transact(ops):
                    return closed
            except MetadataUnavailable:
                await trio.sleep(RETRY_S)  # the change may have been made: look first

    async def sealing(
        self,
        ledger_id: int,
        last_entry: int,
        length: int,
        *,
        reason: Reason | None = None,
        found: tuple[LedgerRecord, int] | None = None,
        incarnation: int = 0,
    ) -> tuple[LedgerRecord, list[Op]]:
        """Return what close() makes of the ledger, and the ops of a transaction that does it.

        No ops: it is sealed at that end already. Nothing is changed. *found* is what get()
        returned lately. Raises as close().
        """
        record, version = found or await self.get(ledger_id, incarnation)
        closed = sealed(record, last_entry, length)
        if closed is record:
            return record, []
        ops: list[Op] = [Put(ledger_key(ledger_id), encode_record(closed), version)]
        if reason is not None:
            with self._translated():
                marked = await marking(self._store, new_mark(ledger_id, reason, (), ()))
            ops.append(marked.put)
        return closed, ops

    async def read(self, key: str, *, limit_s: float = float("inf")) -> Versioned | None:
        """Return the value of *key* and its version; None: there is no such key."""
        with self._translated(limit_s):
            return await self._store.get(key)

    async def transact(
        self, ops: Sequence[Op], *, limit_s: float = float("inf")
    ) -> Versions | None:
        """Do all of *ops* or none; return what each gave, as MetadataStore.transact does.

        None: a version was another than expected, and nothing was done. With
        MetadataUnavailable, also after *limit_s*, it may have been done or may be yet.
        """
        try:
            with self._translated(limit_s):
                return await self._store.transact(ops)
        except metadata_errors.VersionConflict:
            return None

    async def change_ensemble(
        self,
        ledger_id: int,
        expected_last: Fragment,
        fragment: Fragment,
        *,
        incarnation: int = 0,
    ) -> LedgerRecord:
        """Let an open ledger go on with *fragment* after, or in place of, its last one.

        Fragments before the last stay as they are found: a repair may have changed
        them. Once the change was sent, it is tried until its outcome is known: a
        deadline is the caller's.

        Raises:
            LedgerFenced: another client recovers it, or the last fragment is
                neither *fragment* nor *expected_last*.
            LedgerClosed: another client sealed it.
            NoSuchLedger: it was deleted.
            MetadataUnavailable: nothing was changed.
        """
        sent = False
        while True:
            try:
                record, version = await self.get(ledger_id, incarnation)
                changed, sent = grown(record, expected_last, fragment), True
                if changed is record or await self.replace(changed, version, limit_s=CHANGE_S):
                    return changed
            except MetadataUnavailable:
                if not sent:
                    raise
                await trio.sleep(RETRY_S)  # the change may have been made: look first

    async def mark(self, ledger_id: int, reason: Reason) -> None:
        """Let somebody look after the copies of a ledger."""
        while True:
            with self._translated():
                marked = await marking(self._store, new_mark(ledger_id, reason, (), ()))
            if await self.transact([marked.put]) is not None:
                return

    async def delete(self, ledger_id: int) -> None:
        """Remove the ledger; bookies collect its entries later.

        Raises:
            NoSuchLedger: there is none.
        """
        record, version = await self.get(ledger_id)
        while True:
            try:
                with self._translated():
                    await self._store.delete(ledger_key(ledger_id), expected=version)
            except metadata_errors.VersionConflict:
                _, version = await self.get(ledger_id, record.incarnation)
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
        """Return the bookies that hold a lease now, but those whose lease cannot be decoded."""
        with self._translated():
            found = await list_registrations(self._store)
        for bookie_id in found.unreadable.keys() - self._unreadable:
            _log.warning("%s is passed over: %s", bookie_id, found.unreadable[bookie_id])
        self._unreadable = set(found.unreadable)
        return found.bookies

    def watch(self, ledger_id: int) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[str]]:
        """Watch the ledger's record, as MetadataStore.watch does: a hint, never more."""
        return self._store.watch(ledger_key(ledger_id))

    def _translated(self, limit_s: float = float("inf")) -> AbstractContextManager[None]:
        return translated(min(limit_s, self._timeout_s))
