"""``quire cluster status``: bookies, leader, and under-replicated ledgers."""

from __future__ import annotations

import sys
from functools import partial

import click
import msgspec
import trio
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from ledger_client.cluster.operations.overview import (
    LOST,
    BookieOverview,
    Overview,
    take_overview,
)
from ledger_client.commands import options
from ledger_client.commands.outcome import finish
from ledger_client.commands.tables import Output, age, count, size
from ledger_client.wire.stores import open_store
from metadata.records import Leader, RackReport, RepairProgress, UnderReplicated
from metadata.store import MetadataStore

WATCH_S = 2.0
SHOWN_MAX = 20
WIDTH_PIPED = 200  # in a pipe, a long line beats a folded one


class Wanting(msgspec.Struct, frozen=True):
    """A ledger waiting for repair, as --json prints it."""

    mark: UnderReplicated
    waits_for: str


class ClusterStatus(msgspec.Struct, frozen=True):
    """The output of --json. Sizes are bytes."""

    leader: Leader | None
    bookies: list[BookieOverview]
    underreplicated: list[Wanting]
    underreplicated_size: int
    repairs: list[RepairProgress]
    racks: RackReport | None = None
    """ledgers on too few racks; null if no bookie states a rack, or before the first count"""

    @classmethod
    def of(cls, seen: Overview) -> ClusterStatus:
        """Return *seen* with the step that each ledger waits for."""
        wanting = [Wanting(mark, seen.waits_for(mark)) for mark in seen.underreplicated]
        size = seen.underreplicated_size
        return cls(seen.leader, seen.bookies, wanting, size, seen.repairs, seen.racks)


@click.command()
@click.option("--watch", is_flag=True, help="Refresh every two seconds, until Ctrl-C.")
@options.cluster
@options.as_json
def status(*, watch: bool, cluster: str, as_json: bool) -> None:
    """Show bookies, the leader, and repair.

    A bookie is writable, read-only (its disk is full), stalled (its disk hangs), draining (being
    decommissioned), in limbo (it may have lost entries and is being refilled), lost (known
    but not registered), or decommissioned (still running: stop it). A lost bookie stays listed
    after others have copied what it held, until `bookie decommission` forgets it. For a ledger
    waiting for repair, the last column shows what happens, or why nothing does. If bookies state
    racks, the leader counts ledgers whose copies are on fewer racks than could be: `quire cluster
    rebalance` moves those. Everything comes from metadata; no bookie is asked.

    Exit code 0 whatever the state; with --json, check "underreplicated".
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
        click.echo(msgspec.json.encode(ClusterStatus.of(await take_overview(store))).decode())
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
    if seen.racks is not None:
        parts.append(_racks(seen.racks))
    if seen.underreplicated:
        parts += ["", _wanting(seen)]
    hidden = len(seen.underreplicated) - SHOWN_MAX
    if hidden > 0:
        parts.append(f"and {count(hidden, 'ledger')} more")
    return Group(*parts)


def _leader(leader: Leader | None) -> str:
    if leader is None:
        return "leader: none at the moment"
    return f"leader: {leader.bookie_id} at {leader.address}, for {age(leader.since_ms)}"


def _bookies(seen: Overview) -> Table:
    racked = any(bookie.rack for bookie in seen.bookies)
    differ = len({bookie.version for bookie in seen.bookies if bookie.registered}) > 1
    left = (
        *("bookie", "state", "address"),
        *(["rack"] if racked else []),
        *(["version"] if differ else []),
    )
    table = _table(*left, right=("stored", "free", "disk", "written/s"))
    for bookie in seen.bookies:
        sizes = (bookie.ledgers_size, bookie.free, bookie.capacity, round(bookie.load))
        shown = map(size, sizes) if bookie.registered else "----"
        rack = [bookie.rack or "-"] if racked else []
        version = [bookie.version or "-"] if differ else []
        named = (bookie.bookie_id, bookie.state, bookie.address or "-")
        table.add_row(*named, *rack, *version, *shown)
    return table


def _racks(seen: RackReport) -> str:
    when = f"{age(seen.checked_ms)} ago"
    if not seen.violating:
        return f"all copies are on as many racks as could be, counted {when}"
    named = ", ".join(map(str, seen.examples))
    more = ", ..." if seen.violating > len(seen.examples) else ""
    return (
        f"on fewer racks than could be: {count(seen.violating, 'ledger')} "
        f"({count(seen.fragments, 'fragment')}), counted {when}: {named}{more}"
    )


def _totals(seen: Overview) -> str:
    if not seen.underreplicated:
        return _whole(seen)
    ledgers = count(len(seen.underreplicated), "ledger")
    return (
        f"under-replicated: {ledgers}, {size(seen.underreplicated_size)} to copy; "
        f"{count(len(seen.repairs), 'repair')} under way"
    )


def _whole(seen: Overview) -> str:
    """Say what it means that no ledger is marked; a lost bookie and "all copies" need a reason."""
    lost = [bookie.bookie_id for bookie in seen.bookies if bookie.state.startswith(LOST)]
    if not lost:
        return "all ledgers have all their copies, as far as known"
    named = ", ".join(lost)
    if seen.leader is None:
        return f"lost: {named}; what it held is copied once there is a leader to look for it"
    it, checks, forgets = "it", "checks", "forgets"
    if len(lost) > 1:
        it, checks, forgets = "them", "check", "forget"
    forget = " and ".join(f"`bookie decommission {bookie_id}`" for bookie_id in lost)
    return (
        f"lost: {named}, and no ledger waits for a copy. Either all ledgers have all their copies "
        "on other bookies,\n"
        f"or the leader still waits for {it} to come back (lost_after_s, a minute unless set).\n"
        f"Start {it} again; or {forget} {checks} the copies and {forgets} {it}."
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
