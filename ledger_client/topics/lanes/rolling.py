"""When a lane goes on in its next ledger.

Limits are checked after a batch is counted, so the batch that fills a ledger is its last one. A
ledger without messages is never full, and none ends before age_min_s. A lane ordered by event
time ends a ledger only before a batch whose times are all greater, so that each time lies in one
ledger; at twice the size it ends in any case.
"""

from __future__ import annotations

import math
from typing import Protocol

from metadata.topics import RollPolicy

HARD = 2
"""A ledger of so many times its size ends between equal event times, too."""
AHEAD = 0.5
"""Fraction of the size or the entries at which the next ledger is made."""
AHEAD_AGE = 0.9
SHORTEST_S = 0.001


class Written(Protocol):
    """A ledger that is written, without its control entries."""

    batches: int
    size: int
    last_event_time: int | None


class Rolling:
    """The rules of one topic; ages are seconds."""

    def __init__(self, policy: RollPolicy, *, ordered: bool) -> None:
        """Apply *policy*; *ordered*: event times in the lane never decrease."""
        self._policy = policy
        self._ordered = ordered

    def is_due(self, ledger: Written, age_s: float) -> bool:
        """True if the ledger ends now, while no batch waits.

        An ordered one ends by its age or at the hard limit: the next time may not be greater.
        """
        return self._is_full(ledger, age_s) and (
            not self._ordered
            or 0 < self._policy.age_s <= age_s
            or ledger.size >= HARD * self._policy.size
        )

    def is_due_before(self, ledger: Written, age_s: float, first_event_time: int | None) -> bool:
        """True if the ledger ends before a batch whose lowest event time is this one."""
        return self._is_full(ledger, age_s) and (
            not self._ordered
            or first_event_time is None
            or ledger.last_event_time is None
            or first_event_time > ledger.last_event_time
            or ledger.size >= HARD * self._policy.size
        )

    def _is_full(self, ledger: Written, age_s: float) -> bool:
        policy = self._policy
        return (
            (self._is_large(ledger) or 0 < policy.age_s <= age_s)
            and ledger.batches > 0
            and age_s >= policy.age_min_s
        )

    def due_in_s(self, ledger: Written, age_s: float) -> float:
        """Return the seconds until it may be due without another batch, or infinity."""
        if not ledger.batches:
            return math.inf
        looks = [self._policy.age_s] if self._policy.age_s else []
        if self._is_large(ledger):
            looks.append(self._policy.age_min_s)
        later = [look - age_s for look in looks if look > age_s]
        # A clock may not resolve a shorter time, and the caller would spin.
        return max(min(later, default=math.inf), SHORTEST_S)

    def wants_next(self, ledger: Written, age_s: float) -> bool:
        """True if it is time to make the next ledger ahead, as always when this one is due."""
        policy = self._policy
        if not ledger.batches:
            return False
        return (
            ledger.size >= AHEAD * policy.size
            or (policy.entries > 0 and ledger.batches >= AHEAD * policy.entries)
            or (policy.age_s > 0 and age_s >= AHEAD_AGE * policy.age_s)
        )

    def _is_large(self, ledger: Written) -> bool:
        policy = self._policy
        return ledger.size >= policy.size or 0 < policy.entries <= ledger.batches
