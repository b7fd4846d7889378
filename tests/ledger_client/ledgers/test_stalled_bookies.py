"""Bookies that stand still, those that are only slow, and a client that was itself stopped."""

from __future__ import annotations

import random
from contextlib import suppress

import trio
from losses import check_readable, chosen, hold_all, release_all
from memory_bookie import MemoryBookie
from memory_cluster import memory_cluster
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger_client import LedgerWriter, Options
from ledger_client.errors import LedgerError
from ledger_client.ledgers.placement import choose_ensemble
from metadata.calls import LedgerRuns
from metadata.records import BookieRecord
from native.frame import Opcode, Request

QUIET = Options(explicit_lac_s=0.0)


def hang(bookie: MemoryBookie) -> None:
    """Let its disk hang: it answers reads and calls, and acknowledges nothing."""
    bookie.holding = True


async def keep_appending(ledger: LedgerWriter, pause_s: float = 0.01) -> None:
    while True:
        await ledger.append(b"x")
        await trio.sleep(pause_s)


async def test_a_bookie_that_answers_and_acknowledges_nothing_is_replaced_within_two_seconds(
    autojump_clock: MockClock,
) -> None:
    """Its disk hangs in fdatasync. Reads that it answers are no acknowledgements."""
    async with memory_cluster(4) as cluster, cluster.client(QUIET) as client:
        async with client.ledgers.create(3, 3, 3) as ledger, trio.open_nursery() as nursery:
            await ledger.append(b"0")
            stalled = chosen(ledger)[1]
            hang(cluster.bookies[stalled])

            async def read_on() -> None:
                while True:
                    await client._context.ledgers.bookies.connections[stalled].answer()
                    await trio.sleep(0.1)

            nursery.start_soon(read_on)
            started = trio.current_time()
            assert await ledger.append(b"1") == 1
            assert 1.5 < trio.current_time() - started <= 2.0
            assert stalled not in chosen(ledger)
            nursery.cancel_scope.cancel()
        await check_readable(client, cluster, ledger.id, 2)


async def test_a_bookie_that_the_quorum_can_spare_is_replaced_too(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(4) as cluster,
        cluster.client(QUIET) as client,
        client.ledgers.create(3, 3, 2) as ledger,
    ):
        stalled = chosen(ledger)[2]
        hang(cluster.bookies[stalled])
        with trio.move_on_after(2.0):
            await keep_appending(ledger)
        assert stalled not in chosen(ledger)


async def test_new_ledgers_are_not_put_where_acknowledgements_of_the_last_ones_are_missing(
    autojump_clock: MockClock,
) -> None:
    """Each ledger is closed long before two seconds are over, with what the others stored."""
    async with memory_cluster(4) as cluster, cluster.client(QUIET) as client:
        hang(cluster.bookies["b1"])
        began, ensembles = trio.current_time(), list[tuple[float, list[str]]]()
        while trio.current_time() < began + 8:
            async with client.ledgers.create(3, 3, 2) as ledger:
                await ledger.append(b"x")
            ensembles.append((trio.current_time() - began, chosen(ledger)))
            await trio.sleep(0.05)
        first = next(at for at, names in ensembles if "b1" in names)
        assert [
            at for at, names in ensembles if first + 2.5 < at < first + 4 and "b1" in names
        ] == []


async def test_a_bookie_whose_queue_is_long_is_kept_while_it_acknowledges(
    autojump_clock: MockClock,
) -> None:
    """Each entry waits for half a minute; every second one is acknowledged."""
    options = Options(explicit_lac_s=0.0, append_timeout_s=300.0)
    async with memory_cluster(4) as cluster, cluster.client(options) as client:
        async with client.ledgers.create(3, 3, 3) as ledger, trio.open_nursery() as nursery:
            before = chosen(ledger)
            slow = cluster.bookies[before[0]]
            hang(slow)
            for _ in range(30):
                nursery.start_soon(ledger.append, b"x")
            await wait_all_tasks_blocked()
            while slow._held:
                await trio.sleep(1.0)
                stream, lock, answer = slow._held.pop(0)
                async with lock:
                    await stream.send_all(answer)
            slow.holding = False
        assert chosen(ledger) == before
        assert cluster.record(ledger.id).last_entry == 29


async def test_a_bookie_that_pulses_is_kept_though_it_acknowledges_nothing(
    autojump_clock: MockClock,
) -> None:
    """Its memtable is full and is being flushed to a slow disk."""
    async with memory_cluster(4) as cluster, cluster.client(QUIET) as client:
        async with client.ledgers.create(3, 3, 3) as ledger, trio.open_nursery() as nursery:
            before = chosen(ledger)
            for bookie in cluster.bookies.values():
                bookie.delay_s = lambda request: 14.0 if request.opcode == Opcode.ADD else 0.0
            nursery.start_soon(ledger.append, b"x")
            for _ in range(14):
                await trio.sleep(1.0)
                for bookie in cluster.bookies.values():
                    await bookie.pulse()
        assert chosen(ledger) == before


async def test_an_entry_that_one_bookie_never_acknowledges_costs_it_this_ledger_only(
    autojump_clock: MockClock,
) -> None:
    """It serves another ledger of the same connection, so the connection looks alive."""
    options = Options(explicit_lac_s=0.0, append_timeout_s=30.0)
    async with (
        memory_cluster(3) as cluster,
        cluster.client(options) as client,
        client.ledgers.create(2, 2, 2) as dead,
    ):
        await dead.append(b"0")
        culprit = chosen(dead)[0]

        def lost(request: Request) -> float:
            is_lost = request.opcode == Opcode.ADD and request.ledger_id == dead.id
            return 1e6 if is_lost else 0.0

        cluster.bookies[culprit].delay_s = lost
        async with client.ledgers.create(3, 3, 3) as live, trio.open_nursery() as nursery:
            before = chosen(live)
            nursery.start_soon(keep_appending, live)
            started = trio.current_time()
            assert await dead.append(b"1") == 1
            assert trio.current_time() - started <= 15.1
            assert culprit not in chosen(dead)
            assert chosen(live) == before
            nursery.cancel_scope.cancel()


async def test_a_client_that_was_stopped_for_a_minute_gives_no_bookie_up(
    autojump_clock: MockClock,
) -> None:
    """Its pause is not theirs, whether the answers lie in its sockets or are yet to come."""
    async with (
        memory_cluster(4) as cluster,
        cluster.client(QUIET) as client,
        client.ledgers.create(3, 3, 3) as ledger,
    ):
        dialled = cluster.dialled.copy()
        for answered in (True, False):
            hold_all(cluster)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ledger.append, b"x")
                await wait_all_tasks_blocked()
                if answered:
                    await release_all(cluster)
                autojump_clock.jump(60)
                await trio.sleep(0.5)
                await release_all(cluster)
        assert ledger.last_confirmed == 1
        assert cluster.dialled == dialled


async def test_a_reader_that_was_stopped_for_a_minute_takes_no_bookie_from_a_writer(
    autojump_clock: MockClock,
) -> None:
    """All its questions are overdue when it wakes, and nobody said anything meanwhile."""
    async with (
        memory_cluster(3) as cluster,
        cluster.client(QUIET) as client,
        client.ledgers.create(3, 3, 3) as ledger,
        trio.open_nursery() as nursery,
    ):
        await ledger.append(b"x")
        dialled = cluster.dialled.copy()

        async def ask_late(name: str) -> None:
            with suppress(LedgerError):
                await client._context.ledgers.call(name, LedgerRuns(ledger.id), timeout_s=10)

        for bookie in cluster.bookies.values():
            bookie.delay_s = lambda request: 65.0 if request.opcode == Opcode.CALL else 0.0
        for name in cluster.bookies:
            nursery.start_soon(ask_late, name)
        await wait_all_tasks_blocked()
        autojump_clock.jump(60)
        await trio.sleep(3)
        assert cluster.dialled == dialled
        nursery.cancel_scope.cancel()


async def test_a_peer_that_is_gone_without_a_word_is_dropped_when_a_reader_waited_in_vain(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(1) as cluster,
        cluster.client(Options(request_timeout_s=5.0, read_timeout_s=20.0)) as client,
    ):
        async with client.ledgers.create(1, 1, 1) as ledger:
            await ledger.append(b"x")
        bookie = cluster.bookies["b1"]
        async with client.ledgers.open(ledger.id) as reader:
            bookie.answering = False
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader.read, 0, 0)  # again, over another connection
                await trio.sleep(5.5)
                bookie.answering = True
        assert cluster.dialled == ["b1", "b1"]


async def test_all_that_was_sent_is_acknowledged_although_writers_come_and_go(
    autojump_clock: MockClock,
) -> None:
    """The count of what is under way never ends up wrong: idle connections stay."""
    chance = random.Random(7)
    async with memory_cluster(4) as cluster, cluster.client(QUIET) as client:
        for bookie in cluster.bookies.values():
            bookie.delay_s = lambda _request: chance.uniform(0.0, 0.4)
        for quorums in [(3, 3, 2), (4, 3, 2), (3, 3, 3), (2, 2, 1)] * 3:
            async with client.ledgers.create(*quorums) as ledger:
                await ledger.append_many([b"x"] * chance.randrange(1, 9))
            await trio.sleep(chance.choice([0.0, 5.0]))
        await trio.sleep(60)
        assert len(cluster.dialled) == 4


async def test_a_writer_that_never_rests_makes_no_connection_remember_those_that_ended(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(1) as cluster,
        cluster.client(QUIET) as client,
        client.ledgers.create(1, 1, 1) as busy,
    ):
        for bookie in cluster.bookies.values():
            bookie.delay_s = lambda _request: 0.01
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(keep_appending, busy, 0.001)
            for _ in range(20):
                async with client.ledgers.create(1, 1, 1) as ledger:
                    await ledger.append(b"x")
            session = client._context.ledgers.bookies.connections["b1"]._session
            assert session is not None
            assert len(session._owed) <= 1
            nursery.cancel_scope.cancel()


async def test_a_bookie_that_says_that_it_stalls_gets_no_new_ledger(
    autojump_clock: MockClock,
) -> None:
    records = [
        BookieRecord(f"b{i}", f"memory:{i}", 100, 50, read_only=i == 1, stalled=i == 1)
        for i in (1, 2, 3)
    ]
    for seed in range(20):
        assert "b1" not in choose_ensemble(records, 2, chance=random.Random(seed))
