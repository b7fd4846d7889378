"""Readers that hold the record from before the ledger's copies moved."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client, LedgerReader, Options
from ledger_client.errors import (
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    ReplicasUnavailable,
)
from metadata.records import encode_record, ledger_key


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(6) as running:
        yield running


async def write(client: Client, quorums: tuple[int, int, int] = (3, 3, 3)) -> int:
    async with client.ledgers.create(*quorums) as ledger:
        await ledger.append_many([b"entry %d" % i for i in range(100)])
        await trio.sleep(1)
    return ledger.id


def move(cluster: MemoryCluster, ledger_id: int) -> None:
    """Give all copies to bookies that had none, and delete the old ones."""
    record = cluster.record(ledger_id)
    old = record.fragments[0].bookies
    new = [name for name in cluster.bookies if name not in old][: len(old)]
    for source, target in zip(old, new, strict=True):
        cluster.bookies[target].ledgers[ledger_id] = cluster.bookies[source].ledgers.pop(ledger_id)
    fragments = [msgspec.structs.replace(record.fragments[0], bookies=new)]
    moved = msgspec.structs.replace(record, fragments=fragments)
    cluster.store.change(ledger_key(ledger_id), encode_record(moved))


async def check(reader: LedgerReader, first: int = 0) -> None:
    entries = await reader.read(first, 99)
    assert [entry.payload for entry in entries] == [b"entry %d" % i for i in range(first, 100)]


@pytest.mark.parametrize("quorums", [(3, 3, 3), (3, 2, 2)])
async def test_a_reader_finds_the_copies_where_they_went(
    autojump_clock: MockClock, cluster: MemoryCluster, quorums: tuple[int, int, int]
) -> None:
    """The old copies are deleted as surplus, which says nothing about the entries."""
    async with cluster.client() as client:
        ledger_id = await write(client, quorums)
        async with client.ledgers.open(ledger_id) as reader:
            move(cluster, ledger_id)
            await check(reader)


async def test_a_reader_goes_on_where_it_was_when_the_copies_move(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    async with cluster.client(Options(read_batch_size=64, reads_in_flight=2)) as client:
        ledger_id = await write(client)
        async with client.ledgers.open(ledger_id) as reader:
            seen: list[int] = []
            async for batch in reader.read_batches(0, 99):
                seen += range(batch.first_entry, batch.last_entry + 1)
                if (
                    len(seen) in range(30, 40)
                    and ledger_id in cluster.bookies[holder(reader)].ledgers
                ):
                    move(cluster, ledger_id)
            assert seen == list(range(100))


def holder(reader: LedgerReader) -> str:
    return reader.metadata.fragments[0].bookies[0]


async def test_a_follower_finds_the_copies_where_they_went(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    async with cluster.client() as client:
        ledger_id = await write(client)
        async with client.ledgers.open(ledger_id) as reader:
            move(cluster, ledger_id)
            followed = [entry.payload async for entry in reader.follow()]
            assert followed == [b"entry %d" % i for i in range(100)]


async def test_a_reader_turns_to_the_successors_of_bookies_that_are_gone(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    async with cluster.client(Options(read_timeout_s=1)) as client:
        ledger_id = await write(client)
        async with client.ledgers.open(ledger_id) as reader:
            for name in reader.metadata.fragments[0].bookies:
                cluster.kill(name)
            with pytest.raises(ReplicasUnavailable):
                await check(reader)
            move(cluster, ledger_id)
            await check(reader)


async def test_what_is_denied_by_those_who_are_listed_now_is_missing(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    async with cluster.client() as client:
        ledger_id = await write(client)
        async with client.ledgers.open(ledger_id) as reader:
            move(cluster, ledger_id)
            for bookie in cluster.bookies.values():
                bookie.entries(ledger_id).pop(99, None)
            with pytest.raises(NoSuchEntry) as missing:
                await check(reader)
            assert missing.value.entry_id == 99


async def test_no_entry_is_called_absent_while_nobody_can_say_where_it_went(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    async with cluster.client() as client:
        ledger_id = await write(client)
        async with client.ledgers.open(ledger_id) as reader:
            move(cluster, ledger_id)
            cluster.store.available = False
            with pytest.raises(MetadataUnavailable):
                await check(reader)
            cluster.store.available = True
            await check(reader)


async def test_a_deleted_ledger_is_told_from_a_missing_entry(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    async with cluster.client() as client:
        ledger_id = await write(client)
        async with client.ledgers.open(ledger_id) as reader:
            await client.ledgers.delete(ledger_id)
            await check(reader)
            for bookie in cluster.bookies.values():
                bookie.ledgers.clear()
            with pytest.raises(NoSuchLedger):
                await check(reader)
