"""``quire bench replay``: messages replayed a second from one topic into another."""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path

import click
import msgspec
import trio

from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.bench import load_options, usage
from ledger_client.commands.bench.disk import Floor, floor_of
from ledger_client.commands.bench.load import send_many
from ledger_client.commands.outcome import finish
from ledger_client.commands.sandbox import open_sandbox
from ledger_client.jobs.replay.options import ORDERS
from metadata.replays import Order

TOTAL_SIZE = 200 << 20
FROM, TO = "bench/replay", "bench/again"


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the measurement, which runs in a sandbox."""

    bookies: int
    partitions: int
    message_size: int
    messages: int
    order: Order
    verify: bool
    folder: Path
    floor_size: int


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a replay. MB are 10^6 bytes of values; CPU is user and system time.

    *bandwidth_to_floor* is a fraction of the disk's write bandwidth.
    """

    copies: int
    partitions: int
    message_size: int
    order: Order
    verified: bool
    messages: int
    seconds: float
    messages_per_s: float
    mb_per_s: float
    client_cpu_s: float
    bookie_cpu_s: float
    client_rss_max_mib: float
    floor: Floor
    bandwidth_to_floor: float


@click.command()
@load_options.bookies
@load_options.partitions
@load_options.message_size
@click.option(
    "--messages", type=click.IntRange(1), show_default="200 MiB of them", help="Messages in total."
)
@click.option(
    "--order",
    type=click.Choice(ORDERS),
    default="time",
    show_default=True,
    help="How the replay merges lanes.",
)
@click.option("--verify", is_flag=True, help="Include reading the target back.")
@load_options.folder
@load_options.floor_size
@options.as_json
def replay(
    *, messages: int | None, folder: Path | None, as_json: bool, **arguments: object
) -> None:
    """Fill a topic and replay it into another one.

    Starts a temporary cluster, whose bookies read and write at the same time.
    """
    size = arguments["message_size"]
    assert isinstance(size, int)
    fields = arguments | {
        "messages": messages or TOTAL_SIZE // max(size, 1),
        "folder": folder or Path(tempfile.gettempdir()),
    }
    plan = msgspec.convert(fields, ReplayPlan, dec_hook=lambda _kind, value: value)
    result = trio.run(finish, partial(_measure, plan))
    click.echo(msgspec.json.encode(result).decode() if as_json else _describe(result))


async def _measure(plan: ReplayPlan) -> ReplayResult:
    import pyarrow  # noqa: F401 - keeps its import out of the measurement

    floor = await floor_of(plan.folder, plan.floor_size)
    async with (
        open_sandbox(plan.bookies, parent=plan.folder) as sandbox,
        connect(sandbox.cluster) as client,
    ):
        await _fill(client, plan)
        processes = [bookie.process_id for bookie in sandbox.bookies]
        client_cpu_s, bookie_cpu_s = time.process_time(), usage.cpu_s(processes)
        started = time.perf_counter()
        report = await client.replay(
            FROM, TO, with_definition=True, order=plan.order, verify=plan.verify
        )
        seconds = time.perf_counter() - started
        assert report.messages >= plan.messages
        mb_per_s = report.messages * plan.message_size / 1e6 / seconds
        return ReplayResult(
            copies=plan.bookies,
            partitions=plan.partitions,
            message_size=plan.message_size,
            order=plan.order,
            verified=report.verified,
            messages=report.messages,
            seconds=round(seconds, 3),
            messages_per_s=round(report.messages / seconds, 1),
            mb_per_s=round(mb_per_s, 2),
            client_cpu_s=round(time.process_time() - client_cpu_s, 2),
            bookie_cpu_s=round(usage.cpu_s(processes) - bookie_cpu_s, 2),
            client_rss_max_mib=round(usage.rss_max(os.getpid()) / 2**20, 1),
            floor=floor,
            bandwidth_to_floor=round(mb_per_s / floor.write_mb_per_s, 3),
        )


async def _fill(client: Client, plan: ReplayPlan) -> None:
    ordered = plan.order == "event-time"
    await client.topics.create(
        FROM,
        plan.partitions,
        replication=plan.bookies,
        order="event-time" if ordered else "none",
    )
    async with client.producer(FROM) as producer:
        if not ordered:
            await send_many(producer, plan.message_size, plan.messages, arrow=False)
            return
        part = 10_000
        values = [os.urandom(plan.message_size)] * part
        for start in range(0, plan.messages, part):
            times = list(range(start, min(start + part, plan.messages)))
            await producer.send_many(values[: len(times)], event_times=times)


def _describe(result: ReplayResult) -> str:
    ways = "with every message read back and compared" if result.verified else "not read back"
    lines = [
        f"{result.messages:,} messages of {result.message_size} bytes, {result.copies} copies, in "
        f"order of {result.order}, {ways}:",
        f"  {result.messages_per_s:,.0f} messages/s, {result.mb_per_s:,.1f} MB/s, "
        f"{result.bandwidth_to_floor:.2f} x the disk's {result.floor.write_mb_per_s:,.0f} MB/s",
        f"  CPU: client {result.client_cpu_s:.2f} s, bookies {result.bookie_cpu_s:.2f} s of "
        f"{result.seconds:.2f} s; greatest RSS of the client: {result.client_rss_max_mib:.0f} MiB",
    ]
    return "\n".join(lines)
