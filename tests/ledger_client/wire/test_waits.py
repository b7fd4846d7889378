"""What is said of calls that wait for a cluster."""

from __future__ import annotations

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
    return [FakeBookie(MemoryStore()) for _ in range(3)]


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
        assert "check that its bookies run" in logged.getMessage()
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
