"""``quire bench consume``: messages read a second, and how soon a new one is read."""

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

import ledger_client
from ledger_client import Client, TopicReader
from ledger_client.commands import options
from ledger_client.commands.bench import usage
from ledger_client.commands.bench.floor import Floor, measure_floor
from ledger_client.commands.bench.samples import Percentiles, Samples
from ledger_client.commands.bench.sending import send_many
from ledger_client.commands.interruption import finish
from ledger_client.commands.metrics_page import metrics_page, metrics_port
from ledger_client.commands.peer import Peer
from ledger_client.commands.quantity import copies
from ledger_client.commands.sandbox import Bookie, Sandbox, open_sandbox
from ledger_client.commands.size import Size
from ledger_client.topics.reading.read_options import ReadSettings
from metadata.calls import FlushNow, JournalState

TOTAL_SIZE = 400 << 20
TOPIC = "bench/consume"
LATENCY_TOPIC = "bench/latency"
BATCH_SIZE = 1 << 20
"""What a batch may hold, so that their messages are counted and not their bytes."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, with bookies of our own."""

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


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came of reading everything once. MB are 10^6 bytes of values; CPU is user and system."""

    messages: int
    seconds: float
    messages_per_s: float
    mb_per_s: float
    client_cpu_s: float
    bookie_cpu_s: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The figures beside the floor of the same run.

    *cold*: Arrow batches, from the disk; *batches*: the same from the bookies' caches;
    *messages*: an object for each message; *reverse*: Arrow batches, the last first.
    *latency*: from the call of send to the message in the follower's hands.
    *bandwidth_to_floor*: of *cold*, beside one cold read of the same disk in order.
    """

    copies: int
    message_size: int
    batch: int
    cold: Figures
    batches: Figures
    messages: Figures
    reverse: Figures
    latency: Percentiles
    rate: float
    client_rss_max_mib: float
    floor: Floor
    bandwidth_to_floor: float


@click.command()
@click.option("--bookies", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--partitions", type=click.IntRange(0), default=0, show_default=True)
@click.option("--message-size", type=Size(), default="100", show_default=True)
@click.option("--messages", type=click.IntRange(1), show_default="400 MiB of them", help="In all.")
@click.option("--batch", type=click.IntRange(1), default=1000, show_default=True, metavar="COUNT")
@click.option("--compression", type=click.Choice(["none", "zstd", "lz4"]), default="none")
@click.option("--rate", type=click.FloatRange(1), default=1000.0, show_default=True)
@click.option("--rate-seconds", "rate_s", type=float, default=5.0, show_default=True)
@options.folder
@options.floor_size
@metrics_port
@options.as_json
def consume(*, messages: int | None, folder: Path | None, as_json: bool, **asked: object) -> None:
    """Fill a topic, read it in several ways, and say how fast that was.

    First everything from the disk as Arrow batches; then again from the bookies' caches, as
    Arrow batches, as objects, and in reverse; then by following a producer that sends by the
    clock. The bookies are its own, in a temporary folder.
    """
    size = asked["message_size"]
    assert isinstance(size, int)
    given = asked | {
        "messages": messages or TOTAL_SIZE // max(size, 1),
        "folder": folder or Path(tempfile.gettempdir()),
    }
    plan = msgspec.convert(given, Plan, dec_hook=lambda _kind, value: value)
    result = trio.run(finish, partial(_measure, plan))
    click.echo(msgspec.json.encode(result).decode() if as_json else _describe(result))


async def _measure(plan: Plan) -> Result:
    floor = await trio.to_thread.run_sync(measure_floor, plan.folder, plan.floor_size)
    async with (
        open_sandbox(plan.bookies, parent=plan.folder) as sandbox,
        ledger_client.connect(sandbox.cluster) as client,
        metrics_page(client, plan.metrics_port),
    ):
        messages = await _fill(client, plan)
        await _make_cold(sandbox)
        measure = partial(_read, client, plan, sandbox.bookies, messages)
        cold = await measure(_take_batches, {})
        return Result(
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


async def _fill(client: Client, plan: Plan) -> int:
    """Write the topic and return how many messages it has."""
    await client.create_topic(TOPIC, plan.partitions, replication=plan.bookies)
    async with client.producer(
        TOPIC,
        access="exclusive",
        batch_messages=plan.batch,
        batch_bytes=max(BATCH_SIZE, plan.message_size),
        compression=plan.compression,
    ) as producer:
        sent = await send_many(producer, plan.message_size, plan.messages, arrow=False)
    return sent.messages


async def _make_cold(sandbox: Sandbox) -> None:
    for bookie in sandbox.bookies:
        async with Peer.open(bookie.address) as peer:
            await peer.call(FlushNow(), JournalState)
    await trio.to_thread.run_sync(usage.drop_page_cache, sandbox.folder)


async def _read(
    client: Client,
    plan: Plan,
    bookies: Sequence[Bookie],
    messages: int,
    take: Callable[[TopicReader], Awaitable[int]],
    settings: ReadSettings,
) -> Figures:
    import pyarrow  # noqa: F401 - what it costs to import is not counted

    processes = [bookie.process_id for bookie in bookies]
    client_cpu_s, bookie_cpu_s = time.process_time(), usage.cpu_s(processes)
    started = time.perf_counter()
    async with client.topic_reader(TOPIC, **settings) as reader:
        taken = await take(reader)
    seconds = time.perf_counter() - started
    assert taken == messages
    return Figures(
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


async def _follow(client: Client, plan: Plan) -> Percentiles:
    """Read what is sent by the clock; the message says when it was sent."""
    await client.create_topic(LATENCY_TOPIC, replication=plan.bookies)
    samples = Samples()
    count = max(1, round(plan.rate * plan.rate_s))

    async def read(reader: TopicReader) -> None:
        for _ in range(count):
            message = await anext(reader)
            sent_at = float((message.value or b"").partition(b" ")[0])
            samples.add(time.perf_counter() - sent_at)

    async with (
        client.producer(LATENCY_TOPIC, access="exclusive") as producer,
        client.topic_reader(LATENCY_TOPIC, follow=True) as reader,
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


def _describe(result: Result) -> str:
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


def _line(name: str, figures: Figures) -> str:
    return (
        f"  {name}: {figures.messages_per_s:,.0f} messages/s, {figures.mb_per_s:,.1f} MB/s; CPU: "
        f"client {figures.client_cpu_s:.2f} s, bookies {figures.bookie_cpu_s:.2f} s of "
        f"{figures.seconds:.2f} s"
    )
