"""Over how many partitions each number is routed, as lanes and producers know it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from ledger_client.topics.lanes.routes import Route, extended, merged
from ledger_client.topics.producing.routing import PartitionCount

growths = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), max_size=12)


def history(steps: list[tuple[int, int]]) -> list[list[Route]]:
    """What a producer goes by after each change: so many partitions and numbers more."""
    found, partitions, number = [extended([], 1, 0)], 1, 0
    for more, sent in steps:
        partitions, number = partitions + more, number + sent
        found.append(extended(found[-1], partitions, number))
    return found


def agreed(routes: list[Route]) -> PartitionCount:
    found = PartitionCount(1)
    found.agree(routes)
    return found


def test_numbers_below_the_boundary_are_routed_as_before() -> None:
    routes = extended(extended([], 4, 0), 8, 117)
    assert routes == [(4, 0), (8, 117)]
    assert [agreed(routes).partitions_at(n) for n in (0, 116, 117, 10**9)] == [4, 4, 8, 8]
    assert extended(routes, 8, 200) == extended(routes, 6, 200) == routes
    assert extended(routes, 16, 117) == [(4, 0), (16, 117)]
    assert extended([], 8, 50) == extended([(4, 0)], 8, 0) == [(8, 0)]


def test_a_producer_that_agreed_on_nothing_routes_all_numbers_alike() -> None:
    assert [PartitionCount(4).partitions_at(n) for n in (0, 5)] == [4, 4]


def test_the_greater_of_two_boundaries_holds() -> None:
    assert merged([[(4, 0), (8, 10)], [(4, 0), (8, 12)]]) == [(4, 0), (8, 12)]
    assert merged([[(4, 0), (6, 20)], [(4, 0), (8, 12)]]) == [(4, 0), (8, 20)]
    assert merged([]) == merged([[], []]) == []


@given(growths, st.data())
def test_lanes_that_missed_changes_know_together_what_one_lane_knows(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    """And a later change moves no number that was sent before it."""
    told = history(steps)
    seen = data.draw(st.lists(st.sampled_from(told), max_size=5))
    assert merged([*seen, told[-1]]) == merged([told[-1], *seen]) == told[-1]
    for before, after in pairwise(told):
        boundary = after[-1][1]
        for number in range(boundary):
            assert agreed(after).partitions_at(number) == agreed(before).partitions_at(number)
