"""``quire bench failover``: a writer's throughput before, during and after a bookie is killed.

Appends go on without a pause while confirmed entries are counted:

    warm-up │ before │ kill ─► during │ after
            └────────┴────── seconds ─┴───────  entries confirmed in each

The stall is the longest time in a phase without a newly confirmed entry.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.bench import load_options
from ledger_client.commands.bench.load import Load, apply_load, batch_for
from ledger_client.commands.options import NewLedger, Quorums
from ledger_client.commands.outcome import finish
from ledger_client.commands.sandbox import Sandbox, open_sandbox
from ledger_client.ledgers.writer import LedgerWriter

WARM_UP_S = 1.0
LOOK_S = 0.001


class FailoverPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the measurement, which runs in a sandbox."""

    bookies: int
    quorums: Quorums
    load: Load
    seconds: float
    """duration of each of the three phases"""
    folder: Path


class FailoverPhase(msgspec.Struct, frozen=True):
    """Entries confirmed in one phase. *stall_s* is the longest time without any."""

    entries_per_s: float
    mb_per_s: float
    stall_s: float


class FailoverResult(msgspec.Struct, frozen=True, kw_only=True):
    """The three phases, and the last two as fractions of the first."""

    quorums: Quorums
    before: FailoverPhase
    during: FailoverPhase
    after: FailoverPhase
    during_to_before: float
    after_to_before: float


@click.command()
@click.option(
    "--bookies",
    type=click.IntRange(2, 64),
    default=4,
    show_default=True,
    help="Bookies of the temporary cluster.",
)
@options.quorums
@load_options.entry_size
@click.option(
    "--seconds",
    type=load_options.FiniteRange(0.1),
    default=3.0,
    show_default=True,
    help="Duration of each of the three phases.",
)
@load_options.folder
@options.as_json
def failover(
    *,
    bookies: int,
    quorums: Quorums,
    entry_size: int,
    seconds: float,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Measure a writer's throughput while a bookie is killed.

    Starts a temporary cluster and kills a bookie of the ledger's ensemble. Another one takes its
    place if there are more bookies than the ensemble needs.
    """
    plan = FailoverPlan(
        bookies=bookies,
        quorums=quorums,
        load=Load(entry_size=entry_size, entries=1 << 62, batch=batch_for(entry_size)),
        seconds=seconds,
        folder=folder or Path(tempfile.gettempdir()),
    )
    result = trio.run(finish, partial(_measure, plan))
    click.echo(msgspec.json.encode(result).decode() if as_json else _describe(result))


async def _measure(plan: FailoverPlan) -> FailoverResult:
    async with (
        open_sandbox(plan.bookies, parent=plan.folder) as sandbox,
        connect(sandbox.cluster) as client,
        NewLedger(quorums=plan.quorums).create(client.ledgers.create) as ledger,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(apply_load, [ledger], plan.load)
        await trio.sleep(min(WARM_UP_S, plan.seconds))
        before = await _watch(ledger, plan)
        _kill_one(sandbox, ledger)
        during = await _watch(ledger, plan)
        after = await _watch(ledger, plan)
        nursery.cancel_scope.cancel()
    return FailoverResult(
        quorums=plan.quorums,
        before=before,
        during=during,
        after=after,
        during_to_before=round(during.entries_per_s / before.entries_per_s, 3),
        after_to_before=round(after.entries_per_s / before.entries_per_s, 3),
    )


def _kill_one(sandbox: Sandbox, ledger: LedgerWriter) -> None:
    """Kill the first bookie of the ledger's ensemble."""
    victim = ledger.metadata.fragments[-1].bookies[0]
    sandbox.kill(next(each for each in sandbox.bookies if each.bookie_id == victim))


async def _watch(ledger: LedgerWriter, plan: FailoverPlan) -> FailoverPhase:
    """Count the entries confirmed in one phase."""
    started = moved_at = trio.current_time()
    first = seen = ledger.last_confirmed
    stall_s = 0.0
    while (now := trio.current_time()) < started + plan.seconds:
        if ledger.last_confirmed > seen:
            seen, moved_at = ledger.last_confirmed, now
        stall_s = max(stall_s, now - moved_at)
        await trio.sleep(LOOK_S)
    rate = (ledger.last_confirmed - first) / (now - started)
    return FailoverPhase(
        entries_per_s=round(rate, 1),
        mb_per_s=round(rate * plan.load.entry_size / 1e6, 2),
        stall_s=round(stall_s, 4),
    )


def _describe(result: FailoverResult) -> str:
    quorums = result.quorums
    phases = {"before": result.before, "during": result.during, "after": result.after}
    lines = [
        f"one bookie killed, quorums {quorums.ensemble_size}/{quorums.write_quorum}/"
        f"{quorums.ack_quorum} (ensemble/write/ack)",
        f"{'':<8}{'entries/s':>12}{'MB/s':>10}{'longest stall':>16}{'to before':>12}",
    ]
    for name, phase in phases.items():
        ratio = phase.entries_per_s / max(result.before.entries_per_s, 1e-9)
        lines.append(
            f"{name:<8}{phase.entries_per_s:>12,.0f}{phase.mb_per_s:>10.1f}"
            f"{phase.stall_s * 1e3:>13.1f} ms{ratio:>12.2f}"
        )
    return "\n".join(lines)
