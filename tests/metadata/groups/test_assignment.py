"""Sticky, even assignments."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from metadata.groups.assignment import Assignment, Part, assign

MEMBERS = st.sets(st.sampled_from("abcdefgh"), min_size=1)
TOPICS = st.dictionaries(st.integers(1, 12), st.integers(0, 9).map(range), max_size=8)


def alike(members: set[str], topics: dict[int, range]) -> dict[str, set[int]]:
    return {member: set(topics) for member in members}


def owners(assignment: Assignment) -> dict[Part, str]:
    pairs = [(part, member) for member, parts in assignment.items() for part in parts]
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)


def spread(counts: list[int]) -> int:
    return max(counts) - min(counts)


def check_even(assignment: Assignment, interests: dict[str, set[int]], uid: int) -> None:
    counts = [
        sum(part.topic == uid for part in parts)
        for member, parts in assignment.items()
        if uid in interests[member]
    ]
    assert not counts or spread(counts) <= 1


def moved(before: Assignment, after: Assignment) -> list[tuple[str, str]]:
    """Return who gave to whom, for each partition that changed hands."""
    former, now = owners(before), owners(after)
    return [(former[p], now[p]) for p in former if p in now and former[p] != now[p]]


def test_one_member_of_four_partitions_gives_two_to_a_second_one() -> None:
    """TD-14, TD-36: partitions are split evenly, and a newcomer gets its part."""
    topics = {7: range(4)}
    alone = assign(topics, {"a": {7}}, {})
    assert alone == {"a": {Part(7, number) for number in range(4)}}
    both = assign(topics, {"a": {7}, "b": {7}}, alone)
    assert {member: len(parts) for member, parts in both.items()} == {"a": 2, "b": 2}
    assert both["a"] < alone["a"]


@given(MEMBERS, TOPICS)
def test_each_partition_has_one_owner_and_counts_differ_by_at_most_one(
    members: set[str], topics: dict[int, range]
) -> None:
    """TD-55: of each topic, and of all together."""
    interests = alike(members, topics)
    assigned = assign(topics, interests, {})
    assert set(owners(assigned)) == {Part(uid, n) for uid in topics for n in topics[uid]}
    for uid in topics:
        check_even(assigned, interests, uid)
    assert spread([len(parts) for parts in assigned.values()]) <= 1


@given(st.dictionaries(st.sampled_from("abcdef"), st.sets(st.integers(1, 6)), min_size=1), TOPICS)
def test_members_get_only_topics_that_they_want(
    interests: dict[str, set[int]], topics: dict[int, range]
) -> None:
    assigned = assign(topics, interests, {})
    wanted = set().union(*interests.values())
    assert set(owners(assigned)) == {
        Part(uid, n) for uid in topics if uid in wanted for n in topics[uid]
    }
    for member, parts in assigned.items():
        assert {part.topic for part in parts} <= interests[member]
    for uid in topics:
        check_even(assigned, interests, uid)


@given(st.lists(MEMBERS, min_size=2, max_size=6), TOPICS)
def test_an_assignment_stays_even_over_any_changes_of_members(
    steps: list[set[str]], topics: dict[int, range]
) -> None:
    held: Assignment = {}
    for members in steps:
        interests = alike(members, topics)
        held = assign(topics, interests, held)
        for uid in topics:
            check_even(held, interests, uid)
        assert spread([len(parts) for parts in held.values()]) <= 1
        assert assign(topics, interests, held) == held


@given(st.lists(MEMBERS, min_size=2, max_size=6), st.integers(0, 40))
def test_of_one_topic_only_the_surplus_moves(steps: list[set[str]], count: int) -> None:
    """TD-55: no partition moves between two members that both stay as large as they must."""
    topics = {1: range(count)}
    held = assign(topics, alike(steps[0], topics), {})
    for before, members in pairwise(steps):
        after = assign(topics, alike(members, topics), held)
        sizes = {member: len(parts) for member, parts in held.items()}
        for giver, _ in moved(held, after):
            assert giver not in members or len(after[giver]) < sizes[giver]
        if before < members:
            assert {taker for _, taker in moved(held, after)} <= members - before
        if members < before:
            assert {giver for giver, _ in moved(held, after)} <= before - members
        held = after


@given(MEMBERS, st.integers(0, 9), st.integers(0, 9))
def test_partitions_that_come_and_go_move_no_other_ones(
    members: set[str], first: int, then: int
) -> None:
    """TD-56, for partitions that were added."""
    few, many = sorted((first, then))
    before = assign({1: range(few)}, alike(members, {1: range(few)}), {})
    after = assign({1: range(many)}, alike(members, {1: range(many)}), before)
    assert moved(before, after) == []


def test_additional_partitions_of_many_topics_are_spread() -> None:
    topics = dict.fromkeys(range(10), range(1))
    assigned = assign(topics, alike({"a", "b"}, topics), {})
    assert {len(parts) for parts in assigned.values()} == {5}


def test_a_newcomer_takes_whole_topics_from_members_that_have_more_of_them() -> None:
    topics = dict.fromkeys(range(10), range(1))
    alone = assign(topics, alike({"a"}, topics), {})
    both = assign(topics, alike({"a", "b"}, topics), alone)
    assert {len(parts) for parts in both.values()} == {5}
    assert both["a"] < alone["a"]
