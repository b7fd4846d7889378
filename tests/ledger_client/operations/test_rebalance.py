from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import BookieUnavailable
from ledger_client.operations.balance import Move
from ledger_client.operations.rebalance import Rebalancer
from ledger_client.operations.verification import verify
from metadata.records import (
    LedgerRecord,
    UnderReplicated,
    encode_record,
    ledger_key,
    repair_lease,
    underreplicated_key,
)

PAYLOAD = bytes(1000)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(3) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected


async def write(client: Client, cluster: MemoryCluster, quorum: int = 3) -> int:
    """Write a ledger that nobody asks to be looked at."""
    async with client.create_ledger(3, quorum, quorum) as ledger:
        await ledger.append_many([PAYLOAD] * 10)
    await cluster.store.delete(underreplicated_key(ledger.id))
    return ledger.id


async def add_bookie(cluster: MemoryCluster, client: Client) -> None:
    cluster.add_bookie(4)
    await client.list_bookies()


def listed(record: LedgerRecord) -> set[str]:
    return {name for fragment in record.fragments for name in fragment.bookies}


@pytest.mark.parametrize("quorum", [3, 2])
async def test_a_new_bookie_gets_its_part_and_every_copy_is_whole(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client, quorum: int
) -> None:
    ledger_ids = [await write(client, cluster, quorum) for _ in range(12)]
    cluster.add_bookie(4)
    rebalancer = Rebalancer(client, cluster.store)
    before = await rebalancer.look()
    assert before.spread > 1
    copied: list[int] = []
    for move in before.moves:
        assert await rebalancer.make(move, on_copied=copied.append)
    assert sum(copied) == pytest.approx(sum(move.size for move in before.moves), rel=0.1)
    after = await rebalancer.look()
    assert after.spread <= 0.1
    assert after.moves == []
    for ledger_id in ledger_ids:
        assert (await verify(client, cluster.record(ledger_id))).whole
        assert await cluster.store.leases(repair_lease(ledger_id)) == []


async def test_bookies_that_leave_or_may_lack_entries_are_left_out(
    cluster: MemoryCluster, client: Client
) -> None:
    await write(client, cluster)
    for number, flag in enumerate(("limbo", "draining", "read_only"), 4):
        cluster.add_bookie(number)
        record = cluster.store.bookies[f"b{number}"]
        cluster.store.bookies[f"b{number}"] = msgspec.structs.replace(record, **{flag: True})
    found = await Rebalancer(client, cluster.store).look()
    assert set(found.sizes) == {"b1", "b2", "b3", "b6"}
    assert found.moves == []


async def test_what_changed_meanwhile_is_not_moved(cluster: MemoryCluster, client: Client) -> None:
    ledger_id = await write(client, cluster)
    await add_bookie(cluster, client)
    rebalancer = Rebalancer(client, cluster.store)
    move = Move(ledger_id, "b1", "b4", 10_000)
    mark = UnderReplicated(ledger_id, "damaged", 1)
    await cluster.store.put(underreplicated_key(ledger_id), encode_record(mark))
    assert not await rebalancer.make(move, on_copied=lambda _size: None)
    await cluster.store.delete(underreplicated_key(ledger_id))
    lease = await cluster.store.grant(repair_lease(ledger_id), "b7/x", ttl_s=1000)
    assert not await rebalancer.make(move, on_copied=lambda _size: None)
    await cluster.store.release(lease)
    assert await rebalancer.make(move, on_copied=lambda _size: None)
    assert not await rebalancer.make(move, on_copied=lambda _size: None)
    await client.delete_ledger(ledger_id)
    assert not await rebalancer.make(move, on_copied=lambda _size: None)


async def test_a_rival_change_wins(cluster: MemoryCluster, client: Client) -> None:
    ledger_id = await write(client, cluster)
    await add_bookie(cluster, client)
    before = cluster.record(ledger_id)

    def touch(_size: int) -> None:
        cluster.store.change(ledger_key(ledger_id), encode_record(before))

    move = Move(ledger_id, "b1", "b4", 10_000)
    assert not await Rebalancer(client, cluster.store).make(move, on_copied=touch)
    assert cluster.record(ledger_id) == before


async def test_a_move_that_is_interrupted_or_fails_never_was(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """TB-46: whenever a move ends, the location list is the old one or the new one."""
    ledger_id = await write(client, cluster)
    before = cluster.record(ledger_id)
    await add_bookie(cluster, client)
    rebalancer = Rebalancer(client, cluster.store)
    move = Move(ledger_id, "b1", "b4", 10_000)
    cluster.bookies["b4"].holding = True
    with trio.move_on_after(1):
        await rebalancer.make(move, on_copied=lambda _size: None)
    assert cluster.record(ledger_id) == before
    assert await cluster.store.leases(repair_lease(ledger_id)) == []
    cluster.kill("b4")
    with pytest.raises(BookieUnavailable):
        await rebalancer.make(move, on_copied=lambda _size: None)
    assert cluster.record(ledger_id) == before
    cluster.revive("b4")
    cluster.bookies["b4"].holding = False
    await trio.sleep(10)
    assert await rebalancer.make(move, on_copied=lambda _size: None)
    assert listed(cluster.record(ledger_id)) == {"b2", "b3", "b4"}
    assert (await verify(client, cluster.record(ledger_id))).whole
