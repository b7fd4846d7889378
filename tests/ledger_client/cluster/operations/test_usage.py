from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.operations.usage import (
    PLAIN,
    By,
    ClusterUsage,
    LedgerOwner,
    UsageRow,
    rows_of,
    take_usage,
)
from metadata.calls import FilesOnDisk
from metadata.jobs import StagedLedger, encode_job_row, staged_key
from metadata.records import encode_record, ledger_key

PAYLOAD = bytes(1000)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(3) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected


async def write(client: Client, count: int = 10) -> int:
    async with client.ledgers.create(3, 3, 3) as ledger:
        await ledger.append_many([PAYLOAD] * count)
    return ledger.id


async def produce(client: Client, topic: str) -> int:
    """Make a topic with one message, and return its ledger."""
    await client.topics.create(topic)
    async with client.producer(topic) as producer:
        sent = await producer.send(PAYLOAD)
    return sent.ledger_id


def held(usage: ClusterUsage, ledger_id: int) -> dict[str, int]:
    (use,) = (use for use in usage.ledgers if use.ledger_id == ledger_id)
    return use.live


def reasons(usage: ClusterUsage) -> dict[str, int]:
    return {row.reason or "": row.size for row in rows_of(usage, "reason")}


async def test_every_copy_of_a_ledger_counts(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await write(client)
    usage = await take_usage(client._context.ledgers, cluster.store)
    assert set(held(usage, ledger_id)) == {"b1", "b2", "b3"}
    assert len(set(held(usage, ledger_id).values())) == 1
    assert all(size > 10 * len(PAYLOAD) for size in held(usage, ledger_id).values())
    assert reasons(usage) == {"live": usage.size}


async def test_it_asks_page_after_page_and_tells_how_far_it_is(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    numbers = [await write(client, 1) for _ in range(7)]
    for bookie in cluster.bookies.values():
        bookie.page_count = 2
    seen: list[int] = []
    usage = await take_usage(client._context.ledgers, cluster.store, on_ledgers=seen.append)
    assert [use.ledger_id for use in usage.ledgers] == numbers
    assert sum(seen) == 4 * len(numbers)


async def test_what_metadata_does_not_give_to_a_bookie_is_unwanted(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    deleted, moved = await write(client), await write(client)
    await client.ledgers.delete(deleted)
    record = cluster.record(moved)
    record.fragments[0].bookies[0] = "b9"
    await cluster.store.put(ledger_key(moved), encode_record(record))
    usage = await take_usage(client._context.ledgers, cluster.store)
    assert {use.ledger_id: len(use.unwanted) for use in usage.ledgers} == {deleted: 3, moved: 1}
    assert [use.owner for use in usage.ledgers] == [None, PLAIN]
    (row,) = (row for row in rows_of(usage, "topic") if row.reason == "unwanted")
    assert (row.ledgers, row.copies) == (1, 3)


async def test_a_ledger_whose_record_cannot_be_read_is_there_to_stay(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """A newer BookKeeper may have written it: its copies must not look like garbage."""
    strange, known = await write(client), await write(client)
    await cluster.store.put(ledger_key(strange), b"unreadable: format version 4")
    usage = await take_usage(client._context.ledgers, cluster.store)
    assert set(held(usage, strange)) == set(held(usage, known)) == {"b1", "b2", "b3"}
    assert reasons(usage) == {"live": usage.size}


async def test_ledgers_are_grouped_by_whose_they_are(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    plain, orders, staged = await write(client), await produce(client, "shop/orders"), 0
    staged = await write(client)
    uid = (await client.topics.info("shop/orders")).uid
    row = StagedLedger(ledger_id=staged, partition=-1)
    await cluster.store.put(staged_key(uid, "job", staged), encode_job_row(row))
    usage = await take_usage(client._context.ledgers, cluster.store)
    owners = {use.ledger_id: use.owner for use in usage.ledgers}
    assert owners[orders] == LedgerOwner("shop/orders", "messages")
    assert (owners[staged], owners[plain]) == (LedgerOwner("shop/orders", "staged"), PLAIN)
    parts = {(row.topic, row.part): row.ledgers for row in rows_of(usage, "topic", "shop/orders")}
    assert parts == {("shop/orders", "messages"): 1, ("shop/orders", "staged"): 1}


async def test_what_is_no_record_is_told_by_its_reason(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await write(client)
    cluster.bookies["b1"].dead = 600
    cluster.bookies["b1"].files = [
        FilesOnDisk("log", 1, 1000, 4096),
        FilesOnDisk("deleted", 1, 1, 512),
        FilesOnDisk("journal", 2, 9, 8192),
        FilesOnDisk("folder", 2, 9, 1024),
        FilesOnDisk("news", 1, 9, 1024),
    ]
    told = reasons(await take_usage(client._context.ledgers, cluster.store))
    del told["live"]
    assert told == {"dead": 600 + 512, "padding": 4096 - 600, "journal": 8192, "other": 2048}


@pytest.mark.parametrize("by", ["topic", "ledger", "reason", "bookie"])
async def test_however_it_is_grouped_the_rows_add_up_to_all_disks(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client, by: By
) -> None:
    await client.ledgers.delete(await write(client))
    await produce(client, "shop/orders")
    await write(client)
    cluster.bookies["b2"].files = [FilesOnDisk("journal", 1, 1, 4096)]
    usage = await take_usage(client._context.ledgers, cluster.store)
    rows = rows_of(usage, by)
    assert sum(row.size for row in rows) == usage.size
    assert all(row.size == row.live + row.unwanted for row in rows if row.reason is None) is (
        by != "bookie"
    )
    of_topic = rows_of(usage, by, "shop/orders")
    assert sum(row.size for row in of_topic) == _live(rows_of(usage, "topic"), "shop/orders")


def _live(rows: list[UsageRow], topic: str) -> int:
    return sum(row.live for row in rows if row.topic == topic)


async def test_a_bookie_that_does_not_answer_is_named(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await write(client)
    cluster.kill("b2")
    usage = await take_usage(client._context.ledgers, cluster.store)
    assert list(usage.silent) == ["b2"]
    assert set(held(usage, ledger_id)) == {"b1", "b3"}
