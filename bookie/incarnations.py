"""Reused ledger ids: decides which incarnation of a ledger is current.

An id is reused when a ledger is deleted and another one created with its id, or when metadata is
restored from a backup and issues ids a second time. The ledger's record holds its incarnation
(metadata/records.py), and a client declares to its bookies which one it means (native/frame.h).
If that is not the stored one:

    the record has the client's incarnation  ─► the stored ledger is forgotten, durably
    the record has the stored incarnation    ─► the client gets OTHER_LEDGER
    neither, or no answer                    ─► the client gets UNKNOWN_STATE, and may ask again

No client gets entries of a ledger that is over, or the answer that one of them is absent. In doubt
nothing is forgotten: a store that does not have this bookie (another cluster's, or an emptied
one) decides nothing.
"""

from __future__ import annotations

import logging

import msgspec
import trio

from bookie.events import Events
from metadata.errors import MetadataError
from metadata.records import cookie_key, decode_ledger, ledger_key
from metadata.store import MetadataStore
from native.engine import Engine
from native.errors import Full

ASK_S = 1.0
"""Wait for metadata; clients give the bookie up after two seconds."""

_log = logging.getLogger(__name__)


class Incarnations:
    """Decides between the incarnation that a client declares and the stored one."""

    def __init__(
        self, engine: Engine, events: Events, store: MetadataStore, bookie_id: str
    ) -> None:
        self._engine = engine
        self._events = events
        self._store = store
        self._bookie_id = bookie_id

    async def is_over(self, ledger_id: int, meant: int) -> bool:
        """Return True if incarnation *meant* is over, because another one is current.

        If *meant* is current, the stored one is forgotten first. False means that *meant* is
        stored now, or that it is unknown which one is current.
        """
        here = self._engine.ledger(ledger_id)
        if here is None or 0 in (meant, here.incarnation) or here.incarnation == meant:
            return False
        today = await self._of_today(ledger_id)
        if today == meant:
            await self._renew(ledger_id, here.incarnation, meant)
        return today == here.incarnation

    def is_here(self, ledger_id: int, meant: int) -> bool:
        """Return True if the stored ledger, if any, may be incarnation *meant*."""
        here = self._engine.ledger(ledger_id)
        return here is None or 0 in (meant, here.incarnation) or here.incarnation == meant

    async def _of_today(self, ledger_id: int) -> int | None:
        """Return the ledger's incarnation in metadata, or None if it is unknown."""
        try:
            with trio.move_on_after(ASK_S):
                if await self._store.get(cookie_key(self._bookie_id)) is None:
                    return None
                found = await self._store.get(ledger_key(ledger_id))
                if found is not None:
                    return decode_ledger(ledger_key(ledger_id), found.value).incarnation
        except (MetadataError, msgspec.MsgspecError) as error:
            _log.warning("the current incarnation of ledger %d is unknown: %s", ledger_id, error)
        return None

    async def _renew(self, ledger_id: int, before: int, after: int) -> None:
        while True:
            space = self._events.space
            try:
                renewed = self._engine.renew_ledger(ledger_id, before, after)
            except Full:
                await space.wait()
                continue
            if renewed:
                _log.info("ledger %d is another one by now: the former is deleted", ledger_id)
            return
