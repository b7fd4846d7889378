"""``quire bench order``: what one order of all messages costs, and how late it is.

sending   plain, timesync, plain, timesync, ...      the same messages, in turn
reading   as they come, by timestamp, ...            the same topic, in turn
lag       many producers and an ordered follower     ticks behind the cluster's time
idle      open lanes, plain, then with timesync      shares of a core
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from pathlib import Path

import click
import msgspec
import trio

from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.bench import load_options, usage
from ledger_client.commands.bench.load import Percentiles, Samples, send_many
from ledger_client.commands.outcome import finish
from ledger_client.commands.progress import show_part
from ledger_client.commands.sandbox import Bookie, Sandbox, open_sandbox
from ledger_client.commands.tables import copies
from ledger_client.topics.reading.options import Order
from ledger_client.topics.reading.reader import TopicReader
from ledger_client.topics.tick_log import tick_lag

ROUNDS = 3
PARTS = 6
"""Measurements, for the progress bar."""
PLAIN, TIMED, LAG = "bench/plain", "bench/timed", "bench/lag"
LAG_PARTITIONS = 4
LOOK_S = 0.02
IDLE_TOPIC_PARTITIONS = 100
SETTLE_S = 3.0


class OrderPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the measurement, which runs in a sandbox."""

    bookies: int
    folder: Path
    partitions: int
    message_size: int
    messages: int
    producers: int
    rate: float
    seconds: float
    idle_partitions: int
    idle_s: float


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """Messages a second without timestamps and with them; *ratio*: median of the rounds' ratios."""

    plain_per_s: float
    per_s: float
    ratio: float


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How late ticks and ordered messages are.

    *tick*: from a topic's newest tick to the cluster's time. *delay*: from the call of send() until
    a follower by timestamp has the message.
    """

    producers: int
    messages: int
    tick: Percentiles
    delay: Percentiles


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of a core in per cent while lanes are open and nothing is sent."""

    partitions: int
    client_plain: float
    client: float
    bookies_plain: float
    bookies: float


class OrderResult(msgspec.Struct, frozen=True, kw_only=True):
    """The price of one order beside the same without it."""

    copies: int
    message_size: int
    sending: Beside
    objects: Beside
    batches: Beside
    lag: Lag
    idle: Rest


@click.command()
@load_options.bookies
@load_options.partitions
@load_options.message_size
@click.option(
    "--messages",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="Messages that are sent and read, in each topic.",
)
@click.option(
    "--producers",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Producers while lags are measured.",
)
@click.option(
    "--rate",
    type=load_options.FiniteRange(0.1),
    default=10.0,
    show_default=True,
    help="Messages a second of each of them.",
)
@click.option(
    "--seconds",
    type=load_options.FiniteRange(0.1),
    default=20.0,
    show_default=True,
    help="How long lags are measured.",
)
@click.option(
    "--idle-partitions",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Partitions with an open lane each while nothing is sent.",
)
@click.option(
    "--idle-seconds",
    "idle_s",
    type=load_options.FiniteRange(0.1),
    default=20.0,
    show_default=True,
    help="How long the processor time of these is measured.",
)
@load_options.folder
@options.as_json
def order(*, folder: Path | None, as_json: bool, **arguments: object) -> None:
    """Measure what one order of all messages costs, and how late it is.

    Sends to a topic with timesync and to one without, in turn; reads by timestamp and as messages
    come, in turn; measures how far ticks are behind with many producers, and what partitions with
    timesync cost while nothing is sent. Starts a temporary cluster.
    """
    fields = arguments | {"folder": folder or Path(tempfile.gettempdir())}
    plan = msgspec.convert(fields, OrderPlan, dec_hook=lambda _kind, value: value)
    result = trio.run(finish, partial(_measure, plan))
    click.echo(msgspec.json.encode(result).decode() if as_json else _describe(result))


async def _measure(plan: OrderPlan) -> OrderResult:
    async with (
        open_sandbox(plan.bookies, parent=plan.folder) as sandbox,
        connect(sandbox.cluster) as client,
    ):
        with show_part() as on_part:
            parts = count(1)

            def done() -> None:
                on_part(next(parts) / PARTS)

            sending = await _send(client, plan)
            done()
            objects = await _read(client, _take_objects)
            done()
            batches = await _read(client, _take_batches)
            done()
            lag = await _lag(client, sandbox, plan)
            done()
            plain = await _idle(client, sandbox.bookies, plan, timesync=False)
            done()
            timed = await _idle(client, sandbox.bookies, plan, timesync=True)
            done()
    return OrderResult(
        copies=plan.bookies,
        message_size=plan.message_size,
        sending=sending,
        objects=objects,
        batches=batches,
        lag=lag,
        idle=Rest(
            partitions=plan.idle_partitions,
            client_plain=plain[0],
            client=timed[0],
            bookies_plain=plain[1],
            bookies=timed[1],
        ),
    )


# --- sending and reading ----------------------------------------------------------------


async def _send(client: Client, plan: OrderPlan) -> Beside:
    for topic in (PLAIN, TIMED):
        await client.topics.create(
            topic, plan.partitions, replication=plan.bookies, timesync=topic == TIMED
        )
    rates: dict[str, list[float]] = {PLAIN: [], TIMED: []}
    some = -(-plan.messages // ROUNDS)
    for _ in range(ROUNDS):
        for topic, found in rates.items():
            async with client.producer(topic) as producer:
                await producer.send(b"")  # its lanes open outside the measurement
                sent = await send_many(producer, plan.message_size, some, arrow=False)
            found.append(sent.messages / sent.seconds)
    return _beside(rates[PLAIN], rates[TIMED])


async def _read(client: Client, take: Callable[[TopicReader], Awaitable[int]]) -> Beside:
    import pyarrow  # noqa: F401 - keeps its import out of the measurement

    rates: dict[Order, list[float]] = {"arrival": [], "timestamp": []}
    for _ in range(ROUNDS):
        for order_, found in rates.items():
            started = time.perf_counter()
            async with client.reader(TIMED, order=order_) as reader:
                taken = await take(reader)
            found.append(taken / (time.perf_counter() - started))
    return _beside(rates["arrival"], rates["timestamp"])


async def _take_objects(reader: TopicReader) -> int:
    taken = 0
    async for _ in reader:
        taken += 1
    return taken


async def _take_batches(reader: TopicReader) -> int:
    taken = 0
    async for batch in reader.read_batches():
        taken += batch.num_rows
    return taken


def _beside(plain: Sequence[float], timed: Sequence[float]) -> Beside:
    ratios = [one / other for one, other in zip(timed, plain, strict=True)]
    return Beside(
        plain_per_s=round(statistics.median(plain), 1),
        per_s=round(statistics.median(timed), 1),
        ratio=round(statistics.median(ratios), 3),
    )


# --- lag --------------------------------------------------------------------------------


class Traffic:
    """Producers of a topic with timesync, and who looks how late its messages and ticks are."""

    def __init__(self, plan: OrderPlan) -> None:
        self.ticks = Samples()
        self.delays = Samples()
        self.is_measured = False
        self._pause_s = 1 / plan.rate

    async def produce(self, client: Client, ready: trio.Event) -> None:
        """Open a lane in each partition, then send until cancelled."""
        async with client.producer(LAG) as producer:
            for partition in range(LAG_PARTITIONS):
                await producer.send(b"", partition=partition)
            ready.set()
            while True:
                await trio.sleep(self._pause_s)
                value = b"%.9f" % time.perf_counter() if self.is_measured else b""
                await producer.send(value)

    async def follow(self, reader: TopicReader) -> None:
        """Note how late messages come."""
        async for message in reader:
            if message.value:
                self.delays.add(time.perf_counter() - float(message.value))

    async def look(self, client: Client) -> None:
        """Note how far ticks are behind."""
        topic, _ = await client._context.catalogue.get(LAG)
        while True:
            if self.is_measured:
                self.ticks.add((await tick_lag(client._context, topic)).lag_s)
            await trio.sleep(LOOK_S)


async def _lag(client: Client, sandbox: Sandbox, plan: OrderPlan) -> Lag:
    await client.topics.create(LAG, LAG_PARTITIONS, replication=plan.bookies, timesync=True)
    traffic = Traffic(plan)
    async with (
        connect(sandbox.cluster) as other,
        other.reader(LAG, order="timestamp", follow=True, start="latest") as reader,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(traffic.follow, reader)
        nursery.start_soon(traffic.look, other)
        ready = [trio.Event() for _ in range(plan.producers)]
        for each in ready:
            nursery.start_soon(traffic.produce, client, each)
        for each in ready:
            await each.wait()
        await trio.sleep(SETTLE_S)
        traffic.is_measured = True
        await trio.sleep(plan.seconds)
        traffic.is_measured = False
        await trio.sleep(SETTLE_S)
        nursery.cancel_scope.cancel()
    return Lag(
        producers=plan.producers,
        messages=len(traffic.delays),
        tick=traffic.ticks.percentiles(),
        delay=traffic.delays.percentiles(),
    )


# --- idle -------------------------------------------------------------------------------


async def _idle(
    client: Client, bookies: Sequence[Bookie], plan: OrderPlan, *, timesync: bool
) -> tuple[float, float]:
    """Return the shares of a core that client and bookies take while open lanes get nothing."""
    processes = [bookie.process_id for bookie in bookies]
    async with AsyncExitStack() as stack:
        for first in range(0, plan.idle_partitions, IDLE_TOPIC_PARTITIONS):
            partitions = min(IDLE_TOPIC_PARTITIONS, plan.idle_partitions - first)
            topic = f"bench/idle-{'timed' if timesync else 'plain'}-{first}"
            await client.topics.create(
                topic, partitions, replication=plan.bookies, timesync=timesync
            )
            producer = await stack.enter_async_context(client.producer(topic))
            async with trio.open_nursery() as nursery:
                for partition in range(partitions):
                    nursery.start_soon(partial(producer.send, b"", partition=partition))
        await trio.sleep(SETTLE_S)
        began, client_s, bookies_s = (
            time.perf_counter(),
            time.process_time(),
            usage.cpu_s(processes),
        )
        await trio.sleep(plan.idle_s)
        share = 100 / (time.perf_counter() - began)
        client_share = share * (time.process_time() - client_s)
        bookie_share = share * (usage.cpu_s(processes) - bookies_s)
    return round(client_share, 2), round(bookie_share, 2)


# --- the result -------------------------------------------------------------------------


def _describe(result: OrderResult) -> str:
    lag, idle = result.lag, result.idle
    lines = [
        f"one order of all messages, {result.message_size} bytes a message, in "
        f"{copies(result.copies)}; ratios are medians of rounds side by side",
        _line("send_many", "without timestamps", result.sending),
        _line("message objects by timestamp", "as they come", result.objects),
        _line("Arrow batches by timestamp", "as they come", result.batches),
        f"  with {lag.producers} producers: ticks are behind by p50 {lag.tick.p50_ms:,.0f} ms, p99 "
        f"{lag.tick.p99_ms:,.0f} ms; from send to a follower by timestamp p50 "
        f"{lag.delay.p50_ms:,.0f} ms, p99 {lag.delay.p99_ms:,.0f} ms",
        f"  {idle.partitions} idle partitions: bookies {idle.bookies:.2f} % of a core "
        f"({idle.bookies_plain:.2f} % without timesync), client {idle.client:.2f} % "
        f"({idle.client_plain:.2f} %)",
    ]
    return "\n".join(lines)


def _line(what: str, beside: str, pair: Beside) -> str:
    return (
        f"  {what}: {pair.per_s:,.0f} messages/s, {pair.ratio:.2f} x {beside} "
        f"({pair.plain_per_s:,.0f})"
    )
