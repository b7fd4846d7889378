"""What a client watches, while answers are late, connections change and callers give up."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import trio
import trio.testing
from fake_bookie import FakeBookie, Network, Peer
from memory_store import MemoryStore

from ledger_client.wire import hints
from ledger_client.wire.hints import ANSWER_S, WAIT_S
from ledger_client.wire.stores import BookieStore
from metadata.calls import Get, HintRequest, MetadataRequest, Reply, WatchPrefixes
from metadata.errors import MetadataBroken, MetadataUnavailable
from metadata.failures import failure_of
from metadata.watch import Changes

Clock = trio.testing.MockClock
Request = MetadataRequest | HintRequest


class LateBookie(FakeBookie):
    """Does what it is asked; of requests that *is_late* is true for, it answers once freed."""

    def __init__(self, behind: MemoryStore) -> None:
        super().__init__(behind)
        self.is_late: Callable[[Request], bool] = lambda _request: False
        self.late = trio.Event()
        """set while an answer is kept back"""
        self.freed = trio.Event()

    async def _do(self, peer: Peer, request: Request) -> Reply:
        is_late = self.is_late(request)
        reply = await super()._do(peer, request)
        if is_late:
            self.late.set()
            await self.freed.wait()
        return reply


def adds(prefix: str) -> Callable[[Request], bool]:
    """Return a predicate: the first request to watch *prefix*."""
    seen: list[Request] = []

    def is_first(request: Request) -> bool:
        if not isinstance(request, WatchPrefixes) or prefix not in request.add:
            return False
        seen.append(request)
        return len(seen) == 1

    return is_first


class Noted:
    """A listener that keeps its hints."""

    def __init__(self) -> None:
        self.hints: list[str] = []

    def notify(self, _prefix: str, hint: str) -> None:
        self.hints.append(hint)


@pytest.fixture
def behind() -> MemoryStore:
    return MemoryStore()


async def test_a_watch_that_begins_over_a_connection_being_left_misses_nothing(
    behind: MemoryStore, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    one, other = LateBookie(behind), LateBookie(behind)
    network = Network(nursery, one, other)
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        nursery.start_soon(store.watches.run)
        store.watches.subscribe("first/", Noted())
        await trio.sleep(1)
        mine, theirs = (one, other) if one.connections else (other, one)
        begins, listener = adds("w/"), Noted()
        mine.is_late = lambda request: begins(request) or isinstance(request, Get)
        async with trio.open_nursery() as beginning:
            beginning.start_soon(store.watches.begin, ["w/"], listener)
            await mine.late.wait()
            await store.get("slow")  # answered by the other one
            await trio.sleep(0.5)
            assert theirs.connections == 1
            mine.freed.set()
        await behind.put("w/1", b"")
        await trio.sleep(60)
        assert listener.hints == ["w/1"]
        nursery.cancel_scope.cancel()


async def test_a_watch_survives_the_failure_of_another_one_that_began_with_it(
    behind: MemoryStore, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    bookie = LateBookie(behind)
    network = Network(nursery, bookie)
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        nursery.start_soon(store.watches.run)
        bookie.is_late = adds("w/")
        given_up, kept = Noted(), Noted()
        async with trio.open_nursery() as beginning:
            beginning.start_soon(store.watches.begin, ["w/"], given_up)
            await bookie.late.wait()
            await store.watches.begin(["w/"], kept)
            beginning.cancel_scope.cancel()
        await trio.sleep(60)  # whatever there is to be said was said to the bookie
        await behind.put("w/1", b"")
        await trio.sleep(60)
        assert kept.hints == ["w/1"]
        nursery.cancel_scope.cancel()


async def test_a_prefix_that_is_wanted_again_while_it_begins_is_watched(
    behind: MemoryStore, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    bookie = LateBookie(behind)
    network = Network(nursery, bookie)
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        watches = store.watches
        nursery.start_soon(watches.run)
        bookie.is_late = adds("w/")
        first, second, third = Noted(), Noted(), Noted()
        watches.subscribe("w/", first)
        await bookie.late.wait()
        await watches.begin(["w/"], second)
        watches.unsubscribe("w/", first)
        watches.unsubscribe("w/", second)
        watches.subscribe("w/", third)
        bookie.freed.set()
        await trio.sleep(60)
        await behind.put("w/1", b"")
        await trio.sleep(60)
        assert third.hints == ["w/", "w/1"]
        nursery.cancel_scope.cancel()


async def test_many_watches_that_cannot_begin_fail_in_the_time_of_one(
    behind: MemoryStore, autojump_clock: Clock
) -> None:
    """Each tries to connect in its turn, but waits for its turn within its deadline."""

    async def never(_host: str, _port: int) -> trio.abc.Stream:
        await trio.sleep_forever()
        raise AssertionError

    network = Network(None, FakeBookie(behind))  # type: ignore[arg-type]  # it is never dialled
    failed: list[float] = []
    async with BookieStore.open(network.addresses, open_stream=never, timeout_s=10.0) as store:

        async def begin(number: int) -> None:
            with pytest.raises(MetadataUnavailable):
                await store.watches.begin([f"w/{number}"], Noted())
            failed.append(trio.current_time())

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(begin, number)
    assert len(failed) == 50
    assert max(failed) - began < 12


async def test_a_prefix_that_is_wanted_again_while_many_others_end_is_watched(
    behind: MemoryStore, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    """The ends take several messages."""
    bookie = LateBookie(behind)
    network = Network(nursery, bookie)
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        watches, many, again = store.watches, Noted(), Noted()
        nursery.start_soon(watches.run)
        prefixes = [f"w/{number}/" for number in range(10_000)]
        await watches.begin([*prefixes, "x/"], many)
        await trio.sleep(1)
        bookie.is_late = lambda request: isinstance(request, WatchPrefixes) and bool(request.drop)
        for prefix in prefixes:
            watches.unsubscribe(prefix, many)
        await behind.put("x/1", b"")  # ends are sent with the next message
        await bookie.late.wait()
        bookie.is_late = lambda _request: False
        await watches.begin([prefixes[-1]], again)
        bookie.freed.set()
        await trio.sleep(60)
        await behind.put(f"{prefixes[-1]}1", b"")
        await trio.sleep(60)
        assert again.hints == [f"{prefixes[-1]}1"]
        dropped = [
            prefix
            for request in bookie.requests
            if isinstance(request, WatchPrefixes)
            for prefix in request.drop
        ]
        assert sorted(dropped) == sorted(prefixes[:-1])
        nursery.cancel_scope.cancel()


async def test_a_client_knows_when_its_bookie_cannot_tell_of_changes(
    behind: MemoryStore, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    bookie = FakeBookie(behind)
    network = Network(nursery, bookie)
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        assert store.is_cut_off
        nursery.start_soon(store.watches.run)
        store.watches.subscribe("w/", Noted())
        await trio.sleep(1)
        assert store.watches.tells("w/")
        behind.is_cut_off = True
        await trio.sleep(WAIT_S + 1)
        assert store.is_cut_off and not store.watches.tells("w/")
        behind.is_cut_off = False
        await trio.sleep(WAIT_S + 1)
        assert store.watches.tells("w/")
        bookie.mute = True
        await trio.sleep(2 * WAIT_S + ANSWER_S + 1)  # one question was asked before
        assert store.is_cut_off and not store.watches.tells("w/")
        nursery.cancel_scope.cancel()


class OlderBookie(FakeBookie):
    """Does not say whether it is cut off."""

    async def _do(self, peer: Peer, request: Request) -> Reply:
        reply = await super()._do(peer, request)
        return msgspec.structs.replace(reply, cut_off=None) if isinstance(reply, Changes) else reply


async def test_a_bookie_that_does_not_say_whether_it_is_cut_off_may_be_and_is_not_left(
    behind: MemoryStore, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    one, other = OlderBookie(behind), OlderBookie(behind)
    network = Network(nursery, one, other)
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        nursery.start_soon(store.watches.run)
        store.watches.subscribe("w/", Noted())
        for _ in range(10):
            await trio.sleep(WAIT_S)
            assert not store.watches.tells("w/")
        assert one.connections + other.connections == 1
        nursery.cancel_scope.cancel()


class CutOffBookie(FakeBookie):
    """Hears nothing of its store; refuses to watch what *refused* is true for."""

    is_cut_off = True
    refused: Callable[[str], bool] = staticmethod(lambda _prefix: False)

    async def _do(self, peer: Peer, request: Request) -> Reply:
        if isinstance(request, WatchPrefixes) and any(map(self.refused, request.add)):
            return failure_of(MetadataBroken("too many"))
        reply = await super()._do(peer, request)
        if isinstance(reply, Changes) and self.is_cut_off:
            return msgspec.structs.replace(reply, keys=[], cut_off=True)
        return reply


async def test_a_bookie_that_is_cut_off_from_its_store_is_left_for_another_one(
    behind: MemoryStore, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    one, other = CutOffBookie(behind), CutOffBookie(behind)
    network = Network(nursery, one, other)
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        nursery.start_soon(store.watches.run)
        listener = Noted()
        store.watches.subscribe("w/", listener)
        await trio.sleep(600)
        assert not store.watches.tells("w/")
        assert one.connections + other.connections < 2 + 600 / WAIT_S  # they are all alike
        for number, whole in enumerate((one, other)):
            one.is_cut_off, other.is_cut_off = whole is other, whole is one
            await trio.sleep(4 * WAIT_S)
            assert store.watches.tells("w/")
            await behind.put(f"w/{number}", b"")
            await trio.sleep(1)
            assert listener.hints[-1] == f"w/{number}"
        connections = one.connections + other.connections
        await trio.sleep(600)
        assert one.connections + other.connections == connections
        nursery.cancel_scope.cancel()


async def test_a_client_is_told_of_changes_only_where_all_that_it_watches_is_watched(
    behind: MemoryStore,
    nursery: trio.Nursery,
    autojump_clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hints, "WATCHED_AT_ONCE_MAX", 1)
    one, other = CutOffBookie(behind), CutOffBookie(behind)
    one.is_cut_off = other.is_cut_off = False
    network = Network(nursery, one, other)
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        nursery.start_soon(store.watches.run)
        for prefix in ("w/", "x/"):
            await store.watches.begin([prefix], Noted())
        await trio.sleep(1)
        assert store.watches.tells("w/")
        one.refused = other.refused = lambda prefix: prefix == "x/"
        store._dialer.pass_over(store._dialer._current)
        for _ in range(60):
            await trio.sleep(1)
            assert not store.watches.tells("w/")
        one.refused = other.refused = lambda _prefix: False
        await trio.sleep(WAIT_S + 2)
        assert store.watches.tells("w/")
        nursery.cancel_scope.cancel()
