"""Which ledgers a bookie was told of, on one connection.

A ledger id may be used again, so a ledger's record has an incarnation besides, and before the
first frame about a ledger its bookie is told which one is meant. That costs 24 bytes and no
answer: frames keep their order. A bookie that has another ledger under the id finds out
which of them is the one of today before it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from native import frame

SAID_MAX = 16384
"""Ledgers that a bookie is told of at once; it remembers four times as many."""


class LedgerName(NamedTuple):
    """A ledger, and no other that had or will have its id. Incarnation 0: not known."""

    ledger_id: int
    incarnation: int


class Statements:
    """What was said on one connection."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        """*put* queues a frame behind what is queued already."""
        self._put = put
        self._said: dict[int, int] = {}  # the oldest first
        self._held: dict[int, int] = {}

    def say(self, name: LedgerName) -> None:
        """Let *name* be meant by its id in what is queued from here on."""
        if self._said.get(name.ledger_id, 0) == name.incarnation:
            return
        self._said.pop(name.ledger_id, None)
        if name.incarnation:
            self._said[name.ledger_id] = name.incarnation
        self._put(frame.incarnation(*name))
        if len(self._said) > SAID_MAX:
            self._take_back_oldest()

    def resume(self, ledger_id: int) -> None:
        """What follows may be a writer's, who says nothing itself: mean its ledger again."""
        held = self._held.get(ledger_id)
        if held is not None:
            self.say(LedgerName(ledger_id, held))

    def hold(self, name: LedgerName) -> None:
        """Mean *name* until release(): a writer sends frames that nobody looks at."""
        self._held[name.ledger_id] = name.incarnation
        self.say(name)

    def release(self, ledger_id: int) -> None:
        """The writer is gone, perhaps because the bookie was in doubt."""
        self._held.pop(ledger_id, None)
        self.forget(ledger_id)

    def forget(self, ledger_id: int) -> None:
        """The bookie was in doubt: say it again before the next frame, for it to look again."""
        if self._said.get(ledger_id):
            self.say(LedgerName(ledger_id, 0))
            self.resume(ledger_id)

    def _take_back_oldest(self) -> None:
        for ledger_id in self._said:
            if ledger_id not in self._held:
                self.say(LedgerName(ledger_id, 0))
                return
