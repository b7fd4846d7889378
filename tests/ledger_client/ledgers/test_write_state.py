"""The machine that writes a ledger, driven through orders of events without clock or trio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ledger_client import Options
from ledger_client.errors import (
    AckQuorumLost,
    LedgerClosed,
    LedgerFenced,
    MetadataUnavailable,
    NotEnoughBookies,
    OutcomeUnknown,
)
from ledger_client.ledgers import write_state
from ledger_client.ledgers.ensemble_state import NEVER, Phase
from ledger_client.ledgers.write_state import (
    Action,
    Add,
    Announce,
    Attach,
    Change,
    Chunk,
    Confirm,
    Detach,
    End,
    Refuse,
    Replace,
    WriteState,
)
from metadata.records import Fragment, LedgerRecord, LedgerState
from native.digest import Digest, DigestKind
from native.frame import Code
from native.link import Writer

LEDGER_ID = 7
OPTIONS = Options(append_timeout_s=30.0, explicit_lac_s=0.01, replace_timeout_s=10.0)
KEY = Digest(DigestKind.CRC32C, b"")


class Quorums(NamedTuple):
    ensemble: int
    write: int
    ack: int


def quorums() -> st.SearchStrategy[Quorums]:
    return st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)).map(
        lambda sizes: Quorums(*sorted(sizes, reverse=True))
    )


RARELY = st.integers(0, 15).map(lambda number: number == 15)
"""Of what ends a run: most runs should go on for long."""


def new_state(quorums: Quorums, options: Options = OPTIONS) -> tuple[WriteState, Writer]:
    names = [f"b{index}" for index in range(quorums.ensemble)]
    record = LedgerRecord(LEDGER_ID, *quorums, LedgerState.OPEN, [Fragment(0, names)])
    native = Writer(LEDGER_ID, *quorums, KEY)
    return WriteState(record, native, options), native


class Writing(RuleBasedStateMachine):
    """A driver and bookies that do what the rules say, and a model of what they were promised."""

    adds = Bundle("adds")

    def __init__(self) -> None:
        super().__init__()
        self._chunk_size, write_state.CHUNK_SIZE = write_state.CHUNK_SIZE, 40

    def teardown(self) -> None:
        write_state.CHUNK_SIZE = self._chunk_size

    @initialize(quorums=quorums())
    def begin(self, quorums: Quorums) -> None:
        self.quorums = quorums
        self.state, self.native = new_state(quorums)
        self.now = 0.0
        self.unsettled: list[Add] = []
        self.withdrawn: list[Add] = []
        self.chunks: list[Chunk] = []
        self.owing: dict[int, list[int]] = {i: [] for i in range(quorums.ensemble)}
        """by index of each bookie that is attached: entries that it has not acknowledged"""
        self.acks: list[set[int]] = []
        """by entry: the indexes that acknowledged it and still count"""
        self.confirmed_before_change = -1
        self.attempting = False
        self.change: Change | None = None
        self.wanted = False
        self.ended = False
        self.joined = 0

    # --- what the driver does ----------------------------------------------------------------

    def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Confirm(adds):
                    for add in adds:
                        self.check_confirmed(add)
                case Refuse(add, failure):
                    assert self.ended
                    assert isinstance(failure, OutcomeUnknown) == (add.first is not None)
                    self.settle(add)
                case Detach(place):
                    assert not self.ended
                    del self.owing[place]
                case Replace():
                    assert not self.ended and not self.wanted
                    self.wanted = True
                case Attach(place, _, chunks):
                    self.attach(place, chunks)
                case Announce(last_confirmed):
                    assert not self.ended
                    assert last_confirmed == self.state.last_confirmed <= self.complete()
                case End():
                    assert not self.ended
                    self.ended = True
                    self.owing.clear()

    def settle(self, add: Add) -> None:
        """Nothing is acknowledged or refused twice, and all in the order of the adds."""
        if add in self.withdrawn:
            self.withdrawn.remove(add)
            return
        assert self.unsettled.pop(0) is add

    def check_confirmed(self, add: Add) -> None:
        assert not self.ended
        assert len(add.ids) == len(add.payloads)
        assert add.ids[-1] <= self.complete()
        self.settle(add)

    def attach(self, place: int, chunks: Sequence[Sequence[memoryview]]) -> None:
        """A bookie that joins gets all that was sent since the last confirmed entry."""
        assert not self.ended and place not in self.owing
        fragment = self.state.record.fragments[-1]
        since = [chunk for chunk in self.chunks if chunk.last >= fragment.first_entry]
        assert [id(frames) for frames in chunks] == [id(chunk.frames) for chunk in since]
        self.owing[place] = []
        for entry in range(fragment.first_entry, self.state.next_entry):
            if place in self.write_set(entry):
                self.owing[place].append(entry)

    # --- the model -----------------------------------------------------------------------------

    def write_set(self, entry: int) -> set[int]:
        size = self.quorums.ensemble
        return {(entry + i) % size for i in range(self.quorums.write)}

    def complete(self) -> int:
        """The greatest entry that is on its ack quorum, as all before it are."""
        for entry in range(self.state.last_confirmed + 1, len(self.acks)):
            if len(self.acks[entry]) < self.quorums.ack:
                return entry - 1
        return len(self.acks) - 1

    def is_running(self) -> bool:
        return not self.ended

    # --- events ----------------------------------------------------------------------------------

    @rule(
        target=adds,
        sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6),
        chunks=st.integers(0, 3),
    )
    def add(self, sizes: list[int], chunks: int) -> Add:
        add = Add([bytes(size) for size in sizes])
        if self.ended or self.state.is_ending:
            with pytest.raises(type(self.state.failure or LedgerClosed(LEDGER_ID))):
                self.state.add(add)
            return add
        self.state.add(add)
        self.unsettled.append(add)
        for _ in range(chunks):
            self.send()
        return add

    @rule(add=adds, rarely=RARELY)
    def withdraw(self, add: Add, *, rarely: bool) -> None:
        if not rarely:
            return
        self.state.withdraw(add)
        if add in self.unsettled:
            self.unsettled.remove(add)
            if add.first is not None and len(add.ids) == len(add.payloads):
                self.withdrawn.append(add)  # all of it was sent

    @rule()
    def send(self) -> None:
        chunk = self.state.next_chunk(self.now)
        if chunk is None:
            assert not self.state.waiting
            return
        assert not self.ended and chunk.first == len(self.acks)
        self.chunks.append(chunk)
        for entry in range(chunk.first, chunk.last + 1):
            self.acks.append(set())
            for place in self.write_set(entry) & self.owing.keys():
                self.owing[place].append(entry)

    @precondition(lambda self: any(self.owing.values()))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        """One bookie acknowledges some entries, which arrive together."""
        place = data.draw(st.sampled_from([p for p, entries in self.owing.items() if entries]))
        for _ in range(data.draw(st.integers(1, len(self.owing[place])))):
            self.take_acknowledgement(place, data.draw(st.sampled_from(self.owing[place])))
        self.perform(self.state.acknowledged(self.now))

    @precondition(lambda self: any(self.owing.values()))
    @rule(data=st.data())
    def acknowledge_all(self, data: st.DataObject) -> None:
        """Every bookie but some acknowledges everything."""
        silent = data.draw(st.integers(-3, self.quorums.ensemble - 1))
        for place in data.draw(st.permutations(sorted(self.owing))):
            if place != silent and place in self.owing:
                for entry in [*self.owing[place]]:
                    self.take_acknowledgement(place, entry)
                self.perform(self.state.acknowledged(self.now))

    def take_acknowledgement(self, place: int, entry: int) -> None:
        self.owing[place].remove(entry)
        self.acks[entry].add(place)
        self.native.acknowledge(place, entry)

    @precondition(lambda self: any(self.owing.values()))
    @rule(data=st.data(), fatal=RARELY)
    def refuse(self, data: st.DataObject, *, fatal: bool) -> None:
        code = Code.FENCED if fatal else Code.READ_ONLY
        place = data.draw(st.sampled_from([p for p, entries in self.owing.items() if entries]))
        self.native.acknowledge(place, data.draw(st.sampled_from(self.owing[place])), code)
        self.perform(self.state.acknowledged(self.now))
        assert self.ended or code != Code.FENCED
        assert place not in self.owing

    @precondition(is_running)
    @rule(data=st.data(), begins=st.booleans())
    def lose(self, data: st.DataObject, *, begins: bool) -> None:
        place = data.draw(st.integers(0, self.quorums.ensemble - 1))
        self.perform(self.state.lost(place, "gone", self.now))
        assert place not in self.owing
        if begins and self.wanted:
            self.begin_replacement()

    @rule(after_s=st.sampled_from([0.0, 0.01, 0.01, 0.05, 0.5, 0.5, 2.0, 9.9, 15.0, 30.0]))
    def wait(self, after_s: float) -> None:
        until = self.now + after_s
        while self.state.due_at <= until:
            self.now = max(self.now, self.state.due_at)
            self.perform(self.state.tick(self.now))
            assert self.state.due_at > self.now
        self.now = until
        self.perform(self.state.tick(until))

    # --- replacements ----------------------------------------------------------------------------

    @precondition(lambda self: self.wanted)
    @rule()
    def begin_replacement(self) -> None:
        vacancies = self.state.begin_replacement()
        if vacancies is None:
            assert self.ended or not self.wanted
            self.wanted = False
            return
        assert self.wanted and not self.ended and not self.attempting
        assert set(vacancies.lost) == set(range(self.quorums.ensemble)) - self.owing.keys()
        self.wanted, self.attempting = False, True
        self.vacancies = vacancies

    def end_attempt(self, actions: Sequence[Action]) -> None:
        """The driver's task looks for the next attempt before it ends."""
        self.change, self.attempting = None, False
        self.perform(actions)
        self.wanted = self.state.ensemble.phase is Phase.DUE
        self.begin_replacement()

    @precondition(lambda self: self.attempting and self.change is None)
    @rule(count=st.integers(0, 4))
    def choose(self, count: int) -> None:
        """Some bookies are found, or none."""
        if not count:
            nobody = NotEnoughBookies(healthy=0, needed=self.quorums.ensemble)
            self.end_attempt(self.state.not_replaced(nobody, self.now))
            return
        lost = self.vacancies.lost
        places = {}
        for place in lost[:count]:
            self.joined += 1
            places[place] = f"new{self.joined}"
        self.change = self.state.chosen(places)
        self.places = places
        self.held_at = self.state.last_confirmed
        assert (self.change is None) == self.ended
        if self.change is None:
            self.attempting = False
        else:
            assert self.change.fragment.first_entry == self.native.state().lac + 1

    @precondition(lambda self: self.change is not None)
    @rule(tries=st.integers(0, 3))
    def publish(self, tries: int) -> None:
        assert self.change is not None
        if not tries:
            self.end_attempt(self.state.not_replaced(MetadataUnavailable("away"), self.now))
            return
        change = self.change
        fragments = self.state.record.fragments
        kept = [f for f in fragments if f.first_entry < change.fragment.first_entry]
        record = LedgerRecord(LEDGER_ID, *self.quorums, LedgerState.OPEN, [*kept, change.fragment])
        if not self.ended:
            for entry in range(change.fragment.first_entry, len(self.acks)):
                self.acks[entry] -= self.places.keys()  # of the bookies that left
        self.end_attempt(self.state.replaced(record, self.now))
        assert self.ended or self.state.ensemble.bookies == change.fragment.bookies

    # --- the end ---------------------------------------------------------------------------------

    @precondition(is_running)
    @rule(fatal=RARELY, last=RARELY)
    def end(self, *, fatal: bool, last: bool) -> None:
        if last:
            self.state.end()
        if fatal:
            self.perform(self.state.fail(LedgerClosed(LEDGER_ID), self.now))
            assert self.ended

    # --- what always holds -----------------------------------------------------------------------

    @invariant()
    def everything_is_settled_in_the_end(self) -> None:
        if self.ended:
            assert self.unsettled == self.withdrawn == []
            assert self.state.failure is not None
            assert self.state.is_idle
            assert self.state.due_at == NEVER

    @invariant()
    def the_last_confirmed_entry_is_complete(self) -> None:
        for entry in range(self.state.last_confirmed + 1):
            assert entry < len(self.acks)
        if self.change is not None:
            assert self.state.last_confirmed == self.held_at
        elif not self.ended:
            assert self.state.last_confirmed == self.complete()
        assert self.state.last_confirmed <= self.complete()

    @invariant()
    def one_attempt_is_under_way_at_most(self) -> None:
        if not self.wanted:
            assert self.state.begin_replacement() is None

    @invariant()
    def losses_are_replaced(self) -> None:
        """Where a bookie is missing, an attempt is due, under way, or follows a pause."""
        if not self.ended and len(self.owing) < self.quorums.ensemble:
            assert self.wanted or self.attempting or self.state.ensemble.retry_at < NEVER


def test_no_order_of_events_breaks_a_promise() -> None:
    steps = settings(max_examples=150, stateful_step_count=60, deadline=None)
    run_state_machine_as_test(Writing, settings=steps)


# --- single decisions ------------------------------------------------------------------------


def writing(*quorums: int) -> tuple[WriteState, Writer]:
    state, native = new_state(Quorums(*quorums))
    state.add(Add([b"zero"]))
    assert state.next_chunk(0.0) is not None
    return state, native


def test_without_a_quorum_and_without_progress_the_writer_gives_up() -> None:
    state, _ = writing(2, 2, 2)
    assert [type(action) for action in state.lost(1, "gone", 5.0)] == [Detach, Replace]
    assert state.due_at == 5.0 + OPTIONS.replace_timeout_s
    end, refuse = state.tick(state.due_at)
    assert end == End(is_sent=False)
    assert isinstance(refuse, Refuse) and isinstance(refuse.failure.__cause__, AckQuorumLost)
    assert refuse.failure.__cause__.lost == {"b1": "gone"}


def test_nothing_is_due_after_the_end() -> None:
    """The quorum is given up during a pause, whose end nobody needs any more."""
    state, _ = writing(2, 2, 2)
    state.lost(1, "gone", 5.0)
    now = 5.0 + OPTIONS.replace_timeout_s
    assert state.begin_replacement() is not None
    state.not_replaced(NotEnoughBookies(healthy=1, needed=2), now - 0.01)
    state.tick(now)
    assert state.failure is not None and state.due_at == NEVER


def test_a_bookie_that_keeps_the_oldest_entry_waiting_is_lost_before_the_writer_fails() -> None:
    state, native = writing(3, 3, 3)
    native.acknowledge(0, 0)
    native.acknowledge(2, 0)
    assert state.acknowledged(0.0) == []
    assert state.tick(OPTIONS.append_timeout_s / 2) == [Detach(1, "b1"), Replace()]
    silent, _ = writing(3, 3, 3)
    assert silent.tick(OPTIONS.append_timeout_s / 2) == []  # it is no single bookie
    silent.tick(OPTIONS.append_timeout_s)
    assert "was not acknowledged within" in str(silent.failure)


def test_a_process_that_hung_looks_once_more_before_it_gives_anything_up() -> None:
    state, _ = writing(3, 3, 3)
    late = OPTIONS.append_timeout_s + 60
    assert state.tick(late) == [] and state.failure is None
    assert state.tick(late + OPTIONS.append_timeout_s / 2) != []


def test_a_process_that_hung_gives_a_replacement_time_before_it_gives_up_its_quorum() -> None:
    """One was under way, and the cluster has bookies to spare."""
    state, _ = writing(3, 3, 2)
    state.lost(1, "gone", 0.0)
    state.lost(2, "gone", 0.0)
    assert state.begin_replacement() is not None
    late = OPTIONS.replace_timeout_s + 60
    assert not any(isinstance(each, End) for each in state.tick(late))
    assert state.failure is None
    state.tick(late + OPTIONS.replace_timeout_s / 2)
    assert isinstance(state.failure, AckQuorumLost)


def test_an_announcement_waits_while_entries_carry_the_news() -> None:
    state, native = writing(1, 1, 1)
    native.acknowledge(0, 0)
    (confirm,) = state.acknowledged(1.0)
    assert isinstance(confirm, Confirm) and state.due_at == 1.01
    state.add(Add([b"one"]))
    assert state.next_chunk(1.005) is not None  # carries the LAC 0
    assert state.tick(1.01) == []
    native.acknowledge(0, 1)
    state.acknowledged(1.02)
    assert state.tick(state.due_at) == [Announce(1)]


def test_only_the_first_failure_counts() -> None:
    state, _ = writing(1, 1, 1)
    assert state.fail(LedgerFenced(LEDGER_ID), 0.0) != []
    assert state.fail(LedgerClosed(LEDGER_ID), 0.0) == []
    assert isinstance(state.failure, LedgerFenced)
    assert state.lost(0, "gone", 0.0) == state.acknowledged(0.0) == state.tick(99.0) == []


def test_a_bookie_that_joins_gets_everything_that_is_not_confirmed() -> None:
    state, _ = writing(2, 2, 2)
    state.lost(1, "gone", 0.0)
    assert state.begin_replacement() is not None
    change = state.chosen({1: "new"})
    assert change is not None
    record = LedgerRecord(LEDGER_ID, 2, 2, 2, LedgerState.OPEN, [change.fragment])
    attach = state.replaced(record, 1.0)[0]
    assert isinstance(attach, Attach)
    assert (attach.bookie_id, [len(chunk) for chunk in attach.chunks]) == ("new", [2])
