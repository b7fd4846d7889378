from __future__ import annotations

import csv
import io

import msgspec
import pytest
from hypothesis import given, strategies

from ledger_client.commands.feeds import (
    CsvRows,
    Feed,
    Fields,
    JsonRows,
    LineFeed,
    Messages,
    RowFeed,
    TimeUnit,
    parse_time,
)
from metadata.outcome import CommandFailed


def lines() -> Feed:
    return LineFeed(1000)


def json_feed(fields: Fields | None = None) -> Feed:
    return RowFeed(fields or Fields(), JsonRows(1000))


def csv_feed(fields: Fields | None = None, delimiter: str = ",") -> Feed:
    fields = fields or Fields()
    needed = [name for name in fields[:3] if name]
    return RowFeed(fields, CsvRows(1000, delimiter, needed))


def fed(feed: Feed, data: bytes, step: int = 1000) -> Messages:
    parts = [feed.feed(data[start : start + step]) for start in range(0, len(data), step)]
    parts.append(feed.finish())
    return Messages(
        [value for part in parts for value in part.values],
        None if parts[0].keys is None else [k for part in parts for k in part.keys or []],
        None if parts[0].event_times is None else [t for p in parts for t in p.event_times or []],
    )


def test_a_line_is_a_message_without_its_ending() -> None:
    data = b"one\ntwo\r\n\n\rthree\n\nlast"
    expected: list[bytes | None] = [b"one", b"two", b"", b"\rthree", b"", b"last"]
    for step in (1, 2, 1000):
        assert fed(lines(), data, step) == Messages(expected)


def test_a_line_may_have_a_key_before_a_separator() -> None:
    data = b"a:1:2\nno key\n:empty\r\nb:"
    for step in (1, 2, 1000):
        found = fed(LineFeed(1000, b":"), data, step)
        assert found.keys == [b"a", None, b"", b"b"]
        assert found.values == [b"1:2", b"no key", b"empty", b""]
    assert fed(LineFeed(1000, b" -> "), b"a -> b").keys == [b"a"]


def test_json_lines_are_kept_as_they_are() -> None:
    data = b'{"b": 1, "a": [ 2 ]}\r\n\n  {"c":"\xc3\xa9"}'
    assert fed(json_feed(), data).values == [b'{"b": 1, "a": [ 2 ]}', b'{"c":"\xc3\xa9"}']


def test_fields_of_json_lines_become_value_key_and_time() -> None:
    fields = Fields(value="v", key="who.id", event_time="at", unit="ms")
    rows = [
        {"v": "text", "who": {"id": "k"}, "at": 5},
        {"v": {"x": 1}, "who": {"id": 7}, "at": "1970-01-01T00:00:01.000000001Z"},
        {"v": None, "who": None, "at": None},
        {},
        {"v": [1, "é"], "who": {"id": True}, "at": 1.5},
    ]
    data = b"\n".join(map(msgspec.json.encode, rows))
    assert fed(json_feed(fields), data, step=7) == (
        [b"text", b'{"x":1}', None, None, b'[1,"\xc3\xa9"]'],
        [b"k", b"7", None, None, b"true"],
        [5_000_000, 1_000_000_001, None, None, 1_500_000],
    )


def test_rows_of_csv_become_json_objects() -> None:
    data = b'\xef\xbb\xbfname,"the note"\r\nann,"a ""b"",\nc"\r\n\r\nbob,\r\n'
    for step in (1, 5, 1000):
        assert fed(csv_feed(), data, step).values == [
            b'{"name":"ann","the note":"a \\"b\\",\\nc"}',
            b'{"name":"bob","the note":""}',
        ]


def test_columns_of_csv_become_value_key_and_time() -> None:
    fields = Fields(value="v", key="k", event_time="t", unit="s")
    data = b"k;t;v\na;1;x\n;;\nb;1714564800.000000001;y y"
    assert fed(csv_feed(fields, ";"), data) == (
        [b"x", None, b"y y"],
        [b"a", None, b"b"],
        [1_000_000_000, None, 1_714_564_800_000_000_001],
    )


CELLS = strategies.text(strategies.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@given(strategies.lists(strategies.tuples(CELLS, CELLS), max_size=5), strategies.integers(1, 20))
def test_what_pythons_csv_writes_comes_back(rows: list[tuple[str, str]], step: int) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerows([("a", "b"), *rows])
    values = fed(csv_feed(), text.getvalue().encode(), step).values
    assert [msgspec.json.decode(value or b"") for value in values] == [
        {"a": a, "b": b} for a, b in rows
    ]


@pytest.mark.parametrize(
    ("feed", "data", "kind", "message"),
    [
        (lines(), b"x" * 2000, CommandFailed, "line 1 is larger.*; cut it up$"),
        (json_feed(), b'{"k":1}\nnot json at all\n', CommandFailed, "line 2 is not JSON"),
        (json_feed(), b"[1]\n", CommandFailed, "line 1 is not a JSON object"),
        (json_feed(Fields(key="k")), b'{"k":1}\n{"k":\n', CommandFailed, "line 2 is not JSON"),
        (json_feed(Fields(key="k")), b"[1]\n", CommandFailed, "line 1 is not a JSON object"),
        (
            json_feed(Fields(event_time="t")),
            b'\n{"t":[]}',
            CommandFailed,
            "line 2: t: .* is not a time",
        ),
        (json_feed(Fields(event_time="t")), b'{"t":1e30}', CommandFailed, "fit 64 bits"),
        (csv_feed(Fields(key="k")), b"a,b\n1,2\n", CommandFailed, "no column 'k'; .* a, b"),
        (csv_feed(), b"a,b\n1,2\n1,2,3\n", CommandFailed, "line 3 has 3 columns, the header 2"),
        (csv_feed(), b"a,a\n", CommandFailed, "same name"),
        (csv_feed(), b'a,b\n1,"2\n\n', CommandFailed, "within the quotes opened in line 2"),
        (csv_feed(), b'a\n"' + b"x\n" * 600, CommandFailed, "quotes opened in line 2 do not"),
        (csv_feed(), b"a\n\xff\n", CommandFailed, "line 2 is not CSV"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_line(
    feed: Feed, data: bytes, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        fed(feed, data)


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
    with pytest.raises(ValueError, match=r"is not a time|does not fit 64 bits"):
        parse_time(field, "ns")


def test_a_cell_may_be_as_large_as_a_message() -> None:
    """Python's csv takes 128 KiB, unless it is told otherwise."""
    cell = b"line\n" * 100_000
    feed = RowFeed(Fields("a"), CsvRows(1 << 20, ",", ["a"]))
    assert fed(feed, b'a\n"' + cell + b'"\n', 65_536).values == [cell]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"x" * 1001, "line 2 is larger than an entry can be"),
        (b'"' + b"x" * 600 + b"\n" + b"x" * 600 + b'"\n', "the row of line 2 is larger than"),
        (b'"' + b"x\n" * 600, "opened in line 2 do not end within the 1000 bytes"),
    ],
)
def test_a_row_larger_than_a_message_is_named(data: bytes, words: str) -> None:
    with pytest.raises(CommandFailed, match=words):
        fed(csv_feed(), b"a\n" + data)
