"""Lengths and points of time on the command line: 7d, 2024-05-01T12:00, 1714564800000000000."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import click

_UNITS_S = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LENGTH = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(s|min|h|d|w|)")
_NUMBER = re.compile(r"-?\d{1,19}")
UNLIMITED = ("-1", "unlimited")


class Length(click.ParamType[float]):
    """Seconds, with an optional unit; *unlimited*: -1 and "unlimited" are allowed too."""

    name = "time"

    def __init__(self, *, unlimited: bool = False) -> None:
        self._unlimited = unlimited

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds that *value* names."""
        text = str(value).replace(" ", "")
        if self._unlimited and text in UNLIMITED:
            return -1.0
        length_s = parse_length(text)
        if length_s is None:
            more = ", -1 for no limit" if self._unlimited else ""
            self.fail(f"{value!r} is no length of time; write 90s, 15min, 4h, 7d{more}", param, ctx)
        return length_s


class Ago(int):
    """Unix nanoseconds so long ago by this host's clock; the store's may be another.

    What removes something reckons by the store's: with *length_ns*, how long ago.
    """

    length_ns: int

    @classmethod
    def of(cls, length_s: float) -> Ago:
        """Return the moment *length_s* seconds ago."""
        length_ns = round(length_s * 1e9)
        moment = cls(time.time_ns() - length_ns)
        moment.length_ns = length_ns
        return moment


class Moment(click.ParamType[int]):
    """A point of time as Unix nanoseconds: a date and time, nanoseconds, or how long ago.

    A date and time without an offset is UTC.
    """

    name = "moment"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the nanoseconds of the moment that *value* names."""
        if isinstance(value, int):
            return value
        text = str(value).strip()
        if _NUMBER.fullmatch(text):
            return int(text)
        length_s = parse_length(text.removesuffix("ago").replace(" ", ""))
        if length_s is not None:
            return Ago.of(length_s)
        try:
            return nanoseconds_of(datetime.fromisoformat(text))
        except (ValueError, OverflowError):
            told = "write 2024-05-01T12:00Z, nanoseconds since 1970, or 7d for so long ago"
            self.fail(f"{value!r} is no point of time; {told}", param, ctx)


def parse_length(text: str) -> float | None:
    """Return the seconds that *text* names, None when it is no length of time."""
    found = _LENGTH.fullmatch(text)
    return None if found is None else float(found[1]) * _UNITS_S[found[2]]


def nanoseconds_of(moment: datetime) -> int:
    """Return Unix nanoseconds, exactly; without a time zone it is UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


def moment_text(at_ns: int) -> str:
    """Write a point of time: "2024-05-01 12:00:00.5Z", or its number where no year has it."""
    try:
        moment = datetime.fromtimestamp(at_ns // 1_000_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(at_ns)
    fraction = f"{at_ns % 1_000_000_000:09d}".rstrip("0")
    return f"{moment:%Y-%m-%d %H:%M:%S}{'.' + fraction if fraction else ''}Z"
