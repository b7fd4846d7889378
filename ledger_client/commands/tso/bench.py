"""``quire tso bench``: how fast one client gets timestamps."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

import click
import msgspec
import trio

from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.bench import load_options
from ledger_client.commands.bench.load import Percentiles, Samples
from ledger_client.commands.outcome import finish
from ledger_client.commands.sandbox import open_sandbox
from metadata.time.timestamps import PER_MS

WARM_UP_S = 0.5


class OraclePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the measurement; *cluster* is "" for a sandbox."""

    cluster: str
    bookies: int
    tasks: int
    count: int
    seconds: float


class OracleFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What some tasks of one client got, each asking again as soon as it was answered."""

    tasks: int
    count: int
    """timestamps in one request"""
    requests_per_s: float
    timestamps_per_s: float
    latency: Percentiles


class OracleResult(msgspec.Struct, frozen=True, kw_only=True):
    """One timestamp at a time, and many tasks whose requests share calls."""

    single: OracleFigures
    merged: OracleFigures


@click.command()
@load_options.measured_cluster
@load_options.bookies
@click.option(
    "--tasks",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Tasks that ask at the same time.",
)
@click.option(
    "--count",
    type=click.IntRange(1, PER_MS),
    default=100,
    show_default=True,
    help="Timestamps in one request of these tasks.",
)
@click.option(
    "--seconds",
    type=load_options.FiniteRange(0.1),
    default=3.0,
    show_default=True,
    help="Per phase.",
)
@options.as_json
def bench(
    *, cluster: str, bookies: int, tasks: int, count: int, seconds: float, as_json: bool
) -> None:
    """Measure how fast one client gets timestamps.

    First one task asks for one timestamp at a time; then many tasks ask, and their requests share
    calls. The latency is that of a request.
    """
    plan = OraclePlan(cluster=cluster, bookies=bookies, tasks=tasks, count=count, seconds=seconds)
    result = trio.run(finish, partial(_measure, plan))
    click.echo(msgspec.json.encode(result).decode() if as_json else _describe(result))


async def _measure(plan: OraclePlan) -> OracleResult:
    async with AsyncExitStack() as stack:
        cluster = plan.cluster
        if not cluster:
            cluster = (await stack.enter_async_context(open_sandbox(plan.bookies))).cluster
        client = await stack.enter_async_context(connect(cluster))
        await _ask(client, 1, 1, WARM_UP_S)
        single = await _ask(client, 1, 1, plan.seconds)
        merged = await _ask(client, plan.tasks, plan.count, plan.seconds)
    return OracleResult(single=single, merged=merged)


async def _ask(client: Client, tasks: int, count: int, seconds: float) -> OracleFigures:
    samples, requests = Samples(), 0
    began_at = trio.current_time()

    async def ask() -> None:
        nonlocal requests
        allocate = client.timestamps.allocate
        now = trio.current_time()
        while now < began_at + seconds:
            await allocate(count)
            asked_at, now = now, trio.current_time()
            samples.add(now - asked_at)
            requests += 1

    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(ask)
    took_s = trio.current_time() - began_at
    return OracleFigures(
        tasks=tasks,
        count=count,
        requests_per_s=round(requests / took_s, 1),
        timestamps_per_s=round(requests * count / took_s, 1),
        latency=samples.percentiles(),
    )


def _describe(result: OracleResult) -> str:
    heads = ("tasks", "count", "requests/s", "timestamps/s", "p50 ms", "p99 ms")
    rows = [
        (
            str(figures.tasks),
            str(figures.count),
            f"{figures.requests_per_s:,.0f}",
            f"{figures.timestamps_per_s:,.0f}",
            f"{figures.latency.p50_ms:.3f}",
            f"{figures.latency.p99_ms:.3f}",
        )
        for figures in (result.single, result.merged)
    ]
    return "\n".join("".join(f"{cell:>14}" for cell in row) for row in (heads, *rows))
