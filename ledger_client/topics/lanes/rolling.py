"""When a lane goes on in its next ledger.

Full is checked after a batch was counted, so the batch that fills a ledger is its last. A
ledger without messages is never full. A lane ordered by event time ends a ledger only before
a batch whose times are all greater, so that a time lies in one ledger; or, whatever the times,
at twice the size. Nothing rolls before age_min_s.
"""

from __future__ import annotations

import math
from typing import Protocol

from ledger_client.topics.lanes.sealed_batch import SealedBatch
from metadata.topics import RollPolicy

HARD = 2
"""Times the size, at which a ledger ends between equal event times."""
AHEAD = 0.5
"""Part of a limit at which the next ledger is made."""
AHEAD_AGE = 0.9
SHORTEST_S = 0.001


class Written(Protocol):
    """What was sent to a ledger: control entries do not count."""

    batches: int
    size: int
    last_event_time: int | None


class Rolling:
    """The rules of one topic; ages are seconds."""

    def __init__(self, policy: RollPolicy, *, ordered: bool) -> None:
        """*ordered*: by event time."""
        self._policy = policy
        self._ordered = ordered

    def is_due(self, ledger: Written, age_s: float, following: SealedBatch | None) -> bool:
        """Return whether the ledger ends before *following*; None: nothing waits to be sent."""
        policy = self._policy
        if not ledger.batches or age_s < policy.age_min_s:
            return False
        is_old = bool(policy.age_s) and age_s >= policy.age_s
        if not (is_old or self._is_large(ledger)):
            return False
        if not self._ordered or ledger.size >= HARD * policy.size:
            return True
        if following is None:  # nobody knows yet whether its time will be greater
            return is_old
        return self._rises(ledger, following)

    def due_in_s(self, ledger: Written, age_s: float) -> float:
        """Return after how long, without another batch, it may be due; infinity: never."""
        if not ledger.batches:
            return math.inf
        looks = [self._policy.age_s] if self._policy.age_s else []
        if self._is_large(ledger):
            looks.append(self._policy.age_min_s)
        later = [look - age_s for look in looks if look > age_s]
        # Of a shorter time, a clock may not notice that it is over.
        return max(min(later, default=math.inf), SHORTEST_S)

    def wants_next(self, ledger: Written, age_s: float) -> bool:
        """Return whether it is time to make the next ledger ahead."""
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

    def _rises(self, ledger: Written, following: SealedBatch) -> bool:
        if following.first_event_time is None or ledger.last_event_time is None:
            return True
        return following.first_event_time > ledger.last_event_time
