"""``quire cluster usage``: which bytes lie on the bookies' disks, whose, and why."""

from __future__ import annotations

from functools import partial
from typing import cast, get_args

import click
import msgspec
import trio
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import ledger_client
from ledger_client.commands import options
from ledger_client.commands.console import Output
from ledger_client.commands.errors import CommandFailed
from ledger_client.commands.interruption import finish
from ledger_client.commands.progress import show_ledgers
from ledger_client.commands.quantity import count, size
from ledger_client.operations.grouping import By, Row, rows_of
from ledger_client.operations.usage import REASONS, Usage, take_usage
from ledger_client.topics.errors import NoSuchTopic
from metadata.urls import open_store

WIDTH_PIPED = 200
SHOWN_MAX = 50
PLAIN = "(ledgers of no topic)"


class Silent(CommandFailed):
    """Some bookies did not answer, so what they have is not in the figures."""


class Used(msgspec.Struct, frozen=True):
    """What --json prints. Sizes in bytes; those of all rows add up to *size*."""

    by: By
    topic: str | None
    size: int
    rows: list[Row]
    silent: dict[str, str]
    """bookies that did not answer, and why"""


@click.command()
@click.option(
    "--by",
    type=click.Choice(get_args(By)),
    default="topic",
    show_default=True,
    help="What a row stands for.",
)
@click.option("--topic", metavar="NAME", help="Only the ledgers of this topic.")
@options.cluster
@options.as_json
def usage(*, by: str, topic: str | None, cluster: str, as_json: bool) -> None:
    """Show which bytes lie on the bookies' disks: whose they are, and why they are there.

    Files count as `du` counts them: the blocks that they take (st_blocks, 512 bytes each), not
    their length. All copies count. The sum is what `du -s` says of the folders of all bookies.

    "live" is what entry logs hold of ledgers that are there; "unwanted", of ledgers that were
    deleted or moved to other bookies, until the next collection (`bookie gc`) gives them up;
    "dead", what was given up, until its entry log is rewritten or deleted. The rest is of no
    ledger. Entries that are not flushed yet lie in the journal only, and count there.

    The bookies are asked one page after the other, so under load rows are not of one moment.

    Exit code 1 when a bookie did not answer: its bytes are missing in what is shown.
    """
    used = trio.run(finish, partial(_use, cluster, cast(By, by), topic))
    if as_json:
        click.echo(msgspec.json.encode(used).decode())
    else:
        _print(used)
    if used.silent:
        told = "; ".join(f"{name}: {why}" for name, why in sorted(used.silent.items()))
        raise Silent(f"{count(len(used.silent), 'bookie')} did not answer: {told}")


async def _use(cluster: str, by: By, topic: str | None) -> Used:
    async with ledger_client.connect(cluster) as client, open_store(cluster) as store:
        with show_ledgers() as on_ledgers:
            taken = await take_usage(client, store, on_ledgers=on_ledgers)
    if topic is not None and topic not in taken.owners.topics:
        raise NoSuchTopic(topic)
    return _used(taken, by, topic)


def _used(taken: Usage, by: By, topic: str | None) -> Used:
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
        parts.append(Text(f"and {count(hidden - SHOWN_MAX, 'ledger')} more: --json shows all"))
    console.print(Group(*parts))


def _total(used: Used) -> str:
    whose = "all bookies" if used.topic is None else f"topic {used.topic}"
    silent = ", without those that did not answer" if used.silent else ""
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
        whose = "(not there any more)" if row.topic is None else row.topic
        table.add_row(str(row.ledger_id), whose, row.part or "", str(row.copies), *sums)
    for row in used.rows:
        if row.ledger_id is None:
            table.add_row(f"({row.reason})", "", "", "", "", "", size(row.size))
    return table


def _reasons(used: Used) -> Table:
    table = _table("reason", right=("bytes",))
    table.add_column("what it is")
    for row in used.rows:
        told = next(text for reason, text in REASONS.items() if reason == row.reason)
        table.add_row(row.reason, size(row.size), told)
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
