"""The oracle without tasks: clocks that stop, jump and go back, and many terms, one by one."""

from __future__ import annotations

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metadata.time.oracle import (
    CLOCK_MAX_MS,
    GUARD_MS,
    JUMP_MS,
    LOOK_MS,
    RESET_MS_MAX,
    WINDOW_MS,
    Oracle,
)
from metadata.time.timestamps import LOGICAL_MAX, PER_MS, compose, split

NOW = 1_700_000_000_000
HOUR = 3_600_000


def serving(saved_ms: int = 0, now_ms: int = NOW) -> Oracle:
    """An oracle whose first window is stored."""
    oracle = Oracle(saved_ms, now_ms)
    window = oracle.look(now_ms)
    assert window is not None
    oracle.stored(window)
    return oracle


def last_of(oracle: Oracle, count: int = 1, now_ms: int = NOW) -> int:
    last = oracle.allocate(count, now_ms)
    assert last is not None
    return last


def test_nothing_is_issued_before_a_window_is_stored() -> None:
    """MV-26: the window is stored before anything is handed out, 3 s ahead."""
    oracle = Oracle(0, NOW)
    assert oracle.allocate(1, NOW) is None
    assert oracle.look(NOW) == NOW + WINDOW_MS == NOW + 3000
    assert oracle.allocate(1, NOW) is None
    oracle.stored(NOW + WINDOW_MS)
    assert last_of(oracle) == compose(NOW, 0)


def test_the_last_of_a_range_comes_back_and_the_next_range_follows() -> None:
    """MV-08, MV-34."""
    oracle = serving()
    assert last_of(oracle, 10) == compose(NOW, 9)
    assert last_of(oracle) == compose(NOW, 10)
    assert last_of(oracle, PER_MS - 11) == compose(NOW, LOGICAL_MAX)


@pytest.mark.parametrize("count", [0, -1, PER_MS + 1])
def test_a_count_that_no_millisecond_has_is_refused(count: int) -> None:
    """MV-08."""
    with pytest.raises(ValueError, match="it may be 1 to 262144"):
        serving().allocate(count, NOW)


def test_a_new_oracle_begins_above_the_window_that_it_finds() -> None:
    """MV-27: a clock that is behind the window, or less than 1 ms past it, is not used."""
    for now_ms in (NOW - HOUR, NOW, NOW - 1):
        assert Oracle(NOW, now_ms).physical_ms == NOW + 1
    assert Oracle(NOW, NOW + 1).physical_ms == NOW + 1
    assert Oracle(NOW, NOW + HOUR).physical_ms == NOW + HOUR


def test_a_clock_that_is_ahead_is_followed() -> None:
    """MV-28: by more than the guard of 1 ms."""
    oracle = serving()
    assert oracle.look(NOW + 1) is None
    assert oracle.physical_ms == NOW
    assert oracle.look(NOW + 2) is None
    assert oracle.physical_ms == NOW + 2


def test_a_millisecond_that_is_half_used_is_left_without_the_clock() -> None:
    """MV-28."""
    oracle = serving()
    last_of(oracle, PER_MS // 2)
    oracle.look(NOW)
    assert oracle.physical_ms == NOW
    last_of(oracle)
    oracle.look(NOW - HOUR)
    assert oracle.physical_ms == NOW + 1


def test_the_window_is_renewed_when_it_ends_within_the_guard() -> None:
    """MV-26."""
    oracle = serving()
    last_of(oracle)
    saved = oracle.saved_ms
    assert oracle.look(saved - 2) is None
    assert oracle.look(saved - 1) is None, "that is within the guard of the clock"
    assert oracle.look(saved) == saved + WINDOW_MS
    assert oracle.physical_ms == saved - 2, "time waits for the window"
    oracle.stored(saved + WINDOW_MS)
    assert oracle.look(saved) is None
    assert oracle.physical_ms == saved


def test_an_oracle_that_nobody_asks_stores_nothing() -> None:
    oracle = serving()
    saved = oracle.saved_ms
    assert oracle.look(NOW + WINDOW_MS) is None
    assert oracle.look(NOW + HOUR) is None
    assert oracle.is_late(NOW + HOUR)
    assert oracle.look(NOW + HOUR, is_wanted=True) == NOW + HOUR + WINDOW_MS
    assert (oracle.saved_ms, oracle.jumps) == (saved, 0), "a rest is no jump of the clock"


def test_a_used_up_millisecond_is_followed_by_the_next_within_the_window() -> None:
    """MV-25: a frozen clock moves time on by 1 ms when the logical part fills."""
    oracle = serving()
    last_of(oracle, PER_MS)
    assert last_of(oracle, 2) == compose(NOW + 1, 1)
    assert last_of(oracle, PER_MS) == compose(NOW + 2, LOGICAL_MAX)
    assert last_of(oracle, 1, NOW + 500) == compose(NOW + 500, 0)


def test_an_overflow_never_moves_the_window() -> None:
    """MV-25: nor does it pass the window."""
    oracle = Oracle(0, NOW, window_ms=4)
    oracle.stored(oracle.look(NOW) or 0)
    assert oracle.saved_ms == NOW + 4
    for ahead in range(3):
        assert last_of(oracle, PER_MS) == compose(NOW + ahead, LOGICAL_MAX)
    assert oracle.allocate(1, NOW) is None
    assert oracle.allocate(1, NOW + HOUR) is None
    assert oracle.saved_ms == NOW + 4
    window = oracle.look(NOW)
    assert window == NOW + 3 + 4
    oracle.stored(window)
    oracle.look(NOW)
    assert last_of(oracle) == compose(NOW + 3, 0)


def test_overflows_do_not_outrun_the_time_between_two_looks() -> None:
    """MV-25."""
    oracle = serving()
    for _ in range(LOOK_MS + 1):
        last_of(oracle, PER_MS)
    assert oracle.allocate(1, NOW) is None
    oracle.look(NOW)
    last_of(oracle)


def test_a_clock_that_jumps_is_noted() -> None:
    """MV-30: more than three times 50 ms ahead."""
    oracle = serving()
    oracle.look(NOW + JUMP_MS)
    assert (oracle.jumps, oracle.lag_ms) == (0, 150)
    last_of(oracle)
    oracle.look(NOW + 2 * JUMP_MS + 1)
    assert (oracle.jumps, oracle.lag_ms) == (1, 151)
    oracle.look(NOW)
    assert (oracle.jumps, oracle.lag_ms) == (1, -2 * JUMP_MS - 1)


def test_a_clock_that_went_back_is_waited_for() -> None:
    """MV-29."""
    oracle = serving()
    before = last_of(oracle)
    for _ in range(10):
        assert oracle.look(NOW - HOUR) is None
        after = last_of(oracle, 1, NOW - HOUR)
        assert after > before
        before = after
    assert oracle.physical_ms == NOW


def test_a_reset_moves_forward_by_a_day_at_most() -> None:
    """MV-32."""
    oracle = serving()
    for back_ms in (0, 1, HOUR):
        with pytest.raises(ValueError, match="time only moves forward"):
            oracle.reset_window(NOW - back_ms)
    with pytest.raises(ValueError, match="24 h at most"):
        oracle.reset_window(NOW + RESET_MS_MAX + 1)
    window = oracle.reset_window(NOW + RESET_MS_MAX)
    assert oracle.physical_ms == NOW, "it moves once the window is stored"
    oracle.stored(window)
    oracle.reset(NOW + RESET_MS_MAX)
    assert last_of(oracle) == compose(NOW + RESET_MS_MAX, 0)


def test_a_reset_that_time_passed_meanwhile_does_not_go_back() -> None:
    """MV-32."""
    oracle = serving()
    oracle.stored(oracle.reset_window(NOW + 10))
    oracle.look(NOW + 20)
    oracle.reset(NOW + 10)
    assert oracle.physical_ms == NOW + 20


def test_a_clock_beyond_the_end_of_timestamps_is_not_believed() -> None:
    oracle = serving(0, 1 << 80)
    assert oracle.physical_ms == CLOCK_MAX_MS
    assert not oracle.is_late(1 << 80)
    last_of(oracle, PER_MS, 1 << 80)
    assert split(last_of(oracle, 1, 1 << 80)) == (CLOCK_MAX_MS + 1, 0)


class Terms(RuleBasedStateMachine):
    """Oracles in turn over one stored window; clocks, losses and late answers as it comes.

    A window may reach the store without its oracle hearing of it, and a term may end at any
    moment: also between a timestamp and its answer, which is then never handed out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = NOW
        self.row = 0
        self.oracle: Oracle | None = None
        self.greatest = -1
        self.physical = self.saved = 0

    def store(self, window: int | None, *, is_heard: bool) -> None:
        if window is None or self.oracle is None:
            return
        assert window >= self.row, "the stored window goes back"
        self.row = window
        if is_heard:
            self.oracle.stored(window)

    @rule(jump=st.sampled_from([1, 2, 49, 50, 151, 2999, 3000, 3001, 24 * HOUR, -1, -50, -HOUR]))
    def set_clock(self, jump: int) -> None:
        self.clock += jump

    @precondition(lambda self: self.oracle is None)
    @rule(apart=st.sampled_from([0, -HOUR, HOUR]))
    def begin_term(self, apart: int) -> None:
        """The next leader's clock differs."""
        self.clock += apart
        self.oracle = Oracle(self.row, self.clock)
        self.physical = self.saved = 0

    @rule()
    def lose_lease(self) -> None:
        self.oracle = None

    @precondition(lambda self: self.oracle is not None)
    @rule(is_wanted=st.booleans(), is_stored=st.booleans(), is_heard=st.booleans())
    def look(self, *, is_wanted: bool, is_stored: bool, is_heard: bool) -> None:
        assert self.oracle is not None
        window = self.oracle.look(self.clock, is_wanted=is_wanted)
        if is_stored:
            # What was stored unheard is stored again at least as far, as the driver does.
            self.store(None if window is None else max(window, self.row), is_heard=is_heard)

    @precondition(lambda self: self.oracle is not None)
    @rule(
        count=st.sampled_from([1, 2, 100, PER_MS // 2, PER_MS - 1, PER_MS]),
        times=st.integers(1, 60),
        is_lost=st.booleans(),
    )
    def allocate(self, count: int, times: int, *, is_lost: bool) -> None:
        assert self.oracle is not None
        for _ in range(times):
            last = self.oracle.allocate(count, self.clock)
            if last is None:
                break
            assert last - count + 1 > self.greatest, "a timestamp repeats or goes back"
            assert split(last - count + 1).physical_ms == split(last).physical_ms
            assert split(last).physical_ms < self.row, "issued above what is stored"
            self.greatest = last
        if is_lost:
            self.lose_lease()

    @precondition(lambda self: self.oracle is not None)
    @rule(ahead=st.sampled_from([1, 1000, HOUR, RESET_MS_MAX]), is_heard=st.booleans())
    def reset(self, ahead: int, *, is_heard: bool) -> None:
        assert self.oracle is not None
        to_ms = self.oracle.physical_ms + ahead
        if to_ms > CLOCK_MAX_MS:
            return
        self.store(max(self.oracle.reset_window(to_ms), self.row), is_heard=is_heard)
        if is_heard:
            self.oracle.reset(to_ms)

    @invariant()
    def bounds_hold(self) -> None:
        """MV-29."""
        if self.oracle is None:
            return
        assert self.oracle.physical_ms >= self.physical
        assert self.oracle.saved_ms >= self.saved
        if self.oracle.saved_ms > 0 and self.saved and self.saved != self.oracle.saved_ms:
            assert self.oracle.physical_ms < self.oracle.saved_ms
        assert self.oracle.saved_ms <= self.row
        self.physical, self.saved = self.oracle.physical_ms, self.oracle.saved_ms


TestTerms = Terms.TestCase
TestTerms.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_window_ends_no_sooner_than_the_guard_allows() -> None:
    """MV-29: the physical part stays below the window by more than the guard."""
    oracle = serving()
    for now_ms in range(NOW, NOW + 4 * WINDOW_MS, 7):
        last_of(oracle)
        window = oracle.look(now_ms)
        assert oracle.saved_ms - oracle.physical_ms > GUARD_MS
        if window is not None:
            oracle.stored(window)
            oracle.look(now_ms)
