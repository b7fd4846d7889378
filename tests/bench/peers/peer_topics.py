"""The loads of peer_worker.py: topics from Python, one partition and one copy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from peer_systems import CannotCompare, Running, usage
from peer_worker import Outcome, percentile

WORKER = Path(__file__).resolve().with_name("peer_worker.py")
LOAD_S = 900.0
CLIENTS = {"quire": ["quire"], "Kafka": ["confluent", "aiokafka"]}
PACKAGES = {"quire": "quire", "confluent": "confluent-kafka", "aiokafka": "aiokafka"}


class TopicLoad(msgspec.Struct, frozen=True):
    """*count* messages of *size* bytes, for the worker's load *verb*."""

    name: str
    verb: str
    count: int
    size: int
    topic: str


class TopicFigure(msgspec.Struct, frozen=True):
    """What one client gave in one load. Times are in milliseconds; 0 where none were taken."""

    load: str
    client: str
    messages: int
    seconds: float
    acked_p50: float
    acked_p99: float
    followed_p50: float
    followed_p99: float
    client_cores: float
    server_cores: float

    @property
    def per_s(self) -> float:
        """Return messages a second."""
        return self.messages / self.seconds


LOADS = (
    TopicLoad("produce 100 B in bulk", "produce", 2_000_000, 100, "small"),
    TopicLoad("consume 100 B as objects", "consume", 2_000_000, 100, "small"),
    TopicLoad("produce 1 KiB in bulk", "produce", 500_000, 1024, "large"),
    TopicLoad("consume 1 KiB as objects", "consume", 500_000, 1024, "large"),
    TopicLoad("send from 1 000 tasks, 100 B", "tasks", 200_000, 100, "tasks"),
    TopicLoad("1 000 messages/s one by one, 100 B", "paced", 10_000, 100, "paced"),
)


def versions() -> dict[str, str]:
    """Return the version of each client library. Raises CannotCompare if one is missing."""
    found = {}
    for client, package in PACKAGES.items():
        try:
            found[client] = version(package)
        except PackageNotFoundError:
            raise CannotCompare(f"{package} is missing: pip install {package}") from None
    return found


def run_all(server: Running, *, part: float, round_number: int) -> Iterator[TopicFigure]:
    """Yield a figure for each load and client of *server*. Raises CannotCompare. Blocks."""
    for client in CLIENTS[server.system]:
        for load in LOADS:
            if client == "confluent" and load.verb == "tasks":
                continue  # a task of its own for each message is not how it is used
            count = max(1000, round(load.count * part) // 1000 * 1000)
            yield _run(server, client, load, count, f"{load.topic}-{client}-{round_number}")


def _run(server: Running, client: str, load: TopicLoad, count: int, topic: str) -> TopicFigure:
    name = f"bench/{topic}" if client == "quire" else topic
    words = [client, server.address, name, load.verb, str(count), str(load.size)]
    before = usage(server.process_ids)
    said = subprocess.run(
        [sys.executable, "-P", str(WORKER), *words],
        capture_output=True,
        timeout=LOAD_S,
        check=False,
    )
    if said.returncode:
        raise CannotCompare(f"{client}, {load.name}:\n{said.stderr.decode()[-2000:]}")
    cpu_s = usage(server.process_ids).cpu_s - before.cpu_s
    told = msgspec.json.decode(said.stdout, type=Outcome)
    return TopicFigure(
        load=load.name,
        client=client,
        messages=told.messages,
        seconds=told.seconds,
        acked_p50=percentile(told.acked_ms, 0.5),
        acked_p99=percentile(told.acked_ms, 0.99),
        followed_p50=percentile(told.followed_ms, 0.5),
        followed_p99=percentile(told.followed_ms, 0.99),
        client_cores=told.cpu_s / told.seconds,
        server_cores=cpu_s / told.seconds,
    )
