"""``quire replay --to TOPIC --master``: real bookies, a real Spark, and drivers that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from never_twice import never_twice
from processes import cluster, quire

import ledger_client
from ledger_client import blocking
from metadata.jobs import SINKS, STAGED
from metadata.replays import decode_mark
from metadata.store import Item

COUNT = 60_000
PARTITIONS = 2

pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster"), 1) as running:
        trio.run(fill, running)
        yield running


async def fill(url: str) -> None:
    """Two producers: so there are lanes to be merged."""
    async with ledger_client.connect(url) as client:
        await client.topics.create("t/many", PARTITIONS, replication=1)

        async def produce(number: int) -> None:
            async with client.producer("t/many", batch_messages=500) as producer:
                for start in range(0, COUNT // 2, 5000):
                    values = [b"%d %06d" % (number, start + i) + bytes(100) for i in range(5000)]
                    await producer.send_many(values, keys=[value[-3:] for value in values])

        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(produce, number)


def contents(url: str, topic: str) -> list[list[tuple[bytes, bytes]]]:
    """Keys and values of each partition, in order."""
    found: list[list[tuple[bytes, bytes]]] = []
    with blocking.connect(url) as client:
        for partition in range(PARTITIONS):
            with client.reader(topic, partitions=[partition]) as reader:
                rows = [
                    pair
                    for batch in reader.read_batches()
                    for pair in zip(
                        batch.column("key").to_pylist(),
                        batch.column("value").to_pylist(),
                        strict=True,
                    )
                ]
            found.append(rows)
    return found


def items_under(url: str, prefix: str) -> list[Item]:
    with blocking.connect(url) as client:

        async def look() -> list[Item]:
            return await client._inner._context.store.list(prefix)

        return client._portal.call(look)


def is_staging(url: str) -> bool:
    return bool(items_under(url, STAGED))


def has_shown_a_round(url: str) -> bool:
    """The mark is there before the first round, too."""
    marks = [decode_mark(key, found.value) for key, found in items_under(url, SINKS)]
    return any(mark.batch_id > 0 for mark in marks)


@pytest.mark.long
def test_drivers_are_killed_and_the_result_is_that_of_one_process(url: str, tmp_path: Path) -> None:
    """By SIGKILL: while tasks stage the first round, and behind a round that was shown."""
    environment = {"QUIRE_CLUSTER": url}
    here = quire(
        "replay", "t/many", "--to", "t/here", "--with-definition", "--json", environment=environment
    )
    assert here.returncode == 0, here.stderr
    words = ["t/many", "--to", "t/spark", "--with-definition", "--master", "local[2]"]
    words += ["--part-size", "512KiB", "--name", "killed", "--json"]
    for happened in (is_staging, has_shown_a_round):
        kill_when(happened, words, url, tmp_path)
    done = quire("replay", *words, "--verify", environment=environment)
    assert done.returncode == 0, done.stderr
    whole, told = json.loads(here.stdout), json.loads(done.stdout)
    assert 0 < told["resumed"] < COUNT
    with never_twice():
        assert (told["messages"], told["verified"]) == (COUNT, True)
        assert (told["checksum"], told["parts"]) == (whole["checksum"], whole["parts"])
        assert contents(url, "t/spark") == contents(url, "t/here")
    again = quire("replay", *words, environment=environment)
    assert (again.returncode, json.loads(again.stdout)["finished_before"]) == (0, True)


def kill_when(happened: Callable[[str], bool], words: list[str], url: str, folder: Path) -> None:
    """Start a driver and kill it as soon as that *happened*."""
    command = [sys.executable, "-P", "-m", "ledger_client", "replay", *words]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=os.environ | {"QUIRE_CLUSTER": url}, stdout=log, stderr=log
        )
        try:
            while not happened(url):
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
