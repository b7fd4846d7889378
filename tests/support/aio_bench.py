"""Messages a second that tasks send under trio, asyncio and uvloop, side by side.

    python tests/support/aio_bench.py 60

A thousand tasks send the given number of messages each, one after the other, to one bookie.
"""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial

import trio
import uvloop

import ledger_client
from ledger_client import aio
from ledger_client.commands.sandbox import open_sandbox
from ledger_client.portal import Portal

TASKS = 1000
TOPIC = "bench/sends"
VALUE = b"x" * 100
RUNS = 3


async def under_trio(url: str, each: int) -> float:
    async with ledger_client.connect(url) as client, client.producer(TOPIC) as producer:

        async def send() -> None:
            for _ in range(each):
                await producer.send(VALUE)

        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(send)
        return TASKS * each / (time.perf_counter() - began)


async def under_asyncio(url: str, each: int) -> float:
    async with aio.connect(url) as client, client.producer(TOPIC) as producer:

        async def send() -> None:
            for _ in range(each):
                await producer.send(VALUE)

        began = time.perf_counter()
        await asyncio.gather(*(send() for _ in range(TASKS)))
        return TASKS * each / (time.perf_counter() - began)


async def make_topic(url: str) -> None:
    async with ledger_client.connect(url) as client:
        await client.topics.create(TOPIC, replication=1)


def main() -> None:
    each = int(sys.argv[1])
    portal = Portal(partial(open_sandbox, 1))
    url = portal.value.cluster
    try:
        trio.run(make_topic, url)
        for _ in range(RUNS):
            rates = {
                "trio": trio.run(under_trio, url, each),
                "asyncio": asyncio.run(under_asyncio(url, each)),
                "uvloop": uvloop.run(under_asyncio(url, each)),
            }
            shown = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
            print(f"{shown} messages/s")  # noqa: T201
    finally:
        portal.close()


if __name__ == "__main__":
    main()
