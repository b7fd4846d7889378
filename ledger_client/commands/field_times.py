"""Event times in fields of text: numbers of some unit, or dates; nanoseconds, exactly."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Literal

from ledger_client.commands.moment import nanoseconds_of

TimeUnit = Literal["ns", "us", "ms", "s"]
UNITS_NS: dict[TimeUnit, int] = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
TIME_MAX = (1 << 63) - 1
_FRACTION = re.compile(r"(.*\d\d:\d\d:\d\d)[.,](\d{1,9})(.*)")


def parse_time(field: object, unit: TimeUnit) -> int:
    """Return the nanoseconds since 1970 that *field* names; no date has a *unit*.

    Raises:
        ValueError: it is no time, or none that 64 bits hold.
    """
    if isinstance(field, bool) or not isinstance(field, int | float | str):
        raise ValueError(f"{field!r} is no time")  # noqa: TRY004 - of data, not of a call
    try:
        at_ns = int(Decimal(str(field)) * UNITS_NS[unit])
    except (InvalidOperation, ValueError, OverflowError):
        at_ns = _parse_date(str(field).strip())
    if not -TIME_MAX <= at_ns <= TIME_MAX:
        raise ValueError(f"{field!r} does not fit 64 bits of nanoseconds")
    return at_ns


def _parse_date(text: str) -> int:
    found = _FRACTION.fullmatch(text)
    fraction_ns = 0
    if found is not None:  # Python keeps microseconds only
        text, fraction_ns = found[1] + found[3], int(found[2].ljust(9, "0"))
    try:
        return nanoseconds_of(datetime.fromisoformat(text)) + fraction_ns
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no time; write 2024-05-01T12:00:00Z, or a number") from None
