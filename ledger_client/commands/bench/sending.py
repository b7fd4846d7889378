"""Three loads on a producer: calls of send_many, many tasks in send, and sends by the clock."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio

from ledger_client.commands.bench.samples import Percentiles, Samples
from ledger_client.topics.producing.producer import Producer

CALL_SIZE = 16 << 20
"""Bytes of values in one call of send_many."""


class Sent(msgspec.Struct, frozen=True):
    """What came of a load; a latency is that of a call."""

    messages: int
    seconds: float
    latency: Percentiles


async def send_many(producer: Producer, size: int, messages: int, *, arrow: bool) -> Sent:
    """Send *messages* values of *size* bytes, two calls under way."""
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


async def send_in_tasks(producer: Producer, size: int, messages: int, *, tasks: int) -> Sent:
    """Send *messages* values of *size* bytes from *tasks* tasks, each one in a loop."""
    value = os.urandom(size)

    async def call() -> None:
        await producer.send(value)

    return await _in_tasks(call, tasks=tasks, calls=messages)


async def send_by_clock(producer: Producer, size: int, *, rate: float, seconds: float) -> Sent:
    """Send *rate* values a second, whatever becomes of those before.

    A latency counts from the moment at which the message was due.
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
    return Sent(messages, time.perf_counter() - started, samples.percentiles())


async def _in_tasks(call: Callable[[], Awaitable[None]], *, tasks: int, calls: int) -> Sent:
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
    return Sent(calls, time.perf_counter() - started, samples.percentiles())


def _values(size: int, count: int, *, arrow: bool) -> Any:  # noqa: ANN401 - pyarrow has no types
    noise = os.urandom(size * count)
    values = [noise[number * size : (number + 1) * size] for number in range(count)]
    if not arrow:
        return values
    import pyarrow as pa  # takes long: only when needed

    return pa.array(values, pa.binary())
