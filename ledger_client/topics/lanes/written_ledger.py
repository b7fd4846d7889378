"""A ledger of a lane that is being written: what it was sent, and when the lane goes on.

Limits are checked after a batch is counted, so the batch that fills a ledger is its last one. A
ledger without messages is never full, and none ends before age_min_s. A lane ordered by event
time ends a ledger only before a batch whose times are all greater, so that each time lies in one
ledger; at twice the size it ends in any case. One that is asked to end does so at once, whatever
the limits and times say.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ledger_client.errors import LedgerError, SendUnknown
from ledger_client.topics.lanes.lane_state import LaneState, SealedBatch, greater
from metadata.topics import RollPolicy

STATE_ENTRIES = 1000
STATE_S = 120.0
STATE_SIZE = 16 * 1024 * 1024
"""The lane's state is written again after so many entries, seconds or bytes."""

STATE = SealedBatch(payload=b"", count=0, size=0)
"""Stands for a control entry, whose bytes are made when it is sent."""
HARD = 2
"""A ledger of so many times its size ends between equal event times, too."""
AHEAD = 0.5
"""Fraction of the size or the entries at which the next ledger is made."""
AHEAD_AGE = 0.9
SHORTEST_S = 0.001


# --- batches, and what was sent of them ------------------------------------------------------


class Append:
    """Batches that are appended together, and their outcome.

    With *is_state* it has no batches: it ends when a control entry is durable. `finish` is
    called once, when all are acknowledged or when the lane has failed.
    """

    __slots__ = ("batches", "failure", "is_state", "places", "sent")

    def __init__(self, batches: Sequence[SealedBatch], *, is_state: bool = False) -> None:
        self.batches = [STATE] if is_state else batches
        self.is_state = is_state
        self.sent = 0
        self.places: list[tuple[int, int]] = []
        """ledger and entry of each batch that is acknowledged"""
        self.failure: LedgerError | None = None

    def fail(self, failure: LedgerError, topic: str, partition: int, lane: int) -> None:
        """Record that the lane failed: with SendUnknown if some batches were sent."""
        self.failure = failure
        if self.sent:
            self.failure = SendUnknown(
                topic,
                partition=partition,
                lane=lane,
                count=sum(batch.count for batch in self.batches[len(self.places) :]),
                reason=str(failure),
            )
            self.failure.__cause__ = failure

    def finish(self) -> None:
        """Report the outcome, `places` or `failure`, to the caller. Called once."""


class Sent(NamedTuple):
    """Entries that went out together and are not acknowledged; a control entry without *append*."""

    ledger_id: int
    first_entry: int
    last_entry: int
    append: Append | None
    start: int
    """in the batches of *append*"""

    def batches_up_to(self, last_entry: int) -> Sequence[SealedBatch]:
        """Return the batches whose entries are at most *last_entry*."""
        if self.append is None:
            return ()
        count = min(self.last_entry, last_entry) + 1 - self.first_entry
        return self.append.batches[self.start : self.start + max(count, 0)]


class WrittenLedger:
    """A ledger of the lane, written or prepared. The counts leave out control entries.

    Attributes:
        sent: entries that are not acknowledged, in order.
        overdue_at: the time from which it takes batches although it is full; `None` before.
        is_asked: somebody asked for its end (topics/rolls.py).
        is_lost: it failed; recovery must find its end.
    """

    def __init__(self, ledger_id: int, created_ms: int, now: float) -> None:
        self.id = ledger_id
        self.created_ms = created_ms
        self.opened_at = now
        self.next_entry = 0
        self.batches = 0
        self.size = 0
        self.last_event_time: int | None = None
        self.sent: deque[Sent] = deque()
        self.overdue_at: float | None = None
        self.is_asked = self.is_lost = False
        self.state_stop = 0
        """the entry after the last control entry"""
        self._state_time = now
        self._state_size = 0

    def note(self, batch: SealedBatch) -> None:
        """Count a batch that goes out now."""
        self.batches += 1
        self.size += batch.size
        if batch.last_event_time is not None:
            self.last_event_time = greater(self.last_event_time, batch.last_event_time)

    def send(self, payloads: list[bytes], append: Append | None, start: int) -> Send:
        """Give entries their ids; *start* is their place in the batches of *append*."""
        first = self.next_entry
        self.next_entry += len(payloads)
        self.sent.append(Sent(self.id, first, self.next_entry - 1, append, start))
        return Send(self, self.next_entry - 1, payloads)

    def send_state(
        self, known: LaneState, now: float, now_ms: int, append: Append | None = None
    ) -> Send:
        """Make a control entry of the lane's state; *append* waits for it."""
        send = self.send([known.encode(now_ms)], append, 0)
        self.state_stop, self._state_size, self._state_time = self.next_entry, self.size, now
        if append is not None:
            append.sent = 1
        return send

    def wants_state(self, now: float, unsent: int) -> bool:
        """Is the lane's state due? *unsent* batches are counted and not sent yet."""
        since = self.next_entry + unsent - self.state_stop
        return since > 0 and (
            since >= STATE_ENTRIES
            or self.size - self._state_size >= STATE_SIZE
            or now - self._state_time >= STATE_S
        )


class Send(NamedTuple):
    """Append these entries to *ledger*; acknowledged up to *last_entry* when all are durable."""

    ledger: WrittenLedger
    last_entry: int
    payloads: list[bytes]


# --- when it ends ----------------------------------------------------------------------------


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

    def ends_before(self, ledger: WrittenLedger, age_s: float, head: SealedBatch | None) -> bool:
        """True if the ledger ends before *head*; `None` means that no batch waits."""
        if ledger.is_asked:
            return True
        if head is None:
            return self.is_due(ledger, age_s)
        return self.is_due_before(ledger, age_s, head.first_event_time)

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
