"""One partition of a producer, without I/O: events in, actions out.

All events go through PartitionMachine. It knows no task, no clock and no socket: the driver
(partition_writer.py) calls one method for each event, and then performs what `actions` and
`settled` list.

The partition's lane, which is opened when the first batch waits and opened anew after a failure:

    phase     event                      next      actions
    -------   ------------------------   -------   -----------------------------------------
    CLOSED    a batch is sealed          OPENING   OPEN_LANE
    CLOSED    want_lane                  OPENING   OPEN_LANE
    OPENING   lane_opened                OPEN      WAKE; APPEND if batches wait
    OPENING   lane_refused               CLOSED    WAKE; the batches that wait fail
    OPEN      a batch is sealed          OPEN      APPEND, unless APPENDS_MAX calls run
    OPEN      lane_lost                  LEAVING   LEAVE_LANE; if strict, waiting batches fail
    LEAVING   lane_left, batches wait    OPENING   OPEN_LANE
    LEAVING   lane_left                  CLOSED    WAKE

Once the producer is closed or fenced (`final` is set) the lane is left for good, and every batch
that was not handed to it fails:

    CLOSED    end                        ENDED     WAKE
    OPENING   lane_opened                LEAVING   LEAVE_LANE
    OPENING   lane_refused               ENDED     WAKE
    OPEN      end, or lane_lost          LEAVING   LEAVE_LANE
    LEAVING   lane_left                  ENDED     WAKE

A batch:

    GATHERING ──seal──► WAITING ──take──► HANDED ──acknowledged──► settled, with its place
    one batch           in order          in order  ──fail───────► settled, with a failure

If it *hurries*, a batch gathers only while others are under way (John Nagle's rule, RFC 896): else
APPEND or STAMP is listed instead of LINGER, and its task seals the batch when it begins.

On a topic with timestamps a batch that waits gets those of its messages before it is taken: STAMP
asks for as many as all need that have none, one question at a time. They are asked for once the
lane is open, and go when it is lost, so they are greater than all that any writer put there before.

A partition is *strict* when event times or numbers count. Then nothing is accepted before the
lane is open, because the lane knows the last time and number. Batches that wait behind a failed
one fail with it: they would overtake it, and a number that is sent again later would pass for one
that is kept already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

from ledger_client.errors import (
    BadTopic,
    EventTimeBack,
    LedgerError,
    ProducerFailed,
    SequenceBack,
)
from ledger_client.message_id import NOT_BATCHED
from ledger_client.topics.producing.batch import NO_COLUMNS, UNKNOWN, Batch, BatchSignal
from ledger_client.topics.producing.open_lane import final_cause
from ledger_client.topics.producing.partition_states import Action, LanePhase

APPEND_SIZE = 1 << 20
"""Bytes of batches that one call of append takes, or one batch that is larger."""
APPENDS_MAX = 4
STAMPS_MAX = 100_000
"""Timestamps after which no further batch is asked for at once; a batch has at most as many."""
REMEMBERED_MAX = 64
"""Acknowledged batches whose ids a duplicate still gets."""
GAPS_MAX = 1024
"""Ranges of numbers that were passed over, and are remembered; below them all is refused."""


class Rules(NamedTuple):
    """Settings that all partitions of a producer share."""

    topic: str
    is_ordered: bool
    """by event time"""
    is_named: bool
    """the producer numbers its messages"""
    is_timed: bool
    """messages get timestamps"""
    is_batched: bool
    hurries: bool
    """a batch is sent at once when nothing else is under way"""
    size_max: int
    """bytes of messages in a batch; a larger message goes alone"""
    count_max: int
    new_signal: Callable[[], BatchSignal]


class PartitionMachine:
    """The states of one partition. No method waits, and none calls back.

    Attributes:
        actions: for the driver to perform, in order; it empties the list.
        settled: batches whose tickets are to be resolved, and whose room is to be freed.
        gathering: the batch that takes messages now.
        waiting: sealed batches that the lane does not have yet, in order.
        handed: batches that the lane has and that are not settled, in order.
        strict: event times or numbers count.
        is_ready: admit() may be called now.
        is_held: a task sends messages that belong together; if strict, all others wait.
        last_event_time: the last that was accepted; known once the lane is open.
        next_number: one more than the last number that is kept or under way.
        highest_number: the greatest that was ever accepted, even if it failed; -1 for none.
        openings: how often the lane was opened.
        lane_failure: the last error that lost the lane or kept it from opening.
        lane_is_lost: the lane is being left because it failed.
        lane_refusals: how often the lane could not be opened.
        refusal: the error of the tasks that last waited in vain for a held partition.
        refusals: how many times that happened.
        final: the reason why nothing is accepted any more, if so.
    """

    def __init__(self, partition: int, rules: Rules) -> None:
        self.partition = partition
        self.rules = rules
        self.actions: list[Action] = []
        self.settled: list[Batch] = []
        self.gathering: Batch | None = None
        self.waiting: deque[Batch] = deque()
        self.handed: deque[Batch] = deque()
        self.strict = rules.is_ordered or rules.is_named
        self.is_ready = not self.strict
        self.is_held = False
        self.last_event_time: int | None = None
        self.next_number = 0
        self.highest_number = -1
        self.phase = LanePhase.CLOSED
        self.openings = 0
        self.lane_failure: LedgerError | None = None
        self.lane_is_lost = False
        self.lane_refusals = 0
        self.refusal: LedgerError | None = None
        self.refusals = 0
        self.final: ProducerFailed | None = None
        self._lane = -1
        self._lane_is_wanted = False
        self._appends = 0
        self._asked: list[Batch] = []
        self._is_asking = False
        self._recent: deque[Batch] = deque(maxlen=REMEMBERED_MAX)
        self._gaps: deque[range] = deque(maxlen=GAPS_MAX)
        """numbers that were passed over, rising"""
        self._forgotten_end = 0  # below it may be numbers that were passed over long ago
        self._handed_end: tuple[int | None, int] = (None, 0)  # of what the lane has; see Batch.end

    # --- messages come ---------------------------------------------------------------

    def admit(
        self,
        value: bytes | None,
        key: bytes | None,
        event_time: int | None,
        headers: Mapping[str, bytes] | None,
        sequence: int | None,
        size: int,
    ) -> tuple[Batch, int]:
        """Accept a message that takes *size* bytes of room; return its batch and place there.

        Raises:
            EventTimeBack: on an ordered topic. Nothing was accepted.
        """
        number = -1
        if self.strict:
            number = self._accept(event_time, sequence)
        batch = self.gathering
        begins = batch is None or batch.size + size > self.rules.size_max
        if batch is None or begins:
            self.seal()
            batch = Batch(self.partition, self.rules.new_signal(), sequence=number)
            self.gathering = batch
        values, keys, event_times, named = batch.columns
        values.append(value)
        keys.append(key)
        event_times.append(event_time)
        named.append(headers)
        place = batch.next_place
        batch.count += 1
        batch.size += size
        batch.room += size
        if batch.count >= self.rules.count_max or batch.size >= self.rules.size_max:
            self.seal()
        elif begins and not self._hurry():
            self.actions.append(Action.LINGER)
        return batch, place if self.rules.is_batched else NOT_BATCHED

    def find_duplicate(self, sequence: int) -> tuple[Batch, int] | None:
        """Return the batch and place of the message that has this number, if one was accepted.

        Raises:
            SequenceBack: none was, and a message with a greater number was.
        """
        if not self.rules.is_named or sequence >= self.next_number:
            return None
        for batch in (*self._recent, *self.unsettled()):
            if batch.sequence <= sequence < batch.sequence + batch.count:
                batch.is_shared = True
                place = sequence - batch.sequence
                return batch, place if self.rules.is_batched else NOT_BATCHED
        self.check_kept(sequence, 1)
        known = Batch(self.partition, self.rules.new_signal())
        known.is_settled = True
        known.done.set()
        return known, UNKNOWN

    def check_kept(self, first: int, count: int) -> None:
        """Raise SequenceBack if one of *count* numbers from *first* on may be passed over."""
        for gap in (range(self._forgotten_end), *self._gaps):
            if gap.start < first + count and first < gap.stop:
                raise SequenceBack(
                    self.rules.topic,
                    partition=self.partition,
                    sequence=max(first, gap.start),
                    next_sequence=self.next_number,
                )

    def withdraw(self, batch: Batch, place: int, size: int) -> bool:
        """Take a message of *size* bytes back; False if the lane may have it, or it must stay.

        With numbers only the last accepted message can be taken back, because a number below the
        last one counts as kept: the message could never be sent again.
        """
        if batch is not self.gathering and batch not in self.waiting:
            return False
        place = max(place, 0)  # without batching it is alone
        if self.rules.is_named:
            is_last = batch.sequence + place == self.next_number - 1
            if batch.is_shared or batch.sealed is not None or not is_last:
                return False
        batch.withdraw(place, size, keeps_place=not self.rules.is_named)
        if not batch.count:
            if batch is self.gathering:
                self.gathering = None
            else:
                self.waiting.remove(batch)
            batch.is_settled = True
            self.settled.append(batch)
        if self.strict:
            self._set_back()
        return True

    def _set_back(self) -> None:
        """Let the last time and number be those of the last message that is still accepted."""
        last = self.gathering or (self.waiting[-1] if self.waiting else None)
        time, number = self._handed_end if last is None else last.end
        if self.rules.is_ordered:
            self.last_event_time = time
        if self.rules.is_named:
            self._begin_numbers(number)

    def _begin_numbers(self, number: int) -> None:
        """Let *number* be the next one; of those from it on none is known to be passed over."""
        self.next_number = number
        self._forgotten_end = min(self._forgotten_end, number)
        while self._gaps and self._gaps[-1].stop > number:
            gap = self._gaps.pop()
            if gap.start < number:
                self._gaps.append(range(gap.start, number))

    def put_encoded(self, batch: Batch) -> None:
        """Accept a batch that its sender has checked, numbered and encoded."""
        if self.rules.is_ordered and batch.sealed is not None:
            self.last_event_time = batch.sealed.last_event_time
        if self.rules.is_named:
            self._take_numbers(batch.sequence, batch.count)
        if self.gathering is not None:
            self.seal()
        self._queue(batch)

    def seal(self) -> None:
        """Let the batch that gathers be sent: its time is over, or a task flushes."""
        batch, self.gathering = self.gathering, None
        if batch is not None:
            self._queue(batch)

    @property
    def is_alone(self) -> bool:
        """True if a batch gathers that need not wait for more messages: nothing is under way."""
        return self.gathering is not None and self._is_quiet()

    def go_alone(self) -> None:
        """Seal the batch that gathers if it is alone. Called by the task that will append it."""
        if self.rules.is_timed:
            if self.is_alone:
                self._hurry()
        else:
            self._seal_alone()

    def _is_quiet(self) -> bool:
        is_open = self.phase is LanePhase.OPEN
        return self.rules.hurries and is_open and not self.waiting and not self.handed

    def _hurry(self) -> bool:
        """Start the task that sends the batch that gathers, if it need not wait for more."""
        is_quiet = self._is_quiet()
        if is_quiet and self.rules.is_timed and not self._is_asking:
            self._is_asking = True
            self.actions.append(Action.STAMP)
        elif is_quiet and not self.rules.is_timed and self._appends < APPENDS_MAX:
            self._appends += 1
            self.actions.append(Action.APPEND)
        return is_quiet

    def _seal_alone(self) -> None:
        if self.gathering is None:
            return
        if self._is_quiet():
            self.waiting.append(self.gathering)
            self.gathering = None
        elif self.rules.hurries and self.phase is not LanePhase.OPEN:
            self.actions.append(Action.LINGER)  # the lane was lost: it waits as long as others

    def _accept(self, event_time: int | None, sequence: int | None) -> int:
        """Check the message's time and give it a number; return that, -1 for none."""
        rules = self.rules
        if rules.is_ordered:
            if event_time is None:
                self.refuse_timeless()
            if self.last_event_time is not None and event_time < self.last_event_time:
                self.refuse_time(event_time, self.last_event_time)
            self.last_event_time = event_time
        if not rules.is_named:
            return -1
        number = self.next_number if sequence is None else sequence
        if number != self.next_number:
            self.seal()  # a batch stores its first number alone: the others follow it
        self._take_numbers(number, 1)
        return number

    def _take_numbers(self, first: int, count: int) -> None:
        if first > self.next_number:
            if len(self._gaps) == GAPS_MAX:
                self._forgotten_end = self._gaps[0].stop
            self._gaps.append(range(self.next_number, first))
        self.next_number = first + count
        self.highest_number = max(self.highest_number, self.next_number - 1)

    def _queue(self, batch: Batch) -> None:
        self.waiting.append(batch)
        if self.final is not None:
            self._fail_waiting(self.final)
        elif self.phase is LanePhase.CLOSED:
            self._open()
        elif self.phase is LanePhase.OPEN:
            self._go_on()

    def _go_on(self) -> None:
        """Append what waits on an open lane, or get timestamps for it."""
        if not self.waiting:
            return
        if self.rules.is_timed and not self.waiting[-1].first_timestamp and not self._is_asking:
            self._is_asking = True
            self.actions.append(Action.STAMP)
        if self._may_go() and self._appends < APPENDS_MAX:
            self._appends += 1
            self.actions.append(Action.APPEND)

    def _may_go(self) -> bool:
        """True if the lane may have the first batch that waits."""
        return bool(self.waiting) and (
            not self.rules.is_timed or self.waiting[0].first_timestamp > 0
        )

    def refuse_time(self, event_time: int, last: int) -> NoReturn:
        """Raise EventTimeBack: *event_time* comes after *last*."""
        raise EventTimeBack(
            self.rules.topic,
            partition=self.partition,
            lane=self._lane,
            event_time=event_time,
            last_event_time=last,
        )

    def refuse_timeless(self) -> NoReturn:
        """Raise BadTopic: a message has no event time."""
        raise BadTopic("ordered by event time: every message needs one", topic=self.rules.topic)

    # --- batches go ------------------------------------------------------------------

    def take(self) -> list[Batch]:
        """Return the batches for the next call of append; none ends the task that calls it.

        The driver waits for nothing between this and its call of append, so calls take their
        places in the lane in the order of the batches, whichever task runs first.
        """
        taken: list[Batch] = []
        if self.phase is LanePhase.OPEN:
            size = 0
            while self._may_go() and size < APPEND_SIZE:
                batch = self.waiting.popleft()
                taken.append(batch)
                size += batch.size
        if taken:
            self.handed.extend(taken)
            if self.strict:
                self._handed_end = taken[-1].end
        else:
            self._appends -= 1
        return taken

    def ask(self) -> int:
        """Return how many timestamps are needed; 0 ends the task that calls it.

        The answer is for stamped() or unstamped().
        """
        self._seal_alone()
        self._asked, count = [], 0
        for batch in self.waiting if self.phase is LanePhase.OPEN else ():
            if not batch.first_timestamp and count < STAMPS_MAX:
                self._asked.append(batch)
                count += batch.count
        self._is_asking = bool(self._asked)
        return count

    def stamped(self, first: int) -> None:
        """The messages that were asked for have the timestamps from *first* on.

        They go unused if the lane was opened anew, or the batches failed, meanwhile.
        """
        asked, self._asked = self._asked, []
        for batch in asked:
            batch.first_timestamp = first
            first += batch.count
        if self.phase is LanePhase.OPEN:
            self._go_on()

    def unstamped(self, failure: LedgerError) -> None:
        """There are no timestamps: what waits fails, and if strict the lane is left.

        Numbers and event times that were accepted are not in the lane then.
        """
        if not self._asked:
            return  # what still waits is asked for again
        if self.strict:
            self.lane_lost(failure, self.openings)
        self._fail_waiting(failure)

    def acknowledged(self, batches: Sequence[Batch], places: Sequence[tuple[int, int]]) -> None:
        """*batches* of one call are durable at *places*."""
        for batch, place in zip(batches, places, strict=True):
            batch.place = place
            batch.is_settled = True
            batch.sealed = None
        self.settled.extend(batches)
        if self.rules.is_named:
            self._recent.extend(batches)
        while self.handed and self.handed[0].is_settled:
            self.handed.popleft()

    def fail(self, batches: Sequence[Batch], failure: LedgerError) -> None:
        """The call of append that has *batches* failed."""
        for batch in batches:
            batch.failure = failure
            batch.is_settled = True
            batch.columns, batch.sealed = NO_COLUMNS, None
        self.settled.extend(batches)
        while self.handed and self.handed[0].is_settled:
            self.handed.popleft()

    def _fail_waiting(self, failure: LedgerError) -> None:
        """Fail everything that the lane does not have."""
        doomed = list(self.waiting)
        self.waiting.clear()
        self._asked = []
        if self.gathering is not None:
            doomed.append(self.gathering)
            self.gathering = None
        self.fail(doomed, failure)

    def unsettled(self) -> Iterator[Batch]:
        """Yield what was accepted and is not settled, in order."""
        for batch in (*self.handed, *self.waiting):
            if not batch.is_settled:
                yield batch
        if self.gathering is not None:
            yield self.gathering

    # --- the lane --------------------------------------------------------------------

    def want_lane(self) -> None:
        """A task waits for the lane."""
        if self.phase is LanePhase.CLOSED:
            self._open()
        elif self.phase is LanePhase.LEAVING:
            self._lane_is_wanted = True

    def lane_opened(self, lane: int, last_event_time: int | None, last_number: int) -> None:
        """The lane is open; its last time and number hold, whatever was accepted before.

        *last_number*: of the producer's messages, -1 for none.
        """
        self.openings += 1
        self.lane_is_lost = self._lane_is_wanted = False
        self._lane = lane
        self.last_event_time = last_event_time
        if self.rules.is_named:
            self._begin_numbers(last_number + 1)
            self.highest_number = max(self.highest_number, last_number)
        self._handed_end = (last_event_time, self.next_number)
        if self.final is not None:
            self._leave()
            return
        self.phase = LanePhase.OPEN
        for batch in self.waiting:
            batch.first_timestamp = 0
        self._asked = []
        self._look()
        self._go_on()

    def lane_refused(self, failure: LedgerError) -> None:
        """The lane cannot be opened: fail the waiting batches; END_PRODUCER if it is final."""
        self.lane_failure = failure
        self.lane_refusals += 1
        self._lane_is_wanted = False
        self.phase = LanePhase.CLOSED
        self._fail_waiting(failure)
        if (final := final_cause(failure)) is not None:
            self.actions.append(Action.END_PRODUCER)
        self._finish(final)

    def lane_lost(self, failure: LedgerError, opening: int) -> None:
        """An append to the lane of this *opening* failed; several calls may report one loss."""
        if opening == self.openings and self.phase is LanePhase.OPEN:
            self.lane_failure = failure
            self.lane_is_lost = True
            self._leave()
            if self.strict:
                self._fail_waiting(final_cause(failure) or failure)
        if (final := final_cause(failure)) is not None:
            self.actions.append(Action.END_PRODUCER)
            self._finish(final)

    def lane_left(self) -> None:
        """The lane is closed: open it anew if batches wait or a task wants it."""
        self.phase = LanePhase.CLOSED
        if self.final is None and (self.waiting or self._lane_is_wanted):
            self._open()
        else:
            self._finish(None)

    def end(self, reason: ProducerFailed) -> None:
        """Leave the lane for good. Batches not handed to it fail; flush first."""
        self._finish(reason)

    def _open(self) -> None:
        self.phase = LanePhase.OPENING
        self.actions.append(Action.OPEN_LANE)

    def _leave(self) -> None:
        self.phase = LanePhase.LEAVING
        self.actions.append(Action.LEAVE_LANE)
        self._look()

    def _finish(self, final: ProducerFailed | None) -> None:
        """Leave the lane for good if *final*, or an earlier reason, says so."""
        self.final = self.final or final
        if self.final is not None:
            if self.phase is LanePhase.OPEN:
                self._leave()
            elif self.phase is LanePhase.CLOSED:
                self.phase = LanePhase.ENDED
            self._fail_waiting(self.final)
        self._look()

    # --- who may send ----------------------------------------------------------------

    def hold(self) -> None:
        """Let all other tasks wait until release(), if strict, so that messages stay together."""
        self.is_held = self.strict
        self._look()

    def release(self) -> None:
        """Let other tasks send again, after hold()."""
        self.is_held = False
        self._look()

    def refuse(self, failure: LedgerError) -> None:
        """Raise *failure* in the tasks that wait while the partition is held."""
        self.refusal = failure
        self.refusals += 1
        self._look()

    def _look(self) -> None:
        """Wake the waiting tasks, which look at the new state."""
        self.is_ready = not self.strict or (self.phase is LanePhase.OPEN and not self.is_held)
        self.actions.append(Action.WAKE)
