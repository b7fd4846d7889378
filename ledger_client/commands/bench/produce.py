"""``quire bench produce``: durable messages a second, and their latency."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import click
import msgspec
import trio

from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.bench import load_options, usage
from ledger_client.commands.bench.disk import Floor, floor_of, foreign_disk
from ledger_client.commands.bench.load import (
    Percentiles,
    SendOutcome,
    send_by_clock,
    send_in_tasks,
    send_many,
)
from ledger_client.commands.metrics_page import metrics_page, metrics_port
from ledger_client.commands.outcome import finish
from ledger_client.commands.sandbox import Bookie, open_sandbox
from ledger_client.commands.tables import copies
from ledger_client.topics.producing.producer import Producer
from metadata.topics import RollPolicy

MANY_SIZE = 400 << 20
ROLLS_PER_S = 2
REPLICATION_MAX = 64
TOPIC = "bench/produce"
Load = Callable[[Producer], Awaitable[SendOutcome]]


class ProducePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the measurement; *cluster* is "" for a sandbox.

    *replication*: `None` for all bookies. *ack_quorum*: `None` for more than half of these.
    """

    cluster: str
    bookies: int
    replication: int | None
    ack_quorum: int | None
    partitions: int
    message_size: int
    messages: int
    arrow: bool
    compression: Literal["none", "zstd", "lz4"]
    tasks: int
    sends: int
    rate: float
    rate_s: float
    folder: Path
    floor_size: int
    metrics_port: int


class Measured(msgspec.Struct, frozen=True):
    """The cluster, with those of its bookies that run here: none if it is not a sandbox."""

    cluster: str
    bookies: list[Bookie]
    replication: int
    ack_quorum: int


class ProduceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one load. MB are 10^6 bytes of values; CPU is user and system time.

    *stored_size*: stored bytes per message and copy. *ledgers*: how many the lane went through.
    Figures of bookies are `None` unless they run here.
    """

    messages: int
    seconds: float
    messages_per_s: float
    mb_per_s: float
    latency: Percentiles
    ledgers: int
    stored_size: float
    client_cpu_s: float
    bookie_cpu_s: float | None
    client_rss_max_mib: float
    bookie_rss_max_mib: list[float] | None


class ProduceResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures beside the floor of the same run.

    *many*: calls of send_many(). *tasks*: many tasks in send(). *steady*: sends at a fixed
    rate. *rolling*: the same while the lane rolls from ledger to ledger.
    *bandwidth_to_floor*: bytes of values of all copies a second, as a fraction of the disk's
    bandwidth. *latency_to_floor*: the median of *steady* as a multiple of one 4 KiB sync.
    *rolling_to_steady*: ratio of the 99.9th percentiles.
    """

    replication: int
    ack_quorum: int
    message_size: int
    many: ProduceFigures
    tasks: ProduceFigures
    steady: ProduceFigures
    rolling: ProduceFigures
    floor: Floor
    bandwidth_to_floor: float
    latency_to_floor: float
    rolling_to_steady: float


@click.command()
@load_options.measured_cluster
@load_options.bookies
@click.option(
    "--replication",
    type=click.IntRange(1, REPLICATION_MAX),
    show_default="all bookies",
    help="Copies of each message.",
)
@click.option(
    "--ack-quorum",
    type=click.IntRange(1, REPLICATION_MAX),
    show_default="more than half of them",
    help="Copies that must be durable before the acknowledgement.",
)
@load_options.partitions
@load_options.message_size
@click.option(
    "--messages", type=click.IntRange(1), show_default="400 MiB of them", help="Messages in total."
)
@click.option("--arrow/--list", default=False, help="Pass an Arrow array or a list to send_many().")
@load_options.compression
@click.option(
    "--tasks",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Tasks that send one message after the other.",
)
@click.option(
    "--sends",
    type=click.IntRange(1),
    default=500_000,
    show_default=True,
    help="Messages that these tasks send in total.",
)
@load_options.send_rate
@load_options.send_seconds
@load_options.folder
@load_options.floor_size
@metrics_port
@options.as_json
def produce(*, as_json: bool, **arguments: object) -> None:
    """Send messages, each acknowledged after fdatasync.

    Messages are sent with send_many(), then by many tasks one by one, then at a fixed rate,
    without and with rolling ledgers. Starts a temporary cluster unless --cluster is given.
    """
    result = trio.run(finish, partial(_measure, _plan(arguments)))
    click.echo(msgspec.json.encode(result).decode() if as_json else _describe(result))


def _plan(arguments: dict[str, object]) -> ProducePlan:
    size = arguments["message_size"]
    assert isinstance(size, int)
    fields = arguments | {
        "messages": arguments["messages"] or MANY_SIZE // max(size, 1),
        "folder": arguments["folder"] or Path(tempfile.gettempdir()),
    }
    return msgspec.convert(fields, ProducePlan, dec_hook=lambda _kind, value: value)


async def _measure(plan: ProducePlan) -> ProduceResult:
    if plan.cluster:
        async with connect(plan.cluster) as client:  # fails before the disk is measured
            bookies = usage.writable(await client.cluster.bookies(), plan.replication)
        measured = _measured(plan, plan.cluster, [], bookies)
        return await _measure_cluster(plan, measured, await floor_of(plan.folder, plan.floor_size))
    floor = await floor_of(plan.folder, plan.floor_size)
    async with open_sandbox(plan.bookies, parent=plan.folder) as sandbox:
        measured = _measured(plan, sandbox.cluster, sandbox.bookies, plan.bookies)
        return await _measure_cluster(plan, measured, floor)


def _measured(plan: ProducePlan, cluster: str, ours: list[Bookie], bookies: int) -> Measured:
    replication = plan.replication or min(bookies, REPLICATION_MAX)
    return Measured(cluster, ours, replication, plan.ack_quorum or replication // 2 + 1)


async def _measure_cluster(plan: ProducePlan, measured: Measured, floor: Floor) -> ProduceResult:
    size = plan.message_size
    roll, rolling = RollPolicy(), RollPolicy(entries=max(1, round(plan.rate / ROLLS_PER_S)))

    async def run(load: Load, policy: RollPolicy = roll) -> ProduceFigures:
        async with (
            connect(measured.cluster) as client,
            metrics_page(lambda: client.metrics, plan.metrics_port),
            _topic(client, plan, measured, policy),
            client.producer(TOPIC, access="exclusive", compression=plan.compression) as producer,
        ):
            return await _run(client, producer, load, plan, measured.bookies)

    by_clock = partial(send_by_clock, size=size, rate=plan.rate, seconds=plan.rate_s)
    many = await run(partial(send_many, size=size, messages=plan.messages, arrow=plan.arrow))
    tasks = await run(partial(send_in_tasks, size=size, messages=plan.sends, tasks=plan.tasks))
    steady = await run(by_clock)
    rolled = await run(by_clock, rolling)
    return ProduceResult(
        replication=measured.replication,
        ack_quorum=measured.ack_quorum,
        message_size=size,
        many=many,
        tasks=tasks,
        steady=steady,
        rolling=rolled,
        floor=floor,
        bandwidth_to_floor=round(many.mb_per_s * measured.replication / floor.write_mb_per_s, 3),
        latency_to_floor=round(steady.latency.p50_ms / floor.sync.latency.p50_ms, 2),
        rolling_to_steady=round(rolled.latency.p999_ms / steady.latency.p999_ms, 2),
    )


@asynccontextmanager
async def _topic(
    client: Client, plan: ProducePlan, measured: Measured, roll: RollPolicy
) -> AsyncGenerator[None]:
    await client.topics.create(
        TOPIC,
        plan.partitions,
        replication=measured.replication,
        ack_quorum=measured.ack_quorum,
        roll=roll,
    )
    try:
        yield
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
            await client.topics.delete(TOPIC)


async def _run(
    client: Client, producer: Producer, load: Load, plan: ProducePlan, bookies: list[Bookie]
) -> ProduceFigures:
    processes = [bookie.process_id for bookie in bookies]
    await producer.send(b"")  # opens lanes and connections
    client_cpu_s, bookie_cpu_s = time.process_time(), usage.cpu_s(processes)
    sent = await load(producer)
    client_cpu_s = time.process_time() - client_cpu_s
    bookie_cpu_s = usage.cpu_s(processes) - bookie_cpu_s
    await producer.close()
    extent = (await client.topics.explain(TOPIC)).extent
    rate = sent.messages / sent.seconds
    return ProduceFigures(
        messages=sent.messages,
        seconds=round(sent.seconds, 3),
        messages_per_s=round(rate, 1),
        mb_per_s=round(rate * plan.message_size / 1e6, 2),
        latency=sent.latency,
        ledgers=extent.ledgers,
        stored_size=round(extent.size / max(extent.messages, 1), 2),
        client_cpu_s=round(client_cpu_s, 2),
        bookie_cpu_s=round(bookie_cpu_s, 2) if bookies else None,
        client_rss_max_mib=round(usage.rss_max(os.getpid()) / 2**20, 1),
        bookie_rss_max_mib=[round(usage.rss_max(process) / 2**20, 1) for process in processes]
        or None,
    )


def _describe(result: ProduceResult) -> str:
    many, tasks, floor = result.many, result.tasks, result.floor
    steady, rolling = result.steady.latency, result.rolling.latency
    lines = [
        f"messages of {result.message_size} bytes in {copies(result.replication)}, "
        f"{result.ack_quorum} durable before the acknowledgement",
        f"  send_many: {many.messages_per_s:,.0f} messages/s, {many.mb_per_s:,.1f} MB/s; with all "
        f"copies {result.bandwidth_to_floor:.2f} x the disk's {floor.write_mb_per_s:,.0f} MB/s; "
        f"{many.stored_size:.1f} bytes stored for each",
        f"  send in tasks: {tasks.messages_per_s:,.0f} messages/s; p50 "
        f"{tasks.latency.p50_ms:.2f} ms, p99 {tasks.latency.p99_ms:.2f} ms",
        f"  send at {result.steady.messages_per_s:,.0f}/s: p50 {steady.p50_ms:.3f} ms, "
        f"p99 {steady.p99_ms:.3f} ms, p99.9 {steady.p999_ms:.3f} ms; p50 is "
        f"{result.latency_to_floor:.1f} x the disk's {floor.sync.latency.p50_ms:.3f} ms for "
        "one 4 KiB sync",
        f"  the same through {result.rolling.ledgers} ledgers: p50 {rolling.p50_ms:.3f} ms, "
        f"p99 {rolling.p99_ms:.3f} ms, p99.9 {rolling.p999_ms:.3f} ms, "
        f"{result.rolling_to_steady:.2f} x that through {result.steady.ledgers}",
        *_usage_lines(result),
    ]
    return "\n".join(lines)


def _usage_lines(result: ProduceResult) -> list[str]:
    many, tasks, residents = result.many, result.tasks, result.rolling.bookie_rss_max_mib
    whose = "client" if residents is None else "client and bookies"
    greatest = f"greatest RSS: client {many.client_rss_max_mib:.0f} MiB"
    if residents is not None:
        greatest += f", bookies {', '.join(f'{rss:.0f}' for rss in residents)} MiB"
    line = f"  CPU of {whose}: {_cpu(many)} in send_many, {_cpu(tasks)} in tasks; {greatest}"
    return [line] if residents is not None else [line, f"  {foreign_disk(result.floor)}"]


def _cpu(figures: ProduceFigures) -> str:
    shares = [figures.client_cpu_s, figures.bookie_cpu_s]
    return " and ".join(f"{share / figures.seconds:.0%}" for share in shares if share is not None)
