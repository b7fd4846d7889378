"""Input and output of a lane's machine (lane_machine.py): appends, actions and steps.

An action is performed at once. A step takes I/O, so the driver reports how it ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ledger_client.errors import LedgerError, SendUnknown
from ledger_client.topics.lanes.lane_state import End, LaneState, SealedBatch, greater
from metadata.topics import LaneLedger

STATE_ENTRIES = 1000
STATE_S = 120.0
STATE_SIZE = 16 * 1024 * 1024
"""The lane's state is written again after so many entries, seconds or bytes."""

STATE = SealedBatch(payload=b"", count=0, size=0)
"""Stands for a control entry, whose bytes are made when it is sent."""


# --- what goes in ----------------------------------------------------------------------------


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


# --- what comes out --------------------------------------------------------------------------


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
        self.is_lost = False
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


class GiveUp(NamedTuple):
    """End the writer of *ledger* without closing it; no acknowledgement counts any more."""

    ledger: WrittenLedger


class LookAgain(NamedTuple):
    """Call `send` at *at*, in seconds of the machine's clock, even if nothing happens."""

    at: float


Action = Send | GiveUp | LookAgain


class Prepare(NamedTuple):
    """Make the next ledger, in the place of one that cannot be used; then `prepared`."""

    instead_of: int | None


class Begin(NamedTuple):
    """Check that the store answers and wait until all is acknowledged; then `begun`.

    Without an answer: `not_begun`. *entries* were sent to the ledger when the step began. If it
    takes more meanwhile, waiting is in vain. `None`: the ledger is overdue, do not wait.
    """

    entries: int | None


class Drain(NamedTuple):
    """Wait until all is acknowledged; then `drained`.

    *with_slower*: wait a moment for bookies beyond the ack quorum, too: no ledger follows.
    """

    with_slower: bool


class Recover(NamedTuple):
    """Recover the ledger, which closes it; then `recovered`."""


class Turn(NamedTuple):
    """Close *current* at *end* and open *following* in one transaction; then `turned`.

    Not before the first entry of *following* is acknowledged. `end_refused` if another client
    recovers the ledger.
    """

    current: LaneLedger | None
    end: End | None
    following: LaneLedger


class Close(NamedTuple):
    """Close *current* at *end*, without a next ledger; then `closed`, or `end_refused`."""

    current: LaneLedger
    end: End


class MarkBoundary(NamedTuple):
    """Record that *row* begins with the event time that ended the ledger before; then `marked`."""

    row: LaneLedger


class NoteStart(NamedTuple):
    """Record the first times of *row*, as far as they are durable; then `noted`."""

    row: LaneLedger


Step = Prepare | Begin | Drain | Recover | Turn | Close | MarkBoundary | NoteStart
