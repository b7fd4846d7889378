from __future__ import annotations

import pytest
import trio
import trio.testing
from memory_store import MemoryStore

from bookie.bookie_addresses import LOOK_S, BookieAddresses
from metadata.records import BookieRecord

HOSTS = {"one": ["10.0.0.1", "fd00:0:0:7::1"], "two": ["10.0.0.2"]}


@pytest.fixture(autouse=True)
def resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int) -> list[tuple[object, ...]]:
        await trio.lowlevel.checkpoint()
        if host == "lost":
            raise OSError("no such host")
        return [(0, 0, 0, "", (each, port)) for each in HOSTS.get(host, [host])]

    monkeypatch.setattr(trio.socket, "getaddrinfo", resolve)


def register(store: MemoryStore, **hosts: str) -> None:
    for name, address in hosts.items():
        store.bookies[name] = BookieRecord(name, address, 1, 1)


async def test_the_hosts_of_registered_bookies_are_known_once_somebody_asked(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    store = MemoryStore()
    register(store, b1="one:3181", b2="lost:3181", b3="no address", b4="[fd00::9:2]:1")
    addresses = BookieAddresses(store)
    nursery.start_soon(addresses.run)
    await trio.sleep(60)
    assert not addresses.has("10.0.0.1")  # nothing was looked up before
    await trio.testing.wait_all_tasks_blocked()
    assert addresses.has("10.0.0.1")
    assert addresses.has("fd00:0:0:7::/64")
    assert addresses.has("fd00::/64")
    assert not addresses.has("10.0.0.2")


async def test_a_bookie_that_registers_later_is_found_after_a_while(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    store = MemoryStore()
    register(store, b1="one:3181")
    addresses = BookieAddresses(store)
    nursery.start_soon(addresses.run)
    addresses.has("10.0.0.2")
    await trio.testing.wait_all_tasks_blocked()
    register(store, b2="two:3181")
    assert not addresses.has("10.0.0.2")
    await trio.sleep(LOOK_S + 1)
    assert not addresses.has("10.0.0.2")
    await trio.testing.wait_all_tasks_blocked()
    assert addresses.has("10.0.0.2")
