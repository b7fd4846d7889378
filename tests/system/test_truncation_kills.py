"""Processes that delete messages of a topic, ended with SIGKILL at moments that a seed chooses.

Each lane is then as it was, or without what was to go; done again it is without that, and its
producer goes on from the last message that stays.

QUIRE_SEED=7 strikes at other moments.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
from fleet import Fleet
from never_twice import never_twice
from run_seed import VARIABLE, run_seed

import ledger_client
from ledger_client import Client
from metadata.topics import RollPolicy

SEED = 1 + run_seed()
ROUNDS = int(os.environ.get("QUIRE_STORM_ROUNDS", "5" if VARIABLE in os.environ else "2"))
TOPIC = "shop/orders"
PARTITIONS = 2
DEADLINE_S = 120.0
CUTTER = """
import sys, trio, ledger_client
from ledger_client.topics.times import EventTime
async def main(url, start, stop):
    async with ledger_client.connect(url) as client:
        print("begins", flush=True)
        if stop == "end":
            await client.topics.truncate("shop/orders", EventTime(int(start)), force=True)
        else:
            places = EventTime(int(start)), EventTime(int(stop))
            await client.topics.delete_messages("shop/orders", *places, force=True)
trio.run(main, *sys.argv[1:])
"""
Lanes = list[list[int]]
"""the event times of each partition"""


@pytest.mark.slow
@pytest.mark.real_processes
def test_a_truncation_that_is_killed_leaves_lanes_as_they_were_or_cut(tmp_path: Path) -> None:
    """TB-75: and done again it is done, whenever that was."""
    chance = random.Random(SEED)
    with Fleet(tmp_path, 3) as fleet:
        trio.run(_make, fleet.cluster)
        before: Lanes = [[] for _ in range(PARTITIONS)]
        for _ in range(ROUNDS):
            before = trio.run(_write, fleet.cluster, before, chance.randint(20, 60))
            start = chance.randint(0, max(map(max, before)))
            stop = chance.choice([None, start + chance.randint(0, 30)])
            after = [[at for at in lane if not _goes(at, start, stop)] for lane in before]
            for _ in range(chance.randint(1, 3)):
                _cut(fleet.cluster, start, stop, kill_after_s=chance.uniform(0, 0.6))
                found = trio.run(_read, fleet.cluster)
                for lane, kept, everything in zip(found, after, before, strict=True):
                    with never_twice():
                        assert lane in (kept, everything)
            _cut(fleet.cluster, start, stop)
            with never_twice():
                assert trio.run(_read, fleet.cluster) == after
            before = after


def _goes(at: int, start: int, stop: int | None) -> bool:
    return start <= at and (stop is None or at <= stop)


def _cut(url: str, start: int, stop: int | None, *, kill_after_s: float | None = None) -> None:
    words = [str(start), "end" if stop is None else str(stop)]
    command = [sys.executable, "-c", CUTTER, url, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begins\n"
        if kill_after_s is None:
            assert process.wait(DEADLINE_S) == 0
        else:
            time.sleep(kill_after_s)
            process.kill()


async def _make(url: str) -> None:
    async with ledger_client.connect(url) as client:
        await client.topics.create(
            TOPIC, PARTITIONS, order="event-time", replication=2, roll=RollPolicy(entries=4)
        )


async def _write(url: str, lanes: Lanes, count: int) -> Lanes:
    """Send *count* more to each partition, and some again that are there; return what is there.

    The last event time that is there is that of the lane; the numbers of the producer too.
    """
    written: Lanes = []
    with trio.fail_after(DEADLINE_S):
        async with (
            ledger_client.connect(url) as client,
            client.producer(
                TOPIC, producer_name="loader", access="take-over", batch_messages=3
            ) as producer,
        ):
            for partition, lane in enumerate(lanes):
                first = max(lane, default=-1) + 1
                again = [at for at in lane[-5:] if at + 1 == first]
                for at in [*again, *range(first, first + count)]:
                    await producer.send(b"%d" % at, event_time=at, sequence=at, partition=partition)
                written.append([*lane, *range(first, first + count)])
            return written


async def _read(url: str) -> Lanes:
    with trio.fail_after(DEADLINE_S):
        async with ledger_client.connect(url) as client:
            found = [await _read_partition(client, number) for number in range(PARTITIONS)]
            for number, lane in enumerate(found):
                back = await _read_partition(client, number, reverse=True)
                with never_twice():
                    assert back == lane[::-1]
            return found


async def _read_partition(client: Client, number: int, *, reverse: bool = False) -> list[int]:
    async with client.reader(TOPIC, partitions=[number], reverse=reverse) as reader:
        found = [message async for message in reader]
    with never_twice():
        assert [int(message.value or b"-1") for message in found] == [m.event_time for m in found]
    return [message.event_time or 0 for message in found]
