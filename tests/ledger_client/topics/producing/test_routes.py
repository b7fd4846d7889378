"""Over how many partitions keys were routed, and what is known of it later."""

from __future__ import annotations

from itertools import count

from hypothesis import given, strategies as st

from ledger_client.topics.producing.routes import ROUTES_MAX, routed_over, with_route


def test_a_lane_tells_which_numbers_came_before_partitions_were_added() -> None:
    routes = with_route(with_route([], 4, 0), 8, 117)
    assert routes == [(4, 0), (8, 117)]
    assert routed_over(routes, 116, 4)
    assert not routed_over(routes, 117, 4)
    assert not routed_over(routes, 3, 8)
    assert with_route(routes, 8, 200) == routes


def test_numbers_that_were_not_kept_are_nobodys() -> None:
    """A lane whose last number is 99 was not given the number 100, whatever was said before."""
    assert with_route([(4, 0), (8, 117)], 8, 100) == [(4, 0), (8, 100)]
    assert with_route([(4, 0), (8, 117)], 16, 100) == [(4, 0), (16, 100)]
    assert with_route([(4, 0)], 8, 0) == [(8, 0)]


def test_a_lane_that_knows_nothing_takes_the_number_of_today() -> None:
    assert with_route([], 8, 50) == [(8, 0)]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=30))
def test_routes_stay_in_order_and_few(steps: list[tuple[int, int]]) -> None:
    routes: list[tuple[int, int]] = []
    partitions, number = 1, count()
    for grows, _ in steps:
        partitions += grows
        routes = with_route(routes, partitions, next(number))
        assert len(routes) <= ROUTES_MAX
        assert routes == sorted(routes, key=lambda route: route[1])
        assert routes[-1][0] == partitions
