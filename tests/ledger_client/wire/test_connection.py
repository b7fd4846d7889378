"""One connection: reconnecting, pausing, failing fast, and being dropped."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from memory_cluster import memory_cluster
from repair_rig import lay_out
from trio.testing import MockClock

from ledger_client import Options
from ledger_client.errors import BookieUnavailable, ReplicasUnavailable
from ledger_client.ledgers.replica_reads import LedgerSource, ask_confirmed
from ledger_client.wire.session import open_session
from metadata.calls import BookieReply, Failure, LedgerRuns, RunPage
from native import frame
from native.frame import Opcode


async def test_a_restarted_bookie_is_reached_again_at_a_new_address(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        async with client.ledgers.create(1, 1, 1) as ledger:
            await ledger.append(b"x")
        cluster.kill("b1")
        cluster.bookies["b7"] = cluster.bookies["b1"]
        old = cluster.store.bookies["b1"]
        cluster.store.bookies["b1"] = type(old)("b1", "memory:7", old.capacity, old.free)
        async with client.ledgers.open(ledger.id) as reader:
            assert [entry.payload for entry in await reader.read(0, 0)] == [b"x"]
        assert cluster.dialled[-1] == "b7"


async def test_a_bookie_at_the_address_of_another_is_not_taken_for_it(
    autojump_clock: MockClock,
) -> None:
    """An address changes hands; the metadata lists the dead one until its lease is over."""
    async with memory_cluster(2) as cluster, cluster.client() as client:
        async with client.ledgers.create(1, 1, 1) as ledger:
            await ledger.append(b"x")
        owner = cluster.record(ledger.id).fragments[0].bookies[0]
        other = "b2" if owner == "b1" else "b1"
        cluster.kill(owner)
        cluster.revive(owner)
        mine, cluster.bookies[owner] = cluster.bookies[owner], cluster.bookies[other]
        async with client.ledgers.open(ledger.id, recover=False) as reader:
            with pytest.raises(ReplicasUnavailable, match=f"{other} listens there now"):
                await reader.read(0, 0)
        assert all(r.opcode == Opcode.CALL for r in cluster.bookies[other].requests)
        cluster.bookies[owner] = mine
        await trio.sleep(5)
        async with client.ledgers.open(ledger.id, recover=False) as reader:
            assert [entry.payload for entry in await reader.read(0, 0)] == [b"x"]


async def test_a_bookie_that_does_not_say_its_name_costs_the_connect_timeout(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(1) as cluster, cluster.client(Options(connect_timeout_s=3)) as client:
        await client.cluster.bookies()
        cluster.bookies["b1"].answering = False
        began = trio.current_time()
        with pytest.raises(BookieUnavailable, match="no connection within 3 s"):
            await client._context.ledgers.bookies.connections["b1"].ready()
        assert trio.current_time() - began == pytest.approx(3)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Failure("CallRefused", "the bookie is starting"), "the bookie is starting"),
        (RunPage([]), "answered RunPage instead of its id"),
    ],
)
async def test_a_bookie_that_does_not_say_who_it_is_is_not_talked_to(
    autojump_clock: MockClock,
    answer: BookieReply,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        monkeypatch.setattr(cluster.bookies["b1"], "_call", lambda _request: answer)
        with pytest.raises(BookieUnavailable, match=reason):
            await client._context.ledgers.bookies.connections["b1"].ready()


async def test_attempts_are_spaced_out_while_a_bookie_is_down(autojump_clock: MockClock) -> None:
    options = Options(reconnect_delay_s=0.1, reconnect_delay_max_s=1.0)
    async with memory_cluster(1) as cluster, cluster.client(options) as client:
        await client.cluster.bookies()
        cluster.kill("b1")
        connection = client._context.ledgers.bookies.connections["b1"]
        with trio.move_on_after(20):
            while trio.current_time() < 1000:
                with pytest.raises(BookieUnavailable) as unavailable:
                    await connection.ready()
                assert unavailable.value.bookie_id == "b1"
                await trio.sleep(0.01)
        assert 20 <= len(cluster.dialled) <= 30
        cluster.revive("b1")
        await trio.sleep(1)
        await connection.ready()


async def test_an_unknown_bookie_is_unavailable(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        with pytest.raises(BookieUnavailable, match="b9: not registered"):
            await client._context.ledgers.bookies.connections["b9"].ready()


async def test_a_host_that_never_answers_costs_the_connect_timeout(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_cluster(1) as cluster:

        async def never(host: str, port: int) -> trio.abc.Stream:
            await trio.sleep_forever()
            raise AssertionError

        monkeypatch.setattr(cluster, "open_stream", never)
        async with cluster.client(Options(connect_timeout_s=3)) as client:
            await client.cluster.bookies()
            start = trio.current_time()
            with pytest.raises(BookieUnavailable, match="no connection within 3 s"):
                await client._context.ledgers.bookies.connections["b1"].ready()
            assert trio.current_time() - start == pytest.approx(3)


NONSENSE = [b"\xff" * 8, bytes(4) + b"x" * 60, b"\x00\x00\x00\x18" * 10]


@pytest.mark.parametrize("nonsense", NONSENSE)
async def test_a_peer_that_sends_nonsense_is_no_bookie(
    autojump_clock: MockClock, nonsense: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_cluster(1) as cluster:

        async def babble(host: str, port: int) -> trio.abc.Stream:
            ours, theirs = trio.testing.memory_stream_pair()
            await theirs.send_all(nonsense)
            return ours

        monkeypatch.setattr(cluster, "open_stream", babble)
        async with cluster.client() as client:
            with pytest.raises(BookieUnavailable, match="broke the protocol"):
                await client._context.ledgers.bookies.connections["b1"].ready()


@pytest.mark.parametrize("nonsense", NONSENSE)
async def test_a_bookie_that_begins_to_send_nonsense_is_dropped(
    autojump_clock: MockClock, nonsense: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        connection = client._context.ledgers.bookies.connections["b1"]
        await connection.ready()
        monkeypatch.setattr(cluster.bookies["b1"], "_handle", lambda _request: nonsense)
        with pytest.raises(BookieUnavailable):
            await connection.answer()
        assert not connection.standing


# --- calls --------------------------------------------------------------------------------


async def test_a_bookie_is_asked_by_its_name(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        lay_out(cluster, [(0, "b1")], {"b1": [(0, 3), (6, 9)]})
        assert await client._context.ledgers.call("b1", LedgerRuns(1)) == RunPage([(0, 3), (6, 9)])
        assert await client._context.ledgers.call("b1", LedgerRuns(2)) == RunPage([])


async def test_a_bookie_that_is_not_there_is_unavailable(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        with pytest.raises(BookieUnavailable):
            await client._context.ledgers.call("b2", LedgerRuns(1))
        cluster.kill("b1")
        with pytest.raises(BookieUnavailable):
            await client._context.ledgers.call("b1", LedgerRuns(1))


async def test_a_bookie_that_says_nothing_is_unavailable_after_a_while(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client._context.ledgers.call("b1", LedgerRuns(1))
        cluster.bookies["b1"].answering = False
        began = trio.current_time()
        with pytest.raises(BookieUnavailable, match="within 3 s"):
            await client._context.ledgers.call("b1", LedgerRuns(1), timeout_s=3.0)
        assert trio.current_time() == pytest.approx(began + 3)


@pytest.mark.parametrize("asks", ["call", "silent", "confirmed"])
async def test_a_connection_on_which_nothing_comes_is_given_up_however_short_callers_wait(
    autojump_clock: MockClock, asks: str
) -> None:
    """It is half open: only another one leads anywhere."""
    async with memory_cluster(2) as cluster, cluster.client() as client:
        async with client.ledgers.create(2, 2, 1) as ledger:
            await ledger.append(b"x")
        bookies = client._context.ledgers.bookies
        connection = bookies.connections["b1"]
        await connection.ready()
        cluster.bookies["b1"].answering = False
        match asks:
            case "call":
                with trio.move_on_after(1):
                    await connection.call(LedgerRuns(1), timeout_s=10)
            case "silent":
                assert await bookies.silent(["b1", "b2"]) == ["b1"]
            case _:
                record = cluster.record(ledger.id)
                source = LedgerSource(record, bookies=bookies, options=client._context.options)
                await ask_confirmed(source)
        assert connection.standing
        await trio.sleep(3)
        assert not connection.standing


async def test_a_call_that_was_cut_off_costs_no_connection_that_works(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        connection = client._context.ledgers.bookies.connections["b1"]
        await connection.ready()
        for _ in range(10):
            with trio.CancelScope() as scope:
                scope.cancel()
                await connection.call(LedgerRuns(1), timeout_s=10)
            await trio.sleep(3)
        assert connection.standing
        assert cluster.dialled == ["b1"]


async def test_a_call_over_a_connection_that_broke_before_fails_at_once(
    autojump_clock: MockClock,
) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    async with open_session(ours, "b1") as session:
        await theirs.aclose()
        await trio.testing.wait_all_tasks_blocked()
        call = session.call(b"", "b1")
        with trio.fail_after(1), pytest.raises(BookieUnavailable, match="closed by the bookie"):
            await call.wait()
        session.withdraw(call)


async def test_calls_that_come_together_are_sent_together() -> None:
    """Of a few calls, each is sent at once, which saves a turn of the sending task."""
    ours, theirs = trio.socket.socketpair()
    with theirs:
        async with open_session(trio.SocketStream(ours), "b1") as session:
            await trio.testing.wait_all_tasks_blocked()
            calls = [session.call(b"x", "b1") for _ in range(20)]
            queued, size = session.outgoing.size, len(frame.call(1, b"x"))
            assert queued == 16 * size
            await theirs.recv(1 << 16)
            await trio.testing.wait_all_tasks_blocked()
            assert len(await theirs.recv(1 << 16)) == queued
            for call in calls:
                session.withdraw(call)
            session.retire()
