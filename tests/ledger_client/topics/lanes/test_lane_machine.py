"""The lane's machine through every order of events: no clock, no tasks, no I/O."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ledger_client.errors import MetadataUnavailable, ProducerFenced, SendUnknown
from ledger_client.topics.lanes.lane_actions import (
    Begin,
    Close,
    Drain,
    GiveUp,
    MarkBoundary,
    NoteStart,
    Prepare,
    Recover,
    Step,
    Turn,
)
from ledger_client.topics.lanes.lane_machine import LaneMachine, State
from ledger_client.topics.lanes.lane_state import LaneEnd, LaneState, SealedBatch, greater
from ledger_client.topics.lanes.written_ledger import Append, Send, WrittenLedger
from metadata.topics import LaneLedger, RollPolicy, TopicRecord

TOPIC = "shop/orders"
FIRST_VERSION = 40
EPOCH = 3
LIMIT_S = 30.0
NOW_MS = 1_700_000_000_000


class Held:
    """A ledger as its bookies hold it."""

    def __init__(self, ledger: WrittenLedger) -> None:
        self.ledger = ledger
        self.entries: list[bytes] = []
        self.acknowledged = 0
        self.has_writer = True
        self.row: LaneLedger | None = None
        self.is_closed = False


class LaneWorld(RuleBasedStateMachine):
    """One writer, the bookies and the store; whatever can happen to them happens in any order."""

    @initialize(
        order=st.sampled_from(["none", "event-time"]),
        limits=st.sampled_from([{"size": 40}, {"entries": 3}, {"size": 60, "entries": 4}]),
        age_min_s=st.sampled_from([0.0, 5.0]),
    )
    def begin(self, order: str, limits: dict[str, int], age_min_s: float) -> None:
        roll = msgspec.convert({**limits, "age_s": 20.0, "age_min_s": age_min_s}, RollPolicy)
        self.topic = TopicRecord(name=TOPIC, uid=7, order=order, roll=roll)  # type: ignore[arg-type]
        self.now = 0.0
        self.ids = 0
        self.held: dict[int, Held] = {}
        self.current: Held | None = None
        self.next_version = FIRST_VERSION
        self.rows: list[LaneLedger] = []
        self.batches: dict[bytes, SealedBatch] = {}
        self.accepted: list[Append] = []
        self.open: list[Append] = []
        self.done: list[Append] = []
        self.failed: list[Append] = []
        self.step: Step | None = None
        self.has_begun = False
        self.machine = LaneMachine(
            self.topic,
            partition=-1,
            lane=0,
            epoch=EPOCH,
            last=LaneEnd(LaneState(), FIRST_VERSION, None, None),
            limit_s=LIMIT_S,
        )

    # --- the driver --------------------------------------------------------------------

    def perform(self) -> None:
        actions, self.machine.actions = self.machine.actions, []
        for action in actions:
            if isinstance(action, Send):
                self._send(action)
            elif isinstance(action, GiveUp) and action.ledger.id in self.held:
                self.held[action.ledger.id].has_writer = False

    def _send(self, send: Send) -> None:
        held = self.held[send.ledger.id]
        if not held.has_writer:  # its driver would report that it is lost
            assert send.ledger.is_lost
            return
        assert not held.is_closed
        if any(payload in self.batches for payload in send.payloads):
            # Closed before the next one is appended to, with a state as its first entry.
            assert held is self.current
            assert held.entries
            self._check_boundary(held, self.batches[send.payloads[0]])
        held.entries += send.payloads
        assert send.last_entry == len(held.entries) - 1

    def _check_boundary(self, held: Held, batch: SealedBatch) -> None:
        """Where two ledgers share an event time, the second one's row said so before."""
        if self.topic.order != "event-time" or any(e in self.batches for e in held.entries):
            return
        before = [self.batches[each] for each in self._kept(held) if each in self.batches]
        if before and before[-1].last_event_time == batch.first_event_time:
            assert self.rows[-1].shares_first

    def _kept(self, until: Held | None = None) -> list[bytes]:
        """Every entry of the lane's ledgers, in order, before the ledger *until*."""
        kept: list[bytes] = []
        for row in self.rows:
            if until is not None and row.ledger_id == until.ledger.id:
                break
            kept += self.held[row.ledger_id].entries
        return kept

    def finish(self, finished: list[Append]) -> None:
        for append in finished:
            assert self.machine.failure is None
            assert self.open.pop(0) is append  # in the order of the calls, each once
            for batch, (ledger_id, entry_id) in zip(append.batches, append.places, strict=True):
                if not append.is_state:
                    assert self.held[ledger_id].entries[entry_id] == batch.payload
            self.done.append(append)

    # --- batches -----------------------------------------------------------------------

    @precondition(lambda self: self.machine.failure is None and not self.machine.is_closing)
    @rule(
        sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
        rises=st.lists(st.sampled_from([0, 0, 1]), min_size=4, max_size=4),
        producer=st.sampled_from(["", "p"]),
    )
    def append(self, sizes: list[int], rises: list[int], producer: str) -> None:
        made = []
        time = self.machine.last_event_time or 0
        for size, rise in zip(sizes, rises, strict=False):
            time += rise
            made.append(
                SealedBatch(
                    payload=b"%d" % len(self.batches),
                    count=1,
                    size=size,
                    first_event_time=time,
                    last_event_time=time,
                    producer=producer,
                    sequence=len(self.batches) if producer else -1,
                )
            )
            self.batches[made[-1].payload] = made[-1]
        self._accept(Append(made))

    @precondition(lambda self: self.machine.failure is None and not self.machine.is_closing)
    @rule()
    def keep_state(self) -> None:
        self.machine.set_routes("p", [(1, len(self.accepted))])
        self._accept(Append([], is_state=True))

    def _accept(self, append: Append) -> None:
        self.accepted.append(append)
        self.open.append(append)
        self.machine.append(append, self.now, NOW_MS)
        self.perform()

    @rule(seconds=st.sampled_from([0.1, 1.0, 25.0, 25.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.machine.send(self.now, NOW_MS)
        self.perform()

    @rule(data=st.data())
    def somebody_asks_for_another_ledger(self, data: st.DataObject) -> None:
        """The request may be for the ledger that is written, the next one, or an old one."""
        ledger_id = data.draw(st.sampled_from([0, *self.held]))
        was = self.machine.ledger.is_asked
        self.machine.roll(ledger_id)
        assert self.machine.ledger.is_asked == (was or ledger_id == self.machine.ledger.id)
        self.perform()

    # --- bookies -----------------------------------------------------------------------

    def _writable(self) -> list[Held]:
        return [held for held in self.held.values() if held.has_writer]

    @precondition(lambda self: any(h.acknowledged < len(h.entries) for h in self._writable()))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        waiting = [held for held in self._writable() if held.acknowledged < len(held.entries)]
        held = data.draw(st.sampled_from(waiting))
        self._acknowledge(held, data.draw(st.integers(1, len(held.ledger.sent))))

    def _acknowledge(self, held: Held, count: int) -> None:
        last_entry = held.ledger.sent[count - 1].last_entry
        held.acknowledged = last_entry + 1
        finished = self.machine.acknowledged(held.ledger, last_entry, self.now, NOW_MS)
        self.finish(finished)
        self.perform()

    def _acknowledge_all(self) -> None:
        for held in self._writable():
            if held.ledger.sent:
                self._acknowledge(held, len(held.ledger.sent))

    @precondition(lambda self: self.machine.failure is not None and self.machine.ledger.sent)
    @rule()
    def acknowledge_late(self) -> None:
        """An answer arrives after the lane has failed: it acknowledges nothing."""
        ledger = self.machine.ledger
        last_entry = ledger.sent[-1].last_entry
        assert not self.machine.acknowledged(ledger, last_entry, self.now, NOW_MS)

    def _is_writing(self) -> bool:
        machine = self.machine
        return machine.state is State.WRITING and not machine.is_closing and self.step is None

    @precondition(_is_writing)
    @rule(data=st.data())
    def ledger_fails_while_the_next_begins(self, data: st.DataObject) -> None:
        """Recovery may find less than the first entry of the next ledger says."""
        self.append([30, 30], [1, 1], "p")
        self._take_begin()
        if isinstance(self.step, Begin) and self.current is not None:
            self.current.has_writer = False
            self.machine.lost(self.current.ledger, self.now)
            self.step_ends(data)
            self.take_step()  # recovery
            self.step_ends(data)

    @precondition(_is_writing)
    @rule(data=st.data())
    def batches_come_while_the_next_begins(self, data: st.DataObject) -> None:
        """An old ledger takes what has the event time with which it ends."""
        self.time_passes(25.0)
        self._take_begin()
        self.append([1], [0], "p")
        if self.step is not None:
            self.step_ends(data)

    def _take_begin(self) -> None:
        for _ in range(3):
            self.take_step()
            if not isinstance(self.step, Prepare | NoteStart):
                break
            self._end_step(lambda _low, high: high)

    @precondition(lambda self: isinstance(self.step, Turn) and self._is_begun())
    @rule(data=st.data())
    def next_ledger_fails_while_its_row_is_put(self, data: st.DataObject) -> None:
        following = self.machine.following
        if following is not None and self.held[following.id].has_writer:
            self.held[following.id].has_writer = False
            self.machine.lost(following, self.now)
            self.perform()
            self.step_ends(data)

    @precondition(lambda self: bool(self._writable()))
    @rule(data=st.data())
    def lose_ledger(self, data: st.DataObject) -> None:
        """Its writer fails: too few bookies are left, or another client fences it."""
        held = data.draw(st.sampled_from(self._writable()))
        held.has_writer = False
        self.machine.lost(held.ledger, self.now)
        self.perform()

    # --- steps -------------------------------------------------------------------------

    @precondition(lambda self: self.step is None)
    @rule()
    def take_step(self) -> None:
        self.step = self.machine.take_step(self.now, NOW_MS)
        assert self.machine.failure is None or self.step is None
        self.perform()

    @precondition(lambda self: self.step is not None)
    @rule()
    def step_fails(self) -> None:
        """The store is away, or bookies are missing."""
        step, self.step = self.step, None
        if isinstance(step, Begin):
            self.machine.not_begun(step)
        self.perform()

    @precondition(lambda self: isinstance(self.step, Turn | Close))
    @rule()
    def end_is_refused(self) -> None:
        """Another client recovers the ledger that was to be closed."""
        assert isinstance(self.step, Turn | Close)
        end, step = self.step.end, self.step
        if end is None or end.is_sealed or (isinstance(step, Turn) and not self._is_begun()):
            return
        self.step = None
        self.machine.end_refused()
        self.perform()

    def _is_begun(self) -> bool:
        following = self.machine.following
        return following is not None and self.held[following.id].acknowledged > 0

    @precondition(lambda self: self.step is not None)
    @rule(data=st.data())
    def step_ends(self, data: st.DataObject) -> None:
        self._end_step(lambda low, high: data.draw(st.integers(low, high)))

    @rule(rounds=st.integers(1, 8))
    def go_on(self, rounds: int) -> None:
        """For a while everything works, and recovery finds all that was sent."""
        for _ in range(rounds):
            self._acknowledge_all()
            if self.step is None:
                self.take_step()
            else:
                self._end_step(lambda _low, high: high)

    def _end_step(self, choose: Callable[[int, int], int]) -> None:
        step = self.step
        if isinstance(step, Drain | Turn | Recover | Close):
            is_over = self._end_ledger_step(step, choose)
        else:
            is_over = self._end_row_step(step)
        if is_over:
            self.step = None
            self.perform()

    def _end_row_step(self, step: Step | None) -> bool:
        machine = self.machine
        match step:
            case Prepare():
                self.ids += 1
                machine.prepared(self.ids, 0, self.now)
                assert machine.following is not None
                self.held[self.ids] = Held(machine.following)
            case Begin():
                machine.begun(step, self.now, NOW_MS)
            case MarkBoundary():
                self.rows[-1] = msgspec.structs.replace(self.rows[-1], shares_first=True)
                machine.marked(self.rows[-1], self.now, NOW_MS)
            case NoteStart():
                first = machine.known.figures.first_event_time
                self.rows[-1] = msgspec.structs.replace(self.rows[-1], first_event_time=first)
                machine.noted(self.rows[-1])
        return True

    def _end_ledger_step(
        self, step: Drain | Turn | Recover | Close, choose: Callable[[int, int], int]
    ) -> bool:
        """Return False while the step has to wait."""
        machine = self.machine
        match step:
            case Drain() if machine.state is State.ENDING:
                if machine.ledger.sent:
                    return False
                machine.drained(0, None)
            case Recover():
                self._recover(choose)
            case Turn() if machine.failure is None and self._is_begun():
                self._turn(step)  # even if it was lost meanwhile: its row is put
            case Turn() if machine.failure is None and machine.is_ready:
                return False
            case Close() if machine.failure is None:
                assert not self.open
                self._end_current(step.end.last_entry)
                machine.closed()
        return True

    def _recover(self, choose: Callable[[int, int], int]) -> None:
        """Everything acknowledged is in the ledger, and any number of those under way."""
        held = self.current
        assert held is not None
        if not held.is_closed:
            del held.entries[choose(held.acknowledged, len(held.entries)) :]
            held.is_closed = True
        self.machine.recovered(len(held.entries) - 1, 0, NOW_MS)

    def _turn(self, step: Turn) -> None:
        machine = self.machine
        if step.current is not None:
            assert step.end is not None
            self._end_current(step.end.last_entry)
        following = self.held[step.following.ledger_id]
        # The versions of the lane rise by one from entry to entry, from ledger to ledger too.
        assert step.following.base_version == self.next_version
        self._check_state(following)
        self.rows.append(step.following)
        following.row, self.current = step.following, following
        self.finish(machine.turned(step, self.topic, self.now, NOW_MS))

    def _end_current(self, last_entry: int) -> None:
        held = self.current
        assert held is not None
        end = self.step.end if isinstance(self.step, Turn | Close) else None
        assert end is not None
        count = sum(entry in self.batches for entry in held.entries)
        assert end.figures.messages == count
        # Nothing that went out is left behind the end, and nothing that was acknowledged.
        assert last_entry == len(held.entries) - 1
        assert held.acknowledged <= len(held.entries)
        held.is_closed, held.has_writer = True, False
        self.next_version += len(held.entries)

    def _check_state(self, following: Held) -> None:
        """A ledger begins with what the entries before it say."""
        assert len(following.entries) == 1
        found = LaneState.decode(following.entries[0])
        batches = [self.batches[each] for each in self._kept() if each in self.batches]
        expected: int | None = None
        for batch in batches:
            expected = greater(expected, batch.last_event_time)
        assert found.last_event_time == expected
        sent = [batch.sequence for batch in batches if batch.producer]
        assert found.last_sequence("p") == max(sent, default=-1)
        assert (found.epoch, found.base_version) == (EPOCH, self.next_version)
        assert found.figures.messages == 0

    # --- the end -----------------------------------------------------------------------

    @precondition(lambda self: len(self.rows) > 2)
    @rule()
    def close(self) -> None:
        self.machine.close(self.now)
        self.perform()

    @precondition(lambda self: self.machine.state is not State.CLOSED and len(self.rows) > 2)
    @rule(is_fenced=st.booleans())
    def lane_fails(self, is_fenced: bool) -> None:
        """Another writer has the lane, or its time is over."""
        failure = (
            ProducerFenced(TOPIC, partition=-1, lane=0)
            if is_fenced
            else MetadataUnavailable("the lane did not go on")
        )
        was = self.machine.failure
        failed = self.machine.fail(failure)
        assert failed == ([] if was is not None else self.open)
        self.failed += failed
        self.open = [] if was is None else self.open
        self.perform()
        assert not self._writable()

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.done) + len(self.failed) + len(self.open) == len(self.accepted)
        assert self.machine.unsettled == len(self.open)

    @invariant()
    def each_batch_stands_once_and_in_its_place(self) -> None:
        kept = [each for each in self._kept() if each in self.batches]
        assert [int(each) for each in kept] == sorted({int(each) for each in kept})

    @invariant()
    def a_lane_that_queues_has_a_limit(self) -> None:
        """Time to go on is limited from when batches cannot go out and some are under way."""
        if self.machine.state in (State.ENDING, State.ENDED):
            assert self.machine.deadline < float("inf")

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        if self.machine.failure is None:
            self._end_well()
        kept = set(self._kept())
        for append in self.failed:
            if not isinstance(append.failure, SendUnknown) and not append.is_state:
                assert not kept & {batch.payload for batch in append.batches}

    def _end_well(self) -> None:
        """With bookies and the store in order, all is acknowledged and the lane is closed."""
        self.close()
        for _ in range(100):
            self.time_passes(1.0)
            self.go_on(2)
        assert self.machine.state is State.CLOSED
        assert not self.open
        kept = [each for each in self._kept() if each in self.batches]
        assert kept == list(self.batches)
        assert all(self.held[row.ledger_id].is_closed for row in self.rows)


def test_a_lane_keeps_its_promises_in_any_order_of_events() -> None:
    """PS-27, PS-39, TB-16, TB-19."""
    # Shrinking a failure takes minutes; add Phase.shrink to see the shortest one.
    run_state_machine_as_test(
        LaneWorld,
        settings=settings(
            max_examples=150, stateful_step_count=60, deadline=None, phases=[Phase.generate]
        ),
    )


def test_a_prepared_ledger_is_given_up_when_the_one_before_was_recovered() -> None:
    """Its first entry is the state that the writer expected, which did not come about."""
    topic = TopicRecord(name=TOPIC, uid=1, partitions=0, replication=1, ack_quorum=1)
    last = LaneEnd(LaneState(), FIRST_VERSION, None, None)
    machine = LaneMachine(topic, partition=-1, lane=0, epoch=EPOCH, last=last, limit_s=LIMIT_S)
    machine.state = State.LOST
    machine.following = following = WrittenLedger(8, 0, 0.0)
    following.next_entry = 1
    machine.recovered(4, 100, NOW_MS)
    assert following.is_lost
    assert machine.actions == [GiveUp(following)]


def begin_first(machine: LaneMachine) -> None:
    """Bring the lane into its first ledger, number 1."""
    machine.take_step(0.0, NOW_MS)
    machine.prepared(1, 0, 0.0)
    turn = machine.take_step(0.0, NOW_MS)
    assert isinstance(turn, Turn)
    machine.turned(turn, machine._topic, 0.0, NOW_MS)


def fresh_machine(**roll: float) -> LaneMachine:
    topic = TopicRecord(name=TOPIC, uid=7, roll=msgspec.convert({**roll, "age_s": 0}, RollPolicy))
    last = LaneEnd(LaneState(), FIRST_VERSION, None, None)
    return LaneMachine(topic, partition=-1, lane=0, epoch=EPOCH, last=last, limit_s=LIMIT_S)


def test_a_ledger_that_is_asked_to_end_makes_way_whatever_its_limits_say() -> None:
    """It has no messages, is younger than the least age, and far from full."""
    machine = fresh_machine(age_min_s=1000.0)
    begin_first(machine)
    assert machine.take_step(1.0, NOW_MS) is None
    machine.roll(1)
    assert isinstance(machine.take_step(1.0, NOW_MS), Prepare)
    machine.prepared(2, 0, 1.0)
    begin = machine.take_step(1.0, NOW_MS)
    assert isinstance(begin, Begin)
    machine.begun(begin, 1.0, NOW_MS)
    assert machine.state is State.ENDING


def test_a_ledger_that_fails_while_it_becomes_the_lanes_is_recovered() -> None:
    """Nothing would be sent to it, and nothing else would end it."""
    machine = fresh_machine()
    begin_first(machine)
    machine.roll(1)
    machine.take_step(1.0, NOW_MS)
    machine.prepared(2, 0, 1.0)
    begin = machine.take_step(1.0, NOW_MS)
    assert isinstance(begin, Begin)
    machine.begun(begin, 1.0, NOW_MS)
    machine.take_step(1.0, NOW_MS)
    machine.acknowledged(machine.ledger, 0, 1.0, NOW_MS)
    machine.drained(0, None)
    turn = machine.take_step(1.0, NOW_MS)
    assert isinstance(turn, Turn)
    assert machine.following is not None
    machine.acknowledged(machine.following, 0, 1.0, NOW_MS)
    machine.lost(machine.following, 2.0)
    machine.turned(turn, machine._topic, 3.0, NOW_MS)
    assert isinstance(machine.take_step(3.0, NOW_MS), Recover)
    assert machine.deadline < float("inf")


def test_a_request_for_an_old_ledger_ends_no_other() -> None:
    machine = fresh_machine()
    begin_first(machine)
    for ledger_id in (0, 2, -1):
        machine.roll(ledger_id)
    assert machine.take_step(1.0, NOW_MS) is None
    assert machine.state is State.WRITING


def test_a_request_that_comes_before_the_ledger_is_the_lanes_counts() -> None:
    """Its row is open as soon as the store has it, and the answer may come later."""
    machine = fresh_machine()
    machine.take_step(0.0, NOW_MS)
    machine.prepared(1, 0, 0.0)
    turn = machine.take_step(0.0, NOW_MS)
    assert isinstance(turn, Turn)
    machine.roll(1)
    machine.turned(turn, machine._topic, 0.0, NOW_MS)
    assert isinstance(machine.take_step(0.0, NOW_MS), Prepare)
