"""The commands of topics, against real bookies; producers and the leader are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio
from fleet import Fleet
from processes import quire

import ledger_client
from ledger_client.commands.cluster.status import ClusterStatus
from ledger_client.commands.topic.describe import Described
from ledger_client.commands.topic.removal import LedgersPurged, MessagesDeleted, TopicDeleted
from ledger_client.topics.retention.explanation import Explanation
from metadata.topics import TopicRecord, decode_event

DEADLINE_S = 90.0
KILLED = """
import os, signal, sys, trio, ledger_client
async def main():
    async with ledger_client.connect(sys.argv[1]) as client:
        async with client.producer("shop/orders") as producer:
            await producer.send_many([b"message"] * 1000)
            os.kill(os.getpid(), signal.SIGKILL)
trio.run(main)
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, 3) as running:
        for number in running.numbers:
            running.wait_until_served(number)
        yield running


def run(fleet: Fleet, *words: str) -> bytes:
    done = quire(*words, "--json", environment={"QUIRE_CLUSTER": fleet.cluster})
    assert done.returncode == 0, done.stderr
    return done.stdout


def explained(fleet: Fleet) -> Explanation:
    return msgspec.json.decode(run(fleet, "topic", "explain", "shop/orders"), type=Explanation)


def produce(fleet: Fleet, count: int) -> None:
    async def send() -> None:
        async with (
            ledger_client.connect(fleet.cluster) as client,
            client.producer("shop/orders", batch_messages=100) as producer,
        ):
            await producer.send_many([b"message %d" % number for number in range(count)])

    trio.run(send)


def events(fleet: Fleet) -> list[tuple[str, str]]:
    async def read() -> list[tuple[str, str]]:
        async with (
            ledger_client.connect(fleet.cluster) as client,
            client.reader("shop/__events") as reader,
        ):
            found = [decode_event("", message.value or b"") async for message in reader]
        return [(event.kind, event.topic) for event in found]

    return trio.run(read)


@pytest.mark.slow
def test_a_topic_from_its_making_to_its_deletion(fleet: Fleet) -> None:
    """TB-24, TB-55, TB-75, TD-07: each step by its command, each change told as an event."""
    words = ("topic", "create", "shop/orders", "--roll-entries", "5", "--partitions", "2")
    made = msgspec.json.decode(run(fleet, *words), type=TopicRecord)
    assert (made.partitions, made.replication) == (2, 2)
    produce(fleet, 3000)
    described = msgspec.json.decode(run(fleet, "topic", "describe", "shop/orders"), type=Described)
    assert described.extent.messages == 3000
    assert {lane.partition for lane in described.lanes} == {0, 1}
    assert all(lane.owner is None for lane in described.lanes)
    run(fleet, "topic", "alter", "shop/orders", "--retention-age", "unlimited")
    assert {f.reason for lane in explained(fleet).lanes for f in lane.ledgers} == {"unlimited"}
    purged = run(fleet, "topic", "purge", "shop/orders", "--all", "--partition", "0")
    assert (
        msgspec.json.decode(purged, type=LedgersPurged).messages
        == described.lanes[0].extent.messages
    )
    left = explained(fleet)
    assert left.extent.messages == described.lanes[1].extent.messages
    cut = run(fleet, "topic", "truncate", "shop/orders", "--from", "earliest", "--dry-run")
    assert msgspec.json.decode(cut, type=MessagesDeleted).messages == left.extent.messages
    clear = ("topic", "truncate", "shop/orders", "--from", "earliest")
    refused = quire(*clear, "--cluster", fleet.cluster)
    assert (refused.returncode, b"Delete them?" in refused.stderr) == (130, True)
    for cleared in (left.extent.messages, 0):
        assert (
            msgspec.json.decode(run(fleet, *clear, "--yes"), type=MessagesDeleted).messages
            == cleared
        )
    left = explained(fleet)
    assert left.extent.messages == 0
    went = run(fleet, "topic", "delete", "shop/orders", "--yes")
    deleted = msgspec.json.decode(went, type=TopicDeleted)
    assert deleted.ledgers == left.extent.ledgers
    told = ["created", "altered", "deleted"]
    assert events(fleet) == [(kind, "shop/orders") for kind in told]
    listed = run(fleet, "ledger", "list").splitlines()
    assert all(b'"topic":"shop/__events"' in line for line in listed)


@pytest.mark.long
@pytest.mark.slow  # leases run out and the leader looks every ten seconds
@pytest.mark.real_processes
def test_what_a_killed_producer_left_goes_by_itself_also_when_the_leader_is_killed(
    fleet: Fleet,
) -> None:
    """PS-07, PS-35, TD-07."""
    limits = ("--roll-age", "2s", "--retention-age", "2s")
    run(fleet, "topic", "create", "shop/orders", *limits)
    killed = subprocess.run([sys.executable, "-P", "-c", KILLED, fleet.cluster], check=False)
    assert killed.returncode == -signal.SIGKILL
    (lane,) = explained(fleet).lanes
    assert lane.ledgers[-1].ledger.state == "open"
    seen = msgspec.json.decode(run(fleet, "cluster", "status"), type=ClusterStatus)
    assert seen.leader is not None
    fleet.kill(fleet.number(seen.leader.bookie_id))
    deadline = time.monotonic() + DEADLINE_S
    while any(lane.ledgers for lane in explained(fleet).lanes):
        assert time.monotonic() < deadline, explained(fleet)
        time.sleep(1)
    produce(fleet, 10)  # and the topic goes on
    assert sum(lane.extent.messages for lane in explained(fleet).lanes) == 10
