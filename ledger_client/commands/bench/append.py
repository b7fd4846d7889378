"""``quire bench append``: acknowledged entries a second, and their latency."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import click
import msgspec
import trio

from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.bench import load_options, usage
from ledger_client.commands.bench.disk import Floor, floor_of, foreign_disk
from ledger_client.commands.bench.load import (
    CHANGES_MAX,
    OUTSTANDING,
    Load,
    Percentiles,
    apply_load,
    batch_for,
    open_ledgers,
)
from ledger_client.commands.bench.usage import counter_total
from ledger_client.commands.options import NewLedger, Quorums, fill_quorums
from ledger_client.commands.outcome import finish
from ledger_client.commands.sandbox import Bookie, open_sandbox
from ledger_client.errors import LedgerError
from ledger_client.ledgers.writer import LedgerWriter

MEMTABLE_SIZE = 64 << 20
TURNS = 13
RECORD_OVERHEAD = 30
MANY_LEDGERS_BATCH = 64
DELETE_S = 10.0
ENSEMBLE_MAX = 64


class AppendPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the measurement; *cluster* is "" for a sandbox."""

    cluster: str
    bookies: int
    ensemble: int | None
    write_quorum: int | None
    ack_quorum: int | None
    ledgers: int
    load: Load
    folder: Path
    floor_size: int


class Measured(msgspec.Struct, frozen=True):
    """The cluster, with those of its bookies that run here: none if it is not a sandbox."""

    cluster: str
    bookies: list[Bookie]
    quorums: Quorums


class AppendFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one load. MB are 10^6 payload bytes; CPU is user and system time.

    Figures of bookies are `None` unless they run here.
    """

    entries: int
    entry_size: int
    ledgers: int
    batch: int
    seconds: float
    entries_per_s: float
    mb_per_s: float
    memtable_turns: float | None
    """flushes to entry logs meanwhile, per bookie"""
    latency: Percentiles
    client_cpu_s: float
    bookie_cpu_s: float | None
    bookie_rss_max_mib: list[float] | None


class AppendResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures beside the floor of the same run.

    *bandwidth_to_floor*: payload bytes of all copies a second, as a fraction of the disk's
    bandwidth. *latency_to_floor*: the median as a multiple of one 4 KiB sync.
    *cost_to_one_ledger*: time per entry as a multiple of that with a single ledger.
    """

    quorums: Quorums
    figures: AppendFigures
    one_ledger: AppendFigures | None
    cost_to_one_ledger: float | None
    floor: Floor
    bandwidth_to_floor: float
    latency_to_floor: float


@click.command()
@load_options.measured_cluster
@load_options.bookies
@click.option(
    "--ensemble",
    type=click.IntRange(1, ENSEMBLE_MAX),
    show_default="all bookies",
    help="Bookies that hold each ledger.",
)
@click.option(
    "--write-quorum",
    type=click.IntRange(1, ENSEMBLE_MAX),
    show_default="the ensemble",
    help="Copies of each entry.",
)
@click.option(
    "--ack-quorum",
    type=click.IntRange(1, ENSEMBLE_MAX),
    show_default="more than half of the write quorum",
    help="Copies that must be durable before the acknowledgement.",
)
@load_options.entry_size
@click.option(
    "--entries",
    type=click.IntRange(1),
    show_default=f"what fills the memtable {TURNS} times",
    help="Entries to append in total.",
)
@click.option(
    "--seconds",
    type=load_options.FiniteRange(0),
    default=0.0,
    help="Stop after this many seconds; 0 for no limit.",
)
@click.option(
    "--ledgers", type=click.IntRange(1), default=1, help="Number of ledgers, written in turn."
)
@click.option("--batch", type=click.IntRange(1), help="Entries in each call of append_many.")
@click.option(
    "--outstanding",
    type=click.IntRange(1),
    default=OUTSTANDING,
    show_default=True,
    help="Concurrent calls.",
)
@click.option("--pipelined/--synchronous", default=True, help="Send ahead, or wait for each entry.")
@click.option(
    "--rate",
    type=load_options.FiniteRange(0),
    default=0.0,
    help="Entries to send a second; 0 for as many as possible.",
)
@load_options.folder
@load_options.floor_size
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
    """Append entries, each acknowledged after fdatasync.

    Starts a temporary cluster unless --cluster is given, where the ledgers are deleted at the end.
    Latencies are those of whole calls; with --rate they count from the moment when the call was
    due.
    """
    if not pipelined:
        batch, outstanding = 1, 1
    elif batch is None:
        batch = batch_for(entry_size) if ledgers == 1 else MANY_LEDGERS_BATCH
    if entries is None:
        entries = _entries_for(entry_size, pipelined, seconds)
    plan = AppendPlan(
        cluster=cluster,
        bookies=bookies,
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        ledgers=ledgers,
        load=Load(
            entry_size=entry_size,
            entries=entries,
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


async def _measure(plan: AppendPlan) -> AppendResult:
    if plan.cluster:
        async with connect(plan.cluster) as client:  # fails before the disk is measured
            bookies = usage.writable(await client.cluster.bookies(), plan.ensemble)
        measured = Measured(plan.cluster, [], _quorums(plan, bookies))
        return await _compare(plan, measured, await floor_of(plan.folder, plan.floor_size))
    floor = await floor_of(plan.folder, plan.floor_size)
    async with open_sandbox(plan.bookies, parent=plan.folder) as sandbox:
        measured = Measured(sandbox.cluster, sandbox.bookies, _quorums(plan, plan.bookies))
        return await _compare(plan, measured, floor)


def _quorums(plan: AppendPlan, bookies: int) -> Quorums:
    ensemble = min(bookies, ENSEMBLE_MAX) if plan.ensemble is None else plan.ensemble
    return fill_quorums(ensemble, plan.write_quorum, plan.ack_quorum)


async def _compare(plan: AppendPlan, measured: Measured, floor: Floor) -> AppendResult:
    one = await _run(plan, measured, ledgers=1) if plan.ledgers > 1 else None
    figures = await _run(plan, measured, ledgers=plan.ledgers)
    return AppendResult(
        quorums=measured.quorums,
        figures=figures,
        one_ledger=one,
        cost_to_one_ledger=round(one.entries_per_s / figures.entries_per_s, 3) if one else None,
        floor=floor,
        bandwidth_to_floor=round(
            figures.mb_per_s * measured.quorums.write_quorum / floor.write_mb_per_s, 3
        ),
        latency_to_floor=round(figures.latency.p50_ms / floor.sync.latency.p50_ms, 2),
    )


@asynccontextmanager
async def _ledgers(
    client: Client, measured: Measured, count: int
) -> AsyncGenerator[list[LedgerWriter]]:
    """Create *count* ledgers; at the end, delete them if the cluster stays."""
    new = NewLedger(quorums=measured.quorums)
    created: set[int] = set()

    @asynccontextmanager
    async def create() -> AsyncGenerator[LedgerWriter]:
        async with new.create(client.ledgers.create) as ledger:
            created.add(ledger.id)
            yield ledger

    try:
        async with open_ledgers(create, count) as opened:
            yield opened
    finally:
        if not measured.bookies:
            with trio.CancelScope(shield=True):
                await _delete(client, created)


async def _delete(client: Client, ledger_ids: set[int]) -> None:
    """Delete these ledgers, and name those that are left after DELETE_S."""
    limiter = trio.CapacityLimiter(CHANGES_MAX)
    left = set(ledger_ids)

    async def delete(ledger_id: int) -> None:
        async with limiter:
            with suppress(LedgerError):  # it is named below
                await client.ledgers.delete(ledger_id)
                left.remove(ledger_id)

    with trio.move_on_after(DELETE_S):
        async with trio.open_nursery() as nursery:
            for ledger_id in ledger_ids:
                nursery.start_soon(delete, ledger_id)
    if left:
        named = " ".join(map(str, sorted(left)))
        click.echo(f"quire: not deleted, see `quire ledger delete --help`: {named}", err=True)


async def _run(plan: AppendPlan, measured: Measured, *, ledgers: int) -> AppendFigures:
    bookies = measured.bookies
    processes = [bookie.process_id for bookie in bookies]
    async with (
        connect(measured.cluster) as client,
        _ledgers(client, measured, ledgers) as opened,
    ):
        client_cpu_s, bookie_cpu_s = time.process_time(), usage.cpu_s(processes)
        flushes = await counter_total(bookies, "flushes")
        outcome = await apply_load(opened, plan.load)
        flushes = await counter_total(bookies, "flushes") - flushes
        client_cpu_s = time.process_time() - client_cpu_s
        bookie_cpu_s = usage.cpu_s(processes) - bookie_cpu_s
    rate = outcome.entries / outcome.seconds
    return AppendFigures(
        entries=outcome.entries,
        entry_size=plan.load.entry_size,
        ledgers=ledgers,
        batch=plan.load.batch,
        seconds=round(outcome.seconds, 3),
        entries_per_s=round(rate, 1),
        mb_per_s=round(rate * plan.load.entry_size / 1e6, 2),
        memtable_turns=round(flushes / len(bookies), 1) if bookies else None,
        latency=outcome.latency,
        client_cpu_s=round(client_cpu_s, 2),
        bookie_cpu_s=round(bookie_cpu_s, 2) if bookies else None,
        bookie_rss_max_mib=[round(usage.rss_max(process) / 2**20, 1) for process in processes]
        or None,
    )


def _describe(result: AppendResult) -> str:
    figures, floor, quorums = result.figures, result.floor, result.quorums
    at, turns = figures.latency, figures.memtable_turns
    flushed = "" if turns is None else f"; the memtable was flushed {turns:.0f} times"
    lines = [
        f"{figures.entries:,} entries of {figures.entry_size} bytes, {figures.batch} a call, to "
        f"{figures.ledgers} ledger(s), quorums {quorums.ensemble_size}/{quorums.write_quorum}/"
        f"{quorums.ack_quorum} (ensemble/write/ack), in {figures.seconds:.2f} s{flushed}",
        f"  {figures.entries_per_s:,.0f} entries/s, {figures.mb_per_s:,.1f} MB/s; with all copies "
        f"{result.bandwidth_to_floor:.2f} x the disk's {floor.write_mb_per_s:,.0f} MB/s",
        f"  latency of a call: p50 {at.p50_ms:.3f} ms, p99 {at.p99_ms:.3f} ms, "
        f"p99.9 {at.p999_ms:.3f} ms; p50 is {result.latency_to_floor:.1f} x the disk's "
        f"{floor.sync.latency.p50_ms:.3f} ms for one 4 KiB sync",
        _usage_line(figures),
    ]
    if result.one_ledger is not None:
        lines.append(
            f"  time per entry: {result.cost_to_one_ledger:.2f} x that with one ledger "
            f"({result.one_ledger.entries_per_s:,.0f} entries/s)"
        )
    if figures.bookie_rss_max_mib is None:
        lines.append(f"  {foreign_disk(floor)}")
    return "\n".join(lines)


def _usage_line(figures: AppendFigures) -> str:
    line = f"  CPU: client {figures.client_cpu_s:.2f} s"
    if figures.bookie_cpu_s is None or figures.bookie_rss_max_mib is None:
        return line
    greatest = f"greatest RSS of a bookie: {max(figures.bookie_rss_max_mib):.0f} MiB"
    return f"{line}, bookies {figures.bookie_cpu_s:.2f} s; {greatest}"
