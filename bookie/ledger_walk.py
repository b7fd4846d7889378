"""Which local ledgers a garbage collection looks at in metadata.

A bookie with few ledgers looks at all of them each time. With many, that would make each bookie ask
for all it holds every quarter of an hour. So a collection takes those that may have changed, and
a part of the others, so that all had their turn within a day:

    changed     in the change log since the last collection; the log is asked often, as it is short
    new here    not there at the last collection
    left over   named by the last collection, and still to be deleted
    in turn     the next ones by id

If the log does not reach back to the last collection, or the last one failed, it is all of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable

import trio

from metadata.errors import MetadataError
from metadata.ledger_changes import LedgerChanges
from metadata.store import MetadataStore

WALK_COUNT = 2000
"""A collection looks at this many ledgers at least, if there are so many."""
WALK_S = 86_400.0
"""Each ledger has its turn within this time."""
TAKE_S = 30.0
"""How often the change log is asked between two collections."""
CHANGED_MAX = 100_000
"""Above this, changes are not kept, and the next collection looks at all ledgers."""


class LedgerWalk:
    """The place of one bookie's collections among its ledgers."""

    def __init__(self, store: MetadataStore) -> None:
        self._changes = LedgerChanges(store)
        self._changed: set[int] | None = None  # None: any may have
        self._failed = False
        self._here = array("Q")  # at the last collection
        self._left_over: set[int] = set()
        self._last = -1
        self._began_at = float("-inf")

    async def pause(self, interval_s: float) -> None:
        """Sleep until the next collection, and take the changes meanwhile."""
        until = trio.current_time() + interval_s
        while (left_s := until - trio.current_time()) > 0:
            await trio.sleep(min(left_s, TAKE_S) if interval_s < float("inf") else left_s)
            try:
                await self._take()
            except MetadataError:
                continue  # the next one begins where this one did

    async def begin(self) -> None:
        """Take the changes, before the local ledgers are listed. Raises MetadataError."""
        await self._take()

    def choose(self, here: Iterable[int], *, every: bool, foreign: Collection[int]) -> list[int]:
        """Return the ledgers to look at, by rising id.

        Until done(), the collection counts as failed.

        Args:
            here: all local ledgers.
            every: look at all of them.
            foreign: those known to be in no metadata, which are always looked at.
        """
        local = array("Q", sorted(here))
        changed, self._changed = self._changed, set()
        before, self._here = self._here, local
        failed, self._failed = self._failed, True
        since_s = trio.current_time() - self._began_at
        self._began_at = trio.current_time()
        if every or failed or changed is None or len(local) <= WALK_COUNT:
            chosen: Collection[int] = local
        else:
            known = set(local)
            chosen = {*(known & changed), *(known - {*before}), *(known & self._left_over)}
            chosen = {*chosen, *known.intersection(foreign), *self._turn(local, since_s)}
        return sorted(chosen)

    def done(self, left_over: Iterable[int]) -> None:
        """Note that the collection looked at all that it chose; *left_over* it could not delete."""
        self._left_over = set(left_over)
        self._failed = False

    def _turn(self, local: array[int], since_s: float) -> array[int]:
        count = max(WALK_COUNT, round(len(local) * since_s / WALK_S) + 1)
        first = bisect_right(local, self._last) if self._last >= 0 else 0
        part = local[first : first + count]
        self._last = part[-1] if first + count < len(local) else -1
        return part

    async def _take(self) -> None:
        changed = await self._changes.take()
        if changed is None or self._changed is None or len(self._changed) > CHANGED_MAX:
            self._changed = None
        else:
            self._changed |= changed
