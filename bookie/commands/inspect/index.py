"""``bookie inspect index``: the extents of an index, or a check of all."""

from __future__ import annotations

from itertools import islice

import click
import msgspec

from bookie.commands import options
from bookie.commands.inspect.report import Report
from bookie.commands.inspect.target import of_files, target
from bookie.commands.outcome import CommandFailed
from bookie.commands.output import print_json, print_table
from bookie.inspection.log import LogFile, list_logs, read_index
from native.journal import Damage

_COLUMNS = "{:>20}  {:>14}  {:>14}  {:>10}  {:>12}  {:>12}  {:<6}"


class Row(msgspec.Struct):
    """What one index says in all; *entries_size* is bytes of their records."""

    log_id: int
    size: int
    extents: int = 0
    entries: int = 0
    entries_size: int = 0


@click.command()
@click.argument("log_id", metavar="[LOG]", required=False)
@of_files
@click.option("--ledger", type=int, help="Only extents of this ledger.")
@click.option("--limit", type=click.IntRange(1), help="Stop after so many extents.")
@options.as_json
def index(
    *, log_id: str | None, ledger: int | None, limit: int | None, as_json: bool, **where: object
) -> None:
    """Sum up the index of every entry log, or list the extents of one: LOG is its id in hex.

    An extent is a run of one ledger's entries that lie one after the other in the log.
    An index that is damaged is built anew at the next start, or by rebuild-index.
    """
    place = target(**where)  # type: ignore[arg-type]  # click gives what the options say
    report = Report(as_json=as_json)
    logs = list_logs(place.ledger_folder)
    if log_id is None:
        _sum_up(logs, report, as_json)
    else:
        _list(_find(logs, log_id), ledger, limit, report, as_json)
    report.conclude()


def _sum_up(logs: list[LogFile], report: Report, as_json: bool) -> None:
    rows = [_sum(log, report) for log in logs]
    if as_json:
        for row in rows:
            print_json(row)
        return
    print_table(
        ("log", "index size", "extents", "entries", "bytes of records"),
        [(f"{r.log_id:08x}", r.size, r.extents, r.entries, r.entries_size) for r in rows],
    )


def _sum(log: LogFile, report: Report) -> Row:
    path = log.index_path
    row = Row(log.file.id, path.stat().st_size if path.exists() else 0)
    for found in read_index(log, pages=True):
        if isinstance(found, Damage):
            report.damage(found.path, found.offset)
            continue
        row.extents += 1
        row.entries += found.entries
        row.entries_size += found.log_size
    return row


def _list(
    log: LogFile, ledger: int | None, limit: int | None, report: Report, as_json: bool
) -> None:
    if not as_json:
        heads = ("ledger", "first", "last", "entries", "log offset", "bytes", "kind")
        click.echo(_COLUMNS.format(*heads))
    matching = (
        each
        for each in read_index(log, pages=True)
        if isinstance(each, Damage) or ledger in (None, each.ledger_id)
    )
    for found in islice(matching, limit):
        if isinstance(found, Damage):
            report.damage(found.path, found.offset)
        elif as_json:
            print_json(found)
        else:
            kind = "sparse" if found.sparse else "dense"
            span = (found.ledger_id, found.first_entry, found.last_entry, found.entries)
            click.echo(_COLUMNS.format(*span, found.log_offset, found.log_size, kind))


def _find(logs: list[LogFile], log_id: str) -> LogFile:
    for log in logs:
        if f"{log.file.id:08x}" == log_id.removesuffix(".index").zfill(8):
            return log
    raise CommandFailed(f"no index {log_id!r}; without LOG they are summed up")
