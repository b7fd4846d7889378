"""What readers get of open ledgers, as totals show it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client, Options
from ledger_client.ledgers.reader import BatchReads, LedgerReader
from ledger_client.topics.retention import open_ledgers
from ledger_client.topics.retention.explanation import LedgerTotals
from metadata.topics import RollPolicy

TOPIC = "shop/orders"


@asynccontextmanager
async def filled(
    client: Client, *counts: int, size: int = 20, **settings: int
) -> AsyncIterator[None]:
    """For the block, a writer that sent batches of so many messages of *size* bytes."""
    await client.topics.create(TOPIC, roll=RollPolicy(age_s=0, size=1 << 40))
    async with client.producer(TOPIC, batch_messages=1000) as producer:
        for count in counts:
            await producer.send_many([b"x" * size] * count)
        await trio.sleep(1)
        yield


@pytest.mark.parametrize("batches", [[1], [3, 4], [1] * 999, [1] * 1000, [1] * 1001, [2] * 1500])
async def test_messages_of_open_ledgers_are_counted(
    autojump_clock: MockClock, batches: list[int]
) -> None:
    """As the ledger's row does once it is closed, byte by byte."""
    async with memory_cluster() as cluster, cluster.client() as ours, cluster.client() as theirs:
        async with filled(ours, *batches):
            while_open = (await theirs.topics.explain(TOPIC)).extent
            assert (while_open.open_ledgers, while_open.open_messages) == (1, sum(batches))
            assert not while_open.is_estimate
            await theirs.topics.roll(TOPIC)
            (lane,) = (await theirs.topics.explain(TOPIC)).lanes
            closed = lane.ledgers[0].ledger
        assert closed.state == "closed"
        assert (while_open.entries, while_open.messages, while_open.size) == (
            closed.entries,
            closed.messages,
            closed.size,
        )


async def test_large_batches_are_estimated_from_the_last_ones(autojump_clock: MockClock) -> None:
    batches = [10] * 30
    async with memory_cluster() as cluster, cluster.client() as client:
        async with filled(client, *batches, size=4000):
            (lane,) = (await client.topics.explain(TOPIC)).lanes
        assert lane.extent.is_estimate
        assert lane.extent.messages == pytest.approx(300, rel=0.1)
        assert lane.confirmed is not None
        assert lane.confirmed.entries == 31
        assert lane.extent.size > 300 * 4000


async def test_one_large_batch_is_counted(autojump_clock: MockClock) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        async with filled(client, 1000, size=300):
            extent = (await client.topics.explain(TOPIC)).extent
        assert (extent.messages, extent.is_estimate) == (1000, False)


@pytest.mark.parametrize("batches", [30, 1200])
async def test_a_small_last_batch_does_not_stand_for_large_ones_before_it(
    batches: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in what is read nor in what is estimated."""
    read_batches, asked = LedgerReader.read_batches, list[int]()

    def read(reader: LedgerReader, first: int, last: int) -> BatchReads:
        asked.append(last - first + 1)
        return read_batches(reader, first, last)

    async with memory_cluster() as cluster, cluster.client() as client:
        async with filled(client, *[2] * 100, *[10] * batches, 1, size=4000):
            monkeypatch.setattr(LedgerReader, "read_batches", read)
            extent = (await client.topics.explain(TOPIC)).extent
        messages = 200 + 10 * batches + 1
        assert extent.size > messages * 4000
        if extent.is_estimate:
            assert extent.messages == pytest.approx(messages, rel=0.1)
        else:
            assert extent.messages == messages
        assert 1 < sum(asked) <= 2 * open_ledgers.TAIL_SIZE_MAX / 40_000


async def test_nobody_is_fenced_and_nothing_is_asked_for_without_open_ledgers(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        async with filled(client, 5):
            await client.topics.explain(TOPIC)
            (lane,) = await client.topics.lanes(TOPIC)
            assert (lane.epoch, lane.extent.messages) == (1, 5)
            assert lane.owner is not None
            without = (await client.topics.explain(TOPIC, count_open=False)).extent
            assert (without.messages, without.open_ledgers, without.uncounted) == (0, 1, 1)
        dialled = [*cluster.dialled]
        assert (await client.topics.explain(TOPIC)).extent.messages == 5
        assert cluster.dialled == dialled


async def test_lanes_whose_bookies_are_away_are_left_out_and_known(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(2) as cluster, cluster.client() as ours, cluster.client() as theirs:
        await ours.topics.create(TOPIC, 8, replication=1)
        async with ours.producer(TOPIC) as producer:
            for partition in range(8):
                await producer.send(b"x", partition=partition)
            await trio.sleep(1)
            lanes = (await ours.topics.explain(TOPIC)).lanes
            away = [home(cluster, lane.ledgers[0].ledger.ledger_id) == "b1" for lane in lanes]
            assert 0 < sum(away) < 8
            cluster.kill("b1")
            found = await theirs.topics.explain(TOPIC)
            assert [lane.extent.uncounted for lane in found.lanes] == [int(each) for each in away]
            assert [lane.confirmed is None for lane in found.lanes] == away
            assert (found.extent.messages, found.extent.uncounted) == (8 - sum(away), sum(away))
            cluster.revive("b1")


async def test_a_bookie_that_hangs_hides_no_other_lane(autojump_clock: MockClock) -> None:
    """However many of its ledgers are asked for, the answer comes in time."""
    options = Options(request_timeout_s=60.0, read_timeout_s=60.0)
    async with memory_cluster(2) as cluster, cluster.client() as ours:
        await ours.topics.create(TOPIC, 8, replication=1)
        async with ours.producer(TOPIC) as producer, cluster.client(options) as theirs:
            for partition in range(8):
                await producer.send(b"x", partition=partition)
            await trio.sleep(1)
            cluster.stalled["b1"] = trio.Event()
            began = trio.current_time()
            found = await theirs.topics.explain(TOPIC)
            assert trio.current_time() - began <= open_ledgers.LIMIT_S
            here = [home(cluster, lane.ledgers[0].ledger.ledger_id) == "b2" for lane in found.lanes]
            assert [lane.extent.messages for lane in found.lanes] == [int(each) for each in here]
            assert found.extent.uncounted == 8 - sum(here)
            cluster.stalled.pop("b1").set()


def home(cluster: MemoryCluster, ledger_id: int) -> str:
    (bookie,) = cluster.record(ledger_id).fragments[0].bookies
    return bookie


def test_totals_without_questions_say_that_open_ledgers_are_not_counted() -> None:
    assert LedgerTotals.of([]) == LedgerTotals()
