"""A cluster with something going on in everything that dashboards show.

Producers and readers, ledgers that end, retention, garbage, a bookie that is killed, repair, a
compaction, a job that runs, groups: for a test within half a minute, for pictures in a few minutes.
"""

from __future__ import annotations

import math
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import trio
from daemons import free_ports
from prometheus_server import Prometheus, hasten, prometheus
from sandboxes import open_sandbox

import ledger_client
from ledger_client import Client, Retention, RollPolicy
from ledger_client.commands.metrics_page import metrics_page
from ledger_client.commands.sandbox import Bookie, Sandbox
from ledger_client.jobs.compaction.job import compact_topic
from ledger_client.jobs.compaction.runner import LocalRunner
from ledger_client.jobs.staging.job import open_job

SETTINGS = (
    "memtable_size=10MiB",
    "journal_size_max=16MiB",
    "log_size_max=16MiB",
    "checkpoint_interval_s=2",
    "gc_interval_s=3",
    "minor_interval_s=4",
    "minor_threshold=0.5",
    "disk_reserve=0",
    "disk_full_ratio=1",
    "disk_warn_ratio=1",
    "lease_ttl_s=2",
    "lost_after_s=2",
    "open_grace_s=2",
    "repair_rate_max=4MiB",
    "index_cache_size=64KiB",
)
ORDERS, CLICKS, PRICES, BOOKINGS = "shop/orders", "web/clicks", "shop/prices", "shop/bookings"
TOPICS = {
    ORDERS: {
        "partitions": 2,
        "roll": RollPolicy(size=2_000_000, entries=150),
        "retention": Retention(age_s=3600, size=60_000_000),
    },
    CLICKS: {
        "roll": RollPolicy(size=1_000_000, age_s=2),
        "retention": Retention(age_s=60, size=1_000_000),
        "compression": "zstd",
    },
    PRICES: {"roll": RollPolicy(entries=100), "retention": Retention(age_s=3600)},
    BOOKINGS: {"timesync": True, "retention": Retention(age_s=3600)},
}


class Watched(NamedTuple):
    """A cluster that is scraped."""

    sandbox: Sandbox
    client: Client
    server: Prometheus
    began: float
    """Unix time"""


@asynccontextmanager
async def watched(folder: Path, *, bookies: int = 4) -> AsyncIterator[Watched]:
    """Run a cluster, a client with a page of metrics, and Prometheus, for the block."""
    port = free_ports(1)
    async with open_sandbox(bookies, parent=folder, settings=SETTINGS) as sandbox:
        monitoring = folder / "monitoring"
        await trio.to_thread.run_sync(_write_monitoring, monitoring, sandbox, port)
        async with (
            ledger_client.connect(sandbox.cluster) as client,
            metrics_page(lambda: client.metrics, port),
        ):
            with prometheus(monitoring) as server:
                yield Watched(sandbox, client, server, time.time())


def _write_monitoring(folder: Path, sandbox: Sandbox, port: int) -> None:
    words = ["monitoring", folder, "--cluster", sandbox.cluster, "--client", f"127.0.0.1:{port}"]
    command = [sys.executable, "-P", "-m", "ledger_client", *map(str, words)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    hasten(folder)


class Load:
    """Writes and reads the topics until cancelled; *pace* 1 is a small shop."""

    def __init__(self, client: Client, *, pace: float = 1.0) -> None:
        self._client = client
        self._pace = pace
        self._chance = random.Random(1)
        self._began = trio.current_time()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Make the topics, then load them; started once they are there."""
        for name, settings in TOPICS.items():
            await self._client.topics.create(name, replication=2, ack_quorum=1, **settings)  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_bulk, ORDERS, 10_000, 200)
            nursery.start_soon(self._send_bulk, CLICKS, 6_000, 300)
            nursery.start_soon(self._send_single, PRICES)
            nursery.start_soon(self._send_single, BOOKINGS)
            for name in TOPICS:
                nursery.start_soon(self._follow, name)
            nursery.start_soon(self._read_again, ORDERS)
            for name in ("billing", "billing", "audit"):
                nursery.start_soon(self._consume, name)
            task_status.started()

    def _tide(self, period_s: float) -> float:
        """Between 0.2 and 1, as days have it."""
        phase = 2 * math.pi * (trio.current_time() - self._began) / period_s
        return 0.6 - 0.4 * math.cos(phase)

    async def _send_bulk(self, topic: str, count: int, size: int) -> None:
        values = [self._chance.randbytes(size // 2).hex().encode() for _ in range(200)]
        async with self._client.producer(topic) as producer:
            while True:
                many = max(1, round(count * self._pace * self._tide(60) / 4))
                keys = [b"k%d" % self._chance.randrange(500) for _ in range(many)]
                await producer.send_many(self._chance.choices(values, k=many), keys=keys)
                await trio.sleep(0.25 * self._chance.uniform(0.6, 1.4))

    async def _send_single(self, topic: str) -> None:
        async with self._client.producer(topic) as producer:
            while True:
                async with trio.open_nursery() as nursery:
                    for _ in range(self._chance.randrange(1, 40)):
                        nursery.start_soon(producer.send, self._chance.randbytes(80))
                await trio.sleep(0.05 / max(self._tide(45), 0.2))

    async def _follow(self, topic: str) -> None:
        settings = {"follow": True, "on_gap": "skip"}
        async with self._client.reader(topic, **settings) as reader:  # type: ignore[arg-type]
            async for _ in reader.read_batches():
                pass

    async def _consume(self, group: str) -> None:
        """Be a member of a group, and another one now and then."""
        while True:
            options = {"group": group, "start": "earliest", "auto_commit_s": 2.0, "on_gap": "skip"}
            async with self._client.consumer([ORDERS, PRICES], **options) as consumer:  # type: ignore[arg-type]
                with trio.move_on_after(random.uniform(15, 60) / self._pace):
                    while True:
                        await consumer.poll(wait_s=1)

    async def _read_again(self, topic: str) -> None:
        """Read from the beginning now and then: from disks, while retention takes it away."""
        while True:
            await trio.sleep(4 / self._pace)
            async with self._client.reader(topic, on_gap="skip") as reader:
                async for _ in reader.read_batches():
                    pass


async def compact(client: Client, topic: str) -> None:
    """Compact a topic, as soon as it has closed ledgers."""
    while True:
        done = await compact_topic(client._context, topic, LocalRunner(client._context))
        if done.published:
            return
        await trio.sleep(0.5)


async def hold_job(
    client: Client, topic: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Be a job that runs until cancelled."""
    async with open_job(client._context.ledgers, await client.topics.info(topic), "replay"):
        task_status.started()
        await trio.sleep_forever()


def kill_one(sandbox: Sandbox, leader: str) -> tuple[Bookie, list[str]]:
    """Kill a bookie that does not lead; return it, and how to start it on the same ports."""
    bookie = next(each for each in sandbox.bookies if each.bookie_id != leader)
    words = sandbox.kill(bookie)
    words[words.index("--metrics-port") + 1] = str(bookie.metrics_port)
    return bookie, words
