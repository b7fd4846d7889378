"""The driver that goes through bookies, when they or the network misbehave."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import trio
from fake_bookie import FakeBookie, Network
from lease_clock import LeaseClock
from leases import grant, keep
from trio.testing import MockClock

from ledger_client.wire import stores
from ledger_client.wire.stores import BookieStore, open_store
from metadata import calls
from metadata.calls import Failure, MetadataRequest, Reply
from metadata.errors import (
    AccessDenied,
    BadAddress,
    BadRecord,
    MetadataBroken,
    MetadataUnavailable,
    VersionConflict,
)
from metadata.records import BOOKIES, BookieRecord, bookie_lease, encode_record
from metadata.sqlite import SqliteStore
from metadata.store import ABSENT, Put


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "metadata.db", clock_ms=LeaseClock())
    yield store
    await store.aclose()


@pytest.fixture
def bookies(sqlite_store: SqliteStore) -> list[FakeBookie]:
    return [FakeBookie(sqlite_store) for _ in range(3)]


@pytest.fixture
def network(bookies: list[FakeBookie], nursery: trio.Nursery) -> Network:
    return Network(nursery, *bookies)


@pytest.fixture
async def store(network: Network) -> AsyncIterator[BookieStore]:
    opening = BookieStore.open(network.addresses, open_stream=network.open_stream, timeout_s=1.0)
    async with opening as store:
        yield store


def in_use(bookies: list[FakeBookie]) -> FakeBookie:
    return max(bookies, key=lambda bookie: len(bookie.requests))


# --- which bookie ----------------------------------------------------------------------


async def test_stores_spread_over_the_bookies(network: Network, bookies: list[FakeBookie]) -> None:
    for _ in range(40):
        async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
            await store.get("a")
    assert all(bookie.connections > 0 for bookie in bookies)


async def test_calls_stay_with_one_bookie_over_one_connection(
    store: BookieStore, bookies: list[FakeBookie]
) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(store.get, f"k{number}")
    assert sorted(bookie.connections for bookie in bookies) == [0, 0, 1]


async def test_any_live_bookie_will_do(store: BookieStore, bookies: list[FakeBookie]) -> None:
    for alive in bookies:
        for bookie in bookies:
            bookie.reachable = bookie is alive
            bookie.lose_answers = 1 if bookie.requests and bookie is not alive else 0
        assert await store.get("a") is None


async def test_a_client_that_knows_one_bookie_outlives_it(
    network: Network,
    bookies: list[FakeBookie],
    sqlite_store: SqliteStore,
) -> None:
    for address in network.addresses:
        record = BookieRecord(f"b{address.port}", str(address), capacity=1, free=1)
        lease = bookie_lease(record.bookie_id)
        await grant(sqlite_store, lease, "me", ttl_s=30, value=encode_record(record))
    await grant(sqlite_store, bookie_lease("odd"), "me", ttl_s=30, value=b"no record")
    opening = BookieStore.open(
        network.addresses[:1], open_stream=network.open_stream, timeout_s=1.0
    )
    async with opening as store:
        assert len(await store.leases(BOOKIES)) == 4
        bookies[0].reachable = False
        bookies[0].lose_answers = 1
        assert await store.get("a") is None
        assert await store.put("a", b"") >= 1


@pytest.mark.parametrize("denying", [1, 2, 3])
async def test_bookies_that_deny_a_login_are_passed_over_while_another_lets_it_in(
    network: Network, denying: int
) -> None:
    """One whose certificate has expired, or whose users file is changed last."""
    asked: list[int] = []
    denied = {address.port for address in network.addresses[:denying]}

    async def open_stream(host: str, port: int) -> trio.abc.Stream:
        asked.append(port)
        if port in denied:
            raise AccessDenied(f"{host}:{port} refuses user 'alice' or the password")
        return await network.open_stream(host, port)

    for _ in range(10):  # they are asked in any order
        asked.clear()
        async with BookieStore.open(network.addresses, open_stream=open_stream) as store:
            if denying < len(network.addresses):
                assert await store.get("a") is None
            else:
                with pytest.raises(AccessDenied, match="alice"):
                    await store.get("a")
                assert len(asked) == denying


async def test_with_no_bookie_at_all_the_deadline_holds(
    store: BookieStore, bookies: list[FakeBookie]
) -> None:
    for bookie in bookies:
        bookie.reachable = False
    started = trio.current_time()
    with pytest.raises(
        MetadataUnavailable, match=r"^metadata: bookie://.*nobody listens"
    ) as caught:
        await store.put("a", b"")
    assert trio.current_time() - started < 1.5
    assert not caught.value.outcome_unknown


async def test_a_put_waits_for_a_bookie_that_comes_back(
    store: BookieStore, bookies: list[FakeBookie]
) -> None:
    for bookie in bookies:
        bookie.reachable = False

    async def come_back() -> None:
        await trio.sleep(0.2)
        bookies[1].reachable = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come_back)
        assert await store.put("a", b"", expected=ABSENT) >= 1


# --- answers that get lost -------------------------------------------------------------


async def test_a_read_whose_answer_is_lost_is_made_elsewhere(
    store: BookieStore, bookies: list[FakeBookie]
) -> None:
    await store.put("a", b"1")
    in_use(bookies).lose_answers = 1
    found = await store.get("a")
    assert found is not None and found.value == b"1"
    assert sum(bookie.connections for bookie in bookies) == 2


async def test_a_change_whose_answer_is_lost_is_not_made_twice(
    store: BookieStore, bookies: list[FakeBookie], sqlite_store: SqliteStore
) -> None:
    version = await store.put("a", b"1")
    in_use(bookies).lose_answers = 1
    with pytest.raises(MetadataUnavailable, match="closed") as caught:
        await store.put("a", b"2", expected=version)
    assert caught.value.outcome_unknown
    found = await sqlite_store.get("a")
    assert found is not None and found.value == b"2"
    puts = [r for bookie in bookies for r in bookie.requests if isinstance(r, Put)]
    assert len(puts) == 2
    for change in (store.delete("a"), store.transact([Put("a", b"3")])):
        for bookie in bookies:
            bookie.lose_answers = 1
        with pytest.raises(MetadataUnavailable) as caught:
            await change
        assert caught.value.outcome_unknown


async def test_ids_and_leases_whose_answers_are_lost_are_asked_for_again(
    store: BookieStore, bookies: list[FakeBookie]
) -> None:
    await store.next_id("ids")
    in_use(bookies).lose_answers = 1
    assert await store.next_id("ids") == 3
    lose_all(bookies)
    lease = await grant(store, "l", "me", ttl_s=30)
    lose_all(bookies)
    await keep(store, lease, ttl_s=30)
    lose_all(bookies)
    assert (await store.update(lease, b"new")).epoch == lease.epoch
    lose_all(bookies)
    await store.release(lease)
    assert await store.leases("") == []


def lose_all(bookies: list[FakeBookie]) -> None:
    for bookie in bookies:
        bookie.lose_answers = 1


async def test_a_bookie_that_is_silent_is_left_for_another(
    store: BookieStore, bookies: list[FakeBookie], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "ATTEMPT_S", 0.5)
    await store.get("a")
    silent = in_use(bookies)
    silent.mute = True
    assert await store.get("a") is None
    asked = len(silent.requests)
    assert await store.get("a") is None
    assert len(silent.requests) == asked


async def test_a_bookie_that_did_not_answer_a_change_in_time_is_left_for_another(
    store: BookieStore, bookies: list[FakeBookie], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "ATTEMPT_S", 0.5)
    await store.get("a")
    silent = in_use(bookies)
    silent.mute = True
    with trio.move_on_after(0.4) as patience:
        await store.put("a", b"")
    assert patience.cancelled_caught
    asked = len(silent.requests)
    with trio.fail_after(30):
        assert await store.get("a") is None
    assert len(silent.requests) == asked


async def test_a_host_that_takes_no_connection_is_asked_once(
    network: Network,
    bookies: list[FakeBookie],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stores, "ATTEMPT_S", 0.5)
    dialled: list[int] = []

    async def open_stream(host: str, port: int) -> trio.abc.Stream:
        dialled.append(port)
        if len(dialled) == 1:
            await trio.sleep_forever()
        return await network.open_stream(host, port)

    async with BookieStore.open(network.addresses, open_stream=open_stream) as store:
        assert await store.get("a") is None
    assert len(set(dialled)) == len(dialled) == 2


async def test_a_change_at_a_silent_bookie_has_an_unknown_outcome(
    store: BookieStore, bookies: list[FakeBookie]
) -> None:
    for bookie in bookies:
        bookie.mute = True
    with pytest.raises(MetadataUnavailable, match=r"no answer in 1\.0 s") as caught:
        await store.put("a", b"")
    assert caught.value.outcome_unknown


async def test_a_connection_that_brings_nothing_does_not_cost_a_change_its_whole_deadline(
    network: Network, bookies: list[FakeBookie], autojump_clock: MockClock
) -> None:
    """As after a cut: TCP may send the change again only when the cut has long healed."""
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        for bookie in bookies:
            bookie.mute = True
        began = trio.current_time()
        with pytest.raises(MetadataUnavailable) as caught:
            await store.put("a", b"")
        assert caught.value.outcome_unknown
        assert trio.current_time() - began < 3


async def test_a_change_waits_for_a_bookie_that_is_slow_and_shows_that_it_lives(
    network: Network, bookies: list[FakeBookie], autojump_clock: MockClock
) -> None:
    async with BookieStore.open(network.addresses, open_stream=network.open_stream) as store:
        for bookie in bookies:
            bookie.hangs = True
        began = trio.current_time()
        with pytest.raises(MetadataUnavailable, match=r"no answer in 10\.0 s") as caught:
            await store.put("a", b"")
        assert caught.value.outcome_unknown
        assert trio.current_time() - began >= 9.9
    assert [len(bookie.requests) for bookie in bookies if bookie.requests] == [1]


async def test_a_restarted_bookie_is_noticed_before_a_change_is_sent(
    sqlite_store: SqliteStore, nursery: trio.Nursery, autojump_clock: None
) -> None:
    pair = trio.testing.memory_stream_pair()
    later = FakeBookie(sqlite_store)
    later.answer = lambda _request: calls.Done([5])
    ends = [pair[0]]
    network = Network(nursery, later)

    async def open_stream(_host: str, _port: int) -> trio.abc.Stream:
        return ends.pop() if ends else await later.dial(nursery)

    earlier = FakeBookie(sqlite_store)
    earlier.answer = later.answer
    async with BookieStore.open(network.addresses, open_stream=open_stream) as store:
        with trio.CancelScope() as running:
            nursery.start_soon(earlier.serve, pair[1])
            await store.put("a", b"")
            await pair[1].aclose()
            await trio.sleep(5)
            assert await store.put("a", b"") == 5
            running.cancel()
    assert len(later.requests) == 1


async def test_a_bookie_that_restarted_while_this_process_hung_is_noticed_as_well(
    sqlite_store: SqliteStore, nursery: trio.Nursery, mock_clock: trio.testing.MockClock
) -> None:
    mock_clock.rate = 1.0
    ours, theirs = (trio.socket.from_stdlib_socket(each) for each in socket.socketpair())
    bookie = FakeBookie(sqlite_store)
    ends: list[trio.abc.Stream] = [trio.SocketStream(ours)]
    network = Network(nursery, bookie)

    async def open_stream(_host: str, _port: int) -> trio.abc.Stream:
        return ends.pop() if ends else await bookie.dial(nursery)

    async with BookieStore.open(network.addresses, open_stream=open_stream) as store:
        nursery.start_soon(bookie.serve, trio.SocketStream(theirs))
        await store.put("a", b"")
        theirs.shutdown(socket.SHUT_RDWR)
        mock_clock.jump(5)  # this task does not let the others run meanwhile
        await store.put("b", b"")
    assert bookie.connections == 2
    assert await sqlite_store.get("b") is not None


async def test_a_connection_that_comes_after_the_end_is_closed(
    network: Network, nursery: trio.Nursery
) -> None:
    opened, dialled = trio.Event(), trio.Event()

    async def open_stream(host: str, port: int) -> trio.abc.Stream:
        dialled.set()
        await opened.wait()
        return await network.open_stream(host, port)

    async with trio.open_nursery() as connections:
        store = BookieStore(network.addresses, nursery=connections, open_stream=open_stream)
        refused = trio.Event()

        async def ask() -> None:
            with pytest.raises(MetadataUnavailable, match="closed"):
                await store.get("a")
            refused.set()

        nursery.start_soon(ask)
        await dialled.wait()
        await store.aclose()
        opened.set()
        with trio.fail_after(5):
            await refused.wait()
        connections.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert not connections.child_tasks


async def test_one_cancelled_caller_does_not_disturb_the_others(
    store: BookieStore, bookies: list[FakeBookie]
) -> None:
    start = await store.changes("w/")
    heard: list[str] = []

    async def listen() -> None:
        changes = await store.changes("w/", since=start.revision, wait_s=2)
        heard.extend(changes.keys)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            for pause_s in (0.02, 0.05, 0.1):
                with trio.move_on_after(pause_s):
                    await store.changes("elsewhere", since=start.revision, wait_s=2)
            await store.put("w/a", b"")
    assert heard == ["w/a"]
    assert sum(bookie.connections for bookie in bookies) == 1


# --- watches ---------------------------------------------------------------------------


async def test_a_watch_outlives_its_bookie_and_misses_nothing(
    store: BookieStore, bookies: list[FakeBookie], sqlite_store: SqliteStore
) -> None:
    async with store.watch("w/") as hints:
        for bookie in bookies:
            bookie.reachable = False
            bookie.lose_answers = 1
        await sqlite_store.put("w/missed", b"")
        hint: list[str] = []

        async def listen() -> None:
            hint.append(await hints.receive())

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen)
                await trio.sleep(0.3)
                for bookie in bookies:
                    bookie.reachable = True
                    bookie.lose_answers = 0
        assert hint == ["w/missed"]


# --- answers that make no sense --------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x81\xa4type\xa4Nope", b"\xff" * 100, b"\x93" * 5000]
)
async def test_bytes_that_are_no_reply_are_told_as_such(
    store: BookieStore, bookies: list[FakeBookie], body: bytes
) -> None:
    for bookie in bookies:
        bookie.answer = lambda _request: body
    with pytest.raises(BadRecord):
        await store.get("a")


@pytest.mark.parametrize(
    "reply",
    [
        calls.Done([1, 2]),
        calls.Done(),
        calls.Missing(),
        calls.BookieStatus("b", "h:1", "ready"),
        Failure("VersionConflict", "no attributes"),
        Failure("LeaseLost", "wrong ones", {"name": "a", "extra": 1}),
        Failure("MetadataUnavailable", "m", {"outcome_unknown": True, "message": "twice"}),
    ],
)
async def test_a_reply_of_the_wrong_kind_is_told_as_such(
    store: BookieStore, bookies: list[FakeBookie], reply: Reply
) -> None:
    for bookie in bookies:
        bookie.answer = lambda _request: reply
    with pytest.raises(BadRecord):
        await store.put("a", b"")


async def test_a_bookie_that_breaks_the_protocol_is_left(
    sqlite_store: SqliteStore, nursery: trio.Nursery
) -> None:
    good = FakeBookie(sqlite_store)
    network = Network(nursery, good)
    rubbish = [b"\x7f\xff\xff\xff rubbish", b"\0\0\0\0", b"HTTP/1.1 400 Bad Request\r\n\r\n"]

    async def speak(stream: trio.abc.Stream, words: bytes) -> None:
        await stream.receive_some(1)
        await stream.send_all(words)

    async def open_stream(_host: str, _port: int) -> trio.abc.Stream:
        if not rubbish:
            return await good.dial(nursery)
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(speak, theirs, rubbish.pop())
        return ours

    async with BookieStore.open(network.addresses, open_stream=open_stream) as store:
        assert await store.get("a") is None
    assert not rubbish


async def test_a_bookie_whose_store_is_down_is_left_for_another(
    store: BookieStore, bookies: list[FakeBookie]
) -> None:
    await store.get("a")
    down = in_use(bookies)

    def refuse(_request: MetadataRequest) -> Reply:
        return Failure("MetadataUnavailable", "locked", {"outcome_unknown": False})

    down.answer = refuse
    assert await store.put("a", b"", expected=ABSENT) >= 1


async def test_errors_arrive_as_what_they_were(
    store: BookieStore, bookies: list[FakeBookie]
) -> None:
    await store.put("a", b"1")
    with pytest.raises(VersionConflict, match="a: expected no such key, found version"):
        await store.put("a", b"2", expected=ABSENT)
    for bookie in bookies:
        bookie.answer = lambda _request: Failure("MetadataBroken", "damaged")
    with pytest.raises(MetadataBroken, match="damaged"):
        await store.get("a")
    for bookie in bookies:
        bookie.answer = lambda _request: Failure("CallRefused", "no metadata here")
    with pytest.raises(MetadataUnavailable, match="no metadata here"):
        await store.get("a")


# --- opening and closing -----------------------------------------------------------------


async def test_a_bookie_url_calls_nobody_before_it_is_used() -> None:
    async with open_store("bookie://nowhere.invalid:1") as store:
        assert isinstance(store, BookieStore)


async def test_an_error_inside_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with open_store("bookie://nowhere.invalid:1"):
            raise KeyError


@pytest.mark.parametrize(
    "url", ["", "metadata.db", "zk://", "etcd://a", "bookie://", "sqlite://a.db"]
)
async def test_any_other_url_is_refused(url: str) -> None:
    with pytest.raises(BadAddress):
        async with open_store(url):
            pass


async def test_clean_up_after_a_cancellation_still_reaches_the_store(
    sqlite_store: SqliteStore,
) -> None:
    """Over the connection in use, and over a new one."""
    bookies = [FakeBookie(sqlite_store) for _ in range(2)]
    async with trio.open_nursery() as serving:
        listeners = [
            await serving.start(partial(trio.serve_tcp, bookie.serve, 0, host="127.0.0.1"))
            for bookie in bookies
        ]
        ports = [each[0].socket.getsockname()[1] for each in listeners]
        url = ",".join(f"127.0.0.1:{port}" for port in ports)
        with trio.CancelScope() as cancelled:
            async with open_store(f"bookie://{url}") as store:
                lease = await grant(store, "l", "me", ttl_s=30)
                try:
                    cancelled.cancel()
                    await trio.sleep_forever()
                finally:
                    with trio.CancelScope(shield=True):
                        in_use(bookies).lose_answers = 1
                        await store.release(lease)
                        await store.put("cleaned", b"")
        serving.cancel_scope.cancel()
    assert await sqlite_store.leases("") == []
    assert await sqlite_store.get("cleaned") is not None


async def test_a_change_that_was_not_sent_is_withdrawn(
    network: Network, bookies: list[FakeBookie], nursery: trio.Nursery
) -> None:
    """The bookie takes no more bytes; when it does, the change is not among them."""
    ours, theirs = trio.testing.memory_stream_pair()
    release = trio.Event()
    deliver = ours.send_stream.send_all_hook

    async def deliver_and_wait() -> None:
        assert deliver is not None
        await deliver()
        await release.wait()

    ours.send_stream.send_all_hook = deliver_and_wait

    async def open_stream(_host: str, _port: int) -> trio.abc.Stream:
        return ours

    opening = BookieStore.open(network.addresses[:1], open_stream=open_stream, timeout_s=0.5)
    async with opening as store:
        nursery.start_soon(bookies[0].serve, theirs)
        await store.put("first", b"")
        with pytest.raises(MetadataUnavailable) as caught:
            await store.put("second", b"")
        assert not caught.value.outcome_unknown
        release.set()
        await trio.testing.wait_all_tasks_blocked()
    assert [request.key for request in bookies[0].requests if isinstance(request, Put)] == ["first"]
