from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from repair_rig import QUICK, adds, check_whole, lay_out, lose, mark, mark_of, unmarked, worker
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import LedgerFenced, OutcomeUnknown
from metadata.records import UNDERREPLICATED, DamagedRun, Fragment, LedgerState
from metadata.store import Page

ALL = [(0, 9)]


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(5) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected


async def test_what_is_written_no_more_is_mended_and_the_rest_after_the_grace(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """BK-21: of a ledger that is still written the closed fragments are copied at once."""
    held = {"b1": ALL, "b2": ALL, "b3": [(0, 5)], "b4": [(6, 9)]}
    fragments = [(0, "b1 b2 b3"), (6, "b1 b2 b4")]
    lay_out(cluster, fragments, held, state=LedgerState.OPEN)
    lose(cluster, "b3", "b4")
    await mark(cluster, reason="bookie lost")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(4)
        assert cluster.record(1).fragments == [
            Fragment(0, ["b1", "b2", "b5"]),
            Fragment(6, ["b1", "b2", "b4"]),
        ]
        assert cluster.record(1).state is LedgerState.OPEN
        found = mark_of(cluster)
        assert found is not None
        assert found.last_failure == "it is still written, and b4 is to be replaced"
        assert found.attempts == 0, "nothing failed"
        await unmarked(cluster)
        nursery.cancel_scope.cancel()
    check_whole(cluster)
    assert cluster.record(1).last_entry == 9
    assert cluster.record(1).fragments == [Fragment(0, ["b1", "b2", "b5"])]


async def test_a_writer_that_replaces_its_bookie_in_time_goes_on(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client() as writing, writing.ledgers.create(3, 3, 2) as ledger:
        await ledger.append_many([b"entry %d" % i for i in range(5)])
        lost = cluster.record(ledger.id).fragments[0].bookies[0]
        lose(cluster, lost)
        await mark(cluster, ledger.id, reason="bookie lost")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker(cluster, client).run)
            await trio.sleep(1)
            await ledger.append_many([b"entry %d" % i for i in range(5, 10)])
            await unmarked(cluster, ledger.id)
            await trio.sleep(20)
            await ledger.append(b"entry 10")
            assert cluster.record(ledger.id).state is LedgerState.OPEN
            nursery.cancel_scope.cancel()
        first = cluster.record(ledger.id).fragments[0].bookies
        assert lost not in first
        for name in first:
            assert {0, 1, 2, 3, 4} <= set(cluster.bookies[name].entries(ledger.id))


async def test_a_writer_that_keeps_a_lost_bookie_is_fenced_after_the_grace(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """An idle writer does not notice; it fails with its next entry."""
    lose(cluster, "b4", "b5")
    async with cluster.client() as writing, writing.ledgers.create(3, 3, 2) as ledger:
        await ledger.append(b"one")
        del cluster.store.bookies["b3"]  # its lease only: the writer sees nothing of it
        cluster.revive("b4")
        cluster.add_bookie(4)
        await mark(cluster, ledger.id, reason="bookie lost")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker(cluster, client).run)
            await unmarked(cluster, ledger.id)
            nursery.cancel_scope.cancel()
        with pytest.raises(OutcomeUnknown) as failed:
            await ledger.append(b"two")
        assert isinstance(failed.value.__cause__, LedgerFenced)
    check_whole(cluster, ledger.id)
    assert cluster.record(ledger.id).last_entry == 0
    assert "b3" not in cluster.record(ledger.id).fragments[0].bookies


async def test_a_recovery_that_nobody_ended_is_ended(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    held = {"b1": ALL, "b2": ALL, "b3": [(0, 8)]}
    lay_out(cluster, [(0, "b1 b2 b3")], held, state=LedgerState.IN_RECOVERY)
    await mark(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await unmarked(cluster)
        nursery.cancel_scope.cancel()
    check_whole(cluster)
    assert cluster.record(1).last_entry == 9


async def test_a_ledger_with_a_bookie_in_limbo_is_closed_so_that_it_can_be_compared(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": ALL}, state=LedgerState.OPEN)
    cluster.bookies["b3"].limbo = True
    told = msgspec.structs.replace(cluster.store.bookies["b3"], limbo=True)
    cluster.store.bookies["b3"] = told
    await mark(cluster, reason="limbo")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await unmarked(cluster)
        nursery.cancel_scope.cancel()
    check_whole(cluster)
    assert cluster.record(1).fragments == [Fragment(0, ["b1", "b2", "b3"])]


async def test_damage_where_it_is_still_written_waits_for_the_end(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    held = {"b1": ALL, "b2": ALL, "b3": ALL}
    lay_out(cluster, [(0, "b1 b2 b3")], held, state=LedgerState.OPEN)
    cluster.bookies["b2"].damage(1, 3)
    await mark(cluster, reason="damaged", damaged=[DamagedRun("b2", 3, 3)])
    options = msgspec.structs.replace(QUICK, retry_max_s=10.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client, options).run)
        await trio.sleep(60)
        assert mark_of(cluster) is not None
        assert not adds(cluster, "b2")
        await client.ledgers.recover(1)
        await unmarked(cluster)
        nursery.cancel_scope.cancel()
    check_whole(cluster)


async def test_of_damage_up_to_where_it_is_still_written_only_that_is_left_by_a_copy(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    held = {"b1": ALL, "b2": ALL, "b3": [(0, 5)], "b4": [(6, 9)]}
    fragments = [(0, "b1 b2 b3"), (6, "b1 b2 b4")]
    lay_out(cluster, fragments, held, state=LedgerState.OPEN)
    for entry_id in range(4, 8):
        cluster.bookies["b2"].damage(1, entry_id)
    await mark(cluster, reason="damaged", damaged=[DamagedRun("b2", 4, 7)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(4)
        found = mark_of(cluster)
        assert found is not None
        assert found.damaged == [DamagedRun("b2", 6, 7)]
        assert adds(cluster, "b2") == 2
        await client.ledgers.recover(1)
        await unmarked(cluster)
        nursery.cancel_scope.cancel()
    check_whole(cluster)


async def test_an_open_ledger_is_judged_by_who_is_in_limbo_now(
    autojump_clock: MockClock,
    cluster: MemoryCluster,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between a look at the bookies and one at the marks, a bookie may enter limbo."""
    lay_out(cluster, [(0, "b1 b2 b3")], dict.fromkeys(["b1", "b2"], ALL), state=LedgerState.OPEN)
    listing = cluster.store.list

    async def enter_limbo_and_list(prefix: str, *, after: str = "") -> Page:
        lease = cluster.store.bookies["b3"]
        if prefix == UNDERREPLICATED and not lease.limbo:
            cluster.store.bookies["b3"] = msgspec.structs.replace(lease, limbo=True)
            await mark(cluster, reason="limbo")
        return await listing(prefix, after=after)

    monkeypatch.setattr(cluster.store, "list", enter_limbo_and_list)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(QUICK.open_grace_s - 1)
        found = mark_of(cluster)
        assert found is not None
        assert found.last_failure == "it is still written, and b3 may have lost entries"
        nursery.cancel_scope.cancel()


async def test_a_writer_without_bookies_for_another_ledger_keeps_the_one_that_it_has(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """It has its ack quorum; fenced, it would stand until a bookie comes. Then it has its time."""
    async with cluster.client() as writing, writing.ledgers.create(3, 3, 2) as ledger:
        await ledger.append(b"before")
        lost, *others = cluster.record(ledger.id).fragments[0].bookies
        lose(cluster, *(cluster.bookies.keys() - {*others}))
        await mark(cluster, ledger.id, reason="bookie lost")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker(cluster, client).run)
            for _ in range(200):
                await trio.sleep(3)
                await ledger.append(b"meanwhile")
            assert cluster.record(ledger.id).state is LedgerState.OPEN
            found = mark_of(cluster, ledger.id)
            assert found is not None
            assert f"{lost} is to be replaced; too few bookies could take" in found.last_failure
            cluster.add_bookie(6)
            await unmarked(cluster, ledger.id)
            await ledger.append(b"after")
            assert "b6" in cluster.record(ledger.id).fragments[-1].bookies
            nursery.cancel_scope.cancel()


async def test_an_open_ledger_without_a_writer_is_closed_once_there_could_be_another(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    held = {"b1": ALL, "b2": ALL, "b3": ALL}
    lay_out(cluster, [(0, "b1 b2 b3")], held, state=LedgerState.OPEN)
    lose(cluster, "b3", "b4")
    known = cluster.store.bookies
    known["b5"] = msgspec.structs.replace(known["b5"], read_only=True)
    await mark(cluster, reason="bookie lost")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(600)
        assert cluster.record(1).state is LedgerState.OPEN
        known["b5"] = msgspec.structs.replace(known["b5"], read_only=False)
        await unmarked(cluster)
        nursery.cancel_scope.cancel()
    check_whole(cluster)
    assert cluster.record(1).state is LedgerState.CLOSED


async def test_an_open_ledger_that_nobody_can_go_on_with_is_closed_whatever_there_is(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """Of its bookies one is lost and one read-only: no writer has its ack quorum."""
    held = {"b1": ALL, "b2": ALL, "b3": ALL}
    lay_out(cluster, [(0, "b1 b2 b3")], held, state=LedgerState.OPEN)
    lose(cluster, "b3", "b4", "b5")
    known = cluster.store.bookies
    known["b2"] = msgspec.structs.replace(known["b2"], read_only=True)
    await mark(cluster, reason="bookie lost")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(600)
        assert cluster.record(1).state is LedgerState.CLOSED
        assert cluster.record(1).last_entry == 9
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("had_it_before", [False, True])
async def test_a_writer_goes_on_with_a_bookie_in_limbo_unless_that_has_forgotten_its_fences(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client, had_it_before: bool
) -> None:
    """The one that had the ledger before its limbo is named in the mark, and has fenced it."""
    held = {"b1": ALL, "b2": ALL, "b3": ALL}
    lay_out(cluster, [(0, "b1 b2 b3")], held, state=LedgerState.OPEN)
    lose(cluster, "b2", "b4", "b5")
    known = cluster.store.bookies
    known["b3"] = msgspec.structs.replace(known["b3"], limbo=True)
    named = ["b2", "b3"] if had_it_before else ["b2"]
    await mark(cluster, reason="bookie lost", bookies=named)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(600)
        assert (cluster.record(1).state is LedgerState.OPEN) == (not had_it_before)
        nursery.cancel_scope.cancel()
