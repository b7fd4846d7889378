"""``quire bench append``: entries acknowledged a second, and how long each one waits."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

import click
import msgspec
import trio

import ledger_client
from ledger_client.commands import options
from ledger_client.commands.bench import usage
from ledger_client.commands.bench.floor import Floor, measure_floor
from ledger_client.commands.bench.ledgers import open_ledgers
from ledger_client.commands.bench.load import OUTSTANDING, Load, apply_load, batch_for
from ledger_client.commands.bench.metrics import count
from ledger_client.commands.bench.samples import Percentiles
from ledger_client.commands.interruption import finish
from ledger_client.commands.sandbox import Bookie, open_sandbox
from ledger_client.commands.size import Size
from ledger_client.commands.target import Quorums, Target, fill_quorums

MEMTABLE_SIZE = 64 << 20
TURNS = 13
RECORD_OVERHEAD = 30
MANY_LEDGERS_BATCH = 64


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure; *cluster* is "" for bookies of our own."""

    cluster: str
    bookies: int
    quorums: Quorums
    ledgers: int
    load: Load
    folder: Path
    floor_size: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one load. MB are 10^6 payload bytes; CPU counts user and system time."""

    entries: int
    entry_size: int
    ledgers: int
    batch: int
    seconds: float
    entries_per_s: float
    mb_per_s: float
    memtable_turns: float
    """flushes to entry logs meanwhile, for each bookie"""
    latency: Percentiles
    client_cpu_s: float
    bookie_cpu_s: float
    bookie_rss_max_mib: list[float]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The figures beside the floor of the same run.

    *bandwidth_to_floor*: payload bytes times copies written a second, as a part of what
    the disk takes. *latency_to_floor*: the median as a multiple of one 4 KiB sync.
    *cost_to_one_ledger*: time per entry as a multiple of that with a single ledger.
    """

    quorums: Quorums
    figures: Figures
    one_ledger: Figures | None
    cost_to_one_ledger: float | None
    floor: Floor
    bandwidth_to_floor: float
    latency_to_floor: float


@click.command()
@click.option("--cluster", envvar="QUIRE_CLUSTER", default="", help="Default: bookies of our own.")
@click.option("--bookies", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--ensemble", type=int, show_default="all bookies")
@click.option("--write-quorum", type=int, show_default="the ensemble")
@click.option("--ack-quorum", type=int, show_default="more than half of the write quorum")
@click.option("--entry-size", type=Size(), default="1KiB", show_default=True)
@click.option("--entries", type=int, show_default=f"what fills the memtable {TURNS} times")
@click.option("--seconds", type=float, default=0.0, help="Stop after so long.")
@click.option("--ledgers", type=click.IntRange(1), default=1, help="Write to so many in turn.")
@click.option("--batch", type=click.IntRange(1), help="Entries in one call of append_many.")
@click.option("--outstanding", type=click.IntRange(1), default=OUTSTANDING, show_default=True)
@click.option("--pipelined/--synchronous", default=True, help="Or one entry at a time.")
@click.option("--rate", type=float, default=0.0, help="Offer so many entries a second.")
@options.folder
@options.floor_size
@options.as_json
def append(
    *,
    cluster: str,
    bookies: int,
    ensemble: int | None,
    write_quorum: int | None,
    ack_quorum: int | None,
    entry_size: int,
    entries: int | None,
    seconds: float,
    ledgers: int,
    batch: int | None,
    outstanding: int,
    pipelined: bool,
    rate: float,
    folder: Path | None,
    floor_size: int,
    as_json: bool,
) -> None:
    """Append entries, every acknowledgement after fdatasync, and say how fast it was.

    The entries go to bookies of its own, in a temporary folder, unless --cluster
    names others. A latency is that of a whole call; with --rate it counts from the
    moment at which the call was due.
    """
    if not pipelined:
        batch, outstanding = 1, 1
    elif batch is None:
        batch = batch_for(entry_size) if ledgers == 1 else MANY_LEDGERS_BATCH
    plan = Plan(
        cluster=cluster,
        bookies=bookies,
        quorums=fill_quorums(ensemble or bookies, write_quorum, ack_quorum),
        ledgers=ledgers,
        load=Load(
            entry_size=entry_size,
            entries=entries or _entries_for(entry_size, pipelined, seconds),
            batch=batch,
            outstanding=outstanding,
            rate=rate,
            seconds=seconds,
        ),
        folder=folder or Path(tempfile.gettempdir()),
        floor_size=floor_size,
    )
    result = trio.run(finish, partial(_measure, plan))
    click.echo(msgspec.json.encode(result).decode() if as_json else _describe(result))


def _entries_for(entry_size: int, pipelined: bool, seconds: float) -> int:
    if seconds:
        return 1 << 62
    if not pipelined:
        return 5000
    return TURNS * MEMTABLE_SIZE // (entry_size + RECORD_OVERHEAD)


async def _measure(plan: Plan) -> Result:
    floor = await trio.to_thread.run_sync(measure_floor, plan.folder, plan.floor_size)
    if plan.cluster:
        return await _measure_cluster(plan, floor, plan.cluster, [])
    async with open_sandbox(plan.bookies, parent=plan.folder) as sandbox:
        return await _measure_cluster(plan, floor, sandbox.cluster, sandbox.bookies)


async def _measure_cluster(plan: Plan, floor: Floor, cluster: str, bookies: list[Bookie]) -> Result:
    one = await _run(plan, cluster, bookies, ledgers=1) if plan.ledgers > 1 else None
    figures = await _run(plan, cluster, bookies, ledgers=plan.ledgers)
    return Result(
        quorums=plan.quorums,
        figures=figures,
        one_ledger=one,
        cost_to_one_ledger=round(one.entries_per_s / figures.entries_per_s, 3) if one else None,
        floor=floor,
        bandwidth_to_floor=round(
            figures.mb_per_s * plan.quorums.write_quorum / floor.write_mb_per_s, 3
        ),
        latency_to_floor=round(figures.latency.p50_ms / floor.sync.latency.p50_ms, 2),
    )


async def _run(plan: Plan, cluster: str, bookies: list[Bookie], *, ledgers: int) -> Figures:
    processes = [bookie.process_id for bookie in bookies]
    target = Target(cluster=cluster, quorums=plan.quorums)
    async with (
        ledger_client.connect(cluster) as client,
        open_ledgers(client, target, ledgers) as opened,
    ):
        client_cpu_s, bookie_cpu_s = time.process_time(), usage.cpu_s(processes)
        flushes = await count(bookies, "flushes")
        outcome = await apply_load(opened, plan.load)
        flushes = await count(bookies, "flushes") - flushes
        client_cpu_s = time.process_time() - client_cpu_s
        bookie_cpu_s = usage.cpu_s(processes) - bookie_cpu_s
    rate = outcome.entries / outcome.seconds
    return Figures(
        entries=outcome.entries,
        entry_size=plan.load.entry_size,
        ledgers=ledgers,
        batch=plan.load.batch,
        seconds=round(outcome.seconds, 3),
        entries_per_s=round(rate, 1),
        mb_per_s=round(rate * plan.load.entry_size / 1e6, 2),
        memtable_turns=round(flushes / max(len(bookies), 1), 1),
        latency=outcome.latency,
        client_cpu_s=round(client_cpu_s, 2),
        bookie_cpu_s=round(bookie_cpu_s, 2),
        bookie_rss_max_mib=[round(usage.rss_max(process) / 2**20, 1) for process in processes],
    )


def _describe(result: Result) -> str:
    figures, floor, quorums = result.figures, result.floor, result.quorums
    at = figures.latency
    lines = [
        f"{figures.entries:,} entries of {figures.entry_size} bytes, {figures.batch} a call, to "
        f"{figures.ledgers} ledger(s), quorums {quorums.ensemble_size}/{quorums.write_quorum}/"
        f"{quorums.ack_quorum} (ensemble/write/ack), in {figures.seconds:.2f} s; the "
        f"memtable was flushed {figures.memtable_turns:.0f} times",
        f"  {figures.entries_per_s:,.0f} entries/s, {figures.mb_per_s:,.1f} MB/s; with all copies "
        f"{result.bandwidth_to_floor:.2f} x the disk's {floor.write_mb_per_s:,.0f} MB/s",
        f"  latency of a call: p50 {at.p50_ms:.3f} ms, p99 {at.p99_ms:.3f} ms, "
        f"p99.9 {at.p999_ms:.3f} ms; p50 is {result.latency_to_floor:.1f} x the disk's "
        f"{floor.sync.latency.p50_ms:.3f} ms for one 4 KiB sync",
        f"  CPU: client {figures.client_cpu_s:.2f} s, bookies {figures.bookie_cpu_s:.2f} s; "
        f"greatest RSS of a bookie: {max(figures.bookie_rss_max_mib, default=0):.0f} MiB",
    ]
    if result.one_ledger is not None:
        lines.append(
            f"  time per entry: {result.cost_to_one_ledger:.2f} x that with one ledger "
            f"({result.one_ledger.entries_per_s:,.0f} entries/s)"
        )
    return "\n".join(lines)
