"""What a writer does while nothing happens.

Quiet after its last entry, it tells the bookies what is confirmed, since no other
entry carries that news. Waiting for an acknowledgement, it asks the bookies for a sign
of life, so that one that hangs is given up; and at last it gives up itself.
"""

from __future__ import annotations

from typing import Protocol

import trio

from ledger_client.alarms import Alarms
from ledger_client.appends import Piece
from ledger_client.ensemble import Ensemble
from ledger_client.errors import AppendTimeout, LedgerError
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

    def fail(self, failure: LedgerError) -> None:
        """End writing."""


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
        self._probed_at = float("-inf")

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
        """Look at the oldest entry when it waits for long."""
        oldest = self._owner.oldest
        if oldest is not None:
            self._guarding = True
            look_at = max(oldest.sent_at, self._probed_at) + self._options.bookie_timeout_s / 2
            give_up_at = oldest.sent_at + self._options.append_timeout_s
            self._alarms.set(min(look_at, give_up_at), self._look)

    def _look(self) -> None:
        """Ask after the oldest entry, or fail when it was not confirmed in time."""
        self._guarding = False
        oldest, now = self._owner.oldest, trio.current_time()
        if oldest is None:
            return
        limit_s = self._options.append_timeout_s
        if oldest.sent_at + limit_s <= now:
            ledger_id, entry_id = self._owner.id, oldest.first
            self._owner.fail(
                AppendTimeout(ledger_id=ledger_id, entry_id=entry_id, waited_s=limit_s)
            )
        elif oldest.sent_at + self._options.bookie_timeout_s / 2 <= now:
            self._ensemble.probe(oldest.sent_at)
            self._probed_at = now
        self._guard()
