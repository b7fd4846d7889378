from __future__ import annotations

import pytest

from ledger_client.commands.field_times import TimeUnit, parse_time


@pytest.mark.parametrize(
    ("field", "unit", "at_ns"),
    [
        (0, "ns", 0),
        (-5, "ns", -5),
        (1_700_000_000_123_456_789, "ns", 1_700_000_000_123_456_789),
        ("1700000000123456788", "ns", 1_700_000_000_123_456_788),
        (5, "us", 5_000),
        (5, "ms", 5_000_000),
        (1.5, "s", 1_500_000_000),
        ("1700000000.123456789", "s", 1_700_000_000_123_456_789),
        (" 7 ", "ns", 7),
        ("1970-01-01T00:00:00Z", "s", 0),
        ("1970-01-01 01:00:00+01:00", "ns", 0),
        ("2023-11-14T22:13:20.123456789Z", "ms", 1_700_000_000_123_456_789),
        ("2023-11-14T22:13:20,5", "ms", 1_700_000_000_500_000_000),
        ("1969-12-31T23:59:59.9Z", "ns", -100_000_000),
        ("2023-11-14", "ns", 1_699_920_000_000_000_000),
    ],
)
def test_times_are_exact(field: object, unit: TimeUnit, at_ns: int) -> None:
    assert parse_time(field, unit) == at_ns


@pytest.mark.parametrize("field", ["", "soon", True, [], {}, "2023-13-01", "nan", "inf", 1 << 64])
def test_what_is_no_time_is_named(field: object) -> None:
    with pytest.raises(ValueError, match=r"is no time|does not fit 64 bits"):
        parse_time(field, "ns")
