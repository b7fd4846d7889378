"""A lane that is being written, as a machine without I/O. All events go through here.

The driver (lane_writer.py) calls one method for each event and then performs the actions that
gathered in `actions`: append entries to a ledger, give a ledger up, look again at a time. Longer
work is a step: `take_step` returns the one that is due, the driver carries it out, and
reports its outcome as another event. Steps never overlap; batches may come during any of them.
Times are seconds of any clock that never goes back; `now_ms` is the metadata store's time.

state     batches   the ledger that is written                     step
--------  --------  ---------------------------------------------  ----------------------------
OPENING   wait      there is none yet                              Prepare, Turn
WRITING   go out    it takes entries                               Prepare, Begin, MarkBoundary,
                                                                   NoteStart
ENDING    wait      it takes no more; some are not acknowledged    Drain
LOST      wait      it failed, or another client recovers it       Recover
ENDED     wait      its last entry is known                        Prepare, Turn; Close
CLOSED    refused   it is closed, and the lane has no other
FAILED    refused   it stays as it is, for the lane's next writer

          ┌───────────────── turned ─────────────────────┐
          ▼                                              │
OPENING ► WRITING ── begun, or closing ► ENDING ─drained► ENDED ── closed ► CLOSED
          │   ▲                          │               ▲  │
          │   └─ boundary marked,        lost            │  └─ end refused
          │      start noted             ▼               │     │
          └──────── lost ──────────────► LOST ─recovered─┘ ◄───┘        any ── fail ► FAILED

Batches are kept here until they are acknowledged: first in `_waiting`, then in `sent` of their
ledger. An entry's id is its place in the order of sending, as no other client appends. So when a
ledger fails, the last entry that recovery finds says exactly which batches are in it. The others
go out again in the next ledger, first and in their order.

The versions of a lane have no gap because a ledger is closed at its last entry in the same
transaction that opens the next one, and no batch goes to the next one before. Only the lane's
state does: it is the first entry of each ledger and is sent while the last batches of the
ledger before are under way.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from itertools import islice

import msgspec

from ledger_client.errors import EventTimeBack, LedgerError, ProducerClosed
from ledger_client.ledgers.records import Reason
from ledger_client.topics.lanes.lane_actions import (
    Action,
    Begin,
    Close,
    Drain,
    GiveUp,
    LookAgain,
    MarkBoundary,
    NoteStart,
    Prepare,
    Recover,
    Step,
    Turn,
)
from ledger_client.topics.lanes.lane_state import (
    End,
    LaneEnd,
    LaneState,
    SealedBatch,
    greater,
    timestamps_after,
)
from ledger_client.topics.lanes.routes import Route
from ledger_client.topics.lanes.written_ledger import Append, Rolling, Sent, WrittenLedger
from metadata.topics import LaneLedger, TopicRecord

NO_LEDGER = -1
PATIENCE_S = 1.0
"""How long batches wait for the next ledger; then they go to the full one: limits are soft."""
Start = Callable[[float, int], Step]


class State(Enum):
    """The state of the lane; the table above has the transitions."""

    OPENING = auto()
    WRITING = auto()
    ENDING = auto()
    LOST = auto()
    ENDED = auto()
    CLOSED = auto()
    FAILED = auto()


class LaneMachine:
    """One lane and its ledgers, for one writer.

    Attributes:
        state: see the table.
        known: the lane's state up to the last acknowledged entry: producers, times, figures.
        ledger: the one that is written, with its *row*; while OPENING, one without entries.
        following: the next one, once it is prepared.
        last_event_time: the greatest that was accepted, now or ever; `None` if there is none.
        unsettled: how many appends are neither acknowledged nor failed.
        deadline: until then the lane must go on, or close; infinity while it goes on.
        failure: the reason why the lane takes nothing any more, if so.
        actions: for the driver to perform, in order.
    """

    def __init__(
        self,
        topic: TopicRecord,
        *,
        partition: int,
        lane: int,
        epoch: int,
        last: LaneEnd,
        limit_s: float,
    ) -> None:
        """Begin after *last*, the previous writer's end; a change of ledgers may take *limit_s*."""
        self.state = State.OPENING
        self.known = last.state
        self.ledger = WrittenLedger(NO_LEDGER, 0, 0.0)
        self.row = last.unclosed
        self.following: WrittenLedger | None = None
        self.last_event_time = last.state.last_event_time
        self.unsettled = 0
        self.deadline = math.inf
        self.failure: LedgerError | None = None
        self.actions: list[Action] = []
        self.is_closing = False
        self.ending_since = 0.0
        self._topic = topic
        self._partition = partition
        self._lane = lane
        self._epoch = epoch
        self._limit_s = limit_s
        self._is_ordered = topic.order == "event-time"
        self._rolling = Rolling(topic.roll, ordered=self._is_ordered)
        self._end, self._first_version = last.end, last.next_version
        self._waiting: deque[Append] = deque()
        self._sequences: dict[str, int] = {}
        self._last_timestamp = last.state.figures.last_timestamp
        self._has_rerouted = self._is_disturbed = False

    # --- batches ---------------------------------------------------------------------------

    def last_sequence(self, producer: str) -> int:
        """Return the greatest sequence number accepted for *producer*, now or ever; -1: none."""
        return self._sequences.get(producer, self.known.last_sequence(producer))

    def set_routes(self, producer: str, routes: Sequence[Route]) -> None:
        """Keep the routes of numbers in the lane; a control entry goes before the next batch."""
        if self.known.routes.get(producer, []) != routes:
            self.known.routes[producer] = list(routes)
            self._has_rerouted = True

    def check_open(self) -> None:
        """Raise the error that append() would raise now, if any."""
        if self.failure is not None:
            raise self.failure
        if self.is_closing:
            raise ProducerClosed(self._topic.name)

    def append(self, append: Append, now: float, now_ms: int) -> None:
        """Accept batches behind all others and send those that may go.

        Raises:
            EventTimeBack, MetadataBroken: an event time or timestamp is lower than one before.
            ProducerClosed, LedgerError: the lane is closed, or failed.
        """
        if self.failure is not None or self.is_closing:
            self.check_open()
        self._admit(append.batches)
        self.unsettled += 1
        self._waiting.append(append)
        self.send(now, now_ms)

    def _admit(self, batches: Sequence[SealedBatch]) -> None:
        """Check event times, then record times and sequence numbers. A failure records none."""
        last, topic = self.last_event_time, self._topic.name
        last_timestamp = timestamps_after(self._last_timestamp, batches, topic)
        for batch in batches:
            first = batch.first_event_time
            if first is None:
                continue
            if self._is_ordered and last is not None and first < last:
                raise EventTimeBack(
                    topic,
                    partition=self._partition,
                    lane=self._lane,
                    event_time=first,
                    last_event_time=last,
                )
            last = greater(last, batch.last_event_time)
        self.last_event_time, self._last_timestamp = last, last_timestamp
        for batch in batches:
            if batch.producer and batch.sequence >= 0:
                known = self.last_sequence(batch.producer)
                self._sequences[batch.producer] = max(known, batch.sequence)

    def send(self, now: float, now_ms: int) -> None:
        """Send the waiting batches that the ledger takes now, in order."""
        while self._waiting and self.state is State.WRITING:
            ledger, append = self.ledger, self._waiting[0]
            if not self._takes(append.batches[append.sent], now):
                return
            if self._has_rerouted or append.is_state or ledger.wants_state(now, 0):
                self._has_rerouted = False
                known = self._known_at(ledger.next_entry, now_ms)
                waiting = append if append.is_state else None
                self.actions.append(ledger.send_state(known, now, now_ms, waiting))
            if not append.is_state:
                self._send_batches(ledger, append, now)
            if append.sent == len(append.batches):
                self._waiting.popleft()

    def _send_batches(self, ledger: WrittenLedger, append: Append, now: float) -> None:
        start, payloads = append.sent, list[bytes]()
        for batch in islice(append.batches, start, None):
            count = len(payloads)  # the caller looked at the first batch
            if count and (not self._takes(batch, now) or ledger.wants_state(now, count)):
                break
            ledger.note(batch)
            payloads.append(batch.payload)
        append.sent += len(payloads)
        self.actions.append(ledger.send(payloads, append, start))

    def _takes(self, batch: SealedBatch, now: float) -> bool:
        """True if *batch* may go to the ledger now."""
        ledger = self.ledger
        if self._is_ordered and self._needs_mark(batch):
            return False
        if ledger.overdue_at is not None and now >= ledger.overdue_at:
            return True
        age_s, time_ns = now - ledger.opened_at, batch.first_event_time
        if not (ledger.is_asked or self._rolling.is_due_before(ledger, age_s, time_ns)):
            return True
        if ledger.overdue_at is None:
            ledger.overdue_at = now + PATIENCE_S
            self.actions.append(LookAgain(ledger.overdue_at))
        return False

    def _needs_mark(self, batch: SealedBatch) -> bool:
        """True if *batch* would begin a ledger with the event time that ended the previous one."""
        row, time_ns = self.row, batch.first_event_time
        return (
            time_ns is not None
            and time_ns == self.known.last_event_time
            and not self.ledger.batches
            and row is not None
            and not row.shares_first
        )

    # --- acknowledgements ------------------------------------------------------------------

    def acknowledged(
        self, ledger: WrittenLedger, last_entry: int, now: float, now_ms: int
    ) -> list[Append]:
        """Entries up to *last_entry* of *ledger* are durable; return the appends that end so."""
        finished: list[Append] = []
        if self.failure is None and not ledger.is_lost:
            sent = ledger.sent
            while sent and sent[0].last_entry <= last_entry:
                self._settle(sent.popleft(), last_entry, now_ms, finished)
            if self.is_closing and self.is_leaving:
                self._begin_limit(now)
        return finished

    def _settle(self, sent: Sent, last_entry: int, now_ms: int, finished: list[Append]) -> None:
        """Record the batches of *sent* that are in the ledger for good."""
        append, count = sent.append, 0
        if append is None:
            return
        for batch in sent.batches_up_to(last_entry):
            self.known.note(batch, now_ms)
            append.places.append((sent.ledger_id, sent.first_entry + count))
            count += 1
        if count and len(append.places) == len(append.batches):
            self.unsettled -= 1
            finished.append(append)

    # --- the end ---------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True once the lane is closed or failed."""
        return self.state is State.CLOSED or self.state is State.FAILED

    @property
    def is_leaving(self) -> bool:
        """True when the lane is to be closed and everything is acknowledged."""
        return self.is_closing and not self.unsettled

    def close(self, now: float) -> None:
        """Take nothing more; the ledger ends once everything is acknowledged."""
        self.is_closing = True
        if self.is_leaving:
            self._begin_limit(now)

    def fail(self, failure: LedgerError) -> list[Append]:
        """End for good and return the appends that fail.

        The failure of each says whether some of it may be in the lane.
        """
        if self.failure is not None:
            return []
        self.failure, self.state = failure, State.FAILED
        under_way = [sent.append for sent in self.ledger.sent if sent.append is not None]
        failed = list(dict.fromkeys([*under_way, *self._waiting]))  # one may be sent in part
        for append in failed:
            append.fail(failure, self._topic.name, self._partition, self._lane)
        self.unsettled = 0
        self._waiting.clear()
        self.actions.append(GiveUp(self.ledger))
        self.give_up_following()
        return failed

    def give_up_following(self) -> None:
        """Leave the prepared ledger to the lane's next writer, which removes it."""
        if self.following is not None:
            self.following.is_lost = True
            self.actions.append(GiveUp(self.following))

    # --- steps -----------------------------------------------------------------------------

    def due_in_s(self, now: float) -> float:
        """Return the seconds until a step may be due without an event; infinity means never."""
        if self.state is not State.WRITING:
            return math.inf
        return self._rolling.due_in_s(self.ledger, now - self.ledger.opened_at)

    def take_step(self, now: float, now_ms: int) -> Step | None:
        """Begin the step that is due and return it; `None` if there is nothing to do."""
        start = self.due(now)
        return None if start is None else start(now, now_ms)

    def due(self, now: float) -> Start | None:
        """Return how `take_step` would begin the step that is due; `None` if there is none."""
        state = self.state
        if state is State.WRITING:
            return self._due_while_writing(now)
        if state is State.ENDED and self.is_leaving:
            return self._close
        if state is State.ENDED or state is State.OPENING:
            return self._turn if self.is_ready else self._prepare
        if state is State.ENDING:
            return self._drain
        return self._recover if state is State.LOST else None

    def _due_while_writing(self, now: float) -> Start | None:
        if self.is_closing and self.is_leaving:
            return self._leave
        ledger, age_s = self.ledger, now - self.ledger.opened_at
        head = self._waiting[0].batches[self._waiting[0].sent] if self._waiting else None
        if head is not None and self._is_ordered and self._needs_mark(head):
            return self._mark_boundary
        if ledger.is_asked or self._rolling.wants_next(ledger, age_s):  # as when it is due
            if not self.is_ready:
                return self._prepare
            if self._rolling.ends_before(ledger, age_s, head):
                return self._begin
        return self._note_start if self._lacks_start() else None

    def roll(self, ledger_id: int) -> None:
        """Have this ledger end soon, whatever its limits say, unless the lane has left it."""
        for ledger in filter(None, (self.ledger, self.following)):
            ledger.is_asked |= ledger.id == ledger_id

    @property
    def is_ready(self) -> bool:
        """True while there is a next ledger that can be written."""
        return self.following is not None and not self.following.is_lost

    def _lacks_start(self) -> bool:
        """True while the ledger's row lacks its first times."""
        row, figures = self.row, self.known.figures
        if row is None or row.first_timestamp or row.first_event_time is not None:
            return False
        return bool(figures.first_timestamp) or figures.first_event_time is not None

    def _begin_limit(self, now: float) -> None:
        """Begin to count the time in which the lane must go on, unless it is counted."""
        if self.deadline == math.inf:
            self.deadline = now + self._limit_s

    def _end_ledger(self, now: float) -> None:
        """Send no more to the ledger."""
        if self.state is State.WRITING:
            self.ending_since, self.state = now, State.ENDING
        self._begin_limit(now)

    def lost(self, ledger: WrittenLedger, now: float) -> None:
        """The writer of *ledger* failed: recovery must find its end."""
        if self.failure is not None:
            return
        if ledger is self.following:
            ledger.is_lost = True
        elif self.state in (State.WRITING, State.ENDING) and ledger is self.ledger:
            ledger.is_lost = True
            if self.state is State.WRITING:
                self.ending_since = now
            self.state = State.LOST
            if ledger.sent:  # otherwise no append waits for it yet
                self._begin_limit(now)

    # --- step: the next ledger is made -----------------------------------------------------

    def _prepare(self, _now: float, _now_ms: int) -> Prepare:
        return Prepare(None if self.following is None else self.following.id)

    def prepared(self, ledger_id: int, created_ms: int, now: float) -> None:
        """The next ledger is made; the unusable one that it replaces is gone."""
        self.give_up_following()
        self.following = WrittenLedger(ledger_id, created_ms, now)
        if self.failure is not None:
            self.give_up_following()

    def _begin_following(self, stop_entry: int, now: float, now_ms: int) -> None:
        """Send the first entry of the next ledger: the lane's state before *stop_entry*."""
        assert self.following is not None
        known = self._known_at(stop_entry, now_ms)
        known.begin(epoch=self._epoch, base_version=self._next_version)
        self.actions.append(self.following.send_state(known, now, now_ms))

    def _known_at(self, stop_entry: int, now_ms: int) -> LaneState:
        """Return the lane's state before *stop_entry*, with entries that are under way."""
        known = self.known.copy()
        for sent in self.ledger.sent:
            for batch in sent.batches_up_to(stop_entry - 1):
                known.note(batch, now_ms)
        return known

    @property
    def _next_version(self) -> int:
        """Version of the first entry of the next ledger, if nothing more goes to this one."""
        if self.state is State.OPENING:
            return self._first_version
        assert self.row is not None
        count = self.ledger.next_entry if self._end is None else self._end.last_entry + 1
        return self.row.base_version + count

    # --- step: the ledger is full ----------------------------------------------------------

    def _begin(self, now: float, now_ms: int) -> Begin:
        """Let the next ledger begin while the last entries of this one are under way."""
        ledger = self.ledger
        is_overdue = ledger.overdue_at is not None and now >= ledger.overdue_at
        if is_overdue or self._is_disturbed:
            # It still takes batches, so one would come in between each time.
            return Begin(None)
        self._begin_following(ledger.next_entry, now, now_ms)
        return Begin(ledger.next_entry)

    def begun(self, step: Begin, now: float, now_ms: int) -> None:
        """The store answers: end the ledger, unless it took batches that *step* did not count."""
        if self.state is not State.WRITING or not self.is_ready:
            return
        if step.entries is None:
            self._end_ledger(now)
            self._begin_following(self.ledger.next_entry, now, now_ms)
        elif step.entries == self.ledger.next_entry:
            self._end_ledger(now)
        else:
            self.give_up_following()
            self._is_disturbed = True

    def not_begun(self, step: Begin) -> None:
        """The store is away: the ledger goes on."""
        if step.entries is not None:  # it begins with a state that is not this one's last
            self.give_up_following()

    def _leave(self, now: float, now_ms: int) -> Drain:
        """End the ledger without another one to follow."""
        ledger = self.ledger
        self._end_ledger(now)
        if ledger.next_entry > ledger.state_stop:  # the next writer then reads this entry alone
            known = self._known_at(ledger.next_entry, now_ms)
            self.actions.append(ledger.send_state(known, now, now_ms))
        return Drain(with_slower=True)

    def _drain(self, _now: float, _now_ms: int) -> Drain:
        return Drain(with_slower=self.is_leaving)

    def drained(self, length: int, reason: Reason | None) -> None:
        """All is acknowledged. *reason* is set if copies may be missing."""
        if self.state is State.ENDING:
            assert not self.ledger.sent
            self._end = End(
                last_entry=self.ledger.next_entry - 1,
                length=length,
                figures=msgspec.structs.replace(self.known.figures),
                is_sealed=False,
                reason=reason,
            )
            self.state = State.ENDED

    # --- step: the ledger failed -----------------------------------------------------------

    def _recover(self, now: float, _now_ms: int) -> Recover:
        self._begin_limit(now)
        return Recover()

    def recovered(self, last_entry: int, length: int, now_ms: int) -> None:
        """The ledger is closed at *last_entry*: entries sent up to there are in the lane."""
        if self.state is State.LOST:
            figures = self._known_at(last_entry + 1, now_ms).figures
            self._end = End(last_entry=last_entry, length=length, figures=figures, is_sealed=True)
            self.state = State.ENDED
            if self.following is not None and self.following.next_entry:
                self.give_up_following()  # it begins with a state that may be wrong now

    def end_refused(self) -> None:
        """Another client recovers the ledger, or closed it at another end."""
        if self.state is State.ENDED:
            self._end, self.ledger.is_lost = None, True
            self.state = State.LOST

    # --- step: from one ledger to the next -------------------------------------------------

    def _turn(self, now: float, now_ms: int) -> Turn:
        following = self.following
        assert following is not None
        if not following.next_entry:
            stop = 0 if self._end is None else self._end.last_entry + 1
            self._begin_following(stop, now, now_ms)
        row = LaneLedger(
            ledger_id=following.id,
            state="open",
            base_version=self._next_version,
            epoch=self._epoch,
            created_ms=following.created_ms,
        )
        return Turn(self.row, self._end, row)

    def turned(self, step: Turn, topic: TopicRecord, now: float, now_ms: int) -> list[Append]:
        """The next ledger is the lane's; return the appends that end with the one before."""
        if self.failure is not None:
            return []
        assert self.following is not None
        finished: list[Append] = []
        if self._end is not None:
            self._settle_recovered(self._end.last_entry, now_ms, finished)
        self.ledger, self.following, self.row = self.following, None, step.following
        self.ledger.opened_at = now
        self.known.begin(epoch=self._epoch, base_version=step.following.base_version)
        self._end, self._is_disturbed = None, False
        self._topic, self._rolling = topic, Rolling(topic.roll, ordered=self._is_ordered)
        self.state, self.deadline = State.WRITING, math.inf
        if self.ledger.is_lost:  # since its first entry was durable
            self.lost(self.ledger, now)
        if self.is_leaving:
            self._begin_limit(now)
        self.send(now, now_ms)
        return finished

    def _settle_recovered(self, last_entry: int, now_ms: int, finished: list[Append]) -> None:
        """Send batches that recovery did not find in the ledger again, before the waiting ones."""
        under_way = [sent.append for sent in self.ledger.sent if sent.append is not None]
        for sent in self.ledger.sent:
            self._settle(sent, last_entry, now_ms, finished)
        self.ledger.sent.clear()
        for append in under_way:
            append.sent = len(append.places)
        again = [append for append in under_way if append.sent < len(append.batches)]
        self._waiting = deque(dict.fromkeys([*again, *self._waiting]))

    # --- step: the lane is left ------------------------------------------------------------

    def _close(self, _now: float, _now_ms: int) -> Close:
        assert self.row is not None and self._end is not None
        return Close(self.row, self._end)

    def closed(self) -> None:
        """The lane has no open ledger any more."""
        if self.state is State.ENDED:
            self.state = State.CLOSED
            self.give_up_following()

    # --- step: the row of the ledger that is written ---------------------------------------

    def _mark_boundary(self, now: float, _now_ms: int) -> MarkBoundary:
        assert self.row is not None
        self._begin_limit(now)
        return MarkBoundary(self.row)

    def marked(self, row: LaneLedger, now: float, now_ms: int) -> None:
        """The row has the mark; batches go on, unless the ledger was lost meanwhile."""
        self.row = row
        if self.state is State.WRITING:
            self.deadline = math.inf
            self.send(now, now_ms)

    def _note_start(self, _now: float, _now_ms: int) -> NoteStart:
        assert self.row is not None
        return NoteStart(self.row)

    def noted(self, row: LaneLedger) -> None:
        """The row has the first times of the ledger."""
        self.row = row
