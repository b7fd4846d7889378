"""Recovery of what crashed writers leave behind, on bookies in memory."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import trio
from leftovers import LEDGER_ID, leave, length, payload
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client, Options
from ledger_client.errors import (
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    ReplicasUnavailable,
    WrongPassword,
)
from ledger_client.ledgers.inquiry import WINDOW_SIZE
from ledger_client.ledgers.write_state import PAYLOAD_SIZE_MAX
from metadata.records import Fragment, LedgerState, underreplicated_key
from native.frame import Code, Flag, Opcode, Request


async def recover(cluster: MemoryCluster, client: Client, last_entry: int) -> None:
    """Recover, and see the ledger closed at *last_entry* with everything up to there."""
    info = await client.ledgers.recover(LEDGER_ID)
    assert (info.state, info.last_entry) == (LedgerState.CLOSED, last_entry)
    assert info.length == length(last_entry)
    record = cluster.record(LEDGER_ID)
    assert (record.state, record.last_entry) == (LedgerState.CLOSED, last_entry)
    async with client.ledgers.open(LEDGER_ID) as reader:
        entries = await reader.read(0, last_entry)
        assert [entry.payload for entry in entries] == [payload(i) for i in range(last_entry + 1)]


async def incomplete(cluster: MemoryCluster, client: Client) -> ReplicasUnavailable:
    """See a recovery fail, and the ledger stay as it is; return the reasons."""
    before = cluster.record(LEDGER_ID)
    with pytest.raises(ReplicasUnavailable) as failure:
        await client.ledgers.recover(LEDGER_ID)
    after = cluster.record(LEDGER_ID)
    assert after.state is LedgerState.IN_RECOVERY
    assert after.fragments == before.fragments
    return failure.value


def held(cluster: MemoryCluster) -> dict[str, list[int]]:
    return {
        name: sorted(bookie.entries(LEDGER_ID))
        for name, bookie in cluster.bookies.items()
        if LEDGER_ID in bookie.ledgers
    }


@pytest.mark.parametrize(
    ("on_b1", "on_b2", "on_b3", "confirmed", "last_entry"),
    [
        ((), (), (), -1, -1),  # nothing was ever written
        (range(5), range(5), range(5), 3, 4),
        (range(5), range(3), (), 2, 4),  # acknowledged by nobody, and yet there
        (range(3), range(9), range(6), -1, 8),  # nothing is known to be confirmed
        ((0, 1, 2, 4), (0, 1, 2), (0, 1, 2), 1, 2),  # entry 3 is nowhere, so 4 is not in it
        ((0, 2), (1, 3), (), -1, 3),  # each replica has holes
        (range(500), range(400), range(300), 250, 499),
    ],
)
async def test_everything_that_is_there_without_a_gap_is_kept(
    autojump_clock: MockClock,
    on_b1: Iterable[int],
    on_b2: Iterable[int],
    on_b3: Iterable[int],
    confirmed: int,
    last_entry: int,
) -> None:
    """BK-08: forward from the last confirmed entry, added again, closed by one CAS."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, {"b1": on_b1, "b2": on_b2, "b3": on_b3}, confirmed=confirmed)
        await recover(cluster, client, last_entry)
        for entries in held(cluster).values():  # all are up: the tail is on all of them
            assert set(range(confirmed + 1, last_entry + 1)) <= set(entries)
        assert all(bookie.ledgers[LEDGER_ID].fenced for bookie in cluster.bookies.values())
        assert cluster.record(LEDGER_ID).fragments == [Fragment(0, ["b1", "b2", "b3"])]


@pytest.mark.parametrize("quorums", [(3, 2, 2), (5, 3, 2), (4, 2, 1), (3, 1, 1)])
async def test_a_striped_ledger_is_recovered_entry_by_entry(
    autojump_clock: MockClock, quorums: tuple[int, int, int]
) -> None:
    size, write_quorum, _ = quorums
    async with memory_cluster(5) as cluster, cluster.client() as client:
        on = {
            f"b{index + 1}": [e for e in range(100) if (index - e) % size < write_quorum]
            for index in range(size)
        }
        leave(cluster, on, quorums=quorums, confirmed=40)
        await recover(cluster, client, 99)


async def test_opening_recovers_unless_it_is_told_not_to(autojump_clock: MockClock) -> None:
    """BK-07: a reader that does not recover reads up to the last confirmed entry only."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, {"b1": range(5), "b2": range(5), "b3": ()}, confirmed=2)
        for bookie in ("b1", "b2"):
            cluster.bookies[bookie].ledgers[LEDGER_ID].raise_lac(2)
        async with client.ledgers.open(LEDGER_ID, recover=False) as reader:
            assert (reader.closed, reader.last_confirmed) == (False, 2)
        assert cluster.record(LEDGER_ID).state is LedgerState.OPEN
        assert not any(bookie.ledgers[LEDGER_ID].fenced for bookie in cluster.bookies.values())
        async with client.ledgers.open(LEDGER_ID) as reader:
            assert (reader.closed, reader.last_confirmed) == (True, 4)


async def test_recovering_a_closed_ledger_changes_nothing(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, {"b1": range(5), "b2": range(5)})
        await recover(cluster, client, 4)
        before = dict(cluster.store.values)
        cluster.kill("b1")
        cluster.kill("b2")
        await client.ledgers.recover(LEDGER_ID)
        assert cluster.store.values == before


async def test_the_wrong_password_fences_nobody(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, {"b1": range(5), "b2": range(5), "b3": range(5)})
        with pytest.raises(WrongPassword):
            await client.ledgers.recover(LEDGER_ID, b"guess")
        assert cluster.record(LEDGER_ID).state is LedgerState.OPEN
        assert not any(bookie.requests for bookie in cluster.bookies.values())


async def test_a_bookie_that_has_another_key_ends_the_recovery(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, {"b1": range(5), "b2": range(5), "b3": range(5)})
        cluster.bookies["b3"].ledgers[LEDGER_ID].key = bytes(20)
        with pytest.raises(WrongPassword):
            await client.ledgers.recover(LEDGER_ID)
        assert cluster.record(LEDGER_ID).state is LedgerState.IN_RECOVERY


async def test_new_bookies_that_know_of_nothing_do_not_cut_off_what_was_confirmed_before_them(
    autojump_clock: MockClock,
) -> None:
    """TB-43: the writer changed its ensemble and died before it wrote to the new one."""
    async with memory_cluster(6) as cluster, cluster.client() as client:
        fragments = [Fragment(0, ["b1", "b2", "b3"]), Fragment(10, ["b4", "b5", "b6"])]
        old = dict.fromkeys(("b1", "b2", "b3"), range(10))
        leave(cluster, old, fragments=fragments)
        await recover(cluster, client, 9)
        # Nothing is in the second fragment, so it is gone.
        assert cluster.record(LEDGER_ID).fragments == fragments[:1]


async def test_an_entry_lost_before_the_last_fragment_does_not_cut_off_those_confirmed_behind_it(
    autojump_clock: MockClock,
) -> None:
    """TB-43: a fragment from entry 10 on proves that all before it were confirmed."""
    async with memory_cluster(6) as cluster, cluster.client() as client:
        fragments = [Fragment(0, ["b1", "b2", "b3"]), Fragment(10, ["b4", "b5", "b6"])]
        old = dict.fromkeys(("b1", "b2", "b3"), (0, 1, 2, 3, 5, 6, 7, 8, 9))
        leave(cluster, old, fragments=fragments)
        info = await client.ledgers.recover(LEDGER_ID)
        assert (info.state, info.last_entry, info.length) == (LedgerState.CLOSED, 9, length(9))
        async with client.ledgers.open(LEDGER_ID) as reader:
            entries = await reader.read(5, 9)
            assert [entry.payload for entry in entries] == [payload(i) for i in range(5, 10)]
            with pytest.raises(NoSuchEntry):  # a read reports the loss
                await reader.read(4, 9)


async def test_the_tail_behind_a_change_of_the_ensemble_is_kept(autojump_clock: MockClock) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        fragments = [Fragment(0, ["b1", "b2", "b3"]), Fragment(10, ["b1", "b2", "b4"])]
        on = {"b1": range(13), "b2": range(11), "b3": range(10), "b4": (10, 12)}
        leave(cluster, on, fragments=fragments)
        await recover(cluster, client, 12)
        assert cluster.record(LEDGER_ID).fragments == fragments


# --- bookies that do not answer ------------------------------------------------------------


@pytest.mark.parametrize("name", ["b1", "b2", "b3"])
async def test_a_dead_bookie_costs_recovery_no_more_than_the_grace(
    autojump_clock: MockClock, name: str
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, dict.fromkeys(("b1", "b2", "b3"), range(20)), confirmed=19)
        cluster.kill(name)
        start = trio.current_time()
        await recover(cluster, client, 19)
        assert trio.current_time() - start < 0.5


@pytest.mark.parametrize("name", ["b1", "b2", "b3"])
async def test_a_silent_bookie_costs_recovery_no_more_than_a_connection_attempt(
    autojump_clock: MockClock, name: str
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        leave(cluster, dict.fromkeys(("b1", "b2", "b3"), range(20)))
        cluster.bookies[name].answering = False
        start = trio.current_time()
        await recover(cluster, client, 19)
        assert trio.current_time() - start <= 2.5


async def test_an_entry_on_one_bookie_that_is_away_keeps_the_ledger_in_recovery_until_it_is_back(
    autojump_clock: MockClock,
) -> None:
    """BK-11: a bookie that does not answer has not said that an entry is absent."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        # Entry 9 was acknowledged by b1 and b2; b2 lost nothing, it is only away.
        leave(cluster, {"b1": range(9), "b2": range(10), "b3": range(10)}, quorums=(3, 3, 1))
        cluster.kill("b2")
        cluster.kill("b3")
        failure = await incomplete(cluster, client)
        assert (failure.ledger_id, failure.entry_id) == (LEDGER_ID, -1)
        assert sorted(failure.reasons) == ["b2", "b3"]
        cluster.revive("b2")
        cluster.revive("b3")
        await recover(cluster, client, 9)


def tail_reads(request: Request) -> bool:
    return request.opcode == Opcode.BATCH_READ


@pytest.mark.parametrize("trouble", ["I/O error", "limbo", "damage", "silence", "busy"])
async def test_what_is_no_explicit_no_is_never_taken_for_one(
    autojump_clock: MockClock, trouble: str
) -> None:
    """BK-11: b1 and b3 acknowledged entry 9; b1 is silent now and b3 in trouble."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, {"b1": range(10), "b2": range(9), "b3": range(10)})
        b1, b3 = cluster.bookies["b1"], cluster.bookies["b3"]
        b1.delay_s = lambda request: 300.0 if tail_reads(request) else 0.0
        if trouble == "limbo":
            b3.limbo = True
            del b3.entries(LEDGER_ID)[9]
        elif trouble == "damage":
            b3.damage(LEDGER_ID, 9)
        elif trouble == "silence":
            b3.delay_s = b1.delay_s
        else:
            code = Code.IO_ERROR if trouble == "I/O error" else Code.TOO_MANY
            b3.read_fault = lambda request: code if tail_reads(request) else Code.OK
        failure = await incomplete(cluster, client)
        assert failure.entry_id == 9
        assert failure.reasons["b2"] == "no such entry"
        assert set(failure.reasons) == {"b1", "b2", "b3"}
        b1.delay_s = lambda _request: 0.0
        await recover(cluster, client, 9)
        assert 9 in b3.entries(LEDGER_ID)


async def test_a_damaged_copy_is_passed_over_and_written_again(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, dict.fromkeys(("b1", "b2", "b3"), range(10)))
        for name, entry_id in (("b1", 9), ("b2", 5), ("b3", 3)):
            cluster.bookies[name].damage(LEDGER_ID, entry_id)
        await recover(cluster, client, 9)
        for name, entry_id in (("b1", 9), ("b2", 5), ("b3", 3)):
            assert cluster.bookies[name].entries(LEDGER_ID)[entry_id].endswith(payload(entry_id))


async def test_the_length_needs_the_last_entry_although_nothing_was_added_again(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        fragments = [Fragment(0, ["b1", "b2", "b3"]), Fragment(4, ["b1", "b2", "b4"])]
        leave(cluster, {"b1": range(4), "b2": (), "b3": ()}, fragments=fragments)
        cluster.bookies["b1"].damage(LEDGER_ID, 3)
        failure = await incomplete(cluster, client)
        assert failure.entry_id == 3
        cluster.bookies["b1"].damage(LEDGER_ID, 3)  # the bit is back
        await recover(cluster, client, 3)


# --- bookies that fail meanwhile ------------------------------------------------------------


async def test_a_bookie_lost_while_entries_are_added_again_is_replaced_in_the_last_change_only(
    autojump_clock: MockClock,
) -> None:
    """BK-08: the new ensemble is in memory until the one compare-and-set that closes."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        leave(cluster, dict.fromkeys(("b1", "b2", "b3"), range(10)), quorums=(3, 3, 3))
        cluster.bookies["b2"].add_code = Code.IO_ERROR
        records: list[LedgerState] = []
        cluster.store.before_put = lambda key: records.append(LedgerState.OPEN)
        await recover(cluster, client, 9)
        assert cluster.record(LEDGER_ID).fragments == [Fragment(0, ["b1", "b4", "b3"])]
        assert sorted(cluster.bookies["b4"].entries(LEDGER_ID)) == list(range(10))
        assert len(records) <= 3  # in recovery, closed, and perhaps a mark for repair


async def test_a_bookie_that_dies_under_what_is_added_again_is_done_without(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        trio.open_nursery() as nursery,
    ):
        leave(cluster, dict.fromkeys(("b1", "b2", "b3"), range(50)))
        for bookie in cluster.bookies.values():
            bookie.delay_s = lambda request: 0.5 if request.opcode == Opcode.ADD else 0.0

        async def kill_soon() -> None:
            await trio.sleep(0.3)
            cluster.kill("b2")

        nursery.start_soon(kill_soon)
        await recover(cluster, client, 49)
        assert cluster.record(LEDGER_ID).fragments == [Fragment(0, ["b1", "b2", "b3"])]
        assert underreplicated_key(LEDGER_ID) in cluster.store.values  # somebody is to look


async def test_too_few_bookies_for_what_is_added_again_leave_the_ledger_in_recovery(
    autojump_clock: MockClock,
) -> None:
    options = Options(append_timeout_s=3)
    async with memory_cluster(3) as cluster, cluster.client(options) as client:
        leave(cluster, dict.fromkeys(("b1", "b2", "b3"), range(10)))
        for name in ("b1", "b2"):
            cluster.bookies[name].add_code = Code.IO_ERROR
        assert (await incomplete(cluster, client)).entry_id == 0
        for name in ("b1", "b2"):
            cluster.bookies[name].add_code = Code.OK
        await trio.sleep(120)  # for their quarantine
        await recover(cluster, client, 9)


async def test_bookies_that_take_no_writes_take_those_of_a_recovery(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, {"b1": range(10)})
        for bookie in cluster.bookies.values():
            bookie.add_code = Code.READ_ONLY
        await recover(cluster, client, 9)
        adds = [r for b in cluster.bookies.values() for r in b.requests if r.opcode == Opcode.ADD]
        assert {request.flags for request in adds} == {Flag.RECOVERY | Flag.PRIORITY}


async def test_entries_added_again_do_not_say_that_they_are_confirmed(
    autojump_clock: MockClock,
) -> None:
    """A rival may find the same entries absent and cut them off: no reader may see them."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, {"b1": range(300), "b2": range(5)}, confirmed=3)
        cluster.store.before_put = lambda _key: no_reader_sees_above(cluster, 3)
        await recover(cluster, client, 299)
        assert all(b.ledgers[LEDGER_ID].lac <= 3 for b in cluster.bookies.values())


def no_reader_sees_above(cluster: MemoryCluster, confirmed: int) -> None:
    for bookie in cluster.bookies.values():
        assert LEDGER_ID not in bookie.ledgers or bookie.ledgers[LEDGER_ID].lac <= confirmed


# --- metadata ------------------------------------------------------------------------------


async def test_a_ledger_deleted_meanwhile_is_gone(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, {"b1": range(10)})
        for bookie in cluster.bookies.values():
            bookie.delay_s = lambda request: 0.5 if request.opcode == Opcode.ADD else 0.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete_after, client, 0.3)
            with pytest.raises(NoSuchLedger):
                await client.ledgers.recover(LEDGER_ID)


async def delete_after(client: Client, wait_s: float) -> None:
    await trio.sleep(wait_s)
    await client.ledgers.delete(LEDGER_ID)


async def test_recovery_says_that_the_metadata_is_away_and_works_when_it_is_back(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, {"b1": range(10)})
        cluster.store.available = False
        with pytest.raises(MetadataUnavailable):
            await client.ledgers.recover(LEDGER_ID)
        cluster.store.available = True
        await client.cluster.bookies()
        for bookie in cluster.bookies.values():
            bookie.delay_s = lambda request: 0.5 if request.opcode == Opcode.ADD else 0.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose_metadata_after, cluster, 0.3)
            with pytest.raises(MetadataUnavailable):
                await client.ledgers.recover(LEDGER_ID)
        cluster.store.available = True
        await recover(cluster, client, 9)


async def lose_metadata_after(cluster: MemoryCluster, wait_s: float) -> None:
    await trio.sleep(wait_s)
    cluster.store.available = False


# --- size -----------------------------------------------------------------------------------


async def test_the_largest_entries_are_recovered_and_one_at_a_time(
    autojump_clock: MockClock,
) -> None:
    """What is held in memory is bounded by the window, not by what is to be recovered."""
    payloads = [bytes([i]) * PAYLOAD_SIZE_MAX for i in range(2)]
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 3) as ledger:
            await ledger.append_many(payloads)
            info = await client.ledgers.recover(ledger.id)
            assert (info.last_entry, info.length) == (1, 2 * PAYLOAD_SIZE_MAX)
        reads = [r for r in cluster.bookies["b1"].requests if r.opcode == Opcode.BATCH_READ]
        assert max(request.size_max for request in reads) <= WINDOW_SIZE
        async with client.ledgers.open(ledger.id) as reader:
            assert [entry.payload for entry in await reader.read(0, 1)] == payloads
