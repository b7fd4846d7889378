"""``bookie inspect index``: the extents of one index, or the totals of all."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import click
import msgspec

from bookie.commands import options
from bookie.commands.call import RemoteBookie
from bookie.commands.inspect.report import DamageReport
from bookie.commands.inspect.target import InspectionTarget, of_files_or_address
from bookie.commands.output import print_json, print_table
from bookie.inspection.log import LogFile, list_logs, read_index
from metadata.inspections import (
    PAGE_MAX,
    ExtentOnBookie,
    ExtentPage,
    Indexes,
    IndexExtents,
    IndexPage,
)
from metadata.outcome import CommandFailed
from native.journal import Damage
from native.store import Extent

_COLUMNS = "{:>20}  {:>14}  {:>14}  {:>10}  {:>12}  {:>12}  {:<6}"


class IndexRow(msgspec.Struct):
    """Totals of one index; *entries_size* is the bytes of its entries' records."""

    log_id: int
    size: int
    extents: int = 0
    entries: int = 0
    entries_size: int = 0


@click.command()
@click.argument("log_id", metavar="[LOG]", required=False)
@of_files_or_address
@click.option("--ledger", type=int, help="Only extents of this ledger.")
@click.option("--limit", type=click.IntRange(1), help="Stop after this many extents.")
@options.as_json
def index(
    *,
    place: InspectionTarget,
    log_id: str | None,
    ledger: int | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Show the totals of every index, or the extents of one.

    LOG is the entry log's id in hex.

    An extent is a run of one ledger's entries that lie one after the other in the log. A
    damaged index is rebuilt at the next start, or by rebuild-index. A running bookie
    (--address) reads its indexes itself, and sends the extents page by page.
    """
    report = DamageReport(as_json=as_json)
    if log_id is None:
        _sum_up(place, report, as_json)
    elif place.address:
        number = _number(log_id)
        _print_head(as_json)
        place.ask(lambda remote: _ask_extents(remote, number, ledger, limit, report, as_json))
    else:
        _list(_find(list_logs(place.ledger_folder), log_id), ledger, limit, report, as_json)
    report.conclude()


def _sum_up(place: InspectionTarget, report: DamageReport, as_json: bool) -> None:
    if place.address:
        rows = place.ask(lambda remote: _ask_rows(remote, report))
    else:
        rows = [_sum(log, report) for log in list_logs(place.ledger_folder)]
    if as_json:
        for row in rows:
            print_json(row)
        return
    print_table(
        ("log", "index size", "extents", "entries", "bytes of records"),
        [(f"{r.log_id:08x}", r.size, r.extents, r.entries, r.entries_size) for r in rows],
    )


def _sum(log: LogFile, report: DamageReport) -> IndexRow:
    path = log.index_path
    row = IndexRow(log.file.id, path.stat().st_size if path.exists() else 0)
    for found in read_index(log, pages=True):
        if isinstance(found, Damage):
            report.damage(found.path, found.offset)
            continue
        row.extents += 1
        row.entries += found.entries
        row.entries_size += found.log_size
    return row


async def _ask_rows(remote: RemoteBookie, report: DamageReport) -> list[IndexRow]:
    rows: list[IndexRow] = []
    while page := (await remote.ask(Indexes(rows[-1].log_id if rows else -1), IndexPage)).indexes:
        for each in page:
            rows.append(
                IndexRow(each.log_id, each.size, each.extents, each.entries, each.entries_size)
            )
            for offset in each.damages:
                report.damage(_name(each.log_id), offset)
    return rows


async def _ask_extents(
    remote: RemoteBookie,
    number: int,
    ledger: int | None,
    limit: int | None,
    report: DamageReport,
    as_json: bool,
) -> None:
    after, left, is_last = -1, limit, False
    while not is_last and left != 0:
        count = PAGE_MAX if left is None else min(left, PAGE_MAX)
        page = await remote.ask(IndexExtents(number, after, ledger, count), ExtentPage)
        for each in page.extents:
            _print_extent(each, as_json)
        for offset in page.damages:
            report.damage(_name(number), offset)
        after, is_last = page.after, page.is_last
        if left is not None:
            left -= len(page.extents)


def _name(log_id: int) -> Path:
    return Path(f"{log_id:08x}.index")


def _number(log_id: str) -> int:
    try:
        return int(log_id.removesuffix(".index"), 16)
    except ValueError:
        raise _unknown(log_id) from None


def _list(
    log: LogFile, ledger: int | None, limit: int | None, report: DamageReport, as_json: bool
) -> None:
    _print_head(as_json)
    matching = (
        each
        for each in read_index(log, pages=True)
        if isinstance(each, Damage) or ledger in (None, each.ledger_id)
    )
    for found in islice(matching, limit):
        if isinstance(found, Damage):
            report.damage(found.path, found.offset)
        else:
            _print_extent(found, as_json)


def _print_head(as_json: bool) -> None:
    if not as_json:
        heads = ("ledger", "first", "last", "entries", "log offset", "bytes", "kind")
        click.echo(_COLUMNS.format(*heads))


def _print_extent(found: Extent | ExtentOnBookie, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.structs.asdict(found))
        return
    kind = "sparse" if found.sparse else "dense"
    span = (found.ledger_id, found.first_entry, found.last_entry, found.entries)
    click.echo(_COLUMNS.format(*span, found.log_offset, found.log_size, kind))


def _find(logs: list[LogFile], log_id: str) -> LogFile:
    for log in logs:
        if f"{log.file.id:08x}" == log_id.removesuffix(".index").zfill(8):
            return log
    raise _unknown(log_id)


def _unknown(log_id: str) -> CommandFailed:
    return CommandFailed(f"no index {log_id!r}; without LOG they are summed up")
