"""The partitions of one producer through every order of events: no trio, no clock, no bookies.

The rules stand for what tasks, lanes and timers do in any order. Lanes are lists: an append that
fails leaves any prefix of what was under way. At the end everything that failed is sent again, as
an application with a named producer does, and what the lanes hold is compared with what was
acknowledged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from partition_model import EVENTS, TOPIC, Call, Message, Once, Partition, Sent, numbers_of, unknown

from ledger_client.errors import LedgerError, NotEnoughBookies, ProducerClosed, ProducerFenced
from ledger_client.topics.lanes.lane_state import SealedBatch
from ledger_client.topics.lanes.routes import Route
from ledger_client.topics.producing.batch import Batch
from ledger_client.topics.producing.partition_machine import APPENDS_MAX, PartitionMachine, Rules
from ledger_client.topics.producing.partition_states import Action, LanePhase
from ledger_client.topics.producing.room import Room, RoomTurn
from ledger_client.topics.producing.routing import PartitionCount, Routing

ROOM = 120
FENCED = 13
"""Drawn for how much is kept, it means that another producer took the lane."""


class Producing(RuleBasedStateMachine):
    @initialize(
        ordered=st.booleans(),
        named=st.booleans(),
        timed=st.booleans(),
        batched=st.booleans(),
        hurries=st.booleans(),
    )
    def begin(self, ordered: bool, named: bool, timed: bool, batched: bool, hurries: bool) -> None:
        count_max = 3 if batched else 1
        self.producer_rules = Rules(
            TOPIC, ordered, named, timed, batched, hurries, 60, count_max, Once
        )
        self.timestamp = 0
        self.partitions = [Partition(index, self.producer_rules) for index in range(2)]
        self.joining: list[Partition] = []
        self.count = PartitionCount(2)
        self.lane_routes: list[Route] = []
        if named:
            self.count.agree([(2, 0)])
            self.lane_routes = list(self.count.known)
        self.room = Room(ROOM)
        self.turns: list[tuple[RoomTurn, Message]] = []
        self.sent: dict[Batch, Sent] = {}
        self.unsure: list[Message] = []
        self.next = self.serial = 0
        self.acknowledged: set[int] = set()
        self.is_over = False
        self.route_over()
        for each in self.partitions:
            each.machine.want_lane()
        self.perform()

    def route_over(self) -> None:
        machines = [each.machine for each in self.partitions]
        self.routing = Routing(TOPIC, machines, by_key=True)

    @property
    def everywhere(self) -> list[Partition]:
        return [*self.partitions, *self.joining]

    def at(self, place: int) -> Partition:
        return self.everywhere[place % len(self.everywhere)]

    # --- what the driver does ----------------------------------------------------------------

    def perform(self) -> None:
        for each in self.everywhere:
            machine = each.machine
            settled, machine.settled = machine.settled, []
            for batch in settled:
                self.resolve(batch)
            actions, machine.actions = machine.actions, []
            for action in actions:
                if action is Action.OPEN_LANE:
                    assert not each.is_opening
                    assert not each.is_leaving
                    each.is_opening = True
                elif action is Action.LEAVE_LANE:
                    each.is_leaving = True
                elif action is Action.APPEND:
                    each.idle_tasks += 1
                elif action is Action.STAMP:
                    each.stamp_tasks += 1
                    assert each.stamp_tasks == 1, "one question at a time"
                elif action is Action.LINGER and machine.gathering is not None:
                    each.lingering.append(machine.gathering)
                elif action is Action.END_PRODUCER:
                    self.is_over = True

    def resolve(self, batch: Batch) -> None:
        assert batch.is_settled
        batch.done.set()
        self.room.release(batch.room)
        for message in self.sent[batch].messages:
            if batch.failure is None:
                self.acknowledged.add(message.number)
            elif message.number not in self.acknowledged:
                self.unsure.append(message)
        self.unsure.sort(key=lambda message: message.number)

    @rule(
        sizes=st.lists(st.integers(1, 70), max_size=6),
        choices=st.lists(st.integers(0, 1000), min_size=5, max_size=15),
        event=st.sampled_from(EVENTS),
        place=st.integers(0, 7),
        kept=st.integers(0, 20),
    )
    def go_on(
        self, sizes: list[int], choices: list[int], event: str, place: int, kept: int
    ) -> None:
        """Messages are sent, tasks run in any order, and something happens."""
        for size in sizes:
            self.send(size)
        self.work(choices)
        getattr(self, event)(place, kept)

    def work(self, choices: list[int]) -> None:
        """Tasks, timers and lanes go on, in any order."""
        for choice in choices:
            possible = self.possible_work()
            if possible:
                possible[choice % len(possible)]()

    def possible_work(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        if any(turn.is_granted for turn, _ in self.turns):
            found.append(partial(self.enter, self.serial))
        for each in self.everywhere:
            decided = [call.is_decided for call in each.calls]
            if each.lingering:
                found.append(partial(self.linger_elapses, each))
            if each.idle_tasks:
                found.append(partial(self.append, each))
            if each.stamp_tasks:
                found.append(partial(self.stamp, each))
            if not all(decided):
                found.append(partial(self.become_durable, each))
            if each.is_opening:
                found.append(partial(self.open_lane, each))
            if each.is_leaving and all(decided):
                found.append(partial(self.leave_lane, each))
            found += [partial(self.report, each, which) for which in range(sum(decided))]
        return found

    # --- messages ----------------------------------------------------------------------------

    def partition_for(self, message: Message) -> Partition:
        if message.pinned is not None:
            return self.partitions[self.routing.place_of(message.pinned)]
        if not self.count.known:
            return self.partitions[self.routing.place_for(message.key)]
        count = self.count.partitions_at(message.number)
        return self.partitions[self.routing.place_at(message.number, message.key, count)]

    def admit(self, message: Message) -> bool:
        """Send a message whose room is taken."""
        each = self.partition_for(message)
        machine = each.machine
        if not machine.is_ready or self.is_over:
            if machine.final is None and not machine.is_held:
                machine.want_lane()
                self.perform()
            return False
        assert not self.count.chosen
        assert self.count.known == self.lane_routes, "routed by a boundary that is not durable"
        number = message.number if self.producer_rules.is_named else None
        known = None if number is None else machine.find_duplicate(number)
        if known is not None:
            self.room.release(message.size)
            batch, _ = known
            if batch in self.sent:  # what became of the first decides
                assert not batch.is_settled or batch.failure is None
                if not batch.is_settled:
                    self.sent[batch].messages.append(message)
            self.acknowledged.add(message.number)
            return True
        self.serial += 1
        time = self.serial // 2 if self.producer_rules.is_ordered else None
        batch, place = machine.admit(b"", message.key, time, None, number, message.size)
        assert place == (batch.next_place - 1 if self.producer_rules.is_batched else -1)
        self.note(batch, [message])
        self.sent[batch].places.append(place)
        self.perform()
        return True

    def note(self, batch: Batch, messages: list[Message]) -> None:
        sent = self.sent.setdefault(batch, Sent(batch))
        sent.messages += messages
        sent.serials.append(self.serial)

    def next_message(self, size: int) -> Message:
        """Return the first that failed, if any: a number that is passed over counts as sent."""
        if self.unsure and self.producer_rules.is_named:
            return self.unsure[0]
        self.next += 1
        return Message(self.next - 1, size, None)

    def send(self, size: int) -> None:
        if self.turns and self.producer_rules.is_named:
            return  # who numbers messages sends them in order
        message = self.next_message(size)
        if not self.room.take(message.size):
            self.turns.append((self.room.queue(message.size, lambda: None), message))
        elif not self.admit(message):
            self.room.release(message.size)
            self.remember(message)
        elif message in self.unsure:
            self.unsure.remove(message)

    def remember(self, message: Message) -> None:
        """It was refused: it is sent later, as any that failed."""
        if message not in self.unsure:
            self.unsure = sorted([*self.unsure, message], key=lambda each: each.number)

    def enter(self, which: int) -> None:
        """A task that waited for room goes on; the first of a named producer first."""
        granted = [pair for pair in self.turns if pair[0].is_granted]
        pair = granted[0 if self.producer_rules.is_named else which % len(granted)]
        self.turns.remove(pair)
        turn, message = pair
        behind = any(other.number < message.number for other in self.unsure)
        if (behind and self.producer_rules.is_named) or not self.admit(message):
            self.room.release(turn.size)
            self.remember(message)
        elif message in self.unsure:
            self.unsure.remove(message)

    def give_up_waiting(self, which: int, _kept: int) -> None:
        if not self.turns:
            return
        turn, message = self.turns.pop(which % len(self.turns))
        self.room.withdraw(turn)
        self.remember(message)

    def take_back(self, place: int, kept: int) -> None:
        """The time for a send is over: the message goes nowhere, and is sent later."""
        machine = self.at(place).machine
        accepted = [*machine.waiting, *([machine.gathering] if machine.gathering else [])]
        batches = [batch for batch in accepted if batch.sealed is None]
        if not batches:
            return
        batch = batches[kept % len(batches)]
        self.withdraw(machine, batch, kept % len(self.sent[batch].places))

    def take_back_last(self, place: int, kept: int) -> None:
        """The time for the last sends is over, the last one first."""
        machine = self.at(place).machine
        for _ in range(2 + kept % 3):
            batch = machine.gathering or next(reversed(machine.waiting), None)
            if batch is None or batch.sealed is not None:
                return
            number = machine.next_number
            before = self.sent[batch].serials[-2:-1]
            if not self.withdraw(machine, batch, len(self.sent[batch].places) - 1):
                assert batch.is_shared
                return
            assert machine.next_number < number or not self.producer_rules.is_named
            if before and self.producer_rules.is_ordered:
                assert machine.last_event_time == before[0] // 2

    def withdraw(self, machine: PartitionMachine, batch: Batch, which: int) -> bool:
        sent = self.sent[batch]
        message = sent.messages[which]
        if not machine.withdraw(batch, sent.places[which], message.size):
            assert self.producer_rules.is_named
            return False
        assert batch.count == len(sent.messages) - 1, "others wait for it"
        self.room.release(message.size)
        for column in (sent.messages, sent.places, sent.serials):
            del column[which]
        self.remember(message)
        self.perform()
        return True

    def send_many(self, place: int, kept: int) -> None:
        count = 1 + kept % 3
        each = self.partitions[place % len(self.partitions)]
        machine = each.machine
        if self.unsure or self.turns or not machine.is_ready or self.is_over:
            return
        machine.hold()
        assert not machine.strict or not machine.is_ready
        messages = [Message(self.next + n, 0, machine.partition) for n in range(count)]
        self.next += count
        self.serial += 1
        time = self.serial // 2 if self.producer_rules.is_ordered else None
        sealed = SealedBatch(b"", count, 10 * count, time, time)
        batch = Batch(machine.partition, Once(), sealed=sealed)
        if self.producer_rules.is_named:
            batch.sequence = max(machine.next_number, messages[0].number)
        self.note(batch, messages)
        machine.put_encoded(batch)
        machine.release()
        self.perform()

    def linger_elapses(self, each: Partition) -> None:
        if each.lingering.pop(0) is each.machine.gathering:
            each.machine.seal()
            self.perform()

    def flush(self, place: int, _kept: int) -> None:
        self.at(place).machine.seal()
        self.perform()

    # --- timestamps --------------------------------------------------------------------------

    def stamp(self, each: Partition) -> None:
        """A task asks, timestamps are allotted, the answer comes: one step of these."""
        machine = each.machine
        if each.question is None:
            count = machine.ask()
            if count:
                each.question = count
            else:
                each.stamp_tasks -= 1
        elif not each.answer:
            each.answer = self.timestamp + 1
            self.timestamp += each.question
        else:
            first, each.question, each.answer = each.answer, None, 0
            machine.stamped(first)
            self.perform()

    def refuse_timestamps(self, place: int, _kept: int) -> None:
        each = self.at(place)
        if each.question is not None:
            each.question, each.answer = None, 0
            each.machine.unstamped(NotEnoughBookies(healthy=0, needed=1))
            self.perform()

    # --- appends -----------------------------------------------------------------------------

    def append(self, each: Partition) -> None:
        """A task takes batches and appends them, or ends."""
        if each.idle_tasks:
            each.idle_tasks -= 1
            each.machine.go_alone()
            if batches := each.machine.take():
                for batch in batches if self.producer_rules.is_timed else ():
                    assert batch.first_timestamp > each.opened_at
                each.calls.append(Call(batches, each.machine.openings, failure=each.failure))
            self.perform()

    def become_durable(self, each: Partition) -> None:
        """The lane has the oldest call that it did not have."""
        call = next((call for call in each.calls if not call.is_decided), None)
        if call is not None:
            first = len(each.kept)
            each.kept += call.batches
            call.places = [(each.machine.partition, first + n) for n in range(len(call.batches))]

    def lose_lane(self, place: int, kept: int) -> None:
        """Everything under way fails; the lane has the first *kept* batches of it."""
        if self.is_over:
            return
        busy = [each for each in self.everywhere if each.idle_tasks or each.calls]
        if not busy:
            return
        each = busy[place % len(busy)]
        self.append(each)
        open_calls = [call for call in each.calls if not call.is_decided]
        each.kept += [batch for call in open_calls for batch in call.batches][:kept]
        if open_calls:
            each.failure = unknown()
            if kept == FENCED:
                each.failure.__cause__ = ProducerFenced(TOPIC, partition=-1, lane=0)
        for call in open_calls:
            call.failure = each.failure

    def report(self, each: Partition, which: int = 0) -> None:
        """The task of a call learns the outcome: trio wakes tasks in any order."""
        decided = [call for call in each.calls if call.is_decided]
        if not decided:
            return
        call = decided[which % len(decided)]
        each.calls.remove(call)
        machine = each.machine
        if call.places is not None:
            machine.acknowledged(call.batches, call.places)
        else:
            assert call.failure is not None
            machine.fail(call.batches, call.failure)
            machine.lane_lost(call.failure, call.opening)
        each.idle_tasks += 1
        self.perform()

    # --- lanes -------------------------------------------------------------------------------

    def want_lane(self, place: int, _kept: int) -> None:
        each = self.at(place)
        if not self.is_over and each.machine.final is None:
            each.machine.want_lane()
            self.perform()

    def open_lane(self, each: Partition) -> None:
        if each.is_opening:
            each.is_opening = False
            each.failure = None
            each.opened_at = self.timestamp
            # A lane is opened anew by recovery: from then on nothing more gets into it.
            assert all(call.is_decided for call in each.calls)
            numbers = [numbers_of(batch)[-1] for batch in each.kept]
            times = [self.sent[batch].serials[-1] // 2 for batch in each.kept]
            each.machine.lane_opened(0, max(times, default=None), max(numbers, default=-1))
            self.perform()

    def refuse_lane(self, place: int, kept: int) -> None:
        each = self.at(place)
        if each.is_opening:
            each.is_opening = False
            failure: LedgerError = NotEnoughBookies(healthy=0, needed=1)
            if kept == FENCED:
                failure = ProducerFenced(TOPIC, partition=-1, lane=0)
            each.machine.lane_refused(failure)
            self.perform()

    def leave_lane(self, each: Partition) -> None:
        """A lane that did not fail is left once all that it has is durable."""
        each.is_leaving = False
        each.machine.lane_left()
        self.perform()

    # --- partitions are added ----------------------------------------------------------------

    def add_partitions(self, _place: int, kept: int) -> None:
        if self.joining or len(self.partitions) > 5 or self.is_over:
            return
        count = 1 + kept % 2
        first = len(self.partitions)
        self.joining = [Partition(first + n, self.producer_rules) for n in range(count)]
        for each in self.joining:
            each.machine.want_lane()
        self.perform()

    def use_partitions(self, _place: int, _kept: int) -> None:
        if not self.joining or self.count.chosen or self.is_over:
            return
        if all(each.machine.is_ready for each in self.everywhere):
            machines = [each.machine for each in self.partitions]
            self.count.grow(machines, [each.machine for each in self.joining])
            assert bool(self.count.chosen) == self.producer_rules.is_named
            if not self.count.chosen:
                self.go_over()
            self.perform()

    def go_over(self) -> None:
        self.partitions = self.everywhere
        self.joining = []
        self.route_over()

    def write_boundary(self, place: int = 0, kept: int = 0) -> None:
        """Fails at an odd *place*, and the lane may have the boundary all the same."""
        first = self.partitions[0]
        if not self.count.chosen or first.machine.phase is not LanePhase.OPEN:
            return
        fails = first.failure is not None or place % 2 == 1
        if not fails or (kept % 2 and first.failure is None):
            self.lane_routes = list(self.count.chosen)
        if fails:
            failure = first.failure = unknown()
            self.count.boundary_failed(failure)
            for call in first.calls:
                if not call.is_decided:
                    call.failure = failure
            first.machine.lane_lost(failure, first.machine.openings)
        else:
            self.count.boundary_durable()
            self.go_over()
        self.perform()

    # --- the end -----------------------------------------------------------------------------

    def close(self, _place: int, kept: int) -> None:
        if kept == FENCED:
            self.is_over = True
            for each in self.everywhere:
                each.machine.end(ProducerClosed(TOPIC))
            self.perform()

    def teardown(self) -> None:
        if not hasattr(self, "partitions"):
            return
        self.let_go_on()
        self.settle()
        for _ in range(1000):
            if not self.unsure or not self.producer_rules.is_named or self.is_over:
                break
            self.send(1)
            self.settle()
        for each in self.everywhere:
            each.machine.end(ProducerClosed(TOPIC))
            assert each.machine.is_ready is not each.machine.strict
        self.perform()
        self.settle()
        assert self.room.used == 0
        assert all(batch.is_settled and batch.done.is_set for batch in self.sent)  # type: ignore[attr-defined]
        assert {each.machine.phase for each in self.everywhere} == {LanePhase.ENDED}
        self.check_kept()

    def let_go_on(self) -> None:
        """Nobody flushes: each batch goes by itself, whatever happened before."""
        for _ in range(1000):
            possible = self.possible_work()
            if not possible:
                break
            possible[0]()
        assert all(each.machine.gathering is None for each in self.everywhere)

    def settle(self) -> None:
        """Let everything go well until nothing is left to do."""
        for _ in range(1000):
            for each in self.everywhere:
                each.machine.seal()
                if self.count.chosen and each.machine.final is None:
                    each.machine.want_lane()
                if self.is_over:
                    each.machine.end(ProducerClosed(TOPIC))
            self.perform()
            if self.count.chosen:
                self.write_boundary()
            possible = self.possible_work()
            if not possible:
                break
            possible[0]()
        for turn, message in self.turns:
            assert not turn.is_granted or self.is_over
            self.room.withdraw(turn)
            self.remember(message)
        self.turns.clear()

    # --- what must hold ----------------------------------------------------------------------

    @invariant()
    def memory_is_accounted_exactly(self) -> None:
        if hasattr(self, "room"):
            held = sum(batch.room for batch in self.sent if not batch.is_settled)
            waiting = sum(turn.size for turn, _ in self.turns if turn.is_granted)
            assert self.room.used == held + waiting
            largest = max((batch.room for batch in self.sent), default=0)
            assert self.room.used <= max(ROOM, largest, waiting)

    @invariant()
    def batches_are_in_one_place(self) -> None:
        for each in self.everywhere if hasattr(self, "partitions") else []:
            machine = each.machine
            assert list(machine.unsettled()) == [
                batch
                for batch in self.sent
                if batch.partition == machine.partition and not batch.is_settled
            ]
            assert len(each.calls) <= APPENDS_MAX + 1
            if machine.waiting and machine.phase is LanePhase.OPEN:
                assert each.idle_tasks or each.calls or each.stamp_tasks
            if machine.waiting and not self.is_over:
                assert machine.phase is not LanePhase.CLOSED
            if machine.strict and machine.phase is not LanePhase.OPEN:
                assert not machine.is_ready

    def check_kept(self) -> None:
        """Each acknowledged message is in one lane once; lanes are in the order of acceptance."""
        found = Counter[int]()
        for each in self.everywhere:
            serials = [serial for batch in each.kept for serial in self.sent[batch].serials]
            assert serials == sorted(serials)
            numbers = [number for batch in each.kept for number in numbers_of(batch)]
            if self.producer_rules.is_named:
                assert all(a < b for a, b in pairwise(numbers))
                found.update(numbers)
            else:
                found.update(m.number for batch in each.kept for m in self.sent[batch].messages)
            if self.producer_rules.is_ordered:
                times = [self.sent[batch].serials[-1] // 2 for batch in each.kept]
                assert times == sorted(times)
            if self.producer_rules.is_timed:
                ends = [batch.first_timestamp + batch.count for batch in each.kept]
                assert all(
                    a <= b.first_timestamp for a, b in zip(ends, each.kept[1:], strict=False)
                )
        assert max(found.values(), default=1) == 1
        assert self.acknowledged <= found.keys()
        if self.producer_rules.is_named and not self.is_over:
            assert found.keys() == set(range(self.next))


TestProducing = Producing.TestCase
TestProducing.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
