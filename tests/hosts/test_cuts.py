"""Three ZooKeepers, five bookies and clients on hosts of their own, which are hurt in many ways.

Producers write and readers follow a topic, and others write, read and recover ledgers, through all
of it. After each trouble has passed, every producer is acknowledged something within 15 s, and
every writer of ledgers within 30 s. At the end, what all of them saw goes through the checkers that
the simulation uses: nothing acknowledged is lost, and no two write at a time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from audit import audit
from checker import check
from history import History, LedgerEvent, Sent
from host_cluster import HostCluster
from hosts import paused
from ledger_crew import LedgerCrew
from message_events import MessagesAcknowledged, MessagesRead
from never_twice import never_twice
from run_seed import VARIABLE, run_seed
from topic_crew import Crew

from ledger_client.ledgers.catalogue import LedgerInfo
from ledger_client.wire.stores import open_store
from metadata.leadership import holder
from metadata.records import COORDINATOR, decode_leader

pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.xdist_group("hosts")]
STUCK_S = 15.0
LEDGERS_STUCK_S = 30.0
"""For a writer of ledgers: it waits half of that for one append, and then begins another ledger."""
START_S = 30.0
"""For the processes to start, all at once."""
PRODUCERS = ("named-a", "named-b", "others")
MESSAGES = 100_000  # more than anybody can send
REST_S = 0.4
IS_SEARCH = VARIABLE in os.environ
"""The gate tries two troubles, for a shorter time; the search goes through all of them."""
Trouble = Callable[[HostCluster, Crew], Iterator[float]]


def a_bookie_is_cut_off(cluster: HostCluster, _crew: Crew) -> Iterator[float]:
    cluster.network.cut_off("b2")
    yield 10.0


def the_clients_are_cut_from_two_bookies(cluster: HostCluster, _crew: Crew) -> Iterator[float]:
    for client in cluster.clients:
        cluster.network.cut_off(client, ["b0", "b1"])
    yield 8.0


def the_leader_is_cut_from_zookeeper(cluster: HostCluster, _crew: Crew) -> Iterator[float]:
    cluster.network.cut_off(leader_of(cluster), cluster.keepers)
    yield 15.0 if IS_SEARCH else 10.0  # longer than its session


def a_zookeeper_is_cut_off(cluster: HostCluster, _crew: Crew) -> Iterator[float]:
    cluster.network.cut_off("z1")
    yield 10.0


def a_bookie_hears_and_is_not_heard(cluster: HostCluster, _crew: Crew) -> Iterator[float]:
    for name in cluster.network.names:
        if name != "b3":
            cluster.network.cut_way("b3", name)
    yield 8.0 if IS_SEARCH else 5.0


def a_client_is_heard_and_hears_nothing(cluster: HostCluster, _crew: Crew) -> Iterator[float]:
    for name in cluster.bookies:
        cluster.network.cut_way(name, "c1")
    yield 10.0


def every_packet_takes_200_ms(cluster: HostCluster, _crew: Crew) -> Iterator[float]:
    cluster.network.hurt_all(delay_ms=200)
    yield 12.0


def one_packet_in_twenty_is_lost(cluster: HostCluster, _crew: Crew) -> Iterator[float]:
    cluster.network.hurt_all(loss=0.05)
    yield 8.0


def a_bookie_and_a_producer_are_paused(cluster: HostCluster, crew: Crew) -> Iterator[float]:
    crew.pause("named-a")
    with paused(cluster.process(leader_of(cluster))):
        yield 30.0  # longer than any session
    crew.resume("named-a")


def wall_clocks_are_an_hour_off(cluster: HostCluster, _crew: Crew) -> Iterator[float]:
    cluster.network[leader_of(cluster)].set_clock(1)
    cluster.network["c1"].set_clock(-1)
    cluster.network["z0"].set_clock(1)
    yield 10.0


SOME: list[Trouble] = [the_leader_is_cut_from_zookeeper, a_bookie_hears_and_is_not_heard]
OTHERS: list[Trouble] = [
    a_bookie_and_a_producer_are_paused,
    a_bookie_is_cut_off,
    the_clients_are_cut_from_two_bookies,
    one_packet_in_twenty_is_lost,
    a_zookeeper_is_cut_off,
    a_client_is_heard_and_hears_nothing,
    every_packet_takes_200_ms,
    wall_clocks_are_an_hour_off,
]
TROUBLES = [*SOME, *OTHERS] if IS_SEARCH else SOME
PURGES = IS_SEARCH and run_seed() % 2 == 1
"""In half of its runs somebody also removes what is some seconds old."""


def leader_of(cluster: HostCluster) -> str:
    """Return the name of the bookie that leads."""

    async def ask() -> str:
        async with open_store(cluster.metadata) as store:
            while True:
                lease = await holder(store, COORDINATOR)
                if lease is not None:
                    return decode_leader(lease.name, lease.value).bookie_id
                await trio.sleep(0.2)

    return trio.run(ask)


@contextmanager
def crew_on(cluster: HostCluster, folder: Path) -> Iterator[Crew]:
    """Producers and readers, on the two clients' hosts in turn."""
    clients = dict(zip((*PRODUCERS, "reader-a", "reader-b"), 3 * cluster.clients, strict=False))
    clients["purger"] = cluster.clients[0]
    with Crew(
        cluster, folder, partitions=2, prefix=lambda name: cluster.network[clients[name]].prefix
    ) as crew:
        for name in PRODUCERS:
            crew.start("produce", name, str(MESSAGES), "shared", str(REST_S))
        for name in ("reader-a", "reader-b"):
            crew.start("read", name)
        if PURGES:
            crew.start("purge", "purger")
        yield crew


def wait_until_all_go_on(
    crew: Crew, others: LedgerCrew | None = None, limit_s: float = STUCK_S
) -> dict[str, float]:
    """Return how long it took until each producer, and each writer, was acknowledged something."""
    paths = {name: crew.paths[name] for name in PRODUCERS}
    writers = others.writers if others is not None else {}
    known = [path for path in [*paths.values(), *writers.values()] if path.exists()]
    seen = {path: path.stat().st_size for path in known}
    took: dict[str, float] = {}
    began = time.monotonic()
    while len(took) < len(paths) + len(writers):
        passed = time.monotonic() - began
        for name, path in (paths | writers).items():
            limit = LEDGERS_STUCK_S if name in writers else limit_s
            event = b'"Acknowledged"' if name in writers else b'"MessagesAcknowledged"'
            new = path.read_bytes()[seen.get(path, 0) :] if path.exists() else b""
            if name not in took and event in new:
                took[name] = round(passed, 1)
            assert name in took or passed < limit, f"stuck: {name}\n{log_beside(path)}"
        time.sleep(0.1)
    return took


def log_beside(history: Path) -> str:
    """Return the end of what a worker said."""
    return history.with_suffix(".log").read_text(errors="replace")[-3000:]


def is_of_no_topic(info: LedgerInfo) -> bool:
    """Return True for ledgers that the crew of ledgers may have written."""
    return "topic" not in info.custom


def of_ledgers(folder: Path) -> History:
    """Return what was seen of the ledgers that the crew wrote: not of those of the topic."""
    events = History.merged(sorted(folder.glob("*.jsonl"))).events
    written = {event.ledger for event in events if isinstance(event, Sent)}
    return History(
        event for event in events if isinstance(event, LedgerEvent) and event.ledger in written
    )


def test_promises_hold_through_the_troubles_of_a_network(tmp_path: Path) -> None:
    topics, ledgers = tmp_path / "topics", tmp_path / "ledgers"
    topics.mkdir()
    ledgers.mkdir()
    with HostCluster(tmp_path, 5, keepers=3) as cluster, crew_on(cluster, topics) as crew:
        wait_until_all_go_on(crew, limit_s=START_S)
        with LedgerCrew(cluster, ledgers) as others:
            others.wait_until_all_write(START_S)
            for trouble in TROUBLES:
                for hold_s in trouble(cluster, crew):
                    time.sleep(hold_s)
                cluster.network.heal()
                cluster.check_alive()
                took = wait_until_all_go_on(crew, others)
                sys.stdout.write(f"{trouble.__name__}: {took}\n")
            for name in PRODUCERS:
                crew.drop(name)  # their leases run out while the others finish
            others.finish()
        if PURGES:
            crew.stop("purger")
        cluster.network.widen()  # the rest reads much, and is about no network
        trio.run(audit, cluster.metadata, ledgers / "audit.jsonl", is_of_no_topic)
        history = crew.finish()
    told = [event for event in history.events if isinstance(event, MessagesAcknowledged)]
    read = sum(len(e.ids) for e in history.events if isinstance(e, MessagesRead))
    sent = sum(len(event.marks) for event in told)
    sys.stdout.write(f"acknowledged {sent}, read {read}\n")
    for part in (history, of_ledgers(ledgers)):
        violations = check(part)
        with never_twice():
            assert violations[:10] == [], f"{len(violations)} in all; the history is in {tmp_path}"
    assert sent
    assert read
