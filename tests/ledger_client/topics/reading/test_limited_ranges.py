"""The part of a plan that is read at once, if that is limited."""

from __future__ import annotations

from hypothesis import given, strategies as st

from ledger_client.topics.positions import LanePlace, Place, Position
from ledger_client.topics.reading.ranges import LedgerRange, RangePlan, limited_end

SIZES = st.lists(st.lists(st.integers(1, 30), min_size=0, max_size=4), min_size=1, max_size=5)


def planned(lanes: list[list[int]]) -> RangePlan:
    """Lanes with ledgers of so many entries, each of 10 messages and 100 bytes."""
    ranges = [
        LedgerRange(
            topic="a/b",
            uid=1,
            topic_index=0,
            ordered=False,
            partition=-1,
            lane=lane,
            number=number,
            ledger_id=1000 * lane + number,
            base_version=0,
            first_entry=0,
            last_entry=count - 1,
            size=100 * count,
            messages=10 * count,
        )
        for lane, ledgers in enumerate(lanes)
        for number, count in enumerate(ledgers)
    ]
    places = [Place(len(ledgers) - 1, ledgers[-1]) if ledgers else Place(0) for ledgers in lanes]
    end = Position(LanePlace("a/b", 1, -1, lane, place) for lane, place in enumerate(places))
    return RangePlan(topics=(), ranges=tuple(ranges), begin=Position(), end=end)


def entries_before(lanes: list[list[int]], end: LanePlace) -> int:
    return sum(lanes[end.lane][: end.place.number]) + end.place.entry


@given(SIZES, st.integers(1, 4000))
def test_every_lane_gets_its_share_and_goes_on(lanes: list[list[int]], allowed: int) -> None:
    there = [sum(ledgers) for ledgers in lanes]
    for end in (
        limited_end(planned(lanes), messages_max=allowed),
        limited_end(planned(lanes), bytes_max=10 * allowed),
        limited_end(planned(lanes), messages_max=allowed, bytes_max=100 * allowed),
    ):
        taken = [entries_before(lanes, each) for each in end]
        assert all(0 <= one <= all_ for one, all_ in zip(taken, there, strict=True))
        assert all(one for one, all_ in zip(taken, there, strict=True) if all_)
        assert 10 * sum(taken) <= allowed + 10 * len(lanes)
        if 10 * sum(there) <= allowed:
            assert taken == there


def test_without_a_limit_all_is_read() -> None:
    plan = planned([[3, 4], [5]])
    assert limited_end(plan) == plan.end
