"""Paced by the times of messages, on a clock that jumps."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio
from hypothesis import given, strategies as st
from trio.testing import MockClock

from ledger_client.jobs.replay.replay import TICK_S, Pace, Times

S = 1_000_000_000


async def due(pace: Pace, times: Times) -> list[tuple[int, int, float]]:
    """What goes together, and when it went, seconds after the beginning."""
    began = trio.current_time()
    found = []
    for start, stop, at in pace.cut(times):
        await pace.wait(at)
        found.append((start, stop, round(trio.current_time() - began, 6)))
    return found


@pytest.mark.parametrize(("speed", "factor"), [(1.0, 1.0), (10.0, 0.1), (0.1, 10.0)])
async def test_messages_are_as_far_apart_as_they_were_by_a_factor(
    autojump_clock: MockClock, speed: float, factor: float
) -> None:
    times = [100 * S, 101 * S, 101 * S, 105 * S]
    expected = [(0, 1, 0.0), (1, 3, factor), (3, 4, round(5 * factor, 6))]
    assert await due(Pace(speed), times) == expected


async def test_one_run_goes_on_from_call_to_call(autojump_clock: MockClock) -> None:
    pace = Pace(1)
    began = trio.current_time()
    await due(pace, [10 * S, 12 * S])
    await due(pace, [15 * S])
    assert trio.current_time() - began == pytest.approx(5)


async def test_who_is_late_catches_up_and_is_no_later_than_that(autojump_clock: MockClock) -> None:
    pace = Pace(1)
    began = trio.current_time()
    await due(pace, [0 * S, 1 * S])
    await trio.sleep(9)  # a slow target
    assert await due(pace, [5 * S]) == [(0, 1, 0.0)]
    await due(pace, [20 * S])
    assert trio.current_time() - began == pytest.approx(20)


async def test_times_that_are_missing_or_go_back_hold_nobody_up(autojump_clock: MockClock) -> None:
    found = await due(Pace(1), [None, 50 * S, None, 40 * S, 51 * S, 50 * S])
    assert found == [(0, 4, 0.0), (4, 6, 1.0)]
    assert await due(Pace(1), [None, None]) == [(0, 2, 0.0)]


@given(
    st.lists(st.none() | st.integers(-(10**12), 10**12), max_size=30),
    st.sampled_from([0.1, 1.0, 10.0]),
)
def test_everything_goes_once_in_order_and_never_early(times: Times, speed: float) -> None:
    async def main() -> None:
        pace = Pace(speed)
        began = trio.current_time()
        parts = list(pace.cut(times))
        assert [row for start, stop, _ in parts for row in range(start, stop)] == [
            *range(len(times))
        ]
        assert all(one[2] <= other[2] for one, other in pairwise(parts))
        known = [time for time in times if time is not None]
        for start, stop, at in parts:
            for time in times[start:stop]:
                if time is not None and time == max(known[: known.index(time) + 1]):
                    after_s = (time - known[0]) / S / speed
                    assert at - began >= after_s - TICK_S - 1e-6

    trio.run(main, clock=MockClock())
