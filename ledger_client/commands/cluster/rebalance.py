"""``quire cluster rebalance``: move closed ledgers until bookies hold about the same."""

from __future__ import annotations

from functools import partial

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.cluster.operations.rebalance import Balance, Move, Rebalancer
from ledger_client.commands import options
from ledger_client.commands.outcome import finish, interrupted
from ledger_client.commands.progress import SizeBar, show_sizes
from ledger_client.commands.tables import count, size
from ledger_client.wire.stores import open_store

MIB = 1 << 20


class Rebalanced(msgspec.Struct, frozen=True):
    """The output of --json. Sizes are payload bytes of closed ledgers."""

    before: dict[str, int]
    after: dict[str, int]
    """with --dry-run, what the moves would make of it"""
    spread: float
    """fullest minus emptiest after that, as a fraction of the mean"""
    planned: list[Move] = []
    """the moves that --dry-run only plans"""
    moved: int = 0
    moved_size: int = 0
    complete: bool = True


class RebalanceRun:
    """Counts the moves that one run of the command has made so far."""

    def __init__(self, rebalancer: Rebalancer) -> None:
        self._rebalancer = rebalancer
        self.moved = 0
        self.moved_size = 0

    async def play(self, found: Balance, bar: SizeBar) -> None:
        """Make moves and plan again, until no move is left or none succeeds."""
        while found.moves:
            moved_before = self.moved
            await self._make_all(found.moves, bar)
            if self.moved == moved_before:
                return
            found = await self._rebalancer.look()

    async def _make_all(self, moves: list[Move], bar: SizeBar) -> None:
        done = self.moved_size
        total = done + sum(move.size for move in moves)
        for move in moves:
            text = f"ledger {move.ledger_id}: {move.source} to {move.target}"
            bar.show(text, total=total, done=done)
            if await self._rebalancer.make(move, on_copied=bar.advance):
                self.moved += 1
                self.moved_size += move.size
            done += move.size


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be moved.")
@click.option(
    "--rate",
    type=click.FloatRange(min=0.1),
    default=50.0,
    show_default=True,
    metavar="MIB",
    help="Copy at most this many MiB a second, to leave bandwidth to clients.",
)
@options.cluster
@options.as_json
def rebalance(*, dry_run: bool, rate: float, cluster: str, as_json: bool) -> None:
    """Move closed ledgers until bookies are equally full.

    Ends once the bytes per bookie are within 10 % of each other. A new bookie receives new
    ledgers only; this gives it a share of the old ones too. Ledgers are moved one at a time:
    copied, checked, and only then listed on the new bookie. The old bookie deletes its copy at
    its next garbage collection (`bookie gc`).

    May be interrupted at any time: ledgers moved so far stay moved, and the one under way stays
    where it was. Bookies that are lost, in limbo or draining are left alone.
    """
    rebalanced = trio.run(finish, partial(_plan, cluster)) if dry_run else None
    if rebalanced is None:
        rebalanced = trio.run(_rebalance, cluster, rate * MIB)
    if as_json:
        click.echo(msgspec.json.encode(rebalanced).decode())
    else:
        _show(rebalanced, dry_run=dry_run)
    if not rebalanced.complete:
        raise click.Abort


async def _plan(cluster: str) -> Rebalanced:
    async with connect(cluster) as client, open_store(cluster) as store:
        found = await Rebalancer(client._context.ledgers, store).look()
    return Rebalanced(found.sizes, found.levelled, found.levelled_spread, found.moves)


async def _rebalance(cluster: str, rate: float) -> Rebalanced:
    async with connect(cluster) as client, open_store(cluster) as store:
        rebalancer = Rebalancer(client._context.ledgers, store, rate=rate)
        before = await rebalancer.look()
        run = RebalanceRun(rebalancer)
        with show_sizes("moving ledgers") as bar:
            cut_short = await interrupted(partial(run.play, before, bar))
        after = await rebalancer.look()
    return Rebalanced(
        before.sizes,
        after.sizes,
        after.spread,
        moved=run.moved,
        moved_size=run.moved_size,
        complete=not cut_short,
    )


def _show(rebalanced: Rebalanced, *, dry_run: bool) -> None:
    for move in rebalanced.planned:
        where = f"from {move.source} to {move.target}"
        click.echo(f"would move ledger {move.ledger_id} {where}, {size(move.size)}")
    for name, held in rebalanced.after.items():
        before = rebalanced.before.get(name, 0)
        was = "now" if dry_run else "before"
        change = "" if held == before else f", {was} {size(before)}"
        click.echo(f"{name}: {size(held)}{change}")
    moves = count(len(rebalanced.planned) if dry_run else rebalanced.moved, "ledger")
    moved = sum(m.size for m in rebalanced.planned) if dry_run else rebalanced.moved_size
    begin = "" if rebalanced.complete else "interrupted; "
    verb, differ = ("would be moved", "would differ") if dry_run else ("moved", "differ")
    click.echo(
        f"{begin}{moves}, {size(moved)} {verb}; "
        f"fullest and emptiest {differ} by {rebalanced.spread:.0%} of the mean"
    )
