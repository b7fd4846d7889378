from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from repair_rig import QUICK, adds, check_whole, lay_out, lose, mark, mark_of, unmarked, worker
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.repair.claim import claim_ledger
from ledger_client.cluster.repair.copier import FAILURES_MAX, Rereads, Throttle
from ledger_client.cluster.repair.marks import RepairOutcome, add_mark, note_outcome, read_mark
from metadata.records import DamagedRun, LedgerState
from native.frame import Code, Opcode

ALL = [(0, 9)]
PATIENT = msgspec.structs.replace(QUICK, retry_max_s=5.0)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(3) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected


async def repair(cluster: MemoryCluster, client: Client) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker(cluster, client, PATIENT).run)
        await unmarked(cluster)
        nursery.cancel_scope.cancel()


async def try_repair(cluster: MemoryCluster, client: Client) -> list[DamagedRun]:
    """Repair for a minute; return the damage that is still marked then."""
    with trio.move_on_after(60):
        await worker(cluster, client, PATIENT).run()
    found = mark_of(cluster)
    assert found is not None
    assert found.attempts > 1
    return found.damaged


async def test_the_only_copy_is_whole_once_it_can_be_read_again(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1")], {"b1": ALL})
    await mark(cluster, reason="damaged", damaged=[DamagedRun("b1", 3, 5)])
    await repair(cluster, client)
    check_whole(cluster)
    assert not adds(cluster, "b1")


async def test_both_copies_of_an_entry_are_whole_once_they_can_be_read_again(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1 b2")], {"b1": ALL, "b2": ALL})
    damaged = [DamagedRun("b1", 3, 5), DamagedRun("b2", 0, 9)]
    await mark(cluster, reason="damaged", damaged=damaged)
    await repair(cluster, client)
    assert not adds(cluster, "b1") + adds(cluster, "b2")


async def test_an_open_ledger_is_whole_once_it_can_be_read_again(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1")], {"b1": ALL}, state=LedgerState.OPEN)
    await mark(cluster, reason="damaged", damaged=[DamagedRun("b1", 3, 5)])
    await repair(cluster, client)
    assert cluster.record(1).state is LedgerState.OPEN


async def test_only_what_is_still_damaged_stays_marked(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1")], {"b1": ALL})
    for entry_id in (4, 7):
        cluster.bookies["b1"].damage(1, entry_id)
    await mark(cluster, reason="damaged", damaged=[DamagedRun("b1", 2, 9)])
    assert await try_repair(cluster, client) == [DamagedRun("b1", 4, 4), DamagedRun("b1", 7, 7)]


async def test_an_entry_that_only_the_memtable_has_stays_marked_until_it_is_on_disk(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1")], {"b1": ALL})
    cluster.bookies["b1"].unflushed = {5}
    await mark(cluster, reason="damaged", damaged=[DamagedRun("b1", 3, 6)])
    assert await try_repair(cluster, client) == [DamagedRun("b1", 5, 5)]
    cluster.bookies["b1"].unflushed.clear()
    await repair(cluster, client)


@pytest.mark.parametrize("code", [Code.IO_ERROR, Code.NO_ENTRY, Code.TOO_MANY])
async def test_a_bookie_that_does_not_show_the_entry_keeps_its_mark(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client, code: Code
) -> None:
    """BK-11: damage is never absence, and neither is silence."""
    lay_out(cluster, [(0, "b1")], {"b1": ALL})
    cluster.bookies["b1"].read_code = code
    await mark(cluster, reason="damaged", damaged=[DamagedRun("b1", 3, 3)])
    assert await try_repair(cluster, client) == [DamagedRun("b1", 3, 3)]


async def test_a_mark_is_kept_for_a_bookie_that_is_gone(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """Its other copies do not stand for its own."""
    lay_out(cluster, [(0, "b1 b2")], {"b1": ALL, "b2": [(0, 2), (4, 9)]})
    lose(cluster, "b1")
    await mark(cluster, reason="damaged", damaged=[DamagedRun("b1", 3, 3)])
    assert await try_repair(cluster, client) == [DamagedRun("b1", 3, 3)]


async def test_damage_that_is_reported_during_the_attempt_stays_marked(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """The mark reads the same as before; only its version shows that it is a later one."""
    run = DamagedRun("b1", 3, 4)
    await mark(cluster, reason="damaged", damaged=[run])
    async with claim_ledger(client._context.ledgers.session, 1, "w1") as claim:
        dealt_with = await read_mark(cluster.store, 1)
        assert dealt_with is not None
        await add_mark(cluster.store, dealt_with.content, anew=True)
        outcome = RepairOutcome("entry 9 is lost", damaged=[])
        await note_outcome(cluster.store, dealt_with, outcome, claim.check)
    found = mark_of(cluster)
    assert found is not None
    assert (found.damaged, found.last_failure) == ([run], "entry 9 is lost")


async def test_a_disk_that_fails_everywhere_is_not_asked_for_every_entry(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lay_out(cluster, [(0, "b1")], {"b1": ALL})
    bookie = cluster.bookies["b1"]
    bookie.read_code = Code.IO_ERROR
    rereads = Rereads(client._context.ledgers.bookies, Throttle(1e9), client._context.options)
    damaged = [DamagedRun("b1", 0, 10**9)]
    assert await rereads.still_damaged(cluster.record(1), damaged) == damaged
    assert sum(r.opcode == Opcode.BATCH_READ for r in bookie.requests) == FAILURES_MAX


async def test_so_many_bytes_a_second_pass_and_no_more(autojump_clock: MockClock) -> None:
    throttle = Throttle(100.0)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(throttle.take, 50)
    assert 9.0 <= trio.current_time() - began <= 10.0


async def test_time_in_which_nothing_was_copied_is_not_saved_up(autojump_clock: MockClock) -> None:
    throttle = Throttle(100.0)
    await trio.sleep(1000)
    began = trio.current_time()
    for _ in range(3):
        await throttle.take(100)
    assert trio.current_time() - began >= 2.0


async def test_without_a_limit_nothing_waits(autojump_clock: MockClock) -> None:
    throttle = Throttle(float("inf"))
    began = trio.current_time()
    for _ in range(100):
        await throttle.take(1 << 40)
    assert trio.current_time() == began
