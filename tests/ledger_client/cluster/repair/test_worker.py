from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace

import msgspec
import pytest
import trio
from leases import grant
from memory_cluster import MemoryCluster, memory_cluster
from repair_rig import (
    QUICK,
    adds,
    check_whole,
    lay_out,
    lose,
    mark,
    mark_of,
    stored,
    unmarked,
    worker,
)
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.repair import copier
from ledger_client.cluster.repair.marks import add_mark
from ledger_client.cluster.repair.worker import REASONS_MAX, Complaints
from ledger_client.ledgers.records import new_mark
from metadata.calls import ForgetUnknown
from metadata.listings import list_repairs
from metadata.records import (
    BOOKIES,
    DamagedRun,
    Fragment,
    bookie_lease,
    encode_record,
    ledger_key,
    underreplicated_key,
)
from metadata.store import Lease
from native.frame import Code, Opcode

ALL = [(0, 9)]


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(5) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected


async def repair(cluster: MemoryCluster, client: Client, *ledger_ids: int) -> None:
    """Run a worker until the ledgers have no mark."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        for ledger_id in ledger_ids or (1,):
            await unmarked(cluster, ledger_id)
        nursery.cancel_scope.cancel()


async def test_the_copies_of_a_lost_bookie_are_made_on_another(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """BK-21, TB-10: relocation after a loss. TB-11: the copies have identical content."""
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": ALL, "b3": ALL})
    lose(cluster, "b3")
    await mark(cluster)
    await repair(cluster, client)
    check_whole(cluster)
    bookies = cluster.record(1).fragments[0].bookies
    assert bookies[:2] == ["b1", "b2"]
    assert cluster.bookies[bookies[2]].entries(1) == cluster.bookies["b1"].entries(1)


async def test_a_mark_that_cannot_be_read_does_not_keep_the_others_waiting(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": ALL, "b3": ALL})
    lose(cluster, "b3")
    await cluster.store.put(underreplicated_key(0), b"nonsense")
    await mark(cluster)
    await repair(cluster, client)
    check_whole(cluster)


async def test_a_copy_whose_incarnation_is_lost_is_made_anew(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """BK-11: nobody can read it, so the bookie would stay in limbo for ever."""
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": ALL, "b3": ALL})
    lose_incarnation(cluster, "b3")
    await mark(cluster)
    await repair(cluster, client)
    check_whole(cluster)
    assert cluster.bookies["b3"].asked_to_forget == [ForgetUnknown(1, 0)]
    assert adds(cluster, "b3") == 10


async def test_a_copy_whose_incarnation_is_lost_stays_while_it_may_be_the_last(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": [(0, 3)], "b2": [(5, 9)], "b3": ALL})
    lose_incarnation(cluster, "b3")
    await mark(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert not cluster.bookies["b3"].asked_to_forget
    assert len(cluster.bookies["b3"].entries(1)) == 10


async def test_a_copy_whose_incarnation_is_lost_stays_while_another_one_is_damaged(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """Its own bytes may be the last sound ones: by hand they can be had."""
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": ALL, "b3": ALL})
    lose_incarnation(cluster, "b3")
    for name in ("b1", "b2"):
        cluster.bookies[name].damage(1, 4)
    await mark(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert not cluster.bookies["b3"].asked_to_forget
    assert len(cluster.bookies["b3"].entries(1)) == 10


async def test_a_silent_bookie_that_lost_nothing_is_not_asked_to_forget(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": ALL, "b3": ALL})
    cluster.bookies["b3"].unknown.add(1)
    await mark(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert not cluster.bookies["b3"].asked_to_forget


def lose_incarnation(cluster: MemoryCluster, name: str) -> None:
    bookie = cluster.bookies[name]
    bookie.unknown.add(1)
    bookie.read_fault = lambda _: Code.UNKNOWN_STATE if bookie.unknown else Code.OK
    lives = cluster.store.bookies[name]
    cluster.store.bookies[name] = msgspec.structs.replace(lives, limbo=True)


async def test_a_bookie_that_came_back_costs_no_copy(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": ALL, "b3": ALL})
    before = cluster.record(1)
    await mark(cluster, reason="bookie lost")
    await repair(cluster, client)
    assert cluster.record(1) == before
    assert not any(adds(cluster, name) for name in cluster.bookies)


async def test_a_bookie_that_restarts_is_waited_for(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": ALL, "b3": ALL})
    lease = cluster.store.bookies["b3"]
    lose(cluster, "b3")
    await mark(cluster)
    patient = msgspec.structs.replace(QUICK, lost_after_s=10.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client, patient).run)
        await trio.sleep(9)
        assert not any(adds(cluster, name) for name in cluster.bookies)
        cluster.revive("b3")
        cluster.store.bookies["b3"] = lease
        await unmarked(cluster)
        nursery.cancel_scope.cancel()
    assert not any(adds(cluster, name) for name in cluster.bookies)


async def test_a_bookie_that_restarted_before_it_was_missed_is_asked_at_once(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """Its registration is held all the time; only the epoch tells the two runs apart."""
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": ALL, "b3": [(0, 3)]})
    cluster.kill("b3")
    await mark(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(100)
        failed = mark_of(cluster)
        assert failed is not None
        assert failed.attempts > 3
        cluster.revive("b3")
        value = encode_record(cluster.store.bookies.pop("b3"))
        await grant(cluster.store, bookie_lease("b3"), "the next run", ttl_s=1000, value=value)
        await unmarked(cluster, within_s=5)
        nursery.cancel_scope.cancel()
    check_whole(cluster)


async def test_a_ledger_is_made_whole_after_an_ensemble_change(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """TB-08, TB-09: in the end one list of bookies holds the whole ledger."""
    lay_out(
        cluster,
        [(0, "b1 b2 b3"), (4, "b1 b4 b3")],
        {"b1": ALL, "b2": [(0, 3)], "b3": ALL, "b4": [(4, 9)]},
    )
    await mark(cluster, reason="ensemble changed")
    await repair(cluster, client)
    check_whole(cluster)
    assert cluster.record(1).fragments == [Fragment(0, ["b1", "b4", "b3"])]
    assert adds(cluster, "b4") == 4


async def test_damaged_entries_are_copied_over_again(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": ALL, "b3": ALL})
    cluster.bookies["b2"].damage(1, 4)
    cluster.bookies["b2"].damage(1, 5)
    await mark(cluster, reason="damaged", damaged=[DamagedRun("b2", 4, 5)])
    await repair(cluster, client)
    check_whole(cluster)
    assert adds(cluster, "b2") == 2


async def test_a_report_that_spans_entries_of_other_bookies_is_dealt_with_by_one_copy(
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
    cluster: MemoryCluster,
    client: Client,
) -> None:
    """A mark has one run for more than a thousand, and not all of it is read a second time."""
    monkeypatch.setattr(copier, "FAILURES_MAX", 2)
    shares = {
        name: [(e, e) for e in range(10) if (e - place) % 3 < 2]
        for name, place in (("b1", 2), ("b2", 0), ("b3", 1))
    }
    lay_out(cluster, [(0, "b1 b2 b3")], shares, write_quorum=2)
    for entry_id in (0, 4, 7):
        cluster.bookies["b2"].damage(1, entry_id)
    await mark(cluster, reason="damaged", damaged=[DamagedRun("b2", 0, 12)])
    await repair(cluster, client)
    check_whole(cluster)
    assert adds(cluster, "b2") <= 7


async def test_a_replica_that_turns_out_to_be_damaged_is_no_source(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": ALL, "b3": []})
    cluster.bookies["b1"].damage(1, 3)
    cluster.bookies["b2"].damage(1, 6)
    await mark(cluster)
    await repair(cluster, client)
    assert cluster.bookies["b3"].entries(1) == {i: stored(1, i, 100, lac=i - 1) for i in range(10)}


async def test_an_entry_that_nobody_has_is_named_and_not_stepped_over(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": [(0, 6), (8, 9)], "b3": []})
    before = cluster.record(1)
    cluster.bookies["b1"].damage(1, 7)
    await mark(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(600)
        nursery.cancel_scope.cancel()
    found = mark_of(cluster)
    assert found is not None
    assert "entry 7 is lost (b1: wrong digest" in found.last_failure
    assert 5 < found.attempts < 12, "each pause is longer"
    assert cluster.bookies["b3"].entries(1).keys() == {0, 1, 2, 3, 4, 5, 6, 8, 9}
    assert cluster.record(1) == before


async def test_a_lost_bookie_that_can_be_reached_is_asked_for_what_nobody_else_has(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1 b2")], {"b1": [(0, 6)], "b2": ALL})
    await client.cluster.bookies()  # its address is known from before
    del cluster.store.bookies["b2"]
    await mark(cluster)
    await repair(cluster, client)
    check_whole(cluster)
    assert "b2" not in cluster.record(1).fragments[0].bookies


async def test_what_no_listed_bookie_has_is_found_on_one_that_is_not_listed(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """BK-21: a bookie that came back after its ledgers moved may hold the last copy."""
    held = {"b1": [(0, 3), (5, 9)], "b2": [(0, 3), (5, 9)], "b3": ALL}
    lay_out(cluster, [(0, "b1 b2")], held)
    await mark(cluster)
    await repair(cluster, client)
    check_whole(cluster)


async def test_a_copy_that_was_reported_as_damaged_is_tried_when_there_is_no_other(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """A report may span sound entries, and a disk may recover: the digest decides."""
    lay_out(cluster, [(0, "b1 b2")], {"b1": ALL, "b2": ALL})
    cluster.bookies["b1"].damage(1, 2)
    cluster.bookies["b2"].damage(1, 7)
    await mark(cluster, damaged=[DamagedRun("b1", 2, 7), DamagedRun("b2", 2, 7)])
    await repair(cluster, client)
    check_whole(cluster)
    assert cluster.bookies["b1"].entries(1)[2] == stored(1, 2, 100, lac=1)
    assert cluster.bookies["b1"].entries(1)[7] == stored(1, 7, 100, lac=6)


async def test_with_too_few_bookies_it_waits_and_says_so_until_there_is_another(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """TB-43: a late one joins. TB-45: degraded, not refused."""
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": [(0, 3)], "b3": ALL})
    lose(cluster, "b3", "b4")
    spare = cluster.store.bookies.pop("b5")
    await mark(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(1000)
        found = mark_of(cluster)
        assert found is not None
        assert found.last_failure == "no bookie can take the place of b3"
        assert cluster.bookies["b2"].entries(1) == cluster.bookies["b1"].entries(1)
        cluster.store.bookies["b5"] = spare
        await unmarked(cluster, within_s=3.0)
        nursery.cancel_scope.cancel()
    check_whole(cluster)


async def test_the_mark_of_a_deleted_ledger_is_taken_off(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1")], {"b1": ALL})
    del cluster.store.values[ledger_key(1)]
    await mark(cluster)
    await repair(cluster, client)


async def test_striped_entries_are_copied_to_who_takes_the_place(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    shares = {"b1": [(0, 0), (2, 3), (5, 6), (8, 9)], "b2": [(0, 1), (3, 4), (6, 7), (9, 9)]}
    lay_out(cluster, [(0, "b1 b2 b3")], shares, write_quorum=2)
    lose(cluster, "b3")
    await mark(cluster)
    await repair(cluster, client)
    check_whole(cluster)
    new = cluster.record(1).fragments[0].bookies[2]
    assert sorted(cluster.bookies[new].entries(1)) == [1, 2, 4, 5, 7, 8]


async def test_two_workers_do_not_do_the_same_work(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ids = range(1, 9)
    for ledger_id in ids:
        held = {"b1": ALL, "b2": ALL, "b3": []}
        lay_out(cluster, [(0, "b1 b2 b3")], held, ledger_id=ledger_id)
        await mark(cluster, ledger_id)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client, owner="w1").run)
        nursery.start_soon(worker(cluster, client, owner="w2").run)
        for ledger_id in ids:
            await unmarked(cluster, ledger_id)
        nursery.cancel_scope.cancel()
    assert adds(cluster, "b3") == 10 * len(ids)
    for ledger_id in ids:
        check_whole(cluster, ledger_id)


async def test_a_worker_repairs_few_ledgers_at_once_and_no_faster_than_its_rate(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """TB-47: writes and live reads go first."""
    ids = range(1, 11)
    for ledger_id in ids:
        held = {"b1": ALL, "b2": []}
        lay_out(cluster, [(0, "b1 b2")], held, ledger_id=ledger_id, size=1000)
        await mark(cluster, ledger_id)
    options = msgspec.structs.replace(QUICK, repair_rate=10_000.0, concurrency=3)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client, options).run)
        for ledger_id in ids:
            while mark_of(cluster, ledger_id) is not None:
                assert len(await list_repairs(cluster.store)) <= 3
                await trio.sleep(0.2)
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began >= 8.0


async def test_what_a_busy_worker_copies_is_told_while_it_copies(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """An alert asks whether anything is copied, and one repair may take hours."""
    held = {"b1": [(0, 49)], "b2": []}
    lay_out(cluster, [(0, "b1 b2")], held, last=49, size=400_000)
    await mark(cluster)
    options = msgspec.structs.replace(QUICK, repair_rate=1_000_000.0, concurrency=1)
    figures = SimpleNamespace(leads=False, marks=0, repaired=0, failed=0, copied_size=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client, options, figures=figures).run)
        await trio.sleep(10)
        assert mark_of(cluster) is not None
        assert figures.copied_size > 5_000_000
        nursery.cancel_scope.cancel()


async def test_a_slow_bookie_slows_the_reading_down(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1 b2")], {"b1": [(0, 49)], "b2": []}, last=49, size=400_000)
    cluster.bookies["b2"].holding = True
    await mark(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(1.5)
        reads = [r for r in cluster.bookies["b1"].requests if r.opcode == Opcode.BATCH_READ]
        assert len(reads) == 2, "one window is being added, and one waits"
        nursery.cancel_scope.cancel()


async def test_a_bookie_that_refuses_is_named(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1 b2")], {"b1": ALL, "b2": [(0, 3)]})
    cluster.bookies["b2"].add_code = Code.IO_ERROR
    await mark(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(2)
        found = mark_of(cluster)
        assert found is not None
        assert found.last_failure == "bookie b2: refused entries with code 101"
        nursery.cancel_scope.cancel()


async def test_what_others_report_meanwhile_is_not_forgotten(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": ALL, "b3": []})
    await mark(cluster)
    cluster.bookies["b3"].delay_s = lambda request: 1.0 if request.opcode == Opcode.ADD else 0.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(1)
        cluster.bookies["b1"].damage(1, 2)
        await mark(cluster, reason="damaged", damaged=[DamagedRun("b1", 2, 2)])
        await unmarked(cluster)
        nursery.cancel_scope.cancel()
    check_whole(cluster)
    assert adds(cluster, "b1") == 1


async def test_the_store_may_be_away_for_a_while(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": ALL, "b3": []})
    await mark(cluster)
    cluster.bookies["b3"].delay_s = lambda request: 1.5 if request.opcode == Opcode.ADD else 0.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client).run)
        await trio.sleep(1)
        cluster.store.available = False
        await trio.sleep(60)
        cluster.store.available = True
        await unmarked(cluster)
        nursery.cancel_scope.cancel()
    check_whole(cluster)


async def test_in_a_large_cluster_workers_seldom_read_all_registrations(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But at once if the leader gave up a bookie, and they do not wait for it once more."""
    patient = msgspec.structs.replace(QUICK, lost_after_s=60.0)
    async with memory_cluster(300) as cluster, cluster.client() as client:
        looks: list[float] = []
        real = cluster.store.leases

        async def noted(prefix: str, *, after: str = "") -> list[Lease]:
            if prefix == BOOKIES and not after:
                looks.append(trio.current_time())
            return await real(prefix, after=after)

        monkeypatch.setattr(cluster.store, "leases", noted)
        lay_out(cluster, [(0, "b1 b2")], {"b1": ALL, "b2": ALL})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker(cluster, client, patient).run)
            await trio.sleep(39)
            assert looks == [0, 9, 18, 27, 36]
            lose(cluster, "b2")
            await add_mark(cluster.store, new_mark(1, "bookie lost", ["b2"], []))
            await unmarked(cluster, within_s=10.0)
            assert "b2" not in cluster.record(1).fragments[0].bookies
            nursery.cancel_scope.cancel()


async def test_a_reason_is_logged_once_a_minute_however_many_ledgers_it_holds_up(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    complaints = Complaints()
    for _ in range(6):
        for ledger_id in range(1, 101):
            complaints.tell(ledger_id, "b1 is lost")
        await trio.sleep(15)
    complaints.tell(7, "b2 is lost")
    assert [record.getMessage() for record in caplog.records] == [
        "ledger 1 still lacks copies: b1 is lost",
        "ledger 1 still lacks copies, and so do 99 others: b1 is lost",
        "ledger 7 still lacks copies: b2 is lost",
    ]
    for number in range(1000):
        complaints.tell(1, f"reason {number}")
    assert len(complaints._told) <= REASONS_MAX
