"""``quire cluster status``: bookies, leader, what is under-replicated and why."""

from __future__ import annotations

import sys
from functools import partial

import click
import msgspec
import trio
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from ledger_client.commands import options
from ledger_client.commands.console import Output
from ledger_client.commands.interruption import finish
from ledger_client.commands.quantity import age, count, size
from ledger_client.operations.overview import BookieOverview, Overview, take_overview
from metadata.records import Leader, RepairProgress, UnderReplicated
from metadata.store import MetadataStore
from metadata.urls import open_store

WATCH_S = 2.0
SHOWN_MAX = 20
WIDTH_PIPED = 200  # where nobody watches, a long line is better than a folded one


class Wanting(msgspec.Struct, frozen=True):
    """A ledger that wants repair, as --json shows it."""

    mark: UnderReplicated
    waits_for: str


class Status(msgspec.Struct, frozen=True):
    """What --json prints. Sizes in bytes."""

    leader: Leader | None
    bookies: list[BookieOverview]
    underreplicated: list[Wanting]
    underreplicated_size: int
    repairs: list[RepairProgress]

    @classmethod
    def of(cls, seen: Overview) -> Status:
        """Return *seen* with what follows from it."""
        wanting = [Wanting(mark, seen.waits_for(mark)) for mark in seen.underreplicated]
        return cls(seen.leader, seen.bookies, wanting, seen.underreplicated_size, seen.repairs)


@click.command()
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
@options.cluster
@options.as_json
def status(*, watch: bool, cluster: str, as_json: bool) -> None:
    """Show bookies, the leader, ledgers that want repair, and the repairs under way.

    A bookie is writable, or read-only (its disk is full), draining (it is being
    decommissioned), in limbo (it may have lost entries and is refilled), lost (known, and
    not registered), or decommissioned and still running: stop it. For a ledger that wants
    repair the last column says what happens to it, or why nothing does. Everything is as
    the metadata says it; no bookie is asked.

    Exit code 0 whatever the state; with --json, look at "underreplicated".
    """
    trio.run(finish, partial(_status, cluster, as_json, watch))


async def _status(cluster: str, as_json: bool, watch: bool) -> None:
    async with open_store(cluster) as store:
        if as_json:
            await _print_json(store, watch)
        else:
            await _print_tables(store, watch)


async def _print_json(store: MetadataStore, watch: bool) -> None:
    while True:
        click.echo(msgspec.json.encode(Status.of(await take_overview(store))).decode())
        if not watch:
            return
        sys.stdout.flush()
        await trio.sleep(WATCH_S)


async def _print_tables(store: MetadataStore, watch: bool) -> None:
    width = None if sys.stdout.isatty() else WIDTH_PIPED
    console = Output(highlight=False, markup=False, width=width)
    if not watch:
        console.print(_drawn(await take_overview(store)))
        return
    first = _drawn(await take_overview(store))
    with Live(first, console=console, auto_refresh=False) as live:
        while True:
            await trio.sleep(WATCH_S)
            live.update(_drawn(await take_overview(store)), refresh=True)


def _drawn(seen: Overview) -> RenderableType:
    parts: list[RenderableType] = [_leader(seen.leader), "", _bookies(seen), "", _totals(seen)]
    if seen.underreplicated:
        parts += ["", _wanting(seen)]
    hidden = len(seen.underreplicated) - SHOWN_MAX
    if hidden > 0:
        parts.append(f"and {count(hidden, 'ledger')} more")
    return Group(*parts)


def _leader(leader: Leader | None) -> str:
    if leader is None:
        return "leader: none at present"
    return f"leader: {leader.bookie_id} at {leader.address}, for {age(leader.since_ms)}"


def _bookies(seen: Overview) -> Table:
    table = _table("bookie", "state", "address", right=("ledgers", "free", "of", "adds/s"))
    for bookie in seen.bookies:
        sizes = (bookie.ledgers_size, bookie.free, bookie.capacity, round(bookie.load))
        shown = map(size, sizes) if bookie.registered else "----"
        table.add_row(bookie.bookie_id, bookie.state, bookie.address or "-", *shown)
    return table


def _totals(seen: Overview) -> str:
    if not seen.underreplicated:
        return "every ledger has all of its copies, as far as known"
    ledgers = count(len(seen.underreplicated), "ledger")
    return (
        f"under-replicated: {ledgers}, {size(seen.underreplicated_size)} to copy; "
        f"{count(len(seen.repairs), 'repair')} under way"
    )


def _wanting(seen: Overview) -> Table:
    table = _table("ledger", "because", "for", right=("size", "attempts"), last="what happens")
    for mark in seen.underreplicated[:SHOWN_MAX]:
        table.add_row(
            str(mark.ledger_id),
            _because(mark),
            age(mark.since_ms),
            size(mark.size) if mark.size else "-",
            str(mark.attempts),
            seen.waits_for(mark),
        )
    return table


def _because(mark: UnderReplicated) -> str:
    return f"{mark.reason}: {', '.join(mark.bookies)}" if mark.bookies else mark.reason


def _table(*left: str, right: tuple[str, ...], last: str | None = None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for head in left:
        table.add_column(head)
    for head in right:
        table.add_column(head, justify="right")
    if last is not None:
        table.add_column(last)
    return table
