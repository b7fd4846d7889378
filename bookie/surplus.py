"""Surplus ledgers: closed ledgers whose record no longer lists this bookie.

Repair and rebalancing move copies by changing the record; the old copy is deleted here. Copying
needs the ledger's lease, so this takes it too, checks again, and deletes at once. Afterwards it
checks whether the lease still held, because a process may be stopped for minutes between any two
steps; if not, and the copy is needed again, the ledger is marked for repair.

A ledger that returns later is accepted: adds of a recovery revive it.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress

import trio

from bookie.damage import mark_for_repair
from metadata.errors import BadRecord, LeaseHeld, MetadataError
from metadata.records import (
    LedgerState,
    RepairProgress,
    decode_ledger,
    encode_record,
    ledger_key,
    repair_lease,
    underreplicated_key,
)
from metadata.store import MetadataStore, StoreSession
from native.engine import Engine
from native.errors import Absent

SESSION_S = 10.0
"""A collection opens a session, and another one after a quarter of its life; it keeps none."""
RELEASE_S = 2.0

_log = logging.getLogger(__name__)


class SurplusLedgers:
    """Decides which ledgers of one bookie are surplus, and deletes them."""

    def __init__(self, engine: Engine, store: MetadataStore, bookie_id: str) -> None:
        self._engine = engine
        self._store = store
        self._bookie_id = bookie_id
        self._owner = f"{bookie_id} garbage {secrets.token_hex(8)}"
        self._session: StoreSession | None = None
        self._opened_at = 0.0

    def is_surplus(self, record: bytes) -> bool:
        """Return True if the ledger of *record* is closed and all its copies are on other bookies.

        False if the record cannot be decoded.
        """
        try:
            ledger = decode_ledger("the record", record)
        except BadRecord:
            return False
        listed = any(self._bookie_id in fragment.bookies for fragment in ledger.fragments)
        return ledger.state is LedgerState.CLOSED and not listed

    async def delete(self, ledger_id: int) -> bool:
        """Delete the ledger here if it is still surplus; return True if it was deleted.

        It stays while another process holds its lease, which may be copying it to this bookie.
        It also stays while it is marked for repair: a listed copy may be lost, and this copy may
        be the last one.

        Raises:
            MetadataError: the store did not answer.
        """
        here = self._engine.ledger(ledger_id)
        if here is None:
            return False
        now_ms = await self._store.now_ms()
        progress = encode_record(RepairProgress(ledger_id, self._bookie_id, now_ms))
        name = repair_lease(ledger_id)
        try:
            session = await self._current_session()
            lease = await self._store.grant(name, session, value=progress)
        except LeaseHeld:
            return False
        try:
            if not await self._is_still_surplus(ledger_id) or await self._is_marked(ledger_id):
                return False
            if trio.current_time() > self._opened_at + SESSION_S / 2:
                return False  # too late to be sure; the next collection tries again
            try:
                self._engine.delete_ledger(ledger_id, now_ms, here.incarnation)
            except Absent:  # its id was reused meanwhile
                return False
            _log.info("ledger %d has its copies elsewhere and was deleted here", ledger_id)
            await self._check(ledger_id)
        finally:
            # Without an answer, the lease expires by itself.
            with suppress(MetadataError), trio.move_on_after(RELEASE_S) as grace:
                grace.shield = True
                await self._store.release(lease)
        return True

    async def _current_session(self) -> StoreSession:
        """Return a session in the first quarter of its life, so that much of it is left."""
        asked_at = trio.current_time()
        if self._session is None or asked_at > self._opened_at + SESSION_S / 4:
            self._session = await self._store.open_session(self._owner, ttl_s=SESSION_S)
            self._opened_at = asked_at
        return self._session

    async def _is_still_surplus(self, ledger_id: int) -> bool:
        found = await self._store.get(ledger_key(ledger_id))
        return found is not None and self.is_surplus(found.value)

    async def _is_marked(self, ledger_id: int) -> bool:
        return await self._store.get(underreplicated_key(ledger_id)) is not None

    async def _check(self, ledger_id: int) -> None:
        if not await self._is_still_surplus(ledger_id):
            await mark_for_repair(self._store, ledger_id, self._bookie_id, "check")
