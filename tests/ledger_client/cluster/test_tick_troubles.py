"""Ticks while rows are damaged, ledgers are gone, and reports come that nobody should send."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from memory_store import MemoryStore
from replaced import replaced
from trio.testing import MockClock

from ledger_client import Client, Timestamp
from ledger_client.cluster import ticking
from ledger_client.errors import MetadataUnavailable, NoSuchTopic
from ledger_client.topics import tick_log
from ledger_client.topics.context import TopicContext
from ledger_client.topics.cuts import places_at
from ledger_client.topics.reading.consistency import visible
from ledger_client.topics.tick_follower import TickFollower, tick_rows, was_opened
from ledger_client.topics.ticks import Tick
from metadata.records import ledger_key
from metadata.store import Delete, Page, Put
from metadata.time.calls import LaneReport, LanesNoted, ReportLanes
from metadata.time.tick_rows import LANES_OF_TOPIC, TIME_DDL, lanes_of_topic_key
from metadata.topics import LANE_LEDGERS, TopicRecord, lane_key

ORDERS, RETURNS, VISITS = "shop/orders", "shop/returns", "shop/visits"


class Shop:
    """A cluster with two topics."""

    def __init__(self, cluster: MemoryCluster, client: Client, context: TopicContext) -> None:
        self.cluster = cluster
        self.client = client
        self.context = context
        self.leader = cluster.lead("b1", has_ticks=True)

    async def topic(self, name: str = ORDERS) -> TopicRecord:
        return (await self.context.catalogue.get(name))[0]

    async def now(self) -> int:
        return (await self.context.timestamps.allocate()).first

    async def newest(self, name: str = ORDERS, *, limit_s: float = 20) -> Tick:
        """Wait for a tick that is later than now."""
        follower = TickFollower(self.context, await self.topic(name))
        return await follower.newest(await self.now(), limit_s=limit_s)

    async def read(self, name: str = ORDERS) -> list[bytes]:
        async with self.client.reader(name, order="timestamp") as reader:
            return [message.value or b"" async for message in reader]


@asynccontextmanager
async def shop() -> AsyncIterator[Shop]:
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        cluster.context() as context,
    ):
        made = Shop(cluster, client, context)
        for name in (ORDERS, RETURNS):
            await client.topics.create(name, timesync=True)
        yield made


@pytest.mark.parametrize("which", ["lanes", "lane"])
async def test_a_damaged_row_holds_the_ticks_of_its_topic_alone(
    autojump_clock: MockClock, which: str
) -> None:
    async with shop() as shop_:
        async with shop_.client.producer(ORDERS) as producer:
            await producer.send(b"one")
        uid = (await shop_.topic()).uid
        key = lanes_of_topic_key(uid) if which == "lanes" else lane_key(uid, -1, 0)
        sound = shop_.cluster.store.values[key].value
        await shop_.context.store.transact([Put(key, b"{")])
        shop_.leader.cancel()
        shop_.cluster.lead("b2", has_ticks=True)
        async with shop_.client.producer(RETURNS) as producer:
            await producer.send(b"other")
            await shop_.newest(RETURNS)
        with pytest.raises(MetadataUnavailable, match=r"no newer tick|has no tick"):
            await shop_.newest(limit_s=5)
        await shop_.context.store.transact([Put(key, sound)])
        async with shop_.client.producer(ORDERS) as producer:
            await producer.send(b"two")
            await shop_.newest()
        assert await shop_.read() == [b"one", b"two"]


async def test_leases_and_rows_that_name_no_topic_hold_nothing(
    autojump_clock: MockClock,
) -> None:
    async with shop() as shop_, shop_.client.producer(ORDERS) as producer:
        for name in ("", "x", "x/y", "-1/y"):
            await shop_.context.ledgers.session.grant(f"{TIME_DDL}{name}", value=b"")
            await shop_.context.store.transact([Put(f"{LANES_OF_TOPIC}{name}z", b"{}")])
        await producer.send(b"one")
        await shop_.newest()


async def test_ticks_go_on_after_an_operator_deleted_a_tick_ledger(
    autojump_clock: MockClock,
) -> None:
    async with shop() as shop_:
        async with shop_.client.producer(ORDERS) as producer:
            await producer.send(b"one")
            await shop_.newest()
        shop_.leader.cancel()
        rows = await tick_rows(shop_.context, (await shop_.topic()).uid)
        await shop_.context.store.transact([Delete(ledger_key(rows[-1][1].ledger_id))])
        shop_.cluster.lead("b2", has_ticks=True)
        async with shop_.client.producer(ORDERS) as producer:
            await producer.send(b"two")
            await shop_.newest()
        with trio.fail_after(60):
            assert await shop_.read() == [b"one", b"two"]


async def test_a_report_of_an_epoch_that_never_was_holds_nothing(
    autojump_clock: MockClock,
) -> None:
    async with shop() as shop_, shop_.client.producer(ORDERS) as producer:
        await producer.send(b"one")
        await shop_.newest()
        uid = (await shop_.topic()).uid
        bad = LaneReport(uid, -1, 0, (1 << 63) - 1, 1, 0)
        await shop_.context.leader.ask(ReportLanes([bad]), LanesNoted, timeout_s=3)
        await producer.send(b"two")
        await shop_.newest()


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_a_deleted_topic_is_not_taken_for_one_without_messages(
    autojump_clock: MockClock, is_made_again: bool
) -> None:
    """A read that began before would end at once, as if it had seen everything."""
    async with shop() as shop_:
        async with shop_.client.producer(ORDERS) as producer:
            await producer.send(b"one")
        topic = await shop_.topic()
        assert await was_opened(shop_.context, topic)
        assert not await was_opened(shop_.context, await shop_.topic(RETURNS))
        await shop_.client.topics.delete(ORDERS)
        if is_made_again:
            await shop_.client.topics.create(ORDERS, timesync=True)
        with pytest.raises(NoSuchTopic):
            await visible(shop_.context, [topic], "strong", staleness_s=0)
        with pytest.raises(NoSuchTopic):
            await places_at(shop_.context, [topic], Timestamp(1 << 18))


async def test_ticks_go_on_while_the_store_takes_long_to_say_which_of_them_are_old(
    autojump_clock: MockClock,
) -> None:
    """The leader asks about each lane, once there is a ledger of ticks that may go.

    It does not give up after the time for one tick.
    """
    list_now, looks = MemoryStore.list, list[str]()

    async def list_slowly(
        store: MemoryStore, prefix: str, *, after: str = "", limit: int = 1000
    ) -> Page:
        if prefix.startswith(LANE_LEDGERS) and limit == 1:
            looks.append(prefix)
            await trio.sleep(5)
        return await list_now(store, prefix, after=after, limit=limit)

    with (
        replaced(tick_log, "ROLL_ENTRIES", 20),
        replaced(ticking, "TRIM_S", 10),
        replaced(MemoryStore, "list", list_slowly),
    ):
        async with shop() as made:
            await made.client.topics.create(VISITS, 4, timesync=True)
            uid, waits, counts = (await made.topic(VISITS)).uid, list[float](), list[int]()
            async with made.client.producer(VISITS, partition=0) as producer:
                await producer.send(b"")
                await trio.sleep(30)
            assert not looks
            for _ in range(3):
                async with made.client.producer(VISITS) as producer:
                    for number in range(32):
                        await producer.send(b"", partition=number % 4)
                        began = trio.current_time()
                        await made.newest(VISITS)
                        waits.append(trio.current_time() - began)
                        await trio.sleep(0.25)
                await made.client.topics.purge(VISITS)
                counts.append(len(await tick_rows(made.context, uid)))
            assert max(waits) < 1
            await trio.sleep(45)
            assert len(await tick_rows(made.context, uid)) == 1 < max(counts)
        assert looks
