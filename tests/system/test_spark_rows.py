"""The same bounds give the same rows, whatever happens to the cluster in between."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import trio
from daemons import DEADLINE_S
from fleet import Fleet
from never_twice import never_twice
from spark_cluster import standalone
from topic_rows import digest_of, frame_of, read_rows, rows_of

import ledger_client
from ledger_client import blocking
from ledger_client.blocking import BlockingClient
from ledger_client.commands.demo.report import whole_copies
from ledger_client.topics.reading.range_plan import plan_read
from metadata.topics import RollPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.xdist_group("spark")]

TOPIC = "rows/same"
MESSAGES = 6000
# On a cluster of Spark's: how many rows, and a checksum of them; in a process of its own.
ELSEWHERE = """
import sys
from ledger_client.spark import open_session
from spark_session import SHORT_LIVED
from topic_rows import frame_of, rows_of, digest_of
master, url, topic = sys.argv[1:]
conf = {"spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.cores.max": "2",
        "spark.executor.cores": "1", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.extraJavaOptions": SHORT_LIVED}
with open_session(master, conf=conf) as session:
    frame = frame_of(session, url, topic, minPartitions="8")
    rows = rows_of(frame)
    hosts = frame.rdd.mapPartitions(lambda rows: [(__import__("os").getppid(), len(list(rows)))])
    print(digest_of(rows), len(rows), len({host for host, _ in hosts.collect()}))
"""


def fill(client: BlockingClient) -> None:
    """Write several lanes and many ledgers."""
    client.topics.create(
        TOPIC, partitions=2, replication=2, ack_quorum=2, roll=RollPolicy(entries=8)
    )
    with client.producer(TOPIC) as one, client.producer(TOPIC) as other:
        for turn in range(10):
            numbers = range(turn * MESSAGES // 20, (turn + 1) * MESSAGES // 20)
            for producer in (one, other):
                values = [b"%d" % number * 5 for number in numbers]
                keys = [b"k%d" % (number % 97) for number in numbers]
                producer.send_many(values, keys=keys, event_times=list(numbers))


def write_more(client: BlockingClient, count: int) -> None:
    """Let lanes roll on behind what is compared."""
    with client.producer(TOPIC) as producer:
        producer.send_many([b"later"] * count, event_times=list(range(count)))


def collect_garbage(fleet: Fleet) -> None:
    """Let every bookie give back what is deleted."""
    command = [sys.executable, "-m", "bookie", "gc", "--cluster", fleet.cluster, "--major"]
    subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)


def test_the_same_bounds_give_the_same_rows_after_gc_loss_and_repair(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TD-08: rows are compared by a checksum of every column."""
    with Fleet(tmp_path, 3) as fleet, blocking.connect(fleet.cluster) as client:
        fill(client)
        client.topics.create("rows/other", replication=2, ack_quorum=2)
        with client.producer("rows/other") as producer:
            producer.send_many([bytes(1000)] * 20_000)
        with client.reader(TOPIC) as reader, never_twice():
            assert sum(1 for _ in reader) == MESSAGES
            end = reader.position()
        bounds = {"endingIds": msgspec.json.encode(end).decode()}

        def rows(**options: str) -> str:
            return digest_of(rows_of(frame_of(spark, fleet.cluster, TOPIC, **bounds, **options)))

        before = rows()

        @never_twice()
        def check(**options: str) -> None:
            assert rows(**options) == before

        with never_twice():
            assert before == digest_of(read_rows(fleet.cluster, TOPIC))
        write_more(client, 5000)
        check(minPartitions="7")
        client.topics.delete("rows/other")
        collect_garbage(fleet)
        check()
        fleet.kill(0)
        check()
        fleet.empty(0)
        fleet.start(0)
        fleet.wait_until_served(0)
        check()
        trio.run(wait_until_whole, fleet.cluster)
        fleet.kill(1)
        check()


async def wait_until_whole(url: str) -> None:
    """Return once every ledger of the topic has all of its copies, each of them compared."""
    async with ledger_client.connect(url) as client:
        plan = await plan_read(client._context, TOPIC)
        await whole_copies(client.cluster.verify, sorted({span.ledger_id for span in plan.ranges}))


@pytest.mark.long
def test_executors_elsewhere_read_by_the_network_alone(tmp_path: Path) -> None:
    """A standalone cluster of Spark's with two workers: the same rows as a reader's."""
    with (
        Fleet(tmp_path, 2) as fleet,
        blocking.connect(fleet.cluster) as client,
        standalone(tmp_path, 2) as master,
    ):
        fill(client)
        rows = read_rows(fleet.cluster, TOPIC)
        support = str(Path(__file__).parents[1] / "support")
        path = os.pathsep.join([support, *filter(None, sys.path)])
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE, master, fleet.cluster, TOPIC],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=3 * DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found, count, executors = done.stdout.split()
        with never_twice():
            assert int(count) == len(rows) == MESSAGES
            assert found == digest_of(rows)
        assert int(executors) == 2
