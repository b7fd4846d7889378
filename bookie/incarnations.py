"""Ledger ids that are used again: which ledger is the one of today.

An id is used again when a ledger is deleted and another one made with its id, or when the
metadata are restored from a backup and ids are given out a second time. A record of the
metadata says which incarnation it is of (metadata/records.py), and a client tells its
bookies which one it means (native/frame.h). When that is not the one that is here:

    metadata: the client's is the one of today ─► what is here is forgotten, durably
    metadata: the one that is here is          ─► the client hears OTHER_LEDGER
    neither, or no answer                      ─► the client hears UNKNOWN_STATE, and may ask again

Nobody is served entries of a ledger that is over, or told that an entry of one is not
there. Nothing is forgotten on any doubt: a store that does not know this very bookie
(another cluster's, or an emptied one) decides nothing.
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
"""For the metadata; whoever waits for the bookie gives it up after two."""

_log = logging.getLogger(__name__)


class Incarnations:
    """Decides between the ledger that a client means and the one that is here."""

    def __init__(
        self, engine: Engine, events: Events, store: MetadataStore, bookie_id: str
    ) -> None:
        self._engine = engine
        self._events = events
        self._store = store
        self._bookie_id = bookie_id

    async def is_over(self, ledger_id: int, meant: int) -> bool:
        """Whether the ledger of incarnation *meant* is over, since another is there today.

        If it is the one of today itself, the other one here is forgotten, and with False
        it is the one that is here, unless nobody can tell.
        """
        here = self._engine.ledger(ledger_id)
        if here is None or 0 in (meant, here.incarnation) or here.incarnation == meant:
            return False
        today = await self._of_today(ledger_id)
        if today == meant:
            await self._renew(ledger_id, here.incarnation, meant)
        return today == here.incarnation

    def is_here(self, ledger_id: int, meant: int) -> bool:
        """Whether the ledger here may be that of incarnation *meant*; if there is any."""
        here = self._engine.ledger(ledger_id)
        return here is None or 0 in (meant, here.incarnation) or here.incarnation == meant

    async def _of_today(self, ledger_id: int) -> int | None:
        """The incarnation that the metadata have; None when they do not tell."""
        try:
            with trio.move_on_after(ASK_S):
                if await self._store.get(cookie_key(self._bookie_id)) is None:
                    return None
                found = await self._store.get(ledger_key(ledger_id))
                if found is not None:
                    return decode_ledger(ledger_key(ledger_id), found.value).incarnation
        except (MetadataError, msgspec.MsgspecError) as error:
            _log.warning("which ledger has id %d now cannot be told: %s", ledger_id, error)
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
