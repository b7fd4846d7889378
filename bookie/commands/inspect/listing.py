"""Printing of the records of a journal file or an entry log, one line each."""

from __future__ import annotations

from collections.abc import Iterable

import click
import msgspec

from bookie.commands.inspect.report import DamageReport
from bookie.commands.output import print_json
from native.journal import Damage, End, Record

_COLUMNS = "{:>12}  {:<12}  {:>20}  {:>20}  {:>9}"


class RecordLine(msgspec.Struct, frozen=True):
    """A record as it is printed; *size* is the size of its body in bytes."""

    offset: int
    kind: str
    ledger_id: int
    entry_id: int
    size: int


def line_of(kind: str, record: Record) -> RecordLine:
    """Return the line for a record that was read from a local file."""
    size = len(record.body)
    return RecordLine(record.offset, kind, record.ledger_id, record.entry_id, size)


def print_head(*, as_json: bool) -> None:
    """Print the column heads; nothing with *as_json*."""
    if not as_json:
        click.echo(_COLUMNS.format("offset", "kind", "ledger", "entry", "size"))


def print_records(
    records: Iterable[RecordLine | Damage | End], report: DamageReport, *, as_json: bool
) -> None:
    """Print each record as soon as it is read; damages go to *report*."""
    for found in records:
        if isinstance(found, Damage):
            report.damage(found.path, found.offset)
        elif isinstance(found, End):
            _print_end(found, as_json)
        else:
            _print_record(found, as_json)


def _print_end(end: End, as_json: bool) -> None:
    if as_json:
        print_json({"end": end.offset})
    else:
        click.echo(f"{end.offset:>12}  end")


def _print_record(line: RecordLine, as_json: bool) -> None:
    if as_json:
        print_json(line)
        return
    entry = line.entry_id if line.entry_id >= 0 else ""
    ledger = line.ledger_id if line.ledger_id >= 0 else ""
    click.echo(_COLUMNS.format(line.offset, line.kind, ledger, entry, line.size))
