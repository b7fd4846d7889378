"""Where BookKeeper's clients look for bookies, as ours come, go and stop taking entries."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest
import trio
from bookkeeper import BookKeeper
from ensemble import Ensemble
from fleet import Fleet
from kazoo.client import KazooClient

from ledger_client.wire.stores import open_store
from metadata.records import Draining, draining_key, encode_record
from metadata.store import MetadataStore

# BookKeeper is built, and its bookies are started, in one process.
pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.xdist_group("interop")]
DEADLINE_S = 60.0
AVAILABLE, READ_ONLY = "/ledgers/available", "/ledgers/available/readonly"


def registered(nodes: KazooClient, folder: str) -> set[str]:
    return set(nodes.get_children(folder)) - {"readonly"}


def owner_of(nodes: KazooClient, name: str) -> int:
    """Return the ZooKeeper session that a bookie is registered by."""
    owner: int = nodes.get(f"{AVAILABLE}/{name}")[1].ephemeralOwner
    return owner


def wait_for(nodes: KazooClient, folder: str, names: set[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while (found := registered(nodes, folder)) != names:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def change(fleet: Fleet, call: Callable[[MetadataStore], Awaitable[object]]) -> None:
    async def run() -> None:
        async with open_store(fleet.cluster) as store:
            await call(store)

    trio.run(run)


def test_a_killed_bookie_is_gone_and_one_that_is_started_at_once_stays(
    nodes: KazooClient, ensemble: Ensemble, fleet: Fleet
) -> None:
    """And the one that is gone comes back."""
    names = {fleet.name(number) for number in fleet.numbers}
    wait_for(nodes, AVAILABLE, names)
    former = owner_of(nodes, fleet.name(2))
    for number in (2, 3):
        fleet.kill(number)
    fleet.start(2)
    fleet.wait_until_served(2)
    owner = owner_of(nodes, fleet.name(2))
    assert owner != former
    wait_for(nodes, AVAILABLE, names - {fleet.name(3)})
    deadline = time.monotonic() + DEADLINE_S
    while f"0x{former:x}" in ensemble.command(0, b"dump"):  # the session of its former life
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert owner_of(nodes, fleet.name(2)) == owner
    fleet.start(3)
    fleet.wait_until_served(3)
    wait_for(nodes, AVAILABLE, names)
    assert registered(nodes, READ_ONLY) == set()


def test_a_bookie_that_is_draining_is_read_only_meanwhile(
    nodes: KazooClient, fleet: Fleet, bookkeeper: BookKeeper
) -> None:
    names, leaving = {fleet.name(number) for number in fleet.numbers}, fleet.name(1)
    draining = encode_record(Draining(leaving, 0))
    change(fleet, lambda store: store.put(draining_key(leaving), draining))
    try:
        wait_for(nodes, READ_ONLY, {leaving})
        assert registered(nodes, AVAILABLE) == names - {leaving}
        assert f"BookieID:{leaving}," in bookkeeper.shell(
            fleet.metadata, "listbookies", "-ro", "-h"
        )
    finally:
        change(fleet, lambda store: store.delete(draining_key(leaving)))
    wait_for(nodes, AVAILABLE, names)
    assert registered(nodes, READ_ONLY) == set()
