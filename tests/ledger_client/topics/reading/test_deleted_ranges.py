"""Ranges of messages deleted out of a ledger, against a list of messages."""

from __future__ import annotations

from hypothesis import given, strategies as st

from ledger_client.topics.lanes.ledger_rows import kept_entries, kept_messages, merged, past
from metadata.topics import Removed

COUNTS = [3, 1, 4, 2, 5]
POINTS = [(entry, skip) for entry, count in enumerate(COUNTS) for skip in range(count)]
END = (len(COUNTS), 0)
points = st.sampled_from([*POINTS, END])
ranges = st.lists(st.tuples(points, points).map(sorted), max_size=5)


def build(holes: list[list[tuple[int, int]]]) -> tuple[list[Removed], set[tuple[int, int]]]:
    removed: list[Removed] = []
    gone: set[tuple[int, int]] = set()
    for start, stop in holes:
        if start < stop:
            removed = merged(removed, start, stop)
            gone |= {point for point in POINTS if start <= point < stop}
    return removed, gone


@given(ranges)
def test_what_is_kept_agrees_with_a_list(holes: list[list[tuple[int, int]]]) -> None:
    """TB-75."""
    removed, gone = build(holes)
    kept = [
        (entry, index)
        for entry, count in enumerate(COUNTS)
        for start, stop in kept_messages(removed, entry, 0, count)
        for index in range(start, stop)
    ]
    assert kept == [point for point in POINTS if point not in gone]
    entries = [
        entry
        for first, last in kept_entries(removed, 0, len(COUNTS) - 1)
        for entry in range(first, last + 1)
    ]
    assert set(entries) >= {entry for entry, _ in kept}
    assert entries == sorted(set(entries))


@given(ranges, points)
def test_the_next_kept_message_is_behind_the_range(
    holes: list[list[tuple[int, int]]], point: tuple[int, int]
) -> None:
    removed, gone = build(holes)
    found = past(removed, point)
    assert found not in gone
    assert {each for each in POINTS if point <= each < found} <= gone


def test_ranges_that_touch_become_one() -> None:
    removed = merged([Removed(0, 1, 2, 0), Removed(4, 0, 5, 0)], (2, 0), (4, 0))
    assert removed == [Removed(0, 1, 5, 0)]
    assert list(kept_entries(removed, 0, 9)) == [(0, 0), (5, 9)]
    assert list(kept_entries(removed, 2, 3)) == []
