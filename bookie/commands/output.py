"""Output of commands: tables for people, one JSON value per line for programs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import click
import msgspec

from metadata.outcome import drop_output


def print_json(value: object) -> None:
    """Print *value* as one line of JSON on stdout."""
    click.echo(msgspec.json.encode(value))


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print *rows* under *heads*; reads all rows before the first line is printed."""
    for line in table_lines(heads, rows):
        click.echo(line)


def table_lines(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a table; columns of numbers are right-aligned."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    right = [
        bool(cells) and all(cell.lstrip("-").isdigit() or cell == "-" for cell in column)
        for column in (list(column) for column in zip(*cells, strict=True))
    ] or [False] * len(heads)
    for line in (list(heads), *cells):
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ]
        yield "  ".join(padded).rstrip()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def announce(line: str) -> None:
    """Print *line* and flush it. A closed stdout or a full disk is ignored: a daemon continues."""
    with contextlib.suppress(OSError):
        click.echo(line)
        return
    drop_output()


def log_line(line: str) -> None:
    """Print *line* on stderr. A closed stderr or a full disk is ignored."""
    with contextlib.suppress(OSError):
        click.echo(line, err=True)


def count(number: int, noun: str) -> str:
    """Write "1 ledger" or "3 ledgers", with separators for thousands."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(number: int) -> str:
    """Write a size in bytes for people: "17 B", "3.4 MiB"."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
