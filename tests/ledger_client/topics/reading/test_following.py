"""What it costs to follow a lane with traffic, and what is noticed of its ledger meanwhile."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client.errors import MetadataUnavailable
from ledger_client.topics.lanes.ledger_rows import LedgerRows
from ledger_client.topics.reading.source import LOOK_S, UNTOLD_S
from ledger_client.topics.reading.topic_watch import TopicWatch
from metadata.store import Page, Versioned

TOPIC = "shop/orders"
SIZE = 100_000


def counted(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often each key, and each prefix, is read from now on."""
    found: Counter[str] = Counter()
    get, list_ = cluster.store.get, cluster.store.list

    async def counted_get(key: str) -> Versioned | None:
        found[key] += 1
        return await get(key)

    async def counted_list(prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        found[prefix] += 1
        return await list_(prefix, after=after, limit=limit)

    monkeypatch.setattr(cluster.store, "get", counted_get)
    monkeypatch.setattr(cluster.store, "list", counted_list)
    return found


@pytest.mark.parametrize(("is_cut_off", "rows_max"), [(False, 0), (True, 60 / UNTOLD_S)])
async def test_the_store_is_not_asked_about_a_lane_with_traffic_unless_it_cannot_tell_of_changes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_cut_off: bool, rows_max: float
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as theirs, cluster.client() as client:
        await theirs.topics.create(TOPIC)
        async with (
            theirs.producer(TOPIC) as producer,
            client.reader(TOPIC, follow=True) as reader,
        ):
            await producer.send(b"")
            await anext(reader)
            await trio.sleep(10)
            cluster.store.is_cut_off = is_cut_off
            asked = counted(cluster, monkeypatch)
            for _ in range(60):
                await producer.send(b"")
                await anext(reader)
                await trio.sleep(1)
            rows = {key: times for key, times in asked.items() if "lane" in key}
            assert sum(rows.values()) <= rows_max
            assert is_cut_off is bool(rows)


@pytest.mark.parametrize(
    ("follow", "is_cut_off", "hints", "wait_s"),
    [
        (True, False, True, 2),
        (True, True, False, UNTOLD_S + 2),
        (True, False, False, LOOK_S + 2),
        (False, False, False, 2),
    ],
)
async def test_what_is_deleted_of_a_ledger_that_is_being_read_is_not_read_any_more(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    follow: bool,
    is_cut_off: bool,
    hints: bool,
    wait_s: float,
) -> None:
    """Who follows is told, or looks by itself if the store is cut off; others look all the time."""
    if not hints:
        monkeypatch.setattr(TopicWatch, "notify", lambda *_: None)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.store.is_cut_off = is_cut_off
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC, batching=False) as producer:
            sent = [b"%d" % number + bytes(SIZE) for number in range(240)]
            ids = [await producer.send(each) for each in sent]
            async with client.reader(TOPIC, follow=follow, read_ahead_size=2 * SIZE) as reader:
                assert (await anext(reader)).id == ids[0]
                await trio.sleep(5)
                found = [(await anext(reader)).id for _ in range(40)]
                await producer.close()
                await client.topics.delete_messages(TOPIC, ids[200], ids[238])
                await trio.sleep(wait_s)
                found += [(await anext(reader)).id for _ in range(160)]
        assert found == [*ids[1:200], ids[239]]


async def test_a_look_that_a_store_did_not_answer_is_made_up_for_while_it_cannot_tell(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    async def away(_rows: LedgerRows, _number: int) -> None:
        asked.append(trio.current_time())
        raise MetadataUnavailable("the store is away")

    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        async with (
            client.producer(TOPIC) as producer,
            client.reader(TOPIC, follow=True) as reader,
        ):
            await producer.send(b"")
            await anext(reader)
            await trio.sleep(5)
            cluster.store.is_cut_off = True
            monkeypatch.setattr(LedgerRows, "at", away)
            for _ in range(60):
                await producer.send(b"")
                await anext(reader)
                await trio.sleep(0.5)
        first, *later = asked
        assert first <= later[0] - 1
        assert len(later) >= 8, "each second, once one was not answered"


async def test_a_store_that_hangs_holds_up_a_reader_ever_more_seldom(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    async def hangs(_rows: LedgerRows, _number: int) -> None:
        asked.append(trio.current_time())
        await trio.sleep_forever()

    async def away(_rows: LedgerRows, _number: int) -> None:
        asked.append(trio.current_time())
        raise MetadataUnavailable("the store is away")

    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        async with (
            client.producer(TOPIC) as producer,
            client.reader(TOPIC, follow=True) as reader,
        ):
            await producer.send(b"")
            await anext(reader)
            cluster.store.is_cut_off = True
            await trio.sleep(UNTOLD_S)
            with monkeypatch.context() as outage:
                outage.setattr(LedgerRows, "at", hangs)
                for _ in range(600):
                    await producer.send(b"")
                    await anext(reader)
                    await trio.sleep(0.1)
            pauses = [later - earlier for earlier, later in pairwise(asked)]
            assert pauses[0] < 4
            assert min(pauses[4:]) > UNTOLD_S
            asked.clear()
            monkeypatch.setattr(LedgerRows, "at", away)
            for _ in range(60):
                await producer.send(b"")
                await anext(reader)
                await trio.sleep(0.5)
            assert len(asked) > 10, "each second, as that takes no time"


async def test_a_look_that_the_store_did_not_answer_is_made_up_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_rows: LedgerRows, _number: int) -> None:
        raise MetadataUnavailable("the store is away")

    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC, batching=False) as producer:
            sent = [b"%d" % number + bytes(SIZE) for number in range(300)]
            ids = [await producer.send(each) for each in sent]
        async with client.reader(TOPIC, follow=True, read_ahead_size=2 * SIZE) as reader:
            assert (await anext(reader)).id == ids[0]
            await trio.sleep(5)
            await client.topics.delete_messages(TOPIC, ids[260], ids[298])
            with monkeypatch.context() as outage:
                outage.setattr(LedgerRows, "at", away)
                await trio.sleep(2)
                found = [(await anext(reader)).id for _ in range(80)]
            await trio.sleep(2)
            found += [(await anext(reader)).id for _ in range(180)]
        assert found == [*ids[1:260], ids[299]]
