"""The decisions of a group's leader, under any order of events."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from metadata.groups import group as module
from metadata.groups.assignment import Part
from metadata.groups.group import Group, Inventory, Member
from metadata.groups.rows import SINCE_MAX, GroupRecord, MemberRecord, Wanted, parts_of
from metadata.store import ABSENT

NAMES = st.sampled_from(["a", "b", "c", "d"])
ORDERS = Wanted(topics=["shop/orders"])
EVERYTHING = Wanted(patterns=["shop/*"])
SESSION_S = 12.0


def joined(run: str, wanted: Wanted = ORDERS, **fields: float) -> MemberRecord:
    return msgspec.structs.replace(MemberRecord(epoch=0, run=run, wanted=wanted), **fields)


class Leader:
    """A group, and a store that keeps its rows."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rows: dict[str, tuple[MemberRecord, int]] = {}
        self.record, self.version = GroupRecord(), ABSENT
        self.revision = 0
        self.topics = {"shop/orders": Inventory(1, range(4))}
        self.group = Group(self.record, ABSENT, self.topics)

    def step(self, *, rebalance: bool = True, is_answered: bool = True) -> bool:
        """Store the next change; without an answer the leader reads everything again."""
        change = self.group.step(self.now, rebalance=rebalance)
        if change is None:
            return False
        assert self.group.version == self.version
        versions = {}
        for name, row in change.rows.items():
            self.revision += 1
            if row is None:
                self.rows.pop(name, None)
            else:
                self.rows[name] = (row, self.revision)
                versions[name] = self.revision
        self.revision += 1
        self.record, self.version = change.group, self.revision
        if is_answered:
            self.group.stored(change, versions, self.version, self.now)
        else:
            self.group.load(self.record, self.version, self.rows)
        return True

    def settle(self) -> None:
        while self.step():
            pass

    def replace(self) -> None:
        """Let another bookie lead, which knows only what is stored."""
        self.group = Group(self.record, self.version, self.topics)
        for name, (row, version) in self.rows.items():
            self.group.add_stored(name, row, version, self.now)

    def parts(self, name: str) -> set[int]:
        return {part.partition for part in parts_of(self.rows[name][0].parts)}

    def revoked(self, name: str) -> set[int]:
        row = self.rows[name][0]
        return {part.partition for each in row.revoked for part in parts_of(each.runs)}

    def applied(self, name: str) -> bool:
        """Let a member apply its row, and report that."""
        row = self.rows[name][0]
        return self.group.beat(name, row.run, applied=row.epoch, polled_s=0, now=self.now)


@pytest.fixture
def leader() -> Leader:
    return Leader()


def two_members(leader: Leader) -> None:
    leader.group.join("a", joined("a1"), leader.now)
    leader.settle()
    leader.group.join("b", joined("b1"), leader.now)
    leader.settle()


def test_a_second_member_gets_partitions_once_the_first_one_gave_them_up(leader: Leader) -> None:
    """TD-33, TD-36: it holds nothing before, and what does not move is never revoked."""
    two_members(leader)
    assert leader.parts("a") == {0, 1, 2, 3}
    moving = leader.revoked("a")
    assert len(moving) == 2
    assert leader.parts("b") == set()
    assert leader.applied("a")
    leader.step(rebalance=False)
    assert leader.parts("a") == {0, 1, 2, 3} - moving
    assert leader.parts("b") == moving
    assert leader.group.is_balanced


def test_a_member_that_keeps_what_is_revoked_loses_it_when_its_time_is_up(leader: Leader) -> None:
    two_members(leader)
    moving = leader.revoked("a")
    leader.now += 9.9
    leader.group.beat("a", "a1", applied=1, polled_s=0, now=leader.now)
    leader.group.beat("b", "b1", applied=1, polled_s=0, now=leader.now)
    assert not leader.step()
    leader.now += 0.1
    leader.settle()
    assert leader.parts("b") == moving


@pytest.mark.parametrize("is_made", [True, False])
def test_what_is_wanted_is_noted_though_another_change_is_under_way(is_made: bool) -> None:
    """Else a partition that comes later counts as older than the group."""
    group = Group(GroupRecord(), ABSENT, {})
    group.note_wanted(ORDERS, 5)
    group.join("a", joined("a1"), 0.0)
    change = group.step(0.0, rebalance=False)
    assert change is not None
    group.note_wanted(EVERYTHING, 7)
    group.join("b", joined("b1", EVERYTHING), 0.0)
    if is_made:
        group.stored(change, {"a": 1}, 2, 0.0)
    else:
        group.load(GroupRecord(), ABSENT, {})
    following = group.step(0.0, rebalance=False)
    assert following is not None
    assert following.group.since == {"shop/orders": 5, "shop/*": 7}


def test_a_group_that_was_stored_without_notes_may_have_wanted_all_along() -> None:
    """Also what its members want who have not joined anew since it was noted."""
    group = Group(GroupRecord(created_ms=3), 7, {})
    group.add_stored("b", joined("b1", Wanted(topics=["shop/bills"])), 1, 0.0)
    assert group.record.since_ms("shop/orders") == 3, "it is not older than the group"
    group.note_wanted(ORDERS, 9)
    group.note_wanted(Wanted(topics=["shop/bills"]), 10)
    group.note_wanted(EVERYTHING, 11)
    assert group.record.since == {"shop/orders": 3, "shop/bills": 3, "shop/*": 11}
    assert group.record.since_ms("other/orders") is None


def test_a_group_that_was_founded_by_a_commit_has_wanted_nothing_yet() -> None:
    """Else the first member to name a topic begins with all that the topic has had since."""
    group = Group(GroupRecord(created_ms=3, is_noted=True), 7, {})
    assert group.record.since_ms("shop/orders") is None
    group.note_wanted(ORDERS, 9)
    assert group.record.since_ms("shop/orders") == 9


def test_as_many_notes_are_kept_as_there_is_room_for() -> None:
    group = Group(GroupRecord(created_ms=3, is_noted=True), ABSENT, {})
    for first in range(0, 2 * SINCE_MAX, 150):
        group.note_wanted(Wanted(topics=[f"day/{first + i}" for i in range(150)]), 10 + first)
    assert len(group.record.since) == SINCE_MAX
    assert group.record.since_ms("day/199") == 160
    assert group.record.since_ms("day/200") == 3, "it may have been wanted all along"


def test_nothing_changes_before_the_timer(leader: Leader) -> None:
    """TD-37: a newcomer is stored at once, and gets partitions at the next rebalance."""
    leader.group.join("a", joined("a1"), leader.now)
    leader.step(rebalance=False)
    assert leader.parts("a") == set()
    assert not leader.step(rebalance=False)
    leader.step(rebalance=True)
    assert leader.parts("a") == {0, 1, 2, 3}


@pytest.mark.parametrize("way", ["left", "silent", "idle"])
def test_a_member_that_is_gone_loses_its_row_and_the_others_get_its_partitions(
    leader: Leader, way: str
) -> None:
    """TD-30, TD-31, TD-34, TD-40, TD-41."""
    two_members(leader)
    leader.applied("a")
    leader.settle()
    if way == "left":
        leader.group.leave("a", "a1")
    elif way == "idle":
        leader.group.beat("a", "a1", applied=0, polled_s=300.1, now=leader.now)
    else:
        leader.now += SESSION_S + 0.1
        leader.applied("b")
    leader.settle()
    assert leader.rows.keys() == {"b"}
    assert leader.parts("b") == {0, 1, 2, 3}
    assert not leader.group.beat("a", "a1", applied=0, polled_s=0, now=leader.now)


def test_a_member_lives_on_until_the_end_of_its_session(leader: Leader) -> None:
    leader.group.join("a", joined("a1"), leader.now)
    leader.settle()
    leader.now += SESSION_S
    assert not leader.step()


def test_joining_again_counts_as_a_sign_of_life(leader: Leader) -> None:
    """TD-80: no counter of the time before remains."""
    leader.group.join("a", joined("a1"), leader.now)
    leader.settle()
    leader.group.beat("a", "a1", applied=0, polled_s=299, now=leader.now)
    leader.now += SESSION_S
    leader.group.join("a", joined("a1"), leader.now)
    leader.now += SESSION_S
    leader.settle()
    assert leader.parts("a") == {0, 1, 2, 3}


def test_a_named_member_that_comes_back_keeps_its_partitions(leader: Leader) -> None:
    """A restart within the session rebalances nothing, and its former run is not a member."""
    two_members(leader)
    leader.applied("a")
    leader.settle()
    before = leader.parts("a")
    version = leader.rows["a"][1]
    leader.group.join("a", joined("a2"), leader.now)
    leader.settle()
    assert leader.parts("a") == before
    assert leader.rows["a"][1] != version
    assert not leader.group.beat("a", "a1", applied=9, polled_s=0, now=leader.now)
    leader.group.leave("a", "a1")
    assert not leader.step()


def test_a_member_that_leaves_and_is_back_at_once_gets_what_it_wants_now(leader: Leader) -> None:
    leader.topics["shop/refunds"] = Inventory(2, range(2))
    leader.group.join("a", joined("1"), leader.now)
    leader.settle()
    leader.group.leave("a", "1")
    leader.group.join("a", joined("2", EVERYTHING), leader.now)
    leader.settle()
    assert {part.topic for part in parts_of(leader.rows["a"][0].parts)} == {1, 2}


def test_what_a_former_run_has_applied_does_not_count_for_the_next_one(leader: Leader) -> None:
    two_members(leader)
    leader.applied("a")
    leader.group.join("a", joined("a2"), leader.now)
    leader.step(rebalance=False)
    assert leader.parts("a") == {0, 1, 2, 3}
    assert leader.parts("b") == set()


def test_an_epoch_that_was_not_reached_yet_is_not_believed(leader: Leader) -> None:
    leader.group.join("a", joined("a1"), leader.now)
    leader.settle()
    leader.group.beat("a", "a1", applied=99, polled_s=0, now=leader.now)
    leader.group.join("b", joined("b1"), leader.now)
    leader.settle()
    assert leader.parts("a") == {0, 1, 2, 3}


def test_a_member_that_comes_back_while_its_row_is_deleted_stays_a_member(leader: Leader) -> None:
    leader.group.join("a", joined("a1"), leader.now)
    leader.settle()
    leader.group.leave("a", "a1")
    change = leader.group.step(leader.now, rebalance=False)
    assert change is not None
    leader.group.join("a", joined("a2"), leader.now)
    leader.rows.clear()
    leader.group.stored(change, {}, 99, leader.now)
    leader.version = 99
    leader.settle()
    assert leader.parts("a") == {0, 1, 2, 3}


def test_a_new_leader_gives_every_member_a_session_to_report_in(leader: Leader) -> None:
    two_members(leader)
    leader.applied("a")
    leader.settle()
    rows = dict(leader.rows)
    leader.now += 100
    leader.replace()
    leader.now += SESSION_S
    leader.settle()
    assert leader.rows == rows
    leader.applied("b")
    leader.now += 1
    leader.settle()
    assert leader.parts("b") == {0, 1, 2, 3}


def test_a_new_leader_takes_nothing_before_its_first_rebalance(leader: Leader) -> None:
    two_members(leader)
    rows = dict(leader.rows)
    leader.replace()
    assert not leader.step(rebalance=False)
    assert leader.rows == rows


def test_topics_that_come_match_patterns_and_topics_that_go_are_given_up(leader: Leader) -> None:
    """TD-56."""
    leader.group.join("a", joined("a1", EVERYTHING), leader.now)
    leader.settle()
    leader.topics["shop/refunds"] = Inventory(2, range(-1, 0))
    leader.topics["other/orders"] = Inventory(3, range(2))
    leader.group.topics_changed()
    leader.settle()
    assert parts_of(leader.rows["a"][0].parts) == {*(Part(1, n) for n in range(4)), Part(2, -1)}
    del leader.topics["shop/orders"]
    leader.group.topics_changed()
    leader.settle()
    leader.applied("a")
    leader.settle()
    assert parts_of(leader.rows["a"][0].parts) == {Part(2, -1)}


def test_a_change_of_many_rows_takes_first_and_gives_later(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction is bounded; no step gives what another member still has."""
    monkeypatch.setattr(module, "ROWS_MAX", 3)
    leader.topics["shop/orders"] = Inventory(1, range(40))
    leader.group.topics_changed()
    for number in range(8):
        leader.group.join(f"m{number}", joined("x"), leader.now)
    steps = 0
    while leader.step():
        check_owners(leader)
        steps += 1
    assert steps >= 5
    for number in range(4):
        leader.group.leave(f"m{number}", "x")
    while leader.step():
        check_owners(leader)
    assert {len(leader.parts(name)) for name in leader.rows} == {10}


def check_owners(leader: Leader) -> None:
    """At most one member may commit a partition: no two rows have it."""
    owned = [part for row, _ in leader.rows.values() for part in parts_of(row.parts)]
    assert len(owned) == len(set(owned))
    for row, _ in leader.rows.values():
        revoked = [part for each in row.revoked for part in parts_of(each.runs)]
        assert len(revoked) == len(set(revoked))
        assert set(revoked) <= parts_of(row.parts)
        assert all(0 < each.epoch <= row.epoch <= leader.record.epoch for each in row.revoked)


@dataclass
class Process:
    """A member's process: the row that it saw last."""

    run: str
    row: MemberRecord | None = None


class GroupMachine(RuleBasedStateMachine):
    """Members come and go, see rows late, and leaders change."""

    @initialize()
    def begin(self) -> None:
        self.leader = Leader()
        self.processes: dict[str, Process] = {}
        self.runs = 0

    @rule(name=NAMES, wanted=st.sampled_from([ORDERS, EVERYTHING]))
    def join(self, name: str, wanted: Wanted) -> None:
        self.runs += 1
        self.processes[name] = Process(f"run{self.runs}")
        self.leader.group.join(name, joined(f"run{self.runs}", wanted), self.leader.now)

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is not None:
            self.leader.group.leave(name, process.run)

    @rule(name=NAMES)
    def crash(self, name: str) -> None:
        self.processes.pop(name, None)

    @rule(name=NAMES)
    def see(self, name: str) -> None:
        process, stored = self.processes.get(name), self.leader.rows.get(name)
        if process is not None and stored is not None and stored[0].run == process.run:
            process.row = stored[0]

    @rule(name=NAMES)
    def beat(self, name: str) -> None:
        process = self.processes.get(name)
        if process is not None:
            epoch = 0 if process.row is None else process.row.epoch
            if not self.leader.group.beat(
                name, process.run, applied=epoch, polled_s=0, now=self.leader.now
            ):
                del self.processes[name]

    @rule(seconds=st.sampled_from([0.5, 3.0, 13.0]))
    def wait(self, seconds: float) -> None:
        self.leader.now += seconds

    @rule(rebalance=st.booleans(), is_answered=st.booleans())
    def step(self, rebalance: bool, is_answered: bool) -> None:
        self.leader.step(rebalance=rebalance, is_answered=is_answered)

    @rule()
    def elect(self) -> None:
        self.leader.replace()

    @rule(count=st.integers(1, 6))
    def grow(self, count: int) -> None:
        topics = self.leader.topics
        former = topics.get("shop/refunds", Inventory(2, range(0)))
        topics["shop/refunds"] = Inventory(2, range(max(count, len(former.partitions))))
        self.leader.group.topics_changed()

    @rule()
    def drop(self) -> None:
        self.leader.topics.pop("shop/refunds", None)
        self.leader.group.topics_changed()

    @invariant()
    def one_owner(self) -> None:
        if hasattr(self, "leader"):
            check_owners(self.leader)

    def teardown(self) -> None:
        """Once nothing happens any more, every partition has its owner, and counts are even."""
        if not hasattr(self, "leader"):
            return
        leader = self.leader
        for _ in range(6):
            for name in self.processes:
                self.see(name)
            for name in list(self.processes):
                self.beat(name)
            leader.now += 3.0
            leader.settle()
        members = leader.group.members
        assert members.keys() == leader.rows.keys() == self.processes.keys()
        if members:
            assert leader.group.is_balanced
            check_complete(leader, list(members.values()))


def check_complete(leader: Leader, members: list[Member]) -> None:
    owned = {part for member in members for part in member.owned}
    wanted = {
        Part(topic.uid, number)
        for member in members
        for topic in leader.group.wanted(member.joined.wanted)
        for number in topic.partitions
    }
    assert owned == wanted


GroupMachine.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestGroup = GroupMachine.TestCase
