"""A client that watches much gets its own calls through, at a bookie with its real bounds."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from fake_bookie import FakeBookie, Network
from memory_store import MemoryStore
from rig import settings
from running import running

from ledger_client.wire.stores import BookieStore
from metadata.address import parse_address
from metadata.urls import open_store


@pytest.mark.parametrize("count", [100, 300, 1000])
async def test_a_client_with_many_watches_still_gets_its_calls_through(
    tmp_path: Path, count: int
) -> None:
    config = settings(tmp_path)
    heard: list[str] = []
    all_heard = trio.Event()
    connections: list[trio.SocketStream] = []

    async def connect(host: str, port: int) -> trio.SocketStream:
        connections.append(await trio.open_tcp_stream(host, port))
        return connections[-1]

    async def listen(store: BookieStore, prefix: str, task_status: trio.TaskStatus[None]) -> None:
        async with store.watch(prefix) as hints:
            task_status.started()
            while len(heard) < count:
                heard.append(await hints.receive())
            all_heard.set()

    async with (
        open_store(config.metadata) as behind,
        running(config, behind) as ready,
        BookieStore.open([parse_address(ready.address)], open_stream=connect) as store,
        trio.open_nursery() as nursery,
    ):
        for number in range(count):
            await nursery.start(listen, store, f"ledgers/{number:04}")
        await trio.sleep(0.5)  # until all of them wait
        for number in range(10):
            with trio.fail_after(1):
                await store.put("elsewhere", b"%d" % number)
        for number in range(count):
            await behind.put(f"ledgers/{number:04}", b"")
        with trio.fail_after(10):
            await all_heard.wait()
        assert sorted(heard) == [f"ledgers/{number:04}" for number in range(count)]
        assert len(connections) == 1
        nursery.cancel_scope.cancel()


async def test_a_change_of_bookie_loses_no_hint_and_invents_none(nursery: trio.Nursery) -> None:
    behind = MemoryStore()
    one, other = FakeBookie(behind), FakeBookie(behind)
    network = Network(nursery, one, other)
    heard: list[str] = []
    news = trio.lowlevel.ParkingLot()

    async def listen(store: BookieStore, prefix: str, task_status: trio.TaskStatus[None]) -> None:
        async with store.watch(prefix) as hints:
            task_status.started()
            while True:
                heard.append(await hints.receive())
                news.unpark_all()

    async def heard_both(turn: int) -> None:
        while not {f"w/{turn}/{turn}", f"w/{turn}/again"} <= {*heard}:
            await news.park()

    async with (
        BookieStore.open(network.addresses, open_stream=network.open_stream) as store,
        trio.open_nursery() as listeners,
    ):
        for number in range(100):
            await listeners.start(listen, store, f"w/{number}/")
        for turn in range(4):
            for bookie in (one, other):
                bookie.lose_answers = 1
            await behind.put(f"w/{turn}/{turn}", b"")
            await store.get("a")
            await behind.put(f"w/{turn}/again", b"")
            with trio.fail_after(20):
                await heard_both(turn)
        listeners.cancel_scope.cancel()
    assert {*heard} == {f"w/{turn}/{name}" for turn in range(4) for name in (turn, "again")}


async def test_an_idle_client_has_one_call_that_waits_however_much_it_watches(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    bookie = FakeBookie(MemoryStore())
    network = Network(nursery, bookie)
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        listener = Nobody()
        nursery.start_soon(store.watches.run)
        await trio.sleep(1)
        assert bookie.requests == []
        for number in range(5000):
            store.watches.subscribe(f"w/{number}", listener)
        await trio.sleep(1)
        assert listener.count == 5000
        assert len(bookie.requests) <= 4
        await trio.sleep(100)
        assert len(bookie.requests) <= 4 + 10 + 1
        assert bookie.connections == 1


class Nobody:
    """A listener that counts its hints."""

    count = 0

    def notify(self, _prefix: str, _hint: str) -> None:
        self.count += 1
