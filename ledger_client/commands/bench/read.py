"""``quire bench read``: entries read a second from a cold disk."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
import msgspec
import trio

from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.bench import load_options, usage
from ledger_client.commands.bench.disk import Floor, floor_of
from ledger_client.commands.bench.load import Load, Percentiles, Samples, apply_load, batch_for
from ledger_client.commands.bench.usage import counter_total
from ledger_client.commands.options import SizeParam
from ledger_client.commands.outcome import finish
from ledger_client.commands.sandbox import Bookie, open_sandbox
from ledger_client.ledgers.reader import LedgerReader


class ReadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings: read a ledger of *size* bytes in order, or *reads* random entries one by one."""

    sequential: bool
    entry_size: int
    size: int
    reads: int
    outstanding: int
    bookies: int
    folder: Path
    floor_size: int


class ReadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures beside the floor of the same run; MB are 10^6 payload bytes.

    *bandwidth_to_floor* is a fraction of a sequential cold read of the disk.
    """

    order: str
    entries: int
    entry_size: int
    ledger_bytes: int
    seconds: float
    entries_per_s: float
    mb_per_s: float
    latency: Percentiles
    disk_reads_per_entry: float
    client_cpu_s: float
    bookie_cpu_s: float
    bookie_rss_max_mib: list[float]
    floor: Floor
    bandwidth_to_floor: float


@click.command()
@click.option(
    "--order",
    type=click.Choice(["sequential", "random"]),
    default="sequential",
    show_default=True,
    help="All entries in order, or random single ones.",
)
@load_options.entry_size
@click.option(
    "--bytes",
    "size",
    type=SizeParam(),
    default="1GiB",
    show_default=True,
    help="Bytes to write and read.",
)
@click.option("--reads", type=click.IntRange(1), default=20_000, help="For --order random.")
@click.option("--outstanding", type=click.IntRange(1), default=8, help="For --order random.")
@load_options.bookies
@load_options.folder
@load_options.floor_size
@options.as_json
def read(
    *,
    order: str,
    entry_size: int,
    size: int,
    reads: int,
    outstanding: int,
    bookies: int,
    folder: Path | None,
    floor_size: int,
    as_json: bool,
) -> None:
    """Write a ledger, drop it from every cache, and read it.

    Starts a temporary cluster. Latencies are those of batches, or of single reads with
    --order random.
    """
    if size < entry_size:
        raise click.BadParameter("less than one entry of --entry-size", param_hint="'--bytes'")
    plan = ReadPlan(
        sequential=order == "sequential",
        entry_size=entry_size,
        size=size,
        reads=reads,
        outstanding=outstanding,
        bookies=bookies,
        folder=folder or Path(tempfile.gettempdir()),
        floor_size=floor_size,
    )
    result = trio.run(finish, partial(_measure, plan))
    click.echo(msgspec.json.encode(result).decode() if as_json else _describe(result))


async def _measure(plan: ReadPlan) -> ReadResult:
    floor = await floor_of(plan.folder, plan.floor_size)
    async with (
        open_sandbox(plan.bookies, parent=plan.folder) as sandbox,
        connect(sandbox.cluster) as client,
    ):
        ledger_id = await _fill(client, plan)
        await usage.make_cold(client._context.ledgers, sandbox)
        async with client.ledgers.open(ledger_id) as reader:
            return await _read(plan, floor, sandbox.bookies, reader)


async def _fill(client: Client, plan: ReadPlan) -> int:
    """Write the ledger; return its id."""
    entries = plan.size // plan.entry_size
    batch = min(batch_for(plan.entry_size), entries)
    load = Load(entry_size=plan.entry_size, entries=entries, batch=batch)
    async with client.ledgers.create(plan.bookies, plan.bookies, plan.bookies) as ledger:
        await apply_load([ledger], load)
    return ledger.id


async def _read(
    plan: ReadPlan, floor: Floor, bookies: Sequence[Bookie], reader: LedgerReader
) -> ReadResult:
    processes = [bookie.process_id for bookie in bookies]
    samples = Samples()
    disk_reads = await _disk_reads(bookies)
    client_cpu_s, bookie_cpu_s = time.process_time(), usage.cpu_s(processes)
    started = time.perf_counter()
    if plan.sequential:
        entries = await _read_in_order(reader, samples)
    else:
        entries = await _read_at_random(reader, samples, plan)
    seconds = time.perf_counter() - started
    client_cpu_s = time.process_time() - client_cpu_s
    bookie_cpu_s = usage.cpu_s(processes) - bookie_cpu_s
    mb_per_s = round(entries * plan.entry_size / 1e6 / seconds, 2)
    return ReadResult(
        order="sequential" if plan.sequential else "random",
        entries=entries,
        entry_size=plan.entry_size,
        ledger_bytes=(reader.last_confirmed + 1) * plan.entry_size,
        seconds=round(seconds, 3),
        entries_per_s=round(entries / seconds, 1),
        mb_per_s=mb_per_s,
        latency=samples.percentiles(),
        disk_reads_per_entry=round((await _disk_reads(bookies) - disk_reads) / entries, 3),
        client_cpu_s=round(client_cpu_s, 2),
        bookie_cpu_s=round(bookie_cpu_s, 2),
        bookie_rss_max_mib=[round(usage.rss_max(process) / 2**20, 1) for process in processes],
        floor=floor,
        bandwidth_to_floor=round(mb_per_s / floor.read_mb_per_s, 3),
    )


async def _read_in_order(reader: LedgerReader, samples: Samples) -> int:
    entries = 0
    before = time.perf_counter()
    async for batch in reader.read_batches(0, reader.last_confirmed):
        entries += len(batch)
        now = time.perf_counter()
        samples.add(now - before)
        before = now
    return entries


async def _read_at_random(reader: LedgerReader, samples: Samples, plan: ReadPlan) -> int:
    choice = random.Random(plan.reads)
    left = plan.reads

    async def work() -> None:
        nonlocal left
        while left:
            left -= 1
            entry_id = choice.randrange(reader.last_confirmed + 1)
            before = time.perf_counter()
            await reader.read(entry_id, entry_id)
            samples.add(time.perf_counter() - before)

    async with trio.open_nursery() as nursery:
        for _ in range(plan.outstanding):
            nursery.start_soon(work)
    return plan.reads


async def _disk_reads(bookies: Sequence[Bookie]) -> int:
    return await counter_total(bookies, "log_reads") + await counter_total(bookies, "index_reads")


def _describe(result: ReadResult) -> str:
    at = result.latency
    what = "a batch" if result.order == "sequential" else "a read"
    return (
        f"{result.entries:,} entries of {result.entry_size} bytes read in {result.order} order "
        f"from a cold ledger of {result.ledger_bytes / 2**30:.2f} GiB in {result.seconds:.2f} s\n"
        f"  {result.entries_per_s:,.0f} entries/s, {result.mb_per_s:,.1f} MB/s, "
        f"{result.bandwidth_to_floor:.2f} x the disk's {result.floor.read_mb_per_s:,.0f} MB/s\n"
        f"  latency of {what}: p50 {at.p50_ms:.3f} ms, p99 {at.p99_ms:.3f} ms, "
        f"p99.9 {at.p999_ms:.3f} ms; {result.disk_reads_per_entry:.2f} disk reads an entry\n"
        f"  CPU: client {result.client_cpu_s:.2f} s, bookies {result.bookie_cpu_s:.2f} s; "
        f"greatest RSS of a bookie: {max(result.bookie_rss_max_mib):.0f} MiB"
    )
