"""``quire cluster usage``: what takes the space on the bookies' disks."""

from __future__ import annotations

from functools import partial
from typing import cast, get_args

import click
import msgspec
import trio
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ledger_client.client import connect
from ledger_client.cluster.operations.usage import (
    REASONS,
    By,
    ClusterUsage,
    UsageRow,
    rows_of,
    take_usage,
)
from ledger_client.commands import options
from ledger_client.commands.outcome import finish
from ledger_client.commands.progress import show_ledgers
from ledger_client.commands.tables import Output, count, size
from ledger_client.errors import NoSuchTopic
from ledger_client.wire.stores import open_store
from metadata.outcome import CommandFailed

WIDTH_PIPED = 200
SHOWN_MAX = 50
PLAIN = "(ledgers of no topic)"


class Used(msgspec.Struct, frozen=True):
    """The output of --json. Sizes are bytes; those of all rows add up to *size*."""

    by: By
    topic: str | None
    size: int
    rows: list[UsageRow]
    silent: dict[str, str]
    """bookies that did not answer, with the reasons"""


@click.command()
@click.option(
    "--by",
    type=click.Choice(get_args(By)),
    default="topic",
    show_default=True,
    help="One row for each of these.",
)
@click.option("--topic", metavar="NAME", help="Only the ledgers of this topic.")
@options.cluster
@options.as_json
def usage(*, by: str, topic: str | None, cluster: str, as_json: bool) -> None:
    """Show what takes the space on the bookies' disks, and why.

    Sizes are those of `du`: allocated blocks of all copies. The total equals `du -s` over the
    folders of all bookies.

    "live" bytes belong to existing ledgers. "unwanted" bytes belong to ledgers deleted or moved
    to other bookies; the next garbage collection (`bookie gc`) drops them. "dead" bytes
    were dropped, and are freed once their entry log is rewritten or deleted. All other bytes
    belong to no ledger. Unflushed entries exist in the journal only, and count there.

    Bookies are asked page by page, so under load the rows are not of the same moment.

    Exit code 1 if a bookie did not answer; its bytes are missing then.
    """
    used = trio.run(finish, partial(_use, cluster, cast(By, by), topic))
    if as_json:
        click.echo(msgspec.json.encode(used).decode())
    else:
        _print(used)
    if used.silent:
        reasons = "; ".join(f"{name}: {why}" for name, why in sorted(used.silent.items()))
        raise CommandFailed(f"{count(len(used.silent), 'bookie')} did not answer: {reasons}")


async def _use(cluster: str, by: By, topic: str | None) -> Used:
    async with connect(cluster) as client, open_store(cluster) as store:
        with show_ledgers("asking bookies for their ledgers") as on_ledgers:
            taken = await take_usage(client._context.ledgers, store, on_ledgers=on_ledgers)
    if topic is not None and topic not in taken.owners.topics:
        raise NoSuchTopic(topic)
    return _used(taken, by, topic)


def _used(taken: ClusterUsage, by: By, topic: str | None) -> Used:
    rows = rows_of(taken, by, topic)
    return Used(by, topic, sum(row.size for row in rows), rows, taken.silent)


def _print(used: Used) -> None:
    console = Output(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH_PIPED
    tables = {"topic": _topics, "ledger": _ledgers, "reason": _reasons, "bookie": _bookies}
    hidden = 0 if used.by != "ledger" else sum(1 for row in used.rows if row.ledger_id is not None)
    parts: list[RenderableType] = [tables[used.by](used), "", Text(_total(used))]
    if hidden > SHOWN_MAX:
        parts.append(Text(f"and {count(hidden - SHOWN_MAX, 'ledger')} more; --json lists all"))
    console.print(Group(*parts))


def _total(used: Used) -> str:
    whose = "all bookies" if used.topic is None else f"topic {used.topic}"
    silent = ", without the bookies that did not answer" if used.silent else ""
    return f"{size(used.size)} on the disks of {whose}{silent}"


def _topics(used: Used) -> Table:
    table = _table("topic", "what", right=("ledgers", "live", "unwanted", "in all"))
    for row in used.rows:
        sums = [size(row.live), size(row.unwanted), size(row.size)]
        if row.topic is None:
            table.add_row(f"({row.reason})", "", str(row.ledgers or ""), "", "", size(row.size))
        else:
            part = row.part if row.topic else ""
            table.add_row(row.topic or PLAIN, part, f"{row.ledgers:,}", *sums)
    return table


def _ledgers(used: Used) -> Table:
    table = _table("ledger", "topic", "what", right=("copies", "live", "unwanted", "in all"))
    shown = [row for row in used.rows if row.ledger_id is not None][:SHOWN_MAX]
    for row in shown:
        sums = [size(row.live), size(row.unwanted), size(row.size)]
        whose = "(deleted)" if row.topic is None else row.topic
        table.add_row(str(row.ledger_id), whose, row.part or "", str(row.copies), *sums)
    for row in used.rows:
        if row.ledger_id is None:
            table.add_row(f"({row.reason})", "", "", "", "", "", size(row.size))
    return table


def _reasons(used: Used) -> Table:
    table = _table("reason", right=("bytes",))
    table.add_column("what it is")
    for row in used.rows:
        explanation = next(text for reason, text in REASONS.items() if reason == row.reason)
        table.add_row(row.reason, size(row.size), explanation)
    return table


def _bookies(used: Used) -> Table:
    if used.topic is not None:
        table = _table("bookie", right=("ledgers", "live", "unwanted", "in all"))
        for row in used.rows:
            sums = map(size, (row.live, row.unwanted, row.size))
            table.add_row(row.bookie_id, f"{row.ledgers:,}", *sums)
        return table
    seen = [reason for reason in REASONS if any(reason in row.reasons for row in used.rows)]
    table = _table("bookie", right=("ledgers", *seen, "in all", "not flushed"))
    for row in used.rows:
        sums = map(size, (*(row.reasons.get(each, 0) for each in seen), row.size, row.unflushed))
        table.add_row(row.bookie_id, f"{row.ledgers:,}", *sums)
    return table


def _table(*left: str, right: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for head in left:
        table.add_column(head)
    for head in right:
        table.add_column(head, justify="right")
    return table
