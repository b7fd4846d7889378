"""Frames whose driver or workers are killed while they are written: all of a frame, or nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import sink_driver
from never_twice import never_twice
from processes import cluster
from spark_cluster import standalone

from ledger_client import blocking
from ledger_client.blocking import BlockingClient
from ledger_client.jobs.staging.job import read_staged
from ledger_client.topics.context import TopicContext, ask
from metadata.jobs import JOBS, STAGED

pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.xdist_group("spark")]

DEADLINE_S = 180.0
TOPIC = "w/frames"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster"), 2) as running:
        yield running


@pytest.fixture
def client(url: str) -> Iterator[BlockingClient]:
    with blocking.connect(url) as connected:
        connected.topics.create(TOPIC, partitions=2)
        yield connected
        connected.topics.delete(TOPIC)


@contextmanager
def driver(url: str, how: str, master: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a driver and all that it starts; at the end of the block nothing of it is left."""
    command = [sys.executable, sink_driver.__file__, url, TOPIC, how, master]
    roots = [str(Path(sink_driver.__file__).parent), *filter(None, sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    with log.open("wb") as told:
        process = subprocess.Popen(
            command, stdout=told, stderr=told, env=environment, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)


def values(client: BlockingClient) -> list[str]:
    with client.reader(TOPIC) as reader:
        return sorted((message.value or b"").decode() for message in reader)


@never_twice()
def check(client: BlockingClient, expected: list[str]) -> None:
    """Each of these rows is there once, and no other."""
    assert values(client) == expected


def staged_count(url: str) -> int:
    async def count(context: TopicContext) -> int:
        return len(await read_staged(context.store, STAGED))

    return ask(url, count)


def wait_until(is_so: Callable[[], bool], log: Path) -> None:
    until = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.2)


def end_lease(url: str) -> None:
    """Let the time of jobs that nobody works for run out."""

    async def release(context: TopicContext) -> None:
        for lease in await context.store.leases(JOBS):
            await context.store.release(lease)

    ask(url, release)


@pytest.mark.long
def test_a_driver_that_is_killed_leaves_the_topic_as_it_was(
    client: BlockingClient, url: str, tmp_path: Path
) -> None:
    """What its tasks staged is given up by the bookie that leads."""
    with client.producer(TOPIC) as producer:
        producer.send(b"before")
    log = tmp_path / "driver.log"
    with driver(url, "hang", "local[2]", log):
        wait_until(lambda: staged_count(url) > 0, log)
    check(client, ["before"])
    with client.producer(TOPIC) as producer:
        producer.send(b"later")
    assert staged_count(url) > 0
    wait_until(lambda: end_lease(url) or staged_count(url) == 0, log)  # type: ignore[func-returns-value]
    check(client, ["before", "later"])


def test_tasks_that_fail_and_workers_that_are_killed_leave_each_row_once(
    client: BlockingClient, url: str, tmp_path: Path
) -> None:
    log = tmp_path / "driver.log"
    with driver(url, "fail", "local[2,4]", log) as running:
        running.wait(DEADLINE_S)
    assert "written" in log.read_text().splitlines()
    check(client, sink_driver.expected())
    for lane in client.topics.explain(TOPIC).lanes:
        ids = [fate.ledger.ledger_id for fate in lane.ledgers]
        assert ids == sorted(ids)


@pytest.mark.long
def test_a_task_that_is_done_twice_at_once_leaves_each_row_once(
    client: BlockingClient, url: str, tmp_path: Path
) -> None:
    """The slow attempt has staged rows, too; they are never seen."""
    log = tmp_path / "driver.log"
    with standalone(tmp_path, 2) as master, driver(url, "straggle", master, log) as running:
        running.wait(DEADLINE_S)
    assert "written" in log.read_text().splitlines(), log.read_text()
    check(client, sink_driver.expected())
