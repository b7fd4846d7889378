"""Bookies that are lost while a ledger is written, and those that take their places."""

from __future__ import annotations

import pytest
import trio
from losses import (
    Gate,
    check_readable,
    chosen,
    hold_all,
    release_all,
    spares,
)
from memory_cluster import memory_cluster
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger_client import Options
from metadata.records import (
    Fragment,
)
from native.frame import Code

SMALL = Options(quarantine_s=5.0, explicit_lac_s=0.0)


# --- the change --------------------------------------------------------------------------


async def test_another_bookie_takes_over_from_the_first_unconfirmed_entry(
    autojump_clock: MockClock,
) -> None:
    """BK-05, TB-25: replacement while writing; no time passes when the socket is reset."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 3) as ledger:
            await ledger.append_many([b"%d" % i for i in range(10)])
            lost, spare = chosen(ledger)[1], spares(cluster, ledger)[0]
            started = trio.current_time()
            cluster.kill(lost)
            assert await ledger.append(b"10") == 10
            assert trio.current_time() == started
        before, after = cluster.record(ledger.id).fragments
        assert before.first_entry == 0 and before.bookies[1] == lost
        assert after == Fragment(10, [before.bookies[0], spare, before.bookies[2]])
        assert sorted(cluster.bookies[spare].entries(ledger.id)) == [10]
        await check_readable(client, cluster, ledger.id, 11)


async def test_nothing_is_confirmed_while_the_ensemble_changes(autojump_clock: MockClock) -> None:
    """BK-06: entries that are complete wait until the metadata names the new bookie."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as ledger, trio.open_nursery() as nursery:
            await ledger.append(b"before")
            gate = Gate(cluster)
            spare = spares(cluster, ledger)[0]
            cluster.kill(chosen(ledger)[0])
            await gate.reached.wait()
            nursery.start_soon(ledger.append, b"meanwhile")  # acknowledged by two
            await wait_all_tasks_blocked()
            kept = [cluster.bookies[name].entries(ledger.id) for name in chosen(ledger)[1:]]
            assert all(1 in entries for entries in kept)
            assert ledger.last_confirmed == 0
            gate.opened.set()
            await wait_all_tasks_blocked()
            assert ledger.last_confirmed == 1
        assert cluster.record(ledger.id).fragments[1].first_entry == 1
        assert sorted(cluster.bookies[spare].entries(ledger.id)) == [1]


async def test_what_a_replaced_bookie_acknowledged_does_not_count_for_the_one_that_came(
    autojump_clock: MockClock,
) -> None:
    """BK-06: stale acknowledgements are forgotten, late ones over a live connection too."""
    options = Options(explicit_lac_s=0.0, bookie_timeout_s=1000.0)
    async with (
        memory_cluster(4) as cluster,
        cluster.client(options) as client,
        client.ledgers.create(3, 3, 2) as ledger,
        trio.open_nursery() as nursery,
    ):
        await ledger.append(b"zero")
        old, other, third = chosen(ledger)
        (spare,) = spares(cluster, ledger)
        for name in (old, other, third, spare):
            cluster.bookies[name].holding = True
        nursery.start_soon(ledger.append, b"one")
        await wait_all_tasks_blocked()
        cluster.bookies[old].holding = False
        await cluster.bookies[old].release()  # counts, for now
        cluster.bookies[old].holding = True
        nursery.start_soon(ledger.append, b"two")
        await wait_all_tasks_blocked()
        cluster.bookies[old].holding = False
        cluster.bookies[old].add_code = Code.READ_ONLY
        nursery.start_soon(ledger.append, b"three")  # refused: it is replaced
        await wait_all_tasks_blocked()
        assert cluster.record(ledger.id).fragments[-1] == Fragment(1, [spare, other, third])
        await cluster.bookies[old].release()  # the acknowledgement of entry 2, too late
        await cluster.bookies[other].release()
        await wait_all_tasks_blocked()
        assert ledger.last_confirmed == 0  # of two that must, one acknowledged
        await cluster.bookies[spare].release()
        await wait_all_tasks_blocked()
        assert ledger.last_confirmed == 3
        await release_all(cluster)


async def test_with_nothing_confirmed_in_between_the_last_fragment_is_replaced(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(6) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            for name in list(chosen(ledger)):
                cluster.kill(name)
                await wait_all_tasks_blocked()
            assert [f.first_entry for f in ledger.metadata.fragments] == [0]
            assert await ledger.append(b"zero") == 0
        (only,) = cluster.record(ledger.id).fragments
        assert not set(only.bookies) & cluster.down
        await check_readable(client, cluster, ledger.id, 1)


async def test_fragments_that_begin_behind_the_end_are_dropped_at_the_close(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            await ledger.append(b"zero")
            cluster.kill(chosen(ledger)[2])
            await wait_all_tasks_blocked()
            assert len(cluster.record(ledger.id).fragments) == 2
        assert [f.first_entry for f in cluster.record(ledger.id).fragments] == [0]


@pytest.mark.parametrize("quorums", [(5, 3, 2), (5, 2, 2), (4, 2, 1), (5, 4, 3)])
async def test_striped_ensembles_get_each_share_to_who_came_in(
    autojump_clock: MockClock, quorums: tuple[int, int, int]
) -> None:
    """BK-05: with more bookies than copies, each gets the entries of its own place."""
    async with memory_cluster(8) as cluster, cluster.client() as client:
        async with client.ledgers.create(*quorums) as ledger:
            await ledger.append_many([b"%d" % i for i in range(20)])
            hold_all(cluster)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ledger.append_many, [b"%d" % i for i in range(20, 50)])
                await wait_all_tasks_blocked()
                for index in (1, 3):
                    cluster.kill(chosen(ledger)[index])
                await wait_all_tasks_blocked()
                await release_all(cluster)
            await ledger.append_many([b"%d" % i for i in range(50, 60)])
        last = cluster.record(ledger.id).fragments[-1]
        assert not set(last.bookies) & cluster.down
        ensemble_size, write_quorum, _ = quorums
        for index, name in enumerate(last.bookies):
            share = {
                e for e in range(last.first_entry, 60) if (index - e) % ensemble_size < write_quorum
            }
            assert share <= set(cluster.bookies[name].entries(ledger.id))
        await check_readable(client, cluster, ledger.id, 60)


# --- losses in a row ---------------------------------------------------------------------


async def test_a_second_bookie_lost_during_the_change_is_replaced_as_well(
    autojump_clock: MockClock,
) -> None:
    """BK-05: double failure."""
    async with memory_cluster(5) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            await ledger.append(b"zero")
            gate = Gate(cluster)
            first, second, _ = chosen(ledger)
            cluster.kill(first)
            await gate.reached.wait()
            cluster.kill(second)
            await wait_all_tasks_blocked()
            gate.opened.set()
            assert await ledger.append(b"one") == 1
            await wait_all_tasks_blocked()
            assert not {first, second} & set(chosen(ledger))
        await check_readable(client, cluster, ledger.id, 2)


async def test_who_came_in_and_is_lost_at_once_is_replaced(autojump_clock: MockClock) -> None:
    """BK-05: the replacement dies before it acknowledged anything."""
    async with memory_cluster(5) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 3) as ledger:
            await ledger.append(b"zero")
            gate = Gate(cluster)
            cluster.kill(chosen(ledger)[0])
            await gate.reached.wait()
            doomed = gate.record().fragments[-1].bookies[0]
            cluster.kill(doomed)
            gate.opened.set()
            assert await ledger.append(b"one") == 1
            assert doomed not in chosen(ledger)
        assert [f.first_entry for f in cluster.record(ledger.id).fragments] == [0, 1]
        await check_readable(client, cluster, ledger.id, 2)


async def test_a_bookie_that_is_registered_and_gone_is_passed_over(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(6) as cluster,
        cluster.client() as client,
        client.ledgers.create(3, 3, 3) as ledger,
    ):
        await ledger.append(b"zero")
        *gone, left = spares(cluster, ledger)
        for name in gone:
            cluster.kill(name)
        started = trio.current_time()
        cluster.kill(chosen(ledger)[0])
        await ledger.append(b"one")
        assert trio.current_time() == started
        assert left in chosen(ledger)


async def test_a_bookie_that_takes_connections_and_says_nothing_is_passed_over(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(5) as cluster,
        cluster.client() as client,
        client.ledgers.create(3, 3, 3) as ledger,
    ):
        await ledger.append(b"zero")
        hanging, left = spares(cluster, ledger)
        cluster.bookies[hanging].answering = False
        started = trio.current_time()
        cluster.kill(chosen(ledger)[0])
        await ledger.append(b"one")
        assert trio.current_time() - started <= 1.0
        assert left in chosen(ledger)


# --- why a bookie is lost ----------------------------------------------------------------


async def test_a_read_only_bookie_is_replaced_at_once(autojump_clock: MockClock) -> None:
    async with (
        memory_cluster(4) as cluster,
        cluster.client() as client,
        client.ledgers.create(3, 3, 3) as ledger,
    ):
        await ledger.append(b"zero")
        full = chosen(ledger)[1]
        cluster.bookies[full].add_code = Code.READ_ONLY
        started = trio.current_time()
        assert await ledger.append(b"one") == 1
        assert trio.current_time() == started
        assert full not in chosen(ledger)


@pytest.mark.parametrize("acks", [1, 2])
async def test_a_bookie_that_falls_silent_is_replaced_within_the_time_allowed(
    autojump_clock: MockClock, acks: int
) -> None:
    """TB-25: it takes bytes and answers nothing; the others of the ensemble are kept."""
    async with (
        memory_cluster(4) as cluster,
        cluster.client(SMALL) as client,
        client.ledgers.create(3, 3, 3) as ledger,
        trio.open_nursery() as nursery,
    ):
        await ledger.append(b"zero")
        silent, *others = chosen(ledger)
        bookie = cluster.bookies[silent]
        hold_all(cluster)
        for payload in (b"one", b"two"):
            nursery.start_soon(ledger.append, payload)
            await wait_all_tasks_blocked()
        started = trio.current_time()
        if acks == 2:  # it says one thing more, and then nothing
            answer = bookie._held.pop(0)
            bookie.holding = False
            await answer[0].send_all(answer[2])
        bookie.answering = False
        await release_all(cluster)
        await trio.sleep(2.001)
        assert ledger.last_confirmed == 2
        assert trio.current_time() - started <= 2.1
        assert silent not in chosen(ledger) and set(others) < set(chosen(ledger))


async def test_a_silent_bookie_that_nobody_waits_for_is_noticed_too(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(4) as cluster,
        cluster.client(SMALL) as client,
        client.ledgers.create(3, 3, 2) as ledger,
    ):
        await ledger.append(b"zero")
        silent = chosen(ledger)[2]
        cluster.bookies[silent].answering = False
        await ledger.append(b"one")
        await trio.sleep(2.1)
        assert silent not in chosen(ledger)
        await trio.sleep(60)
        assert len(ledger.metadata.fragments) == 2


async def test_a_reader_follows_a_ledger_through_all_its_ensembles(
    autojump_clock: MockClock,
) -> None:
    """TB-25: none of the bookies at the end is one of those at the beginning."""
    async with memory_cluster(6) as cluster, cluster.client() as client:
        read: list[bytes] = []

        async def follow(ledger_id: int) -> None:
            async with client.ledgers.open(ledger_id, recover=False) as reader:
                read.extend([entry.payload async for entry in reader.follow(0)])

        async with trio.open_nursery() as nursery:
            async with client.ledgers.create(3, 3, 2) as ledger:
                await ledger.append(b"start")
                nursery.start_soon(follow, ledger.id)
                first = chosen(ledger)
                for number, name in enumerate(first):
                    cluster.kill(name)
                    await trio.sleep(0.5)
                    await ledger.append(b"%d" % number)
                    await trio.sleep(0.5)
                assert not set(first) & set(chosen(ledger))
            for name in first:
                cluster.revive(name)
        assert read == [b"start", b"0", b"1", b"2"]


async def test_a_client_that_hung_does_not_take_its_bookies_for_silent(
    autojump_clock: MockClock,
) -> None:
    """What they said meanwhile was only not received yet."""
    async with (
        memory_cluster(3) as cluster,
        cluster.client(SMALL) as client,
        client.ledgers.create(3, 3, 3) as ledger,
    ):
        before = cluster.dialled.copy()
        for number in range(20):
            hold_all(cluster)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ledger.append, b"%d" % number)
                await wait_all_tasks_blocked()
                await release_all(cluster)
                autojump_clock.jump(5)
        assert cluster.dialled == before


# --- connections that bookies close --------------------------------------------------------


async def test_a_writer_comes_back_over_connections_that_were_closed_while_it_was_idle(
    autojump_clock: MockClock,
) -> None:
    """A bookie closes idle connections to serve others: no bookie is lost or replaced."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 3) as ledger:
            assert await ledger.append(b"0") == 0
            bookies = chosen(ledger)
            for entry_id in range(1, 9):
                for name in bookies[: entry_id % 3 + 1]:
                    cluster.bookies[name].drop_connections()
                await trio.sleep(10)
                assert await ledger.append(b"%d" % entry_id) == entry_id
        assert [f.bookies for f in cluster.record(ledger.id).fragments] == [bookies]
        await check_readable(client, cluster, ledger.id, 9)


async def test_a_writer_that_was_idle_replaces_a_bookie_that_takes_no_connection(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 3) as ledger:
            await ledger.append(b"0")
            lost = chosen(ledger)[1]
            await trio.sleep(10)
            cluster.kill(lost)
            started = trio.current_time()
            assert await ledger.append(b"1") == 1
            assert trio.current_time() == started
            assert lost not in chosen(ledger)
        await check_readable(client, cluster, ledger.id, 2)


async def test_a_bookie_that_closes_a_connection_and_owes_answers_is_lost(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 3) as ledger, trio.open_nursery() as nursery:
            await ledger.append(b"0")
            hold_all(cluster)
            nursery.start_soon(ledger.append, b"1")
            await wait_all_tasks_blocked()
            owing = chosen(ledger)[1]
            cluster.bookies[owing].drop_connections()
            await wait_all_tasks_blocked()
            assert owing not in chosen(ledger)
            await release_all(cluster)
        await check_readable(client, cluster, ledger.id, 2)
