"""``bookie inspect journal``: the journal files, or the records of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click
import msgspec

from bookie.commands import options
from bookie.commands.call import RemoteBookie
from bookie.commands.inspect.listing import RecordLine, line_of, print_head, print_records
from bookie.commands.inspect.report import DamageReport
from bookie.commands.inspect.target import InspectionTarget, of_files_or_address
from bookie.commands.output import print_json, print_table
from bookie.inspection.journal import (
    JournalFile,
    kind_of,
    list_journals,
    missing_ids,
    read_records,
)
from bookie.mark import read_mark
from metadata.inspections import JournalFilePage, JournalFiles, JournalRecordPage, JournalRecords
from metadata.outcome import CommandFailed
from metadata.store import INTEGER_MAX
from native.journal import Damage, End, Record


class JournalRow(msgspec.Struct, frozen=True):
    """One journal file in the list; *path* is "" if a running bookie was asked."""

    id: int
    path: str
    size: int
    end: int
    needed: bool


class Wanted(msgspec.Struct, frozen=True):
    """The records to show: at most *limit* of them, from the group at offset *start* on."""

    start: int
    ledger: int | None
    groups: bool
    limit: int | None


@click.command()
@click.argument("file_id", metavar="[FILE]", required=False)
@of_files_or_address
@click.option(
    "--from", "start", type=click.IntRange(0, INTEGER_MAX), default=0, metavar="OFFSET",
    help="Begin with the group at this offset.",
)  # fmt: skip
@click.option("--ledger", type=int, help="Only records of this ledger.")
@click.option("--groups", is_flag=True, help="Also show where each synced group begins.")
@click.option("--limit", type=click.IntRange(1), help="Stop after this many records.")
@options.as_json
def journal(
    *,
    place: InspectionTarget,
    file_id: str | None,
    start: int,
    ledger: int | None,
    groups: bool,
    limit: int | None,
    as_json: bool,
) -> None:
    """List the journal files, or the records of one.

    FILE is its id in hex.

    A file is "needed" while it holds entries that are not in an entry log yet. Records that
    a crash cut off at the end of the newest file were never acknowledged, so that is no
    damage. A running bookie (--address) reads its files itself, and sends the records page
    by page.
    """
    report = DamageReport(as_json=as_json)
    wanted = Wanted(start, ledger, groups, limit)
    if file_id is None:
        _list(place, report, as_json)
    elif place.address:
        number = _number(file_id)
        place.ask(lambda remote: _ask_records(remote, number, wanted, report, as_json))
    else:
        found = _find(list_journals(place.journal_folder), file_id)
        print_head(as_json=as_json)
        print_records(_read(found, wanted), report, as_json=as_json)
    report.conclude()


# --- the files -------------------------------------------------------------------------


def _list(place: InspectionTarget, report: DamageReport, as_json: bool) -> None:
    rows, damaged = place.ask(_ask_files) if place.address else _look(place)
    if as_json:
        for row in rows:
            print_json(row)
    else:
        print_table(
            ("file", "size", "in use", "needed"),
            [(f"{row.id:016x}", row.size, row.end or None, row.needed) for row in rows],
        )
    for path, what in damaged:
        report.damage(path, 0, what)


Listed = tuple[list[JournalRow], list[tuple[Path, str]]]
"""Rows to show, and the path and fault of files that are damaged or missing."""


def _look(place: InspectionTarget) -> Listed:
    journals = list_journals(place.journal_folder)
    mark = read_mark(place.ledger_folder)
    first_needed = mark.journal_id if mark else 0
    rows = [
        JournalRow(j.file.id, str(j.file.path), j.file.size, j.end, j.file.id >= first_needed)
        for j in journals
    ]
    damaged = [(j.file.path, "header") for j in journals if j.damaged]
    return rows, damaged + _missing(place.journal_folder, missing_ids(journals))


async def _ask_files(remote: RemoteBookie) -> Listed:
    page = await remote.ask(JournalFiles(), JournalFilePage)
    rows = [JournalRow(each.id, "", each.size, each.end, each.needed) for each in page.files]
    damaged = [(_name(each.id), "header") for each in page.files if each.damaged]
    return rows, damaged + _missing(Path(), page.missing)


def _missing(folder: Path, ids: list[int]) -> list[tuple[Path, str]]:
    return [(folder / _name(each), "missing between two others") for each in ids]


def _name(file_id: int) -> Path:
    return Path(f"{file_id:016x}.journal")


# --- the records of one ------------------------------------------------------------------


def _read(found: JournalFile, wanted: Wanted) -> Iterator[RecordLine | Damage | End]:
    records = read_records(found, wanted.start, groups=wanted.groups)
    matching = (
        line_of(kind_of(each.entry_id), each) if isinstance(each, Record) else each
        for each in records
        if not isinstance(each, Record) or wanted.ledger in (None, each.ledger_id)
    )
    return islice(matching, wanted.limit)


async def _ask_records(
    remote: RemoteBookie, number: int, wanted: Wanted, report: DamageReport, as_json: bool
) -> None:
    print_head(as_json=as_json)
    group, skip, left = wanted.start, 0, wanted.limit
    end: int | None = None
    while end is None and left != 0:
        request = JournalRecords(number, group, skip, wanted.ledger, wanted.groups)
        page = await remote.ask(request, JournalRecordPage)
        lines: list[RecordLine | Damage | End] = [
            RecordLine(
                each.offset, kind_of(each.entry_id), each.ledger_id, each.entry_id, each.size
            )
            for each in page.records
        ]
        lines += [Damage(_name(number), offset) for offset in page.damages]
        if left is not None:
            lines = lines[:left]
            left -= len(lines)
        group, skip, end = page.group, page.skip, page.end
        if end is not None and left != 0:
            lines.append(End(end))
        print_records(lines, report, as_json=as_json)


def _number(file_id: str) -> int:
    try:
        return int(file_id.removesuffix(".journal"), 16)
    except ValueError:
        raise _unknown(file_id) from None


def _find(journals: list[JournalFile], file_id: str) -> JournalFile:
    for journal_file in journals:
        if f"{journal_file.file.id:016x}" == file_id.removesuffix(".journal").zfill(16):
            return journal_file
    raise _unknown(file_id)


def _unknown(file_id: str) -> CommandFailed:
    return CommandFailed(f"no journal file {file_id!r}; without FILE they are listed")
