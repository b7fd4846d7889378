"""Many ledgers at once: which are chosen, how they are shared out, and what is counted."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given, strategies as st
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client, Options
from ledger_client.cluster.operations.scrubbing import Chosen, choose_ledgers, group, scrub, summary
from ledger_client.errors import LedgerError, NoSuchLedger
from metadata.topics import RollPolicy

ENTRIES = 50
SIZE = sum(len(b"payload %d" % number) for number in range(ENTRIES))


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(3) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client(Options(read_timeout_s=1.0)) as connected:
        yield connected


async def write(client: Client, digest: str = "crc32c") -> int:
    async with client.ledgers.create(3, 3, 3, digest=digest) as ledger:
        await ledger.append_many([b"payload %d" % number for number in range(ENTRIES)])
    return ledger.id


async def test_what_is_whole_is_counted(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ids = [await write(client) for _ in range(6)]
    chosen = await choose_ledgers(client._context.ledgers)
    assert [each.ledger_id for each in chosen] == ids
    parts: list[float] = []
    found = summary(await scrub(client._context.ledgers, chosen, parts.append))
    assert found.whole
    assert (found.ledgers, found.entries, found.copies) == (6, 6 * ENTRIES, 18 * ENTRIES)
    assert found.size == 18 * SIZE
    assert parts == sorted(parts)
    assert parts[-1] == 1.0


async def test_each_kind_of_fault_is_told_by_ledger(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lacking, strange, whole, lost = [await write(client) for _ in range(4)]
    del cluster.bookies["b2"].entries(lacking)[7]
    other = cluster.bookies["b3"].entries(strange)
    other[3], other[4] = other[4], other[3]
    for name in ("b1", "b2", "b3"):
        del cluster.bookies[name].entries(lost)[9]
    found = summary(
        await scrub(client._context.ledgers, await choose_ledgers(client._context.ledgers))
    )
    by_id = {each.ledger_id: each for each in found.faulty}
    assert set(by_id) == {lacking, strange, lost}
    assert (by_id[lacking].missing, by_id[lacking].faulty) == (1, ["b2"])
    assert by_id[strange].damaged + by_id[strange].different == 2
    assert (by_id[lost].missing, by_id[lost].lost, found.lost) == (3, 1, 1)
    assert (found.ledgers, found.missing) == (4, 4)
    assert whole not in by_id


async def test_a_bookie_that_does_not_answer_is_unreachable(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await write(client)
    cluster.kill("b1")
    (found,) = await scrub(
        client._context.ledgers, await choose_ledgers(client._context.ledgers, ids=[ledger_id])
    )
    assert (found.unreachable, found.silent, found.faulty) == (ENTRIES, ["b1"], [])
    assert not found.whole


async def test_only_what_is_closed_named_or_of_a_topic(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    one, other = await write(client), await write(client)
    await client.topics.create("t/a", roll=RollPolicy(entries=3))
    async with client.producer("t/a", batching=False) as producer:
        for number in range(10):
            await producer.send(b"%d" % number)
        open_ids = {info.ledger_id async for info in client.ledgers.list()}
        ids = {
            each.ledger_id for each in await choose_ledgers(client._context.ledgers, topics=["t/a"])
        }
        assert ids < open_ids - {one, other}
        still_open = max(open_ids)
        with pytest.raises(LedgerError):
            await choose_ledgers(client._context.ledgers, ids=[still_open])
    assert [
        each.ledger_id for each in await choose_ledgers(client._context.ledgers, ids=[other])
    ] == [other]
    with pytest.raises(NoSuchLedger):
        await choose_ledgers(client._context.ledgers, ids=[999])


async def test_a_ledger_that_goes_meanwhile_is_nobodys_fault(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    gone, kept = await write(client), await write(client)
    chosen = await choose_ledgers(client._context.ledgers)
    await client.ledgers.delete(gone)
    found = summary(await scrub(client._context.ledgers, chosen))
    assert (found.whole, found.ledgers) == (True, 1)
    assert kept in [each.ledger_id for each in chosen]


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 8))
def test_groups_have_every_ledger_once_and_alike_many_bytes(sizes: list[int], count: int) -> None:
    chosen = [Chosen(number, "", size) for number, size in enumerate(sizes)]
    groups = group(chosen, count)
    assert sorted(each for members in groups for each in members) == chosen
    assert len(groups) == min(count, len(chosen))
    weights = [sum(max(one.size, 1) for one in members) for members in groups]
    if groups:
        assert max(weights) - min(weights) <= max([*sizes, 1])
