"""``bookie inspect log``: the entry logs, or the records of one of them."""

from __future__ import annotations

from itertools import islice

import click
import msgspec

from bookie.commands import options
from bookie.commands.call import RemoteBookie
from bookie.commands.inspect.listing import line_of, print_head, print_records
from bookie.commands.inspect.report import DamageReport
from bookie.commands.inspect.target import InspectionTarget, of_files_or_address
from bookie.commands.output import print_json, print_table
from bookie.inspection.log import LogFile, kind_of, list_logs, read_log
from metadata.calls import LogOnBookie, LogPage, Logs
from metadata.outcome import CommandFailed
from native.journal import Record


class LogRow(msgspec.Struct, frozen=True):
    """One entry log in the list; *live* (bytes) is None unless a running bookie was asked."""

    id: int
    size: int
    closed: bool
    live: int | None = None
    damaged: bool = False


@click.command()
@click.argument("log_id", metavar="[LOG]", required=False)
@of_files_or_address
@click.option("--ledger", type=int, help="Only records of this ledger.")
@click.option("--limit", type=click.IntRange(1), help="Stop after this many records.")
@options.as_json
def log(
    *,
    place: InspectionTarget,
    log_id: str | None,
    ledger: int | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List the entry logs, or the records of one; LOG is its id in hex.

    "live" counts the bytes of ledgers that are not deleted; only a running bookie knows it
    (--address). A closed log ends with the map of its ledgers.
    """
    report = DamageReport(as_json=as_json)
    if log_id is None:
        _list(place, report, as_json)
    elif place.address:
        raise click.UsageError("the records of a log are read from its file: give --data")
    else:
        records = read_log(_find(place, log_id))
        matching = (
            line_of(kind_of(each), each) if isinstance(each, Record) else each
            for each in records
            if not isinstance(each, Record) or ledger in (None, each.ledger_id)
        )
        print_head(as_json=as_json)
        print_records(islice(matching, limit), report, as_json=as_json)
    report.conclude()


def _list(place: InspectionTarget, report: DamageReport, as_json: bool) -> None:
    if place.address:
        rows = [
            LogRow(each.log_id, each.size, not each.open, each.live, each.damaged)
            for each in place.ask(_ask)
        ]
    else:
        logs = list_logs(place.ledger_folder)
        rows = [LogRow(log.file.id, log.file.size, log.closed, None, log.damaged) for log in logs]
        for each in logs:
            if each.damaged:
                report.damage(each.file.path, 0, "header")
    if as_json:
        for row in rows:
            print_json(row)
        return
    print_table(
        ("log", "size", "live", "closed", "damaged"),
        [(f"{row.id:08x}", row.size, row.live, row.closed, row.damaged) for row in rows],
    )


async def _ask(remote: RemoteBookie) -> list[LogOnBookie]:
    logs: list[LogOnBookie] = []
    while page := (await remote.ask(Logs(logs[-1].log_id if logs else -1), LogPage)).logs:
        logs += page
    return logs


def _find(place: InspectionTarget, log_id: str) -> LogFile:
    for each in list_logs(place.ledger_folder):
        if f"{each.file.id:08x}" == log_id.removesuffix(".log").zfill(8):
            return each
    raise CommandFailed(f"no entry log {log_id!r}; without LOG they are listed")
