"""Calls that wait for a cluster: what is said of them, and when they give up."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing
from fake_bookie import FakeBookie, Network
from memory_store import MemoryStore

from ledger_client.wire.stores import BookieStore
from metadata.errors import MetadataUnavailable
from metadata.failures import failure_of


@pytest.fixture
def bookies() -> list[FakeBookie]:
    store = MemoryStore()
    return [FakeBookie(store) for _ in range(3)]


@pytest.fixture
def network(bookies: list[FakeBookie], nursery: trio.Nursery) -> Network:
    return Network(nursery, *bookies)


@pytest.mark.parametrize("twice", [True, False], ids=["read", "change"])
async def test_a_call_that_waits_is_logged_once_with_what_to_check(
    twice: bool,
    network: Network,
    bookies: list[FakeBookie],
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        await store.get("a")
        assert not caplog.records
        for bookie in bookies:
            bookie.hangs = True
        for _ in range(2):
            with pytest.raises(MetadataUnavailable):
                await (store.get("a") if twice else store.put("a", b""))
        (logged,) = caplog.records
        assert "waiting for the cluster at bookie://" in logged.getMessage()
        assert "check that its bookies" in logged.getMessage()
        for bookie in bookies:
            bookie.hangs = False
        await store.get("a")
        for bookie in bookies:
            bookie.reachable, bookie.hangs = False, True
        with pytest.raises(MetadataUnavailable):
            await store.get("a")
        assert len(caplog.records) == 2, "a later outage is one of its own"


async def test_an_outage_of_the_store_behind_bookies_is_logged_once(
    network: Network,
    bookies: list[FakeBookie],
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Bookies that answer that the store is away have not ended the outage."""
    for bookie in bookies:
        bookie.answer = lambda _request: failure_of(MetadataUnavailable("the store is away"))
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        for _ in range(3):
            with pytest.raises(MetadataUnavailable):
                await store.get("a")
        (logged,) = caplog.records
        assert "the store is away" in logged.getMessage()


async def test_a_call_in_a_queue_is_not_taken_for_an_outage(
    network: Network,
    bookies: list[FakeBookie],
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
) -> None:
    for bookie in bookies:
        bookie.silent_about = "last"
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        with trio.move_on_after(4):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.get, "last")
                while True:
                    await trio.sleep(0.2)
                    await store.get("other")
    assert not caplog.records


# --- how long ----------------------------------------------------------------------------


async def test_an_address_where_nothing_ever_listened_fails_within_a_second(
    network: Network, bookies: list[FakeBookie], autojump_clock: trio.testing.MockClock
) -> None:
    for bookie in bookies:
        bookie.reachable = False
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        began = trio.current_time()
        for call in (store.get("a"), store.put("a", b"")):
            with pytest.raises(MetadataUnavailable, match="nobody listens") as caught:
                await call
            assert not caught.value.outcome_unknown
        assert trio.current_time() - began < 2.0


async def test_a_name_that_does_not_resolve_yet_has_the_whole_deadline(
    network: Network, autojump_clock: trio.testing.MockClock
) -> None:
    """As of a container that starts later."""

    async def open_stream(host: str, port: int) -> trio.abc.Stream:
        if trio.current_time() - began < 5:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return await network.open_stream(host, port)

    began = trio.current_time()
    async with BookieStore.open(network.addresses, open_stream=open_stream) as store:
        assert await store.get("a") is None


async def test_bookies_that_restart_may_refuse_for_longer(
    network: Network, bookies: list[FakeBookie], autojump_clock: trio.testing.MockClock
) -> None:
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        await store.get("a")
        max(bookies, key=lambda bookie: len(bookie.requests)).lose_answers = 1
        for bookie in bookies:
            bookie.reachable = False

        async def come_back() -> None:
            await trio.sleep(5)
            bookies[1].reachable = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_back)
            assert await store.get("a") is None


async def test_a_silent_address_has_the_whole_deadline(
    network: Network, bookies: list[FakeBookie], autojump_clock: trio.testing.MockClock
) -> None:
    for bookie in bookies:
        bookie.reachable = False
    silent = network.addresses[0]

    async def open_stream(host: str, port: int) -> trio.abc.Stream:
        if port == silent.port:
            await trio.sleep_forever()
        return await network.open_stream(host, port)

    async with BookieStore.open(network.addresses, open_stream=open_stream) as store:
        began = trio.current_time()
        with pytest.raises(MetadataUnavailable):
            await store.get("a")
        assert trio.current_time() - began > 5.0
