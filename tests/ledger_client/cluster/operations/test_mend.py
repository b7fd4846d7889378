from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from leases import grant
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client, Options
from ledger_client.cluster.operations.scrubbing import mend
from ledger_client.errors import NoSuchLedger, Retryable
from metadata.records import repair_lease

ENTRIES = 300


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(3) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client(Options(read_batch_size=4096)) as connected:
        yield connected


async def write(client: Client, quorum: int = 3, digest: str = "crc32c") -> int:
    async with client.ledgers.create(3, quorum, quorum, digest=digest) as ledger:
        await ledger.append_many([b"payload %d" % number for number in range(ENTRIES)])
    return ledger.id


def lose(cluster: MemoryCluster, name: str, ledger_id: int, entries: range) -> None:
    held = cluster.bookies[name].ledgers[ledger_id].entries
    for entry_id in set(held) & set(entries):
        del held[entry_id]


@pytest.mark.parametrize("quorum", [3, 2])
async def test_every_copy_is_whole_afterwards(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client, quorum: int
) -> None:
    ledger_id = await write(client, quorum)
    before = {name: dict(b.entries(ledger_id)) for name, b in cluster.bookies.items()}
    cluster.bookies["b1"].damage(ledger_id, min(before["b1"]))
    lose(cluster, "b2", ledger_id, range(50, 150))
    lose(cluster, "b3", ledger_id, range(150, ENTRIES))
    found, mended = await mend(client._context.ledgers, cluster.store, ledger_id)
    assert not found.whole
    assert mended.whole
    assert {name: b.entries(ledger_id) for name, b in cluster.bookies.items()} == before
    assert await cluster.store.leases(repair_lease(ledger_id)) == []


async def test_a_copy_that_differs_is_replaced_by_what_the_others_hold(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await write(client, digest="dummy")
    cluster.bookies["b2"].damage(ledger_id, 7)
    assert (await mend(client._context.ledgers, cluster.store, ledger_id))[1].whole
    assert cluster.bookies["b2"].entries(ledger_id)[7].endswith(b"payload 7")


async def test_where_nobody_is_right_nothing_is_touched(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await write(client, digest="dummy")
    cluster.bookies["b2"].damage(ledger_id, 7)
    cluster.bookies["b1"].damage(ledger_id, 9)
    del cluster.bookies["b3"].entries(ledger_id)[7]
    damaged = {name: dict(b.entries(ledger_id)) for name, b in cluster.bookies.items()}
    _, mended = await mend(client._context.ledgers, cluster.store, ledger_id)
    assert mended.lost == 1
    assert {run.first_entry for run in mended.faults} == {7}
    damaged["b1"][9] = damaged["b2"][9]
    assert {name: b.entries(ledger_id) for name, b in cluster.bookies.items()} == damaged


async def test_a_bookie_that_is_away_keeps_the_others_from_nothing(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await write(client)
    cluster.bookies["b1"].damage(ledger_id, 42)
    cluster.kill("b3")
    _, mended = await mend(client._context.ledgers, cluster.store, ledger_id)
    assert mended.copies["b1"].whole
    assert mended.copies["b3"].unknown == ENTRIES


async def test_it_waits_for_a_repair_under_way_but_not_for_ever(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await write(client)
    await grant(cluster.store, repair_lease(ledger_id), "b7/x", ttl_s=20)
    assert (await mend(client._context.ledgers, cluster.store, ledger_id))[1].whole
    assert trio.current_time() >= 20
    await grant(cluster.store, repair_lease(ledger_id), "b7/x", ttl_s=1000)
    with pytest.raises(Retryable, match="b7/x repairs or moves it"):
        await mend(client._context.ledgers, cluster.store, ledger_id)


async def test_interrupted_it_leaves_no_claim(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await write(client)
    cluster.bookies["b2"].damage(ledger_id, 3)
    cluster.bookies["b2"].answering = False
    with trio.move_on_after(1):
        await mend(client._context.ledgers, cluster.store, ledger_id)
    assert await cluster.store.leases(repair_lease(ledger_id)) == []


async def test_there_must_be_such_a_ledger(cluster: MemoryCluster, client: Client) -> None:
    with pytest.raises(NoSuchLedger):
        await mend(client._context.ledgers, cluster.store, 404)
