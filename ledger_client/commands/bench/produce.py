"""``quire bench produce``: messages made durable a second, and how long each one waits."""

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

import ledger_client
from ledger_client import Client
from ledger_client.commands import options
from ledger_client.commands.bench import usage
from ledger_client.commands.bench.floor import Floor, measure_floor
from ledger_client.commands.bench.samples import Percentiles
from ledger_client.commands.bench.sending import Sent, send_by_clock, send_in_tasks, send_many
from ledger_client.commands.interruption import finish
from ledger_client.commands.metrics_page import metrics_page, metrics_port
from ledger_client.commands.quantity import copies
from ledger_client.commands.sandbox import Bookie, open_sandbox
from ledger_client.commands.size import Size
from ledger_client.topics.producing.producer import Producer
from metadata.topics import RollPolicy

MANY_SIZE = 400 << 20
ROLLS_PER_S = 2
TOPIC = "bench/produce"
Load = Callable[[Producer], Awaitable[Sent]]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure; *cluster* is "" for bookies of our own."""

    cluster: str
    bookies: int
    replication: int
    ack_quorum: int
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


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one load. MB are 10^6 bytes of values; CPU counts user and system time.

    *stored_size*: bytes of all entries, for each message and copy. *ledgers*: written in turn.
    """

    messages: int
    seconds: float
    messages_per_s: float
    mb_per_s: float
    latency: Percentiles
    ledgers: int
    stored_size: float
    client_cpu_s: float
    bookie_cpu_s: float
    client_rss_max_mib: float
    bookie_rss_max_mib: list[float]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The figures beside the floor of the same run.

    *many*: calls of send_many. *tasks*: that many tasks in send. *steady*: sends by the clock,
    *rolling*: the same while the lane goes from ledger to ledger.
    *bandwidth_to_floor*: bytes of values times copies a second, as a part of what the disk
    takes. *latency_to_floor*: the median of *steady* as a multiple of one 4 KiB sync.
    *rolling_to_steady*: of the slowest message in a thousand.
    """

    replication: int
    ack_quorum: int
    message_size: int
    many: Figures
    tasks: Figures
    steady: Figures
    rolling: Figures
    floor: Floor
    bandwidth_to_floor: float
    latency_to_floor: float
    rolling_to_steady: float


@click.command()
@click.option("--cluster", envvar="QUIRE_CLUSTER", default="", help="Default: bookies of our own.")
@click.option("--bookies", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--replication", type=click.IntRange(1, 64), show_default="all bookies")
@click.option("--ack-quorum", type=click.IntRange(1, 64), show_default="more than half of them")
@click.option("--partitions", type=click.IntRange(0), default=0, show_default=True)
@click.option("--message-size", type=Size(), default="100", show_default=True)
@click.option("--messages", type=click.IntRange(1), show_default="400 MiB of them", help="In all.")
@click.option("--arrow/--list", default=False, help="What send_many is given.")
@click.option("--compression", type=click.Choice(["none", "zstd", "lz4"]), default="none")
@click.option("--tasks", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--sends", type=click.IntRange(1), default=500_000, show_default=True)
@click.option("--rate", type=click.FloatRange(1), default=1000.0, show_default=True)
@click.option("--rate-seconds", "rate_s", type=float, default=5.0, show_default=True)
@options.folder
@options.floor_size
@metrics_port
@options.as_json
def produce(*, as_json: bool, **asked: object) -> None:
    """Send messages, each acknowledged after fdatasync, and say how fast it was.

    First with send_many, then from many tasks that send one after the other, then by the
    clock: at a steady rate, without and with ledgers that end. The messages go to bookies
    of its own, in a temporary folder, unless --cluster names others.
    """
    result = trio.run(finish, partial(_measure, _plan(asked)))
    click.echo(msgspec.json.encode(result).decode() if as_json else _describe(result))


def _plan(asked: dict[str, object]) -> Plan:
    given = {name: value for name, value in asked.items() if value is not None}
    replication = given.setdefault("replication", given["bookies"])
    size = given["message_size"]
    assert isinstance(replication, int)
    assert isinstance(size, int)
    given.setdefault("ack_quorum", replication // 2 + 1)
    given.setdefault("messages", MANY_SIZE // max(size, 1))
    given.setdefault("folder", Path(tempfile.gettempdir()))
    return msgspec.convert(given, Plan, dec_hook=lambda _kind, value: value)


async def _measure(plan: Plan) -> Result:
    floor = await trio.to_thread.run_sync(measure_floor, plan.folder, plan.floor_size)
    if plan.cluster:
        return await _measure_cluster(plan, floor, plan.cluster, [])
    async with open_sandbox(plan.bookies, parent=plan.folder) as sandbox:
        return await _measure_cluster(plan, floor, sandbox.cluster, sandbox.bookies)


async def _measure_cluster(plan: Plan, floor: Floor, cluster: str, bookies: list[Bookie]) -> Result:
    size = plan.message_size
    roll, rolling = RollPolicy(), RollPolicy(entries=max(1, round(plan.rate / ROLLS_PER_S)))

    async def run(load: Load, policy: RollPolicy = roll) -> Figures:
        async with (
            ledger_client.connect(cluster) as client,
            metrics_page(client, plan.metrics_port),
            _topic(client, plan, policy),
            client.producer(TOPIC, access="exclusive", compression=plan.compression) as producer,
        ):
            return await _run(client, producer, load, plan, bookies)

    by_clock = partial(send_by_clock, size=size, rate=plan.rate, seconds=plan.rate_s)
    many = await run(partial(send_many, size=size, messages=plan.messages, arrow=plan.arrow))
    tasks = await run(partial(send_in_tasks, size=size, messages=plan.sends, tasks=plan.tasks))
    steady = await run(by_clock)
    turning = await run(by_clock, rolling)
    return Result(
        replication=plan.replication,
        ack_quorum=plan.ack_quorum,
        message_size=size,
        many=many,
        tasks=tasks,
        steady=steady,
        rolling=turning,
        floor=floor,
        bandwidth_to_floor=round(many.mb_per_s * plan.replication / floor.write_mb_per_s, 3),
        latency_to_floor=round(steady.latency.p50_ms / floor.sync.latency.p50_ms, 2),
        rolling_to_steady=round(turning.latency.p999_ms / steady.latency.p999_ms, 2),
    )


@asynccontextmanager
async def _topic(client: Client, plan: Plan, roll: RollPolicy) -> AsyncGenerator[None]:
    await client.create_topic(
        TOPIC,
        plan.partitions,
        replication=plan.replication,
        ack_quorum=plan.ack_quorum,
        roll=roll,
    )
    try:
        yield
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
            await client.delete_topic(TOPIC)


async def _run(
    client: Client, producer: Producer, load: Load, plan: Plan, bookies: list[Bookie]
) -> Figures:
    processes = [bookie.process_id for bookie in bookies]
    await producer.send(b"")  # lanes and connections are there from here on
    client_cpu_s, bookie_cpu_s = time.process_time(), usage.cpu_s(processes)
    sent = await load(producer)
    client_cpu_s = time.process_time() - client_cpu_s
    bookie_cpu_s = usage.cpu_s(processes) - bookie_cpu_s
    await producer.close()
    extent = (await client.explain_topic(TOPIC)).extent
    rate = sent.messages / sent.seconds
    return Figures(
        messages=sent.messages,
        seconds=round(sent.seconds, 3),
        messages_per_s=round(rate, 1),
        mb_per_s=round(rate * plan.message_size / 1e6, 2),
        latency=sent.latency,
        ledgers=extent.ledgers,
        stored_size=round(extent.size / max(extent.messages, 1), 2),
        client_cpu_s=round(client_cpu_s, 2),
        bookie_cpu_s=round(bookie_cpu_s, 2),
        client_rss_max_mib=round(usage.rss_max(os.getpid()) / 2**20, 1),
        bookie_rss_max_mib=[round(usage.rss_max(process) / 2**20, 1) for process in processes],
    )


def _describe(result: Result) -> str:
    many, tasks, floor = result.many, result.tasks, result.floor
    steady, rolling = result.steady.latency, result.rolling.latency
    bookies = ", ".join(f"{rss:.0f}" for rss in result.rolling.bookie_rss_max_mib)
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
        f"  CPU of client and bookies: {_cpu(many)} in send_many, {_cpu(tasks)} in tasks; "
        f"greatest RSS: client {many.client_rss_max_mib:.0f} MiB, bookies {bookies or '?'} MiB",
    ]
    return "\n".join(lines)


def _cpu(figures: Figures) -> str:
    return (
        f"{figures.client_cpu_s / figures.seconds:.0%} and "
        f"{figures.bookie_cpu_s / figures.seconds:.0%}"
    )
