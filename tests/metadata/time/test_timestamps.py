from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, strategies as st

from metadata.time.timestamps import (
    LOGICAL_MAX,
    PER_MS,
    PHYSICAL_MAX,
    TIMESTAMP_MAX,
    TimestampRange,
    compose,
    first_at,
    split,
    utc_of,
)

PHYSICAL = st.integers(0, PHYSICAL_MAX)
LOGICAL = st.integers(0, LOGICAL_MAX)


def test_a_timestamp_has_46_bits_of_milliseconds_and_18_that_count() -> None:
    """MV-09, MV-24: the layout, bit by bit."""
    assert compose(1, 0) == 1 << 18
    assert compose(0, 1) == 1
    assert compose(1_700_000_000_000, 5) == 445_644_800_000_000_005
    assert PER_MS == 262_144
    assert compose(PHYSICAL_MAX, LOGICAL_MAX) == TIMESTAMP_MAX == 2**64 - 1


@given(PHYSICAL, LOGICAL)
def test_parts_come_back_as_they_were_composed(physical_ms: int, logical: int) -> None:
    """MV-09."""
    assert split(compose(physical_ms, logical)) == (physical_ms, logical)


@given(st.tuples(PHYSICAL, LOGICAL), st.tuples(PHYSICAL, LOGICAL))
def test_timestamps_sort_as_their_parts_do(one: tuple[int, int], other: tuple[int, int]) -> None:
    """MV-24."""
    assert (compose(*one) < compose(*other)) == (one < other)


@given(PHYSICAL, LOGICAL)
def test_the_time_in_utc_is_exact_to_the_millisecond(physical_ms: int, logical: int) -> None:
    """MV-24."""
    moment = utc_of(compose(physical_ms, logical))
    assert moment.tzinfo is UTC
    assert first_at(moment) == compose(physical_ms)


def test_a_time_of_any_zone_names_a_timestamp() -> None:
    moment = datetime(2023, 11, 14, 22, 13, 20, 999, tzinfo=UTC)
    assert first_at(moment) == compose(1_700_000_000_000)
    assert first_at(moment.astimezone(timezone(timedelta(hours=-7)))) == first_at(moment)
    assert utc_of(TIMESTAMP_MAX).year == 4199


def test_parts_out_of_bounds_are_refused() -> None:
    """MV-24."""
    for parts in [(-1, 0), (PHYSICAL_MAX + 1, 0), (0, -1), (0, LOGICAL_MAX + 1)]:
        with pytest.raises(ValueError, match="is not within 0 to"):
            compose(*parts)
    for timestamp in (-1, TIMESTAMP_MAX + 1):
        with pytest.raises(ValueError, match="is not a timestamp"):
            split(timestamp)
        with pytest.raises(ValueError, match="is not a timestamp"):
            utc_of(timestamp)


def test_times_that_no_timestamp_can_have_are_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        first_at(datetime(2026, 1, 1))  # noqa: DTZ001 - that it has none is the point
    for moment in (datetime(1969, 12, 31, tzinfo=UTC), datetime(4200, 1, 1, tzinfo=UTC)):
        with pytest.raises(ValueError, match="is not within 0 to"):
            first_at(moment)


def test_a_range_has_its_first_timestamp_and_as_many_as_it_says() -> None:
    """MV-10: the caller owns first to first + count - 1."""
    found = TimestampRange(compose(7, 3), 4)
    assert found.last == compose(7, 6)
    assert list(found.timestamps()) == [compose(7, logical) for logical in (3, 4, 5, 6)]
