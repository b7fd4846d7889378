"""An idle cluster rests.

The test counts how often its bookies wake, since CPU time depends on the machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from daemons import Daemon
from run_seed import VARIABLE

import ledger_client
from bookie.commands.standalone import ClusterStarted

pytestmark = pytest.mark.slow
LANES = 200
SECONDS = 20.0 if VARIABLE in os.environ else 8.0
"""The time to come to rest, and as much again in which wakes are counted."""
WAKES_MAX = 150.0
"""A second, of all threads of three bookies; most are the leader's."""


def test_three_bookies_with_open_lanes_and_a_follower_seldom_wake(tmp_path: Path) -> None:
    words: list[str | Path | int] = ["--data", tmp_path / "cluster", "--port", 0, "--json"]
    words += ["--set", "disk_reserve=0"]
    with Daemon("standalone", *words, log=tmp_path / "log") as daemon:
        ready = daemon.ready(ClusterStarted)
        process_ids = [bookie.process_id for bookie in ready.bookies]
        counted = trio.run(idle_wakes, ready, process_ids)
        daemon.stop()
    assert counted <= WAKES_MAX


async def idle_wakes(ready: ClusterStarted, process_ids: list[int]) -> float:
    """Open lanes, follow them, and return how often the processes woke a second, at rest."""
    async with ledger_client.connect(ready.ready) as client:
        for number in range(LANES // 20):
            await client.topics.create(f"rest/t{number}", 20)
        names = [f"rest/t{number}" for number in range(LANES // 20)]
        async with trio.open_nursery() as nursery:
            for name in names:
                await nursery.start(write, client, name)
            nursery.start_soon(follow, client, names[0])
            await trio.sleep(SECONDS)
            before, began = sum(map(wakes, process_ids)), trio.current_time()
            await trio.sleep(SECONDS)
            woke, seconds = sum(map(wakes, process_ids)) - before, trio.current_time() - began
            nursery.cancel_scope.cancel()
    return woke / seconds


async def write(
    client: ledger_client.Client,
    name: str,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    async with client.producer(name) as producer:
        for partition in range(20):
            await producer.send(b"x", partition=partition)
        task_status.started()
        await trio.sleep_forever()


async def follow(client: ledger_client.Client, name: str) -> None:
    async with client.reader(name, follow=True) as reader:
        async for _ in reader:
            pass


def wakes(process_id: int) -> int:
    """How often the threads of a process slept and were woken, as far as they are still there."""
    found = 0
    for status in Path(f"/proc/{process_id}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "voluntary_ctxt_switches":
                found += int(value)
    return found
