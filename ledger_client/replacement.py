"""Other bookies in the place of those that a writer lost.

    lost ─► choose, reach ─► hold ─► metadata says so ─► swap, send again ─► go on
            (writing goes on         (nothing is acknowledged in between)
            while the quorum stands)

The new fragment begins at the first entry that is not confirmed. What was sent from
there on is sent again to the bookies that came in; what they acknowledge counts, and
what the bookies that went out still say does not. When nobody can come in, the writer
goes on without as long as the quorum stands, and this task asks again from time to
time; a bookie that was lost may come back when its quarantine is over.
"""

from __future__ import annotations

from typing import Protocol

import trio

from ledger_client.alarms import Alarms
from ledger_client.background import OnDemand
from ledger_client.bookies import Bookies
from ledger_client.changes import Changes
from ledger_client.ensemble import Ensemble
from ledger_client.errors import LedgerError, MetadataUnavailable
from ledger_client.placement import Placement
from metadata.records import Fragment, LedgerRecord
from native.link import Writer

URGENT_S = (0.05, 0.5)
"""First and longest pause between attempts while nothing can be acknowledged."""
DEGRADED_S = (0.5, 2.0)
"""The same while the quorum stands."""


class Owner(Protocol):
    """The writer, as the replacement of its bookies sees it."""

    @property
    def last_confirmed(self) -> int:
        """The greatest entry that is acknowledged."""

    def acknowledged(self) -> None:
        """The state of the native writer changed."""

    def resend(self, index: int) -> None:
        """Send everything that is not confirmed to the bookie at *index*."""

    def fail(self, failure: LedgerError) -> None:
        """End writing."""


class Replacement:
    """Keeps one writer's ensemble whole, as far as there are bookies for it."""

    def __init__(
        self,
        record: LedgerRecord,
        *,
        owner: Owner,
        native: Writer,
        ensemble: Ensemble,
        bookies: Bookies,
        placement: Placement,
        changes: Changes,
        nursery: trio.Nursery,
        alarms: Alarms,
        limit_s: float,
    ) -> None:
        """Without a quorum and without progress for *limit_s*, the owner fails."""
        self.record = record
        self.lost_bookies: set[str] = set()
        self._owner = owner
        self._native = native
        self._ensemble = ensemble
        self._bookies = bookies
        self._placement = placement
        self._changes = changes
        self._alarms = alarms
        self._limit_s = limit_s
        self._task = OnDemand(nursery, self._run)
        self._scope = trio.CancelScope()
        self._stopped = False
        self._lost_more = trio.Event()
        self._cause: LedgerError | None = None
        self._pauses = 0  # since the first loss after something was confirmed
        self._seen_lac = owner.last_confirmed
        self._stuck_at: float | None = None
        self._stuck_lac = -1

    def lost(self, index: int, reason: str) -> None:
        """Give the bookie at *index* up and look for another; once for each loss."""
        if self._stopped or not self._ensemble.lose(index, reason):
            return
        bookie_id = self._ensemble.names[index]
        self.lost_bookies.add(bookie_id)
        self._placement.failed(bookie_id)
        self._lost_more.set()
        if self._owner.last_confirmed > self._seen_lac:
            self._seen_lac, self._pauses = self._owner.last_confirmed, 0
        if not self._ensemble.has_quorum():
            self._watch_clock()
        self._task.start()

    def stop(self) -> None:
        """Change nothing any more; a change under way may have been made."""
        self._stopped = True
        self._scope.cancel()

    # --- looking for bookies ---------------------------------------------------------

    async def _run(self) -> None:
        with trio.CancelScope() as self._scope:
            paused = False
            while self._ensemble.lost and not self._stopped:
                self._lost_more = trio.Event()
                chosen = await self._choose(urgent=paused and not self._ensemble.has_quorum())
                paused = not (chosen and await self._swap(chosen))
                if paused:
                    await self._pause()

    async def _choose(self, *, urgent: bool) -> dict[int, str]:
        """Return who comes in where; nobody, when there is nobody or nobody knows."""
        names, lost = self._ensemble.names, self._ensemble.lost
        try:
            return await self._placement.substitutes(names, lost, urgent=urgent)
        except LedgerError as why:
            self._cause = why
            return {}

    async def _pause(self) -> None:
        """Wait for a while, twice as long each time, or for the next loss."""
        first_s, longest_s = DEGRADED_S if self._ensemble.has_quorum() else URGENT_S
        with trio.move_on_after(min(first_s * 2.0**self._pauses, longest_s)):
            await self._lost_more.wait()
        self._pauses = min(self._pauses + 1, 30)

    # --- the change ----------------------------------------------------------------------

    async def _swap(self, chosen: dict[int, str]) -> bool:
        """Publish the new fragment, then let its bookies in; False if nothing came of it.

        Nothing is confirmed meanwhile.
        """
        self._native.hold(True)
        names = [chosen.get(index, name) for index, name in enumerate(self._ensemble.names)]
        done = await self._publish(Fragment(self._native.state().lac + 1, names))
        if self._stopped:
            return False
        if done:
            for index, bookie_id in chosen.items():
                self._native.replace(index)
                self._ensemble.replace(index, self._bookies.connection(bookie_id))
                self._owner.resend(index)
        self._native.hold(False)
        self._owner.acknowledged()
        return done

    async def _publish(self, fragment: Fragment) -> bool:
        try:
            self.record = await self._changes.change(self.record.fragments[-1], fragment)
        except MetadataUnavailable as why:
            self._cause = why
            return False
        except LedgerError as failure:
            self._owner.fail(failure)
            return False
        return True

    # --- giving up -------------------------------------------------------------------------

    def _watch_clock(self) -> None:
        """Begin to count the time without a quorum, unless nothing was confirmed since."""
        if self._stuck_at is None or self._owner.last_confirmed > self._stuck_lac:
            self._stuck_at = trio.current_time()
            self._stuck_lac = self._owner.last_confirmed
            self._alarms.set(self._stuck_at + self._limit_s, self._check_clock)

    def _check_clock(self) -> None:
        if self._stopped or self._stuck_at is None:
            return
        if trio.current_time() < self._stuck_at + self._limit_s:
            return  # another alarm is set
        self._stuck_at = None
        if not self._ensemble.has_quorum():
            failure = self._ensemble.quorum_lost()
            failure.__cause__ = self._cause
            self._owner.fail(failure)
