"""Draining: this bookie is being decommissioned, so it takes no new entries.

The key ``draining/<bookie id>`` says so; afterwards, that the bookie's cookie is gone: one
that was decommissioned must not begin anew before somebody stops it. So must one whose
name a successor took (succession.py) while it hung: what it still acknowledged, nobody
would look for there, and no recovery would fence it. Both keys are looked at
with every renewal of the registration, which then tells clients. Adds of a recovery are
still taken: a ledger that has a copy here may have to be closed before the copy can move.
"""

from __future__ import annotations

import logging

from bookie.disk import DiskGuard
from metadata.errors import MetadataError
from metadata.records import cookie_key, decode_cookie, draining_key
from metadata.store import MetadataStore

_log = logging.getLogger(__name__)


class Drain:
    """Whether one bookie is draining, as last seen.

    Attributes:
        is_on: what the metadata said when it last answered.
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
        """Ask the metadata, and refuse adds or take them again accordingly.

        When it does not answer, everything stays as it is.
        """
        try:
            is_on = await self._is_asked_for()
        except MetadataError as error:
            _log.warning("not known whether to drain: %s", error)
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
