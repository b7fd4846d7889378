"""Seeded histories of a writer whose bookies come and go, refuse, hang and return.

At the moment of its acknowledgement, each entry is on as many bookies as must have it,
and the metadata names these bookies for it. In the end all are read back in order, and
the writer is still there, since somebody could always take over.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from run_seed import drawn
from trio.testing import MockClock

from ledger_client import Client, LedgerWriter, Options
from metadata.records import LedgerRecord, LedgerState
from native.frame import Code

QUORUMS = [(3, 3, 2), (3, 3, 3), (4, 3, 2), (5, 3, 1), (5, 2, 2), (2, 2, 1), (1, 1, 1)]
OPTIONS = Options(bytes_in_flight_max=20_000, quarantine_s=1.0, quarantine_max_s=4.0)
SEEDS = [*drawn(range(4)), *(pytest.param(n, marks=pytest.mark.slow) for n in drawn(range(4, 9)))]
BOOKIES = 8
DISTURBED_MAX = 2
"""At the same time; so an ensemble of five finds its bookies."""

Trouble = Callable[[MemoryCluster, str], Awaitable[None]]


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_writer_outlives_its_bookies(autojump_clock: MockClock, seed: int) -> None:
    """BK-05, BK-06, TB-25, TB-26: whatever happens to some of the bookies."""
    chance = random.Random(seed)
    async with memory_cluster(BOOKIES, seed=seed) as cluster, cluster.client(OPTIONS) as client:
        scale = chance.choice([0.0, 0.001, 0.02])
        for bookie in cluster.bookies.values():
            bookie.delay_s = lambda _request: chance.random() * scale
        written: dict[int, bytes] = {}
        async with (
            disturbed(cluster, chance),
            client.ledgers.create(*chance.choice(QUORUMS)) as ledger,
            trio.open_nursery() as nursery,
        ):
            for number in range(3):
                nursery.start_soon(append_all, cluster, ledger, number, chance, written)
        assert sorted(written) == list(range(len(written)))
        await check(cluster, client, ledger, written)


async def append_all(
    cluster: MemoryCluster,
    ledger: LedgerWriter,
    number: int,
    chance: random.Random,
    written: dict[int, bytes],
) -> None:
    for turn in range(30):
        count = chance.choice([1, 1, 3, 40])
        payloads = [b"%d-%d-%d" % (number, turn, i) for i in range(count)]
        ids = await ledger.append_many(payloads)
        written.update(zip(ids, payloads, strict=True))
        for entry_id in ids:
            assert (
                copies(cluster, cluster.record(ledger.id), entry_id) >= ledger.metadata.ack_quorum
            )
        await trio.sleep(chance.random() * 0.3)


def copies(cluster: MemoryCluster, record: LedgerRecord, entry_id: int) -> int:
    """How many bookies of the entry's write set, by the metadata, hold it."""
    fragment = [f for f in record.fragments if f.first_entry <= entry_id][-1]
    write_set = (
        fragment.bookies[(entry_id + i) % record.ensemble_size] for i in range(record.write_quorum)
    )
    return sum(entry_id in cluster.bookies[b].entries(record.ledger_id) for b in write_set)


# --- trouble ------------------------------------------------------------------------------


async def crash(cluster: MemoryCluster, name: str) -> None:
    cluster.kill(name)
    await trio.sleep(cluster.chance.random() * 3)
    cluster.revive(name)


async def reset(cluster: MemoryCluster, name: str) -> None:
    cluster.bookies[name].drop_connections()
    await trio.lowlevel.checkpoint()


async def hang(cluster: MemoryCluster, name: str) -> None:
    cluster.bookies[name].answering = False
    await trio.sleep(cluster.chance.random() * 5)
    cluster.bookies[name].answering = True
    cluster.bookies[name].drop_connections()  # what it took meanwhile is never answered


async def refuse(cluster: MemoryCluster, name: str) -> None:
    cluster.bookies[name].add_code = Code.READ_ONLY
    await trio.sleep(cluster.chance.random() * 3)
    cluster.bookies[name].add_code = Code.OK


async def take_nothing(cluster: MemoryCluster, name: str) -> None:
    cluster.stalled[name] = trio.Event()
    await trio.sleep(cluster.chance.random() * 4)
    cluster.stalled.pop(name).set()


async def lose_metadata(cluster: MemoryCluster, _name: str) -> None:
    cluster.store.available = False
    await trio.sleep(cluster.chance.random() * 3)
    cluster.store.available = True


TROUBLES: list[Trouble] = [crash, reset, hang, refuse, take_nothing, lose_metadata]


@asynccontextmanager
async def disturbed(cluster: MemoryCluster, chance: random.Random) -> AsyncIterator[None]:
    """Make trouble for some bookies at a time until the block ends, and mend it all."""
    busy: set[str] = set()

    async def disturb() -> None:
        while True:
            await trio.sleep(chance.random() * 2)
            name = chance.choice(sorted(set(cluster.bookies) - busy))
            busy.add(name)
            await chance.choice(TROUBLES)(cluster, name)
            busy.remove(name)

    async with trio.open_nursery() as nursery:
        for _ in range(DISTURBED_MAX):
            nursery.start_soon(disturb)
        yield
        nursery.cancel_scope.cancel()
    mend(cluster)


def mend(cluster: MemoryCluster) -> None:
    cluster.store.available = True
    cluster.down.clear()
    for stalled in cluster.stalled.values():
        stalled.set()
    cluster.stalled.clear()
    for bookie in cluster.bookies.values():
        bookie.answering = True
        bookie.add_code = Code.OK


async def check(
    cluster: MemoryCluster, client: Client, ledger: LedgerWriter, written: dict[int, bytes]
) -> None:
    record = cluster.record(ledger.id)
    assert record == ledger.metadata
    assert (record.state, record.last_entry) == (LedgerState.CLOSED, len(written) - 1)
    assert record.length == sum(map(len, written.values()))
    assert all(copies(cluster, record, e) >= record.ack_quorum for e in written)
    async with client.ledgers.open(ledger.id) as reader:
        entries = await reader.read(0, record.last_entry)
        assert {entry.entry_id: entry.payload for entry in entries} == written
