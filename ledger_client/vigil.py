"""What a writer does while nothing happens.

Quiet after its last entry, it tells the bookies what is confirmed, since no other
entry carries that news. A bookie that acknowledges nothing at all is noticed by its
connection (session.py). One that serves other ledgers and keeps an entry of this one
waiting, which others have long since stored, is given up here, for this ledger; and at last
the writer gives up itself.
"""

from __future__ import annotations

from typing import Protocol

import trio

from ledger_client.alarms import Alarms
from ledger_client.appends import Piece
from ledger_client.ensemble import Ensemble
from ledger_client.errors import AppendTimeout, BookieUnavailable, LedgerError
from ledger_client.options import Options


class Owner(Protocol):
    """The writer, as its vigil sees it."""

    @property
    def id(self) -> int:
        """Id of the ledger."""

    @property
    def last_confirmed(self) -> int:
        """The greatest entry that is acknowledged."""

    @property
    def next_entry(self) -> int:
        """Id that the next entry gets."""

    @property
    def oldest(self) -> Piece | None:
        """The oldest piece that is sent and not confirmed."""

    @property
    def failed(self) -> bool:
        """True once the writer ended."""

    @property
    def owing(self) -> dict[int, str]:
        """Bookies that lack the oldest entry though another one has it: index and name."""

    def bookie_lost(self, index: int, failure: BookieUnavailable) -> None:
        """The bookie at *index* of the ensemble is given up."""

    def fail(self, failure: LedgerError) -> None:
        """End writing."""


LATE_S = 1.0
"""An alarm that is later than this says that this process hung; others did not."""


class Vigil:
    """Alarms of one writer. It has at most one of each kind set."""

    def __init__(
        self, owner: Owner, *, ensemble: Ensemble, key: bytes, alarms: Alarms, options: Options
    ) -> None:
        """*key* is the ledger's master key."""
        self._owner = owner
        self._ensemble = ensemble
        self._key = key
        self._alarms = alarms
        self._options = options
        self._told = owner.last_confirmed
        self._announcing = self._guarding = False
        self._newest = 0  # next entry when the announcement was set
        self._due_at = 0.0

    def sent(self, told: int) -> None:
        """Entries were sent that say that everything up to *told* is confirmed."""
        self._told = told
        if not self._guarding:
            self._guard()

    def confirmed(self) -> None:
        """More entries were confirmed."""
        if self._options.explicit_lac_s > 0 and not self._announcing:
            self._announce_later()

    # --- the last confirmed entry ------------------------------------------------------

    def _announce_later(self) -> None:
        self._announcing = True
        self._newest = self._owner.next_entry
        self._alarms.set(trio.current_time() + self._options.explicit_lac_s, self._announce)

    def _announce(self) -> None:
        """Tell bookies what is confirmed when no entry follows to carry the news."""
        self._announcing = False
        confirmed = self._owner.last_confirmed
        if self._told >= confirmed or self._owner.failed:
            return
        if self._owner.next_entry != self._newest:
            self._announce_later()
            return
        self._told = confirmed
        self._ensemble.tell_confirmed(confirmed, self._key)

    # --- the oldest entry ----------------------------------------------------------------

    def _guard(self) -> None:
        """Look at the oldest entry when half of its time is over, and at the end of it."""
        oldest, now = self._owner.oldest, trio.current_time()
        if oldest is not None:
            limit_s = self._options.append_timeout_s
            half_at = oldest.sent_at + limit_s / 2
            self._set(half_at if now < half_at else oldest.sent_at + limit_s)

    def _set(self, due_at: float) -> None:
        self._guarding = True
        self._due_at = due_at
        self._alarms.set(due_at, self._look)

    def _look(self) -> None:
        """Give up the bookies that keep the oldest entry waiting, or the ledger."""
        self._guarding = False
        oldest, now = self._owner.oldest, trio.current_time()
        if oldest is None:
            return
        if now > self._due_at + LATE_S:  # what was acknowledged meanwhile is not received yet
            self._set(now + self._options.append_timeout_s / 2)
            return
        limit_s = self._options.append_timeout_s
        if oldest.sent_at + limit_s <= now:
            self._owner.fail(
                AppendTimeout(ledger_id=self._owner.id, entry_id=oldest.first, waited_s=limit_s)
            )
        elif oldest.sent_at + limit_s / 2 <= now:
            for index, name in self._owner.owing.items():
                reason = f"kept entry {self._owner.last_confirmed + 1} waiting"
                self._owner.bookie_lost(index, BookieUnavailable(name, reason))
        self._guard()
