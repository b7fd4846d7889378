"""``bookie inspect journal``: its files, or the records of one."""

from __future__ import annotations

from itertools import islice

import click
import msgspec

from bookie.commands import options
from bookie.commands.inspect.listing import print_records
from bookie.commands.inspect.report import Report
from bookie.commands.inspect.target import Target, of_files, target
from bookie.commands.outcome import CommandFailed
from bookie.commands.output import print_json, print_table
from bookie.inspection.journal import (
    JournalFile,
    kind_of,
    list_journals,
    missing_ids,
    read_records,
)
from bookie.mark import read_mark
from native.journal import Record


class Row(msgspec.Struct, frozen=True):
    """One journal file, as it is listed."""

    id: int
    path: str
    size: int
    end: int
    needed: bool


@click.command()
@click.argument("file_id", metavar="[FILE]", required=False)
@of_files
@click.option("--from", "start", default=0, metavar="OFFSET", help="Begin at this group.")
@click.option("--ledger", type=int, help="Only records of this ledger.")
@click.option("--groups", is_flag=True, help="Show where each synced group begins, too.")
@click.option("--limit", type=click.IntRange(1), help="Stop after so many records.")
@options.as_json
def journal(
    *,
    file_id: str | None,
    start: int,
    ledger: int | None,
    groups: bool,
    limit: int | None,
    as_json: bool,
    **where: object,
) -> None:
    """List the journal files, or the records of one: FILE is its id in hex.

    A file is "needed" while it holds entries that are not in an entry log yet. What a
    crash tore off the end of the newest file was never acknowledged, and is no damage.
    """
    place = target(**where)  # type: ignore[arg-type]  # click gives what the options say
    report = Report(as_json=as_json)
    journals = list_journals(place.journal_folder)
    if file_id is None:
        _list(place, journals, report, as_json)
    else:
        found = _find(journals, file_id)
        records = read_records(found, start, groups=groups)
        matching = (
            (kind_of(each), each) if isinstance(each, Record) else each
            for each in records
            if not isinstance(each, Record) or ledger in (None, each.ledger_id)
        )
        print_records(islice(matching, limit), report, as_json=as_json)
    report.conclude()


def _list(place: Target, journals: list[JournalFile], report: Report, as_json: bool) -> None:
    mark = read_mark(place.ledger_folder)
    first_needed = mark.journal_id if mark else 0
    rows = [
        Row(j.file.id, str(j.file.path), j.file.size, j.end, j.file.id >= first_needed)
        for j in journals
    ]
    if as_json:
        for row in rows:
            print_json(row)
    else:
        print_table(
            ("file", "size", "in use", "needed"),
            [(f"{row.id:016x}", row.size, row.end or None, row.needed) for row in rows],
        )
    for journal_file in journals:
        if journal_file.damaged:
            report.damage(journal_file.file.path, 0, "header")
    for missing in missing_ids(journals):
        path = place.journal_folder / f"{missing:016x}.journal"
        report.damage(path, 0, "missing between two others")


def _find(journals: list[JournalFile], file_id: str) -> JournalFile:
    for journal_file in journals:
        if f"{journal_file.file.id:016x}" == file_id.removesuffix(".journal").zfill(16):
            return journal_file
    raise CommandFailed(f"no journal file {file_id!r}; without FILE they are listed")
