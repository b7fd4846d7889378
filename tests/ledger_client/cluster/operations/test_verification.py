from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client, Options
from ledger_client.cluster.operations.verification import Fault, FaultyRun, Verification, verify
from ledger_client.errors import LedgerError
from metadata.records import LedgerState

ENTRIES = 300


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(3) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client(Options(read_batch_size=4096)) as connected:
        yield connected


async def write(client: Client, ensemble: int = 3, quorum: int = 3, digest: str = "crc32c") -> int:
    async with client.ledgers.create(ensemble, quorum, quorum, digest=digest) as ledger:
        await ledger.append_many([b"payload %d" % number for number in range(ENTRIES)])
    return ledger.id


async def verified(cluster: MemoryCluster, client: Client, ledger_id: int) -> Verification:
    compared: list[int] = []
    found = await verify(
        client._context.ledgers, cluster.record(ledger_id), advance=compared.append
    )
    assert sum(compared) == found.entries == ENTRIES
    return found


@pytest.mark.parametrize(("ensemble", "quorum"), [(3, 3), (3, 2), (2, 1)])
async def test_whole_copies_are_whole(
    cluster: MemoryCluster, client: Client, ensemble: int, quorum: int
) -> None:
    found = await verified(cluster, client, await write(client, ensemble, quorum))
    assert found.whole
    assert found.faults == []
    assert sum(copy.sound for copy in found.copies.values()) == ENTRIES * quorum


async def test_what_is_missing_is_told_as_runs(cluster: MemoryCluster, client: Client) -> None:
    ledger_id = await write(client)
    for entry_id in (7, *range(100, 200)):
        del cluster.bookies["b2"].entries(ledger_id)[entry_id]
    found = await verified(cluster, client, ledger_id)
    assert not found.whole
    assert found.faults == [
        FaultyRun("b2", Fault.MISSING, 7, 7),
        FaultyRun("b2", Fault.MISSING, 100, 199),
    ]
    assert (found.copies["b2"].missing, found.copies["b2"].sound) == (101, ENTRIES - 101)
    assert found.copies["b1"].whole


async def test_a_ledger_that_a_bookie_never_heard_of_is_missing_there(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await write(client)
    del cluster.bookies["b3"].ledgers[ledger_id]
    found = await verified(cluster, client, ledger_id)
    assert found.faults == [FaultyRun("b3", Fault.MISSING, 0, ENTRIES - 1)]


async def test_a_flipped_bit_is_damage(cluster: MemoryCluster, client: Client) -> None:
    ledger_id = await write(client)
    cluster.bookies["b1"].damage(ledger_id, 42)
    found = await verified(cluster, client, ledger_id)
    assert found.faults == [FaultyRun("b1", Fault.DAMAGED, 42, 42)]


async def test_sound_copies_that_differ_are_judged_by_the_majority(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await write(client, digest="dummy")
    cluster.bookies["b1"].damage(ledger_id, 42)
    found = await verified(cluster, client, ledger_id)
    assert found.faults == [FaultyRun("b1", Fault.DIFFERENT, 42, 42)]
    assert found.lost == 0


async def test_without_a_majority_nobody_is_right(cluster: MemoryCluster, client: Client) -> None:
    ledger_id = await write(client, digest="dummy")
    cluster.bookies["b1"].damage(ledger_id, 42)
    del cluster.bookies["b2"].entries(ledger_id)[42]
    found = await verified(cluster, client, ledger_id)
    assert found.lost == 1
    assert {run.bookie_id: run.fault for run in found.faults} == {
        "b1": Fault.DIFFERENT,
        "b2": Fault.MISSING,
        "b3": Fault.DIFFERENT,
    }


async def test_a_bookie_that_is_away_is_unknown_and_not_missing(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await write(client)
    cluster.kill("b2")
    found = await verified(cluster, client, ledger_id)
    assert found.faults == [FaultyRun("b2", Fault.UNKNOWN, 0, ENTRIES - 1)]
    assert "b2 is down" in found.copies["b2"].silent
    assert not found.whole


async def test_an_open_ledger_is_not_verified(cluster: MemoryCluster, client: Client) -> None:
    async with client.ledgers.create() as ledger:
        assert cluster.record(ledger.id).state is LedgerState.OPEN
        with pytest.raises(LedgerError, match=f"quire ledger recover {ledger.id}"):
            await verify(client._context.ledgers, cluster.record(ledger.id))


async def test_an_empty_ledger_is_whole(cluster: MemoryCluster, client: Client) -> None:
    async with client.ledgers.create() as ledger:
        pass
    assert (await verify(client._context.ledgers, cluster.record(ledger.id))).whole
