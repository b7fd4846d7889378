"""Draining: this bookie is being decommissioned, so it takes no new entries.

The key ``draining/<bookie id>`` starts it. It continues while the bookie's cookie is gone from
metadata, because a decommissioned bookie must not take new entries before an operator stops it. The
same holds for a bookie that hung while a successor took its name (succession.py): no client would
look there for entries that it still acknowledged, and no recovery would fence it. Both keys are
read at every renewal of the registration, which then informs clients. Adds of a recovery are
still taken, because a ledger with a copy here may have to be closed before the copy can move.
"""

from __future__ import annotations

import logging

from bookie.disk import DiskGuard
from metadata.errors import MetadataError
from metadata.records import cookie_key, decode_cookie, draining_key
from metadata.store import MetadataStore

_log = logging.getLogger(__name__)


class DrainState:
    """The draining state of one bookie.

    Attributes:
        is_on: True while draining, by the last answer of metadata.
    """

    def __init__(
        self, store: MetadataStore, disk: DiskGuard, bookie_id: str, *, cookie_id: str
    ) -> None:
        self._store = store
        self._disk = disk
        self._bookie_id = bookie_id
        self._cookie_id = cookie_id
        self.is_on = False

    async def look(self) -> None:
        """Read the state from metadata, and refuse or take adds accordingly.

        Without an answer nothing changes.
        """
        try:
            is_on = await self._is_asked_for()
        except MetadataError as error:
            _log.warning("draining state unknown: %s", error)
            return
        if is_on != self.is_on:
            self.is_on = is_on
            await self._disk.refuse_adds(is_on)
            _log.warning("draining" if is_on else "no longer draining")

    async def _is_asked_for(self) -> bool:
        if await self._store.get(draining_key(self._bookie_id)) is not None:
            return True
        key = cookie_key(self._bookie_id)
        found = await self._store.get(key)
        return found is None or decode_cookie(key, found.value).cookie_id != self._cookie_id
