"""Ledger ranges split and grouped, without a cluster."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, strategies as st

from ledger_client.topics.reading.ranges import LedgerRange, split


def ledger_range(
    number: int, entries: int, size: int, *, first: int = 0, skip: int = 0
) -> LedgerRange:
    return LedgerRange(
        topic="shop/orders",
        uid=7,
        topic_index=0,
        ordered=False,
        partition=-1,
        lane=0,
        number=number,
        ledger_id=100 + number,
        base_version=1000 * number,
        first_entry=first,
        last_entry=first + entries - 1,
        skip=skip,
        stop=3,
        size=size,
        messages=10 * entries,
    )


def entries_of(ranges: list[LedgerRange]) -> list[tuple[int, int]]:
    return [(s.number, e) for s in ranges for e in range(s.first_entry, s.last_entry + 1)]


SPANS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 5000), st.integers(0, 9)), min_size=0, max_size=12
)


@given(SPANS, st.integers(1, 3000), st.integers(1, 20))
def test_groups_one_after_the_other_are_what_was_split(
    sizes: list[tuple[int, int, int]], target: int, groups_min: int
) -> None:
    given_ranges = [
        ledger_range(number, entries, size, first=first)
        for number, (entries, size, first) in enumerate(sizes)
    ]
    groups = split(given_ranges, target, groups_min=groups_min)
    parts = [part for group in groups for part in group]
    assert entries_of(parts) == entries_of(given_ranges)
    assert sum(part.size for part in parts) == sum(s.size for s in given_ranges)
    assert sum(part.messages for part in parts) == sum(s.messages for s in given_ranges)
    wanted = max(groups_min, -(-sum(s.size for s in given_ranges) // target))
    assert len(groups) <= wanted
    assert all(groups)


def test_a_large_ledger_is_cut_into_parts_of_a_size() -> None:
    groups = split([ledger_range(0, 1000, 100_000)], 10_000)
    assert [len(group) for group in groups] == [1] * 10
    assert {group[0].entries for group in groups} == {100}
    assert {group[0].size for group in groups} == {10_000}


def test_many_small_ledgers_share_a_group() -> None:
    groups = split([ledger_range(number, 4, 100) for number in range(100)], 2_500)
    assert [len(group) for group in groups] == [25] * 4


def test_groups_are_alike_however_ledgers_differ() -> None:
    ranges = [
        ledger_range(0, 10, 100),
        ledger_range(1, 1000, 90_000),
        ledger_range(2, 1, 50),
        ledger_range(3, 500, 9_850),
    ]
    groups = split(ranges, 25_000)
    assert len(groups) == 4
    assert all(24_000 < sum(s.size for s in group) < 26_000 for group in groups)


def test_only_the_outer_parts_keep_what_is_left_out_at_the_ends() -> None:
    left, right = ledger_range(0, 10, 1000, skip=2).cut(4)
    assert (left.skip, left.stop, right.skip, right.stop) == (2, -1, 0, 3)
    assert (left.last_entry, right.first_entry) == (3, 4)
    assert right.place(4).version == 4


def test_nothing_to_read_is_no_group() -> None:
    assert split([], 1000, groups_min=4) == []


def test_a_span_can_be_sent_elsewhere() -> None:
    one = ledger_range(3, 10, 1000)
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize("groups_min", [1, 2, 7])
def test_there_are_no_more_groups_than_entries(groups_min: int) -> None:
    assert len(split([ledger_range(0, 2, 0)], 1000, groups_min=groups_min)) == min(groups_min, 2)
