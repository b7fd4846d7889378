"""What metadata costs a small cluster: ``python tests/bench/control_plane.py``.

Three bookies with SQLite, and one client, on this host. It takes about three minutes, and prints

- changes a second of keys of 100 bytes, from 16 and from 256 tasks over one connection
- seconds to create 1000 topics of 4 partitions, 32 at a time
- seconds to open 100 lanes of one topic, and to open and close 300 producers of 4 partitions. A
  lane is open once its first message is acknowledged
- shares of a core at rest: without a client, with 1000 open lanes, with a follower of 100 of them

The machine should be idle. The time of an fdatasync is the floor of a change.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import trio

import ledger_client
from ledger_client import Client
from ledger_client.commands.bench.usage import cpu_s
from ledger_client.commands.sandbox import Sandbox, open_sandbox
from ledger_client.wire.stores import open_store

CHANGES_S = 8.0
REST_S = 20.0
SETTLE_S = 15.0


def say(what: str, figure: float, unit: str) -> None:
    sys.stdout.write(f"{what:<54} {figure:>9.2f} {unit}\n")
    sys.stdout.flush()


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    say(what, time.perf_counter() - began, "s")


def fdatasync_ms(folder: Path) -> float:
    """Return the mean of a hundred appends of 4 KiB."""
    began = time.perf_counter()
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(100):
            os.write(file.fileno(), bytes(4096))
            os.fdatasync(file.fileno())
    return 10 * (time.perf_counter() - began)


async def changes(sandbox: Sandbox, tasks: int) -> None:
    done = 0
    until = time.perf_counter() + CHANGES_S

    async def change(task: int) -> None:
        nonlocal done
        number = 0
        while time.perf_counter() < until:
            await store.put(f"bench/{task:04}/{number % 50:02}", bytes(100))
            number += 1
            done += 1

    async with open_store(sandbox.cluster) as store, trio.open_nursery() as nursery:
        for task in range(tasks):
            nursery.start_soon(change, task)
    say(f"changes from {tasks} tasks", done / CHANGES_S, "/s")


async def together(limit: int, works: Sequence[Callable[[], Awaitable[object]]]) -> None:
    """Do all *works*, *limit* at a time."""
    places = trio.CapacityLimiter(limit)

    async def one(work: Callable[[], Awaitable[object]]) -> None:
        async with places:
            await work()

    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(one, work)


async def write(
    client: Client,
    topic: str,
    partitions: int,
    end: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Open all lanes of a topic, and keep them until the end."""
    async with client.producer(topic) as producer:
        sends = [partial(producer.send, b"x", partition=each) for each in range(partitions)]
        await together(partitions, sends)
        task_status.started()
        await end.wait()


async def lanes(client: Client) -> None:
    await client.topics.create("bench/hundred", 100)
    end = trio.Event()
    end.set()
    with timed("open and close 100 lanes"):
        await write(client, "bench/hundred", 100, end)
    names = [f"bench/p{number}" for number in range(300)]
    await together(32, [partial(client.topics.create, name, 4) for name in names])
    end = trio.Event()
    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as opening:
            for name in names:
                opening.start_soon(nursery.start, write, client, name, 4, end)
        say("open 300 producers of 4 partitions", time.perf_counter() - began, "s")
        await trio.sleep(1)
        began = time.perf_counter()
        end.set()
    say("close them", time.perf_counter() - began, "s")


async def rest(what: str, sandbox: Sandbox) -> None:
    """Tell the shares of this process and of all bookies."""
    await trio.sleep(SETTLE_S)
    bookies = [bookie.process_id for bookie in sandbox.bookies]
    began, own, theirs = time.perf_counter(), time.process_time(), cpu_s(bookies)
    await trio.sleep(REST_S)
    part = 100 / (time.perf_counter() - began)
    say(f"{what}: client", part * (time.process_time() - own), "% of a core")
    say(f"{what}: bookies", part * (cpu_s(bookies) - theirs), "% of a core")


async def at_rest(folder: Path) -> None:
    async with open_sandbox(3, parent=folder, settings=["disk_reserve=0"]) as sandbox:
        await rest("no client", sandbox)
        async with ledger_client.connect(sandbox.cluster) as client, trio.open_nursery() as held:
            end = trio.Event()
            for number in range(10):
                await client.topics.create(f"bench/rest{number}", 100)
                await held.start(write, client, f"bench/rest{number}", 100, end)
            await rest("1000 open lanes", sandbox)
            async with client.reader("bench/rest0", follow=True) as reader:
                await reader.next_messages(wait_s=SETTLE_S)
                await rest("1000 open lanes, and a follower of 100", sandbox)
            end.set()


async def main() -> None:
    folder = Path(tempfile.gettempdir())
    say("fdatasync", fdatasync_ms(folder), "ms")
    async with open_sandbox(3, parent=folder, settings=["disk_reserve=0"]) as sandbox:
        for tasks in (16, 256):
            await changes(sandbox, tasks)
        async with ledger_client.connect(sandbox.cluster) as client:
            names = [f"bench/t{number}" for number in range(1000)]
            with timed("create 1000 topics of 4 partitions"):
                await together(32, [partial(client.topics.create, name, 4) for name in names])
    async with (
        open_sandbox(3, parent=folder, settings=["disk_reserve=0"]) as sandbox,
        ledger_client.connect(sandbox.cluster) as client,
    ):
        await lanes(client)
    await at_rest(folder)


if __name__ == "__main__":
    trio.run(main)
