"""The ledgers and bookies in the metadata store.

Every call has a deadline, and errors of the store leave as errors of this package. A ledger's
record is changed by compare-and-set.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import trio

from ledger_client.background import SharedCall
from ledger_client.errors import (
    LedgerError,
    LedgerExists,
    MetadataBroken,
    MetadataUnavailable,
    NoSuchLedger,
)
from ledger_client.ledgers.records import Reason, grown, marking, new_mark, sealed, stated
from ledger_client.wire.inflight import limited, told
from metadata.clock import StoreClock
from metadata.errors import BadRecord, LeaseLost, MetadataError, SessionOver, VersionConflict
from metadata.records import (
    LEDGER_COUNTER,
    LEDGERS,
    BookieRecord,
    Fragment,
    LedgerRecord,
    LedgerState,
    decode_ledger,
    encode_record,
    ledger_key,
)
from metadata.registrations import list_registrations
from metadata.store import ABSENT, MetadataStore, Op, Page, Put, Versioned, Versions
from metadata.watch import Listener

T = TypeVar("T")


class _Translated:
    """translated(), as a class: every call has one, and a generator would take twice the time."""

    __slots__ = ("_limit", "_limit_s", "_told", "_told_before")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._told: list[str] = []

    def __enter__(self) -> None:
        self._told_before = told.get()
        told.set(self._told)
        self._limit = limited(self._limit_s)
        self._limit.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        told.set(self._told_before)  # no reset(): a generator may end elsewhere than it began
        is_late = isinstance(error, trio.TooSlowError)
        try:
            self._limit.__exit__(kind, error, trace)
        except trio.TooSlowError:
            is_late = True
        if is_late:
            why = f"; a bookie said: {self._told[-1]}" if self._told else ""
            raise MetadataUnavailable(f"metadata: no answer in {self._limit_s:g} s{why}") from None
        if isinstance(error, MetadataError) and not isinstance(error, _PASSED):
            raise MetadataBroken(f"metadata: {error}") from error


def translated(limit_s: float) -> AbstractContextManager[None, None]:
    """Limit the block to *limit_s*, and raise errors of the store as public ones.

    VersionConflict, LeaseLost and SessionOver pass unchanged: the code that makes a change
    handles them.

    Raises:
        MetadataUnavailable: no answer in time; a change may have been made.
        AccessDenied: a bookie refuses the caller.
        MetadataBroken: the store refuses, or what it holds is damaged.
    """
    return _Translated(limit_s)


_PASSED = (LedgerError, VersionConflict, LeaseLost, SessionOver)
RETRY_S = 0.1
"""Pause between attempts to change a ledger while the store is away."""
CHANGE_S = 1.0
"""Without an answer for this long, see whether a change was made, and send it again if not."""

_log = logging.getLogger(__name__)


class Catalogue:
    """Ledger records and registered bookies of one cluster.

    Every call may raise MetadataUnavailable and MetadataBroken; the methods name only
    other errors.

    Attributes:
        clock: the store's time, by which ages are measured.
    """

    def __init__(self, store: MetadataStore, *, timeout_s: float) -> None:
        self.clock = StoreClock(store)
        self._store = store
        self._timeout_s = timeout_s
        self._unreadable: set[str] = set()
        """bookies whose registration was reported as undecodable"""
        self._passed_over: set[str] = set()
        """keys of ledgers, too"""
        self._ids: deque[int] = deque()
        self._ids_wanted = 0
        self._fetching = SharedCall(self._fetch_ids)
        self._looking = SharedCall(self._read_bookies)

    async def refresh_clock(self) -> None:
        """Set *clock* to the store's time, unless that was done recently."""
        with self._translated():
            await self.clock.refresh()

    async def new_id(self) -> int:
        """Return a ledger id that was never returned before. Those who wait together ask once."""
        self._ids_wanted += 1
        try:
            await self._fetching.ask()
        finally:
            self._ids_wanted -= 1
        return self._ids.popleft()

    async def _fetch_ids(self) -> None:
        count = self._ids_wanted - len(self._ids)  # some are left of callers that gave up
        if count > 0:
            with self._translated():
                first = await self._store.next_id(LEDGER_COUNTER, count)
            self._ids.extend(range(first, first + count))

    async def create(self, record: LedgerRecord) -> int:
        """Add *record* and return its version.

        Raises:
            LedgerExists: the id is taken.
        """
        key = ledger_key(record.ledger_id)
        try:
            with self._translated():
                return await self._store.put(key, encode_record(record), expected=ABSENT)
        except VersionConflict:
            raise LedgerExists(record.ledger_id) from None

    async def get(self, ledger_id: int, incarnation: int = 0) -> tuple[LedgerRecord, int]:
        """Return the ledger's record and version.

        Raises:
            NoSuchLedger: there is none; or the one of this *incarnation* was deleted, and
                another ledger has its id now.
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
        """Store *record* in place of *version*; return False if another client changed it first.

        With a *reason* the same transaction marks the ledger for repair. After
        MetadataUnavailable, which *limit_s* raises too, the change may or may not be made.
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
        except VersionConflict:
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

        With a *reason* to believe that copies are missing, the same transaction marks the
        ledger for repair. Sealing it again at the same end changes nothing. Retries for as
        long as the store is away: set a deadline around it.

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
        """Return the record that close() would store, and the operations that store it.

        Changes nothing itself. The list is empty if the ledger is sealed at that end
        already. *found* is a recent result of get(). Raises as close().
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
        """Return the value of *key* and its version, or None without such a key."""
        with self._translated(limit_s):
            return await self._store.get(key)

    async def ask(self, call: Callable[[MetadataStore], Awaitable[T]]) -> T:
        """Return what *call* returns for the store, within the catalogue's time limit."""
        with self._translated():
            return await call(self._store)

    async def transact(
        self, ops: Sequence[Op], *, limit_s: float = float("inf")
    ) -> Versions | None:
        """Do all of *ops* or none; return the new versions, as MetadataStore.transact does.

        Returns None, and changes nothing, if a version was not the expected one. After
        MetadataUnavailable, which *limit_s* raises too, the change may or may not be made.
        """
        try:
            with self._translated(limit_s):
                return await self._store.transact(ops)
        except VersionConflict:
            return None

    async def change_ensemble(
        self,
        ledger_id: int,
        expected_last: Fragment,
        fragment: Fragment,
        *,
        incarnation: int = 0,
    ) -> LedgerRecord:
        """Continue an open ledger with *fragment*, after or in place of its last one.

        *fragment* replaces the last one if both begin at the same entry. Earlier fragments
        stay as they are stored: a repair may have changed them. Once the change was sent,
        it is retried until its outcome is known: set a deadline around it. After a
        cancellation it may be made.

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

    async def state_confirmed(self, record: LedgerRecord, last_entry: int) -> bool:
        """State that entries up to *last_entry* of an open ledger are confirmed.

        The caller knows that ack_quorum of the last bookies in *record* have them. Returns False,
        and changes nothing, if the ledger has other bookies by now, or is not open.

        Raises:
            NoSuchLedger: it was deleted.
            MetadataUnavailable: the change may or may not be made; either is harmless.
        """
        found, version = await self.get(record.ledger_id, record.incarnation)
        if found.state is not LedgerState.OPEN or found.fragments != record.fragments:
            return False
        return await self.replace(stated(found, last_entry), version)

    async def mark(self, ledger_id: int, reason: Reason) -> None:
        """Mark a ledger for repair; the reasons of an earlier mark are kept."""
        while True:
            with self._translated():
                marked = await marking(self._store, new_mark(ledger_id, reason, (), ()))
            if await self.transact([marked.put]) is not None:
                return

    async def delete(self, ledger_id: int) -> None:
        """Delete the ledger's record; bookies free the space later.

        Raises:
            NoSuchLedger: there is none.
        """
        record, version = await self.get(ledger_id)
        while True:
            try:
                with self._translated():
                    await self._store.delete(ledger_key(ledger_id), expected=version)
            except VersionConflict:
                _, version = await self.get(ledger_id, record.incarnation)
                continue
            return

    async def page(self, after: str) -> tuple[list[LedgerRecord], str]:
        """Return one page of ledgers with keys above *after*, in order, and its last key.

        An empty page means the end. Records that cannot be decoded, such as those of a newer
        BookKeeper, are passed over, and logged once.
        """
        records: list[LedgerRecord] = []
        items: Page | None = None
        while not records and items != []:
            with self._translated():
                items = await self._store.list(LEDGERS, after=after)
            for after, found in items:
                try:
                    records.append(decode_ledger(after, found.value))
                except BadRecord as wrong:
                    if after not in self._passed_over:
                        self._passed_over.add(after)
                        _log.warning("passed over: %s", wrong)
        return records, after

    async def bookies(self) -> list[BookieRecord]:
        """Return the registered bookies; skip those whose registration cannot be decoded."""
        return list(await self._looking.ask())

    async def _read_bookies(self) -> list[BookieRecord]:
        with self._translated():
            found = await list_registrations(self._store)
        for bookie_id in found.unreadable.keys() - self._unreadable:
            _log.warning("skipping %s: %s", bookie_id, found.unreadable[bookie_id])
        self._unreadable = set(found.unreadable)
        return found.bookies

    def watch(self, ledger_id: int, listener: Listener) -> None:
        """Pass hints about the ledger's record to *listener* until unwatch().

        Raises:
            MetadataBroken: too much is watched already.
        """
        self._store.watches.subscribe(ledger_key(ledger_id), listener)

    def unwatch(self, ledger_id: int, listener: Listener) -> None:
        """Undo watch(); harmless if it was undone."""
        self._store.watches.unsubscribe(ledger_key(ledger_id), listener)

    def _translated(self, limit_s: float = float("inf")) -> AbstractContextManager[None]:
        return translated(min(limit_s, self._timeout_s))


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """A ledger as its metadata describes it, without the password."""

    ledger_id: int
    state: LedgerState
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    last_entry: int
    """-1 if the ledger is not closed, or has no entries"""
    length: int
    """payload bytes; 0 if the ledger is not closed"""
    bookies: tuple[tuple[int, tuple[str, ...]], ...]
    """for each fragment its first entry and its bookies"""
    digest: str
    created_ms: int
    custom: dict[str, str]

    @classmethod
    def of(cls, record: LedgerRecord) -> LedgerInfo:
        """Return the public part of *record*; its lists are copied to tuples."""
        return cls(
            ledger_id=record.ledger_id,
            state=record.state,
            ensemble_size=record.ensemble_size,
            write_quorum=record.write_quorum,
            ack_quorum=record.ack_quorum,
            last_entry=record.last_entry,
            length=record.length,
            bookies=tuple((f.first_entry, tuple(f.bookies)) for f in record.fragments),
            digest=record.digest,
            created_ms=record.created_ms,
            custom=dict(record.custom),
        )


class LedgerListing:
    """An async iterator over all ledgers in order of their ids; holds one page."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._page: deque[LedgerRecord] = deque()
        self._after = ""

    def __aiter__(self) -> LedgerListing:
        return self

    async def __anext__(self) -> LedgerInfo:
        if not self._page:
            records, self._after = await self._catalogue.page(self._after)
            if not records:
                raise StopAsyncIteration
            self._page.extend(records)
        return LedgerInfo.of(self._page.popleft())
