"""Input of ``quire produce``: messages from lines, CSV with a header, or JSON lines.

form     value                                     key, event time
-------  ----------------------------------------  ----------------------------------
lines    the line without its ending               none, or a key before a separator
csv      the row as a JSON object, or one column   of a column
json     the line as it is, or one field           of a field; "a.b" is field b of a

A value, key or time is null if it is missing or empty in CSV, or missing or null in JSON.
Anything but a string is stored as JSON. CSV follows RFC 4180: a quoted cell may contain line
ends, and quotes within it are doubled.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Literal, NamedTuple, Protocol

import msgspec

from ledger_client.commands.options import nanoseconds_of
from ledger_client.commands.streams import Lines, without_ending
from metadata.outcome import CommandFailed

REMEDY = "cut it up"
"""The advice for a line that is too large."""


class Fields(NamedTuple):
    """The columns or fields that make up a message.

    Without *value*, the whole row is the value; without the others, messages have none.
    """

    value: str | None = None
    key: str | None = None
    event_time: str | None = None
    unit: TimeUnit = "ns"


class Messages(NamedTuple):
    """The columns to pass to send_many()."""

    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    event_times: list[int | None] | None = None

    def size_from(self, first: int) -> int:
        """Count the bytes of values and keys from message *first* on."""
        columns = (self.values, self.keys or [])
        return sum(sum(map(len, filter(None, column[first:]))) for column in columns)


class Feed(Protocol):
    """Turns a stream of bytes into messages."""

    def feed(self, data: bytes) -> Messages:
        """Return the messages that *data* completes.

        Raises:
            CommandFailed: a message is too large, or not in the expected form.
        """

    def finish(self) -> Messages:
        """Return the rest at the end of the stream.

        Raises:
            CommandFailed: the stream ends within a message.
        """


class LineFeed:
    """Makes each line a value, without its ending.

    With *key_separator*, what is in front of the first one is the key. A line without it has no
    key.
    """

    def __init__(self, size_max: int, key_separator: bytes = b"") -> None:
        self._lines = Lines(size_max, REMEDY)
        self._separator = key_separator

    def feed(self, data: bytes) -> Messages:
        """Return the lines that *data* completes, without their endings."""
        return self._messages(self._lines.feed(data))

    def finish(self) -> Messages:
        """Return the last line if it has no ending."""
        return self._messages(self._lines.finish())

    def _messages(self, lines: list[bytes]) -> Messages:
        texts = list(map(without_ending, lines))
        if not self._separator:
            return Messages([*texts])
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        for text in texts:
            key, found, value = text.partition(self._separator)
            keys.append(key if found else None)
            values.append(value if found else text)
        return Messages(values, keys)


class RowFeed:
    """Makes each row of CSV or JSON a message."""

    def __init__(self, fields: Fields, rows: InputRows) -> None:
        self._fields = fields
        self._rows = rows

    def feed(self, data: bytes) -> Messages:
        """Return the messages that *data* completes."""
        return self._messages(self._rows.feed(data))

    def finish(self) -> Messages:
        """Return the last message if its line has no ending."""
        return self._messages(self._rows.finish())

    def _messages(self, rows: Iterator[InputRow]) -> Messages:
        value, key, event_time, unit = self._fields
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        times: list[int | None] = []
        for row in rows:
            values.append(row.text if value is None else _bytes_of(row.take(value)))
            if key is not None:
                keys.append(_bytes_of(row.take(key)))
            if event_time is not None:
                times.append(_time_of(row, event_time, unit))
        return Messages(values, keys if key else None, times if event_time else None)


class InputRow(Protocol):
    """A row of the input, with the number of its first line."""

    line: int

    @property
    def text(self) -> bytes:
        """The whole row, as a value. Raises CommandFailed."""

    def take(self, field: str) -> object:
        """Return a field, or `None` if the row lacks it. Raises CommandFailed."""


class InputRows(Protocol):
    """Turns a stream of bytes into rows; raises as Feed."""

    def feed(self, data: bytes) -> Iterator[InputRow]:
        """Yield the rows that *data* completes."""

    def finish(self) -> Iterator[InputRow]:
        """Yield the rest at the end of the stream."""


class JsonRow:
    """A line with a JSON object, parsed when first needed."""

    def __init__(self, text: bytes, line: int) -> None:
        self.line = line
        self._text = text
        self._parsed: dict[str, object] | None = None

    @property
    def text(self) -> bytes:
        """The line unchanged. Raises CommandFailed if it is not an object."""
        self._parsed = self._parsed or self._parse()
        return self._text

    def take(self, field: str) -> object:
        """Return a field; "a.b" names field b of a."""
        self._parsed = self._parsed or self._parse()
        found: object = self._parsed
        for name in field.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def _parse(self) -> dict[str, object]:
        try:
            parsed = msgspec.json.decode(self._text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
            raise CommandFailed(f"line {self.line} is not JSON: {wrong}") from wrong
        if not isinstance(parsed, dict):
            raise CommandFailed(f"line {self.line} is not a JSON object")
        return parsed


class JsonRows:
    """JSON lines; empty lines are skipped."""

    def __init__(self, size_max: int) -> None:
        self._lines = Lines(size_max, REMEDY)
        self._line = 0

    def feed(self, data: bytes) -> Iterator[JsonRow]:
        """Yield the lines that *data* completes."""
        return self._rows(self._lines.feed(data))

    def finish(self) -> Iterator[JsonRow]:
        """Yield the last line if it has no ending."""
        return self._rows(self._lines.finish())

    def _rows(self, lines: Sequence[bytes]) -> Iterator[JsonRow]:
        for line in lines:
            self._line += 1
            if text := line.strip():
                yield JsonRow(text, self._line)


class CsvRow:
    """A row of CSV, with columns named by the header."""

    def __init__(self, names: list[str], cells: list[str], line: int) -> None:
        self._cells = dict(zip(names, cells, strict=True))
        self.line = line

    @property
    def text(self) -> bytes:
        """The row as a JSON object."""
        return msgspec.json.encode(self._cells)

    def take(self, field: str) -> str | None:
        """Return a column, or `None` if it is empty."""
        return self._cells[field] or None


class CsvRows:
    """CSV whose first row names the columns; these must include *needed*."""

    def __init__(self, size_max: int, delimiter: str, needed: Sequence[str]) -> None:
        # Of the whole process, so it is only raised. Rows are limited here.
        csv.field_size_limit(max(csv.field_size_limit(), size_max))
        self._lines = Lines(size_max, REMEDY)
        self._size_max = size_max
        self._delimiter = delimiter
        self._needed = needed
        self._names: list[str] | None = None
        self._begun = bytearray()
        self._quotes = 0
        self._line = 0
        self._first = 1

    def feed(self, data: bytes) -> Iterator[CsvRow]:
        """Yield the rows that *data* completes."""
        return self._rows(self._lines.feed(data))

    def finish(self) -> Iterator[CsvRow]:
        """Yield the last row if it has no ending."""
        yield from self._rows(self._lines.finish())
        if self._begun:
            raise CommandFailed(f"the input ends within the quotes opened in line {self._first}")

    def _rows(self, lines: Sequence[bytes]) -> Iterator[CsvRow]:
        for line in lines:
            self._line += 1
            if not self._begun:
                self._first = self._line
            self._begun += line
            self._quotes += line.count(b'"')
            if self._quotes % 2 == 0:  # otherwise the line ends within quotes
                record, self._begun, self._quotes = bytes(self._begun), bytearray(), 0
                yield from self._row(record)
            elif len(self._begun) > self._size_max:
                raise CommandFailed(
                    f"the quotes opened in line {self._first} do not end within the "
                    f"{self._size_max} bytes that a row may have"
                )

    def _row(self, record: bytes) -> Iterator[CsvRow]:
        if len(record) > self._size_max:
            raise CommandFailed(
                f"the row of line {self._first} is larger than an entry can be "
                f"({self._size_max} bytes): {REMEDY}"
            )
        try:
            text = record.decode("utf-8-sig" if self._names is None else "utf-8")
            found = list(csv.reader([text], delimiter=self._delimiter, strict=True))
        except (UnicodeDecodeError, csv.Error) as wrong:
            raise CommandFailed(f"line {self._first} is not CSV: {wrong}") from wrong
        cells = found[0] if found else []
        if not cells:  # an empty line
            return
        if self._names is None:
            self._take_header(cells)
        elif len(cells) != len(self._names):
            raise CommandFailed(
                f"line {self._first} has {len(cells)} columns, the header {len(self._names)}"
            )
        else:
            yield CsvRow(self._names, cells, self._first)

    def _take_header(self, names: list[str]) -> None:
        missing = [name for name in self._needed if name not in names]
        if missing:
            raise CommandFailed(
                f"there is no column {missing[0]!r}; the header has {', '.join(names)}"
            )
        if len(set(names)) < len(names):
            raise CommandFailed("two columns have the same name")
        self._names = names


def _bytes_of(field: object) -> bytes | None:
    if field is None:
        return None
    return field.encode() if isinstance(field, str) else msgspec.json.encode(field)


def _time_of(row: InputRow, field: str, unit: TimeUnit) -> int | None:
    found = row.take(field)
    if found is None:
        return None
    try:
        return parse_time(found, unit)
    except ValueError as wrong:
        raise CommandFailed(f"line {row.line}: {field}: {wrong}") from wrong


# --- Event times ------------------------------------------------------------------------


TimeUnit = Literal["ns", "us", "ms", "s"]
UNITS_NS: dict[TimeUnit, int] = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
TIME_MAX = (1 << 63) - 1
_FRACTION = re.compile(r"(.*\d\d:\d\d:\d\d)[.,](\d{1,9})(.*)")


def parse_time(field: object, unit: TimeUnit) -> int:
    """Parse a date, or a number of *unit*, as nanoseconds since 1970, exactly.

    Raises:
        ValueError: it is not a time, or exceeds 64 bits.
    """
    if isinstance(field, bool) or not isinstance(field, int | float | str):
        raise ValueError(f"{field!r} is not a time")  # noqa: TRY004 - of data, not of a call
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
    if found is not None:  # datetime has no nanoseconds
        text, fraction_ns = found[1] + found[3], int(found[2].ljust(9, "0"))
    try:
        return nanoseconds_of(datetime.fromisoformat(text)) + fraction_ns
    except (ValueError, OverflowError):
        forms = "write 2024-05-01T12:00:00Z, or a number"
        raise ValueError(f"{text!r} is not a time; {forms}") from None
