"""Loads on ledgers and producers, and their latencies.

    schedule ─► next batch ─► ledgers[batch mod n].append_many ─► latency

A batch's latency runs from the moment it was due until its last entry is acknowledged.
Without a rate, it is due as soon as a worker is free. With a rate, it is due by the clock, so
a stall counts against every batch that it delays.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import trio

from ledger_client.ledgers.writer import LedgerWriter
from ledger_client.topics.producing.producer import Producer

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 1 << 20
BATCH_ENTRIES_MAX = 16384
OUTSTANDING = 16


class Load(msgspec.Struct, frozen=True):
    """What to append.

    Attributes:
        entry_size: bytes of each payload.
        entries: in total; rounded up to whole batches.
        batch: entries per call; 1 uses append instead of append_many.
        outstanding: concurrent calls.
        rate: entries to send a second; 0 for as many as possible.
        seconds: stop after this time even if entries are left; 0 for no limit.
    """

    entry_size: int
    entries: int
    batch: int
    outstanding: int = OUTSTANDING
    rate: float = 0.0
    seconds: float = 0.0


class LoadOutcome(msgspec.Struct, frozen=True):
    """Measurements of a load; a latency is that of a call."""

    entries: int
    seconds: float
    latency: Percentiles


def batch_for(entry_size: int) -> int:
    """Return the number of entries of that size that make up a good batch."""
    return max(1, min(BATCH_BYTES // max(entry_size, 1), BATCH_ENTRIES_MAX))


async def apply_load(ledgers: Sequence[LedgerWriter], load: Load) -> LoadOutcome:
    """Append the load, round-robin over the *ledgers*.

    Raises:
        LedgerError: an append failed.
    """
    work = _Work(ledgers, load)
    async with trio.open_nursery() as nursery:
        for _ in range(load.outstanding):
            nursery.start_soon(work.run)
    return work.outcome()


class _Work:
    def __init__(self, ledgers: Sequence[LedgerWriter], load: Load) -> None:
        self._ledgers = ledgers
        self._load = load
        self._payloads = [os.urandom(load.entry_size) for _ in range(load.batch)]
        self._batches = -(-load.entries // load.batch)
        self._taken = 0
        self._done = 0
        self._samples = Samples()
        self._started = time.perf_counter()

    async def run(self) -> None:
        while self._taken < self._batches:
            number = self._taken
            due = self._due_at(number)
            if number and self._is_over(due):
                return
            self._taken += 1
            if (wait_s := due - time.perf_counter()) > 0:
                await trio.sleep(wait_s)
            ledger = self._ledgers[number % len(self._ledgers)]
            if self._load.batch == 1:
                await ledger.append(self._payloads[0])
            else:
                await ledger.append_many(self._payloads)
            self._samples.add(time.perf_counter() - due)
            self._done += 1

    def outcome(self) -> LoadOutcome:
        return LoadOutcome(
            entries=self._done * self._load.batch,
            seconds=time.perf_counter() - self._started,
            latency=self._samples.percentiles(),
        )

    def _due_at(self, number: int) -> float:
        if not self._load.rate:
            return time.perf_counter()
        return self._started + number * self._load.batch / self._load.rate

    def _is_over(self, due: float) -> bool:
        """Return True if a batch that is due then is not to be sent any more."""
        if not self._load.seconds:
            return False
        return max(due, time.perf_counter()) > self._started + self._load.seconds


# --- Latencies --------------------------------------------------------------------------


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles in milliseconds; 0 without samples."""

    p50_ms: float
    p99_ms: float
    p999_ms: float


class Samples:
    """Collects durations cheaply, 8 bytes each."""

    def __init__(self) -> None:
        self._seconds = array("d")

    def add(self, seconds: float) -> None:
        """Add one duration in seconds, which costs 8 bytes and no sorting."""
        self._seconds.append(seconds)

    def __len__(self) -> int:
        return len(self._seconds)

    def percentiles(self) -> Percentiles:
        """Compute the percentiles of all durations so far, by nearest rank."""
        ordered = sorted(self._seconds)
        if not ordered:
            return Percentiles(p50_ms=0.0, p99_ms=0.0, p999_ms=0.0)
        values = [ordered[min(int(part * len(ordered)), len(ordered) - 1)] for part in _PARTS]
        return Percentiles(*(round(value * 1e3, 4) for value in values))


_PARTS = (0.5, 0.99, 0.999)


# --- Loads on a producer ----------------------------------------------------------------


CALL_SIZE = 16 << 20
"""Bytes of values in each call of send_many()."""


class SendOutcome(msgspec.Struct, frozen=True):
    """Measurements of a load; a latency is that of a call."""

    messages: int
    seconds: float
    latency: Percentiles


async def send_many(producer: Producer, size: int, messages: int, *, arrow: bool) -> SendOutcome:
    """Send *messages* values of *size* bytes, in two concurrent calls."""
    count = max(1, min(CALL_SIZE // max(size, 1), messages))
    values = _values(size, count, arrow=arrow)

    left = messages

    async def call() -> None:
        nonlocal left
        some = min(count, left)
        left -= some
        await producer.send_many(values[:some])

    sent = await _in_tasks(call, tasks=2, calls=-(-messages // count))
    return msgspec.structs.replace(sent, messages=messages)


async def send_in_tasks(producer: Producer, size: int, messages: int, *, tasks: int) -> SendOutcome:
    """Send *messages* values of *size* bytes from *tasks* tasks, each sending one by one."""
    value = os.urandom(size)

    async def call() -> None:
        await producer.send(value)

    return await _in_tasks(call, tasks=tasks, calls=messages)


async def send_by_clock(
    producer: Producer, size: int, *, rate: float, seconds: float
) -> SendOutcome:
    """Send *rate* values a second without waiting for earlier ones.

    A latency counts from the moment when the message was due.
    """
    value = os.urandom(size)
    samples = Samples()
    started = time.perf_counter()
    messages = max(1, round(rate * seconds))

    async def send(due: float) -> None:
        await producer.send(value)
        samples.add(time.perf_counter() - due)

    async with trio.open_nursery() as nursery:
        for number in range(messages):
            due = started + number / rate
            if (wait_s := due - time.perf_counter()) > 0:
                await trio.sleep(wait_s)
            nursery.start_soon(send, due)
    return SendOutcome(messages, time.perf_counter() - started, samples.percentiles())


async def _in_tasks(call: Callable[[], Awaitable[None]], *, tasks: int, calls: int) -> SendOutcome:
    samples = Samples()
    taken = 0

    async def run() -> None:
        nonlocal taken
        while taken < calls:
            taken += 1
            before = time.perf_counter()
            await call()
            samples.add(time.perf_counter() - before)

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(run)
    return SendOutcome(calls, time.perf_counter() - started, samples.percentiles())


def _values(size: int, count: int, *, arrow: bool) -> list[bytes] | pa.BinaryArray:
    noise = os.urandom(size * count)
    values = [noise[number * size : (number + 1) * size] for number in range(count)]
    if not arrow:
        return values
    import pyarrow as pa  # slow to import

    return pa.array(values, pa.binary())


# --- Many open ledgers ------------------------------------------------------------------


CHANGES_MAX = 16


@asynccontextmanager
async def open_ledgers(
    create: Callable[[], AbstractAsyncContextManager[LedgerWriter]], count: int
) -> AsyncGenerator[list[LedgerWriter]]:
    """Create *count* ledgers, and close them at the end, a few at once.

    Raises as Ledgers.create.
    """
    writers: list[LedgerWriter] = []
    opened, done = trio.Event(), trio.Event()
    limiter = trio.CapacityLimiter(CHANGES_MAX)  # each change is a sync of the metadata store

    async def hold() -> None:
        async with AsyncExitStack() as stack:
            async with limiter:
                writers.append(await stack.enter_async_context(create()))
            if len(writers) == count:
                opened.set()
            await done.wait()
            async with limiter:
                await stack.aclose()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(hold)
        await opened.wait()
        yield writers
        done.set()
