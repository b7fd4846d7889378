"""Messages from a stream of bytes: lines, CSV with a header, or JSON lines.

form     value                                     key, event time
-------  ----------------------------------------  ----------------------------------
lines    the line without its ending               none
csv      the row as a JSON object, or one column   of a column
json     the line as it is, or one field           of a field; "a.b" is field b of a

A value, key or time that is missing or empty in CSV, missing or null in JSON, is null. What
is no string becomes JSON. CSV is that of RFC 4180: quotes are doubled within quotes, which
may hold line ends.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from ledger_client.commands.errors import RecordCut, RecordUnreadable
from ledger_client.commands.field_times import TimeUnit, parse_time
from ledger_client.commands.records import Lines

REMEDY = "cut it up"
"""What to do about a line that is too large."""


class Fields(NamedTuple):
    """Which columns or fields make a message; None: the whole row, or nothing."""

    value: str | None = None
    key: str | None = None
    event_time: str | None = None
    unit: TimeUnit = "ns"


class Messages(NamedTuple):
    """Columns for send_many."""

    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    event_times: list[int | None] | None = None

    def size_from(self, first: int) -> int:
        """Return the bytes of values and keys from the message *first* on."""
        columns = (self.values, self.keys or [])
        return sum(sum(map(len, filter(None, column[first:]))) for column in columns)


class Feed(Protocol):
    """Takes bytes as they come, gives messages."""

    def feed(self, data: bytes) -> Messages:
        """Return the messages that *data* completes.

        Raises:
            RecordTooLarge: one has more than the limit's bytes.
            RecordUnreadable: one is not what it should be.
        """

    def finish(self) -> Messages:
        """Return what is left at the end of the stream.

        Raises:
            RecordCut: it is no whole message.
        """


class LineFeed:
    """Each line is a value."""

    def __init__(self, size_max: int) -> None:
        self._lines = Lines(size_max, REMEDY)

    def feed(self, data: bytes) -> Messages:
        """Return the lines that *data* completes, without their endings."""
        return Messages(list(map(_without_ending, self._lines.feed(data))))

    def finish(self) -> Messages:
        """Return the last line if it has no ending."""
        return Messages(list(map(_without_ending, self._lines.finish())))


class RowFeed:
    """Messages of rows, which have fields."""

    def __init__(self, fields: Fields, rows: Rows) -> None:
        self._fields = fields
        self._rows = rows

    def feed(self, data: bytes) -> Messages:
        """Return the messages that *data* completes."""
        return self._messages(self._rows.feed(data))

    def finish(self) -> Messages:
        """Return the last one if its line has no ending."""
        return self._messages(self._rows.finish())

    def _messages(self, rows: Iterator[Row]) -> Messages:
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


class Row(Protocol):
    """One row, and the number of its first line."""

    line: int

    @property
    def text(self) -> bytes:
        """The whole row as a value. Raises RecordUnreadable."""

    def take(self, field: str) -> Any:  # noqa: ANN401 - what JSON has
        """Return a field, None if there is nothing. Raises RecordUnreadable."""


class Rows(Protocol):
    """Takes bytes as they come, gives rows; raises as Feed."""

    def feed(self, data: bytes) -> Iterator[Row]:
        """Yield the rows that *data* completes."""

    def finish(self) -> Iterator[Row]:
        """Yield what is left at the end of the stream."""


class JsonRow:
    """A line of JSON, taken apart once: what is no object is no message."""

    def __init__(self, text: bytes, line: int) -> None:
        self.line = line
        self._text = text
        self._parsed: Any = None

    @property
    def text(self) -> bytes:
        """The line as it is. Raises RecordUnreadable."""
        self._parsed = self._parsed or self._parse()
        return self._text

    def take(self, field: str) -> Any:  # noqa: ANN401 - what JSON has
        """Return a field; "a.b" is field b of a."""
        found = self._parsed = self._parsed or self._parse()
        for name in field.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def _parse(self) -> Any:  # noqa: ANN401
        try:
            parsed = msgspec.json.decode(self._text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
            raise RecordUnreadable(f"line {self.line} is no JSON: {wrong}") from wrong
        if not isinstance(parsed, dict):
            raise RecordUnreadable(f"line {self.line} is no JSON object")
        return parsed


class JsonRows:
    """JSON lines; empty lines are passed over."""

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
    """A row of CSV, by the names of the header."""

    def __init__(self, names: list[str], cells: list[str], line: int) -> None:
        self._cells = dict(zip(names, cells, strict=True))
        self.line = line

    @property
    def text(self) -> bytes:
        """The row as a JSON object."""
        return msgspec.json.encode(self._cells)

    def take(self, field: str) -> str | None:
        """Return a column, None if it is empty."""
        return self._cells[field] or None


class CsvRows:
    """CSV; the first row has the names of the columns, which must hold *needed*."""

    def __init__(self, size_max: int, delimiter: str, needed: Sequence[str]) -> None:
        self._lines = Lines(size_max, REMEDY)
        self._size_max = size_max
        self._delimiter = delimiter
        self._needed = needed
        self._names: list[str] | None = None
        self._begun = b""
        self._line = 0
        self._first = 1

    def feed(self, data: bytes) -> Iterator[CsvRow]:
        """Yield the rows that *data* completes."""
        return self._rows(self._lines.feed(data))

    def finish(self) -> Iterator[CsvRow]:
        """Yield the last row if it has no ending."""
        yield from self._rows(self._lines.finish())
        if self._begun:
            raise RecordCut(f"the input ends within the quotes that line {self._first} opens")

    def _rows(self, lines: Sequence[bytes]) -> Iterator[CsvRow]:
        for line in lines:
            self._line += 1
            if not self._begun:
                self._first = self._line
            self._begun += line
            if self._begun.count(b'"') % 2 == 0:  # else a line end within quotes
                record, self._begun = self._begun, b""
                yield from self._row(record)
            elif len(self._begun) > self._size_max:
                raise RecordUnreadable(f"the quotes that line {self._first} opens do not end")

    def _row(self, record: bytes) -> Iterator[CsvRow]:
        try:
            text = record.decode("utf-8-sig" if self._names is None else "utf-8")
            found = list(csv.reader([text], delimiter=self._delimiter, strict=True))
        except (UnicodeDecodeError, csv.Error) as wrong:
            raise RecordUnreadable(f"line {self._first} is no CSV: {wrong}") from wrong
        cells = found[0] if found else []
        if not cells:  # an empty line
            return
        if self._names is None:
            self._take_header(cells)
        elif len(cells) != len(self._names):
            raise RecordUnreadable(
                f"line {self._first} has {len(cells)} columns, the header {len(self._names)}"
            )
        else:
            yield CsvRow(self._names, cells, self._first)

    def _take_header(self, names: list[str]) -> None:
        missing = [name for name in self._needed if name not in names]
        if missing:
            raise RecordUnreadable(
                f"there is no column {missing[0]!r}; the header has {', '.join(names)}"
            )
        if len(set(names)) < len(names):
            raise RecordUnreadable("two columns have the same name")
        self._names = names


def _without_ending(line: bytes) -> bytes:
    return line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n")


def _bytes_of(field: Any) -> bytes | None:  # noqa: ANN401
    if field is None:
        return None
    return field.encode() if isinstance(field, str) else msgspec.json.encode(field)


def _time_of(row: Row, field: str, unit: TimeUnit) -> int | None:
    found = row.take(field)
    if found is None:
        return None
    try:
        return parse_time(found, unit)
    except ValueError as wrong:
        raise RecordUnreadable(f"line {row.line}: {field}: {wrong}") from wrong
