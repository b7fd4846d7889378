"""``quire bench consume``: messages read a second, and the delay of new ones."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import click
import msgspec
import trio

from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.bench import load_options, usage
from ledger_client.commands.bench.comparison import GroupResult, describe
from ledger_client.commands.bench.disk import Floor, floor_of
from ledger_client.commands.bench.group import Access, GroupPlan, measure_group
from ledger_client.commands.bench.load import Percentiles, Samples, send_many
from ledger_client.commands.metrics_page import metrics_page, metrics_port
from ledger_client.commands.outcome import finish
from ledger_client.commands.progress import show_part
from ledger_client.commands.sandbox import Bookie, open_sandbox
from ledger_client.commands.tables import copies
from ledger_client.topics.reading.options import ReadSettings
from ledger_client.topics.reading.reader import TopicReader

TOTAL_SIZE = 400 << 20
GROUP_SIZE = 100 << 20
GROUP_MESSAGES_MIN = 100_000
"""With fewer, one call of poll_batches() could return them all."""
TOPIC = "bench/consume"
LATENCY_TOPIC = "bench/latency"
BATCH_SIZE = 1 << 20
"""Limit of a batch in bytes, high enough that the number of messages decides."""


class ConsumePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the measurement, which runs in a sandbox."""

    bookies: int
    partitions: int
    message_size: int
    messages: int
    batch: int
    compression: Literal["none", "zstd", "lz4"]
    rate: float
    rate_s: float
    folder: Path
    floor_size: int
    metrics_port: int
    members: int
    group_partitions: int
    lanes: int
    rounds: int
    idle_s: float


class ConsumeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one full read. MB are 10^6 bytes of values; CPU is user and system time."""

    messages: int
    seconds: float
    messages_per_s: float
    mb_per_s: float
    client_cpu_s: float
    bookie_cpu_s: float


class ConsumeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures beside the floor of the same run.

    *cold*: Arrow batches from the disk; *batches*: the same from the bookies' caches;
    *messages*: one object per message; *reverse*: Arrow batches, backwards.
    *latency*: from the call of send() until a following reader has the message.
    *bandwidth_to_floor*: *cold* as a fraction of a sequential cold read of the disk.
    """

    copies: int
    message_size: int
    batch: int
    cold: ConsumeFigures
    batches: ConsumeFigures
    messages: ConsumeFigures
    reverse: ConsumeFigures
    latency: Percentiles
    rate: float
    client_rss_max_mib: float
    floor: Floor
    bandwidth_to_floor: float


@click.command()
@load_options.bookies
@load_options.partitions
@load_options.message_size
@click.option(
    "--messages",
    type=click.IntRange(1),
    show_default="400 MiB of them, with --group 100 MiB",
    help="Messages in total; with --group, at least 100000.",
)
@load_options.message_batch
@load_options.compression
@load_options.send_rate
@load_options.send_seconds
@load_options.folder
@load_options.floor_size
@click.option("--group", is_flag=True, help="Compare consumers of a group with plain readers.")
@click.option(
    "--members",
    type=click.IntRange(2, 1000),
    default=10,
    show_default=True,
    help="With --group: members, which share partitions, and then wait.",
)
@click.option(
    "--group-partitions",
    type=click.IntRange(2, 10_000),
    default=100,
    show_default=True,
    help="With --group: partitions that they share.",
)
@click.option(
    "--lanes",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="With --group: lanes of each partition while members wait.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="With --group: how often readers and groups take turns; the medians are shown.",
)
@click.option(
    "--idle-seconds",
    "idle_s",
    type=load_options.FiniteRange(0.1),
    default=60.0,
    show_default=True,
    help="With --group: how long the processor time of waiting is measured.",
)
@metrics_port
@options.as_json
def consume(
    *, messages: int | None, folder: Path | None, group: bool, as_json: bool, **arguments: object
) -> None:
    """Fill a topic and read it in several ways.

    Everything is read from the disk as Arrow batches, then from the bookies' caches as Arrow
    batches, as objects, and in reverse. At last, a reader follows a producer that sends at a
    fixed rate. Starts a temporary cluster.

    With --group, plain readers and consumers of a group read in turn, and their figures are
    compared. Then members commit, join, leave and wait. That takes two to three minutes, and
    three times --idle-seconds.
    """
    size = arguments["message_size"]
    assert isinstance(size, int)
    messages = messages and max(messages, GROUP_MESSAGES_MIN if group else 1)
    fields = arguments | {
        "messages": messages or _messages(size, group=group),
        "folder": folder or Path(tempfile.gettempdir()),
    }
    plan = msgspec.convert(fields, ConsumePlan, dec_hook=lambda _kind, value: value)
    if group:
        compared = trio.run(finish, partial(_measure_group, plan))
        click.echo(msgspec.json.encode(compared).decode() if as_json else describe(compared))
        return
    result = trio.run(finish, partial(_measure, plan))
    click.echo(msgspec.json.encode(result).decode() if as_json else _describe(result))


def _messages(size: int, *, group: bool) -> int:
    """Return how many messages of *size* bytes are read by default."""
    if group:
        return max(GROUP_SIZE // max(size, 1), GROUP_MESSAGES_MIN)
    return TOTAL_SIZE // max(size, 1)


async def _measure_group(plan: ConsumePlan) -> GroupResult:
    floor = await floor_of(plan.folder, plan.floor_size)
    async with (
        open_sandbox(plan.bookies, parent=plan.folder) as sandbox,
        connect(sandbox.cluster) as client,
        metrics_page(lambda: client.metrics, plan.metrics_port),
    ):
        with show_part() as on_part:
            return await measure_group(
                Access(client.topics, client._context, client._heartbeats),
                sandbox,
                msgspec.convert(plan, GroupPlan, from_attributes=True),
                floor,
                on_part,
            )


async def _measure(plan: ConsumePlan) -> ConsumeResult:
    floor = await floor_of(plan.folder, plan.floor_size)
    async with (
        open_sandbox(plan.bookies, parent=plan.folder) as sandbox,
        connect(sandbox.cluster) as client,
        metrics_page(lambda: client.metrics, plan.metrics_port),
    ):
        messages = await _fill(client, plan)
        await usage.make_cold(client._context.ledgers, sandbox)
        measure = partial(_read, client, plan, sandbox.bookies, messages)
        cold = await measure(_take_batches, {})
        return ConsumeResult(
            copies=plan.bookies,
            message_size=plan.message_size,
            batch=plan.batch,
            cold=cold,
            batches=await measure(_take_batches, {}),
            messages=await measure(_take_messages, {}),
            reverse=await measure(_take_batches, {"reverse": True}),
            latency=await _follow(client, plan),
            rate=plan.rate,
            client_rss_max_mib=round(usage.rss_max(os.getpid()) / 2**20, 1),
            floor=floor,
            bandwidth_to_floor=round(cold.mb_per_s / floor.read_mb_per_s, 3),
        )


async def _fill(client: Client, plan: ConsumePlan) -> int:
    """Fill the topic; return its number of messages."""
    await client.topics.create(TOPIC, plan.partitions, replication=plan.bookies)
    async with client.producer(
        TOPIC,
        access="exclusive",
        batch_messages=plan.batch,
        batch_bytes=max(BATCH_SIZE, plan.message_size),
        compression=plan.compression,
    ) as producer:
        sent = await send_many(producer, plan.message_size, plan.messages, arrow=False)
    return sent.messages


async def _read(
    client: Client,
    plan: ConsumePlan,
    bookies: Sequence[Bookie],
    messages: int,
    take: Callable[[TopicReader], Awaitable[int]],
    settings: ReadSettings,
) -> ConsumeFigures:
    import pyarrow  # noqa: F401 - keeps its import out of the measurement

    processes = [bookie.process_id for bookie in bookies]
    client_cpu_s, bookie_cpu_s = time.process_time(), usage.cpu_s(processes)
    started = time.perf_counter()
    async with client.reader(TOPIC, **settings) as reader:
        taken = await take(reader)
    seconds = time.perf_counter() - started
    assert taken == messages
    return ConsumeFigures(
        messages=taken,
        seconds=round(seconds, 3),
        messages_per_s=round(taken / seconds, 1),
        mb_per_s=round(taken * plan.message_size / 1e6 / seconds, 2),
        client_cpu_s=round(time.process_time() - client_cpu_s, 2),
        bookie_cpu_s=round(usage.cpu_s(processes) - bookie_cpu_s, 2),
    )


async def _take_batches(reader: TopicReader) -> int:
    taken = 0
    async for batch in reader.read_batches():
        taken += batch.num_rows
    return taken


async def _take_messages(reader: TopicReader) -> int:
    taken = 0
    async for _ in reader:
        taken += 1
    return taken


async def _follow(client: Client, plan: ConsumePlan) -> Percentiles:
    """Follow a producer that sends at a fixed rate; each message holds the time of its send."""
    await client.topics.create(LATENCY_TOPIC, replication=plan.bookies)
    samples = Samples()
    count = max(1, round(plan.rate * plan.rate_s))

    async def read(reader: TopicReader) -> None:
        for _ in range(count):
            message = await anext(reader)
            sent_at = float((message.value or b"").partition(b" ")[0])
            samples.add(time.perf_counter() - sent_at)

    async with (
        client.producer(LATENCY_TOPIC, access="exclusive") as producer,
        client.reader(LATENCY_TOPIC, follow=True) as reader,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(read, reader)
        filling = b" " + bytes(max(plan.message_size - 20, 0))
        started = time.perf_counter()
        for number in range(count):
            due = started + number / plan.rate
            if (wait_s := due - time.perf_counter()) > 0:
                await trio.sleep(wait_s)
            nursery.start_soon(producer.send, b"%.9f" % time.perf_counter() + filling)
    return samples.percentiles()


def _describe(result: ConsumeResult) -> str:
    at = result.latency
    ways = {
        "Arrow batches, cold": result.cold,
        "Arrow batches": result.batches,
        "message objects": result.messages,
        "Arrow batches in reverse": result.reverse,
    }
    lines = [
        f"{result.cold.messages:,} messages of {result.message_size} bytes, {result.batch} in a "
        f"batch, in {copies(result.copies)}",
        *(_line(name, figures) for name, figures in ways.items()),
        f"  cold: {result.bandwidth_to_floor:.2f} x the disk's "
        f"{result.floor.read_mb_per_s:,.0f} MB/s; greatest RSS of the client: "
        f"{result.client_rss_max_mib:.0f} MiB",
        f"  from send to a follower at {result.rate:,.0f} messages/s: p50 {at.p50_ms:.3f} ms, "
        f"p99 {at.p99_ms:.3f} ms, p99.9 {at.p999_ms:.3f} ms",
    ]
    return "\n".join(lines)


def _line(name: str, figures: ConsumeFigures) -> str:
    return (
        f"  {name}: {figures.messages_per_s:,.0f} messages/s, {figures.mb_per_s:,.1f} MB/s; CPU: "
        f"client {figures.client_cpu_s:.2f} s, bookies {figures.bookie_cpu_s:.2f} s of "
        f"{figures.seconds:.2f} s"
    )
