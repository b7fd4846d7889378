"""Which bookies are alive, away for a moment, lost, or to be emptied.

A bookie that restarts is away for a few seconds, and nothing is copied because of it. Each
observer counts the time by its own clock, from when it first missed the bookie.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import trio

from ledger_client.repair.records import list_cookies, list_draining
from metadata.records import BookieRecord
from metadata.registrations import list_registrations
from metadata.store import MetadataStore

_log = logging.getLogger(__name__)


class Census:
    """The bookies of the cluster, as of the last refresh().

    Attributes:
        live: those that hold a lease, by id.
        runs: the epochs of these leases: a bookie that restarted has another.
        draining: ids of those that are being decommissioned.
    """

    def __init__(self, store: MetadataStore, *, lost_after_s: float) -> None:
        self._store = store
        self._lost_after_s = lost_after_s
        self._known: set[str] = set()
        self._missed_since: dict[str, float] = {}
        self._unreadable: set[str] = set()
        self.live: dict[str, BookieRecord] = {}
        self.runs: dict[str, int] = {}
        self.draining: set[str] = set()

    async def refresh(self) -> None:
        """Look at leases and marks of bookies. Raises MetadataError."""
        found = await list_registrations(self._store)
        self.live = {bookie.bookie_id: bookie for bookie in found.bookies}
        self.runs = found.epochs
        self._report(found.unreadable)
        self.draining = await list_draining(self._store)
        self.draining.update(b.bookie_id for b in self.live.values() if b.draining)
        self._known |= self.live.keys() | await list_cookies(self._store)
        self._notice(self._known)

    def away(self, bookie_id: str) -> bool:
        """Whether it is not alive, and not lost yet."""
        return bookie_id not in self.live and not self.lost(bookie_id)

    def lost(self, bookie_id: str) -> bool:
        """Whether it has not been alive for so long that it is given up."""
        if bookie_id in self.live:
            return False
        self._notice([bookie_id])
        return trio.current_time() >= self._missed_since[bookie_id] + self._lost_after_s

    def stays(self, bookie_id: str) -> bool:
        """Whether copies may stay on it: it is alive and not to be emptied."""
        return bookie_id in self.live and bookie_id not in self.draining

    def in_limbo(self, bookie_id: str) -> bool:
        """Whether it is alive, and may have lost entries."""
        return bookie_id in self.live and self.live[bookie_id].limbo

    def all_lost(self) -> set[str]:
        """Return the bookies that have a cookie, or were alive once, and are lost."""
        return {bookie_id for bookie_id in self._known if self.lost(bookie_id)}

    def _report(self, unreadable: dict[str, str]) -> None:
        for bookie_id in unreadable.keys() - self._unreadable:
            _log.error("%s counts as away: %s", bookie_id, unreadable[bookie_id])
        self._unreadable = set(unreadable)

    def _notice(self, bookie_ids: Collection[str]) -> None:
        now = trio.current_time()
        for bookie_id in self.live:
            self._missed_since.pop(bookie_id, None)
        for bookie_id in bookie_ids:
            if bookie_id not in self.live:
                self._missed_since.setdefault(bookie_id, now)
