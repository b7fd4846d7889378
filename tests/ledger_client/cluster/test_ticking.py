"""The service of ticks, with bookies and a store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import trio
from memory_cluster import MemoryCluster, memory_cluster
from memory_store import MemoryStore
from msgspec.json import encode
from replaced import replaced
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.ticking import TimedLanes
from ledger_client.topics.context import TopicContext
from ledger_client.topics.lanes.lane_state import SealedBatch
from ledger_client.topics.lanes.lane_writer import LaneWriter
from ledger_client.topics.producing.partition_writer import PartitionWriter
from ledger_client.topics.tick_follower import TickFollower, tick_rows
from ledger_client.topics.tick_log import tick_lag
from ledger_client.topics.ticks import Tick
from metadata.records import LEDGERS, parse_ledger_key
from metadata.sessions import SESSION_S
from metadata.store import ABSENT, Check, Op, Put, Versioned
from metadata.time.tick_rows import LANES_OF_TOPIC, TICKS, TIME_LANES, TimedTopic
from metadata.topics import LaneLedger, LaneRecord, TopicRecord, lane_key, lane_ledger_key

ORDERS = "shop/orders"


async def nothing(*_: object) -> None:
    """Stands for work that a process that was killed does not do."""


class Shop:
    """A cluster with one topic, and a client that follows its ticks."""

    def __init__(self, cluster: MemoryCluster, client: Client, context: TopicContext) -> None:
        self.cluster = cluster
        self.client = client
        self.context = context
        self.leader = cluster.lead("b1", has_ticks=True)

    async def topic(self) -> TopicRecord:
        return (await self.context.catalogue.get(ORDERS))[0]

    async def follower(self, *, after: int = 0) -> TickFollower:
        return TickFollower(self.context, await self.topic(), after=after)

    async def now(self) -> int:
        return (await self.context.timestamps.allocate()).first

    async def check(self, tick: Tick) -> int:
        """Check a tick against all messages; return how many it has."""
        count = 0
        async with self.client.reader(ORDERS) as reader:
            async for message in reader:
                if message.timestamp <= tick.timestamp:
                    cover = tick.covers[message.id.partition, message.lane]
                    assert message.version < cover
                    count += 1
        return count


@asynccontextmanager
async def shop(partitions: int = 0, **settings: object) -> AsyncIterator[Shop]:
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        cluster.context() as context,
    ):
        made = Shop(cluster, client, context)
        await client.topics.create(ORDERS, partitions, timesync=True, **settings)  # type: ignore[arg-type]
        yield made


async def test_a_tick_follows_messages_and_covers_them(autojump_clock: MockClock) -> None:
    """MV-19, MV-20: one sequence of stored ticks for each topic."""
    async with shop(2) as shop_, shop_.client.producer(ORDERS) as producer:
        for number in range(20):
            await producer.send(b"%d" % number, key=b"%d" % number)
        ticks = await shop_.follower()
        newest = await ticks.newest(await shop_.now())
        assert await shop_.check(newest) == 20
        found: list[Tick] = []
        while not found or found[-1].timestamp < newest.stored:
            found += await ticks.read()
        assert found[-1].covers == newest.covers
        assert [t.timestamp for t in found] == sorted({t.timestamp for t in found})
        for tick in found:
            await shop_.check(tick)


async def test_a_topic_at_rest_stores_no_ticks_and_its_ticks_go_on(
    autojump_clock: MockClock,
) -> None:
    """MV-45: idle ticks are in the leader's memory alone."""
    async with shop() as shop_, shop_.client.producer(ORDERS) as producer:
        await producer.send(b"one")
        ticks = await shop_.follower()
        first = await ticks.newest(await shop_.now())
        await trio.sleep(2)
        one = await ticks.newest(await shop_.now())
        await trio.sleep(5)
        other = await ticks.newest(await shop_.now())
        assert first.timestamp < one.timestamp < other.timestamp
        assert other.stored == one.stored < one.timestamp
        assert other.covers == one.covers == {(-1, 0): 2}


async def test_lanes_that_open_all_the_time_do_not_hold_ticks_back(
    autojump_clock: MockClock,
) -> None:
    """Another one opens before each look whether they are as they were read."""
    async with shop() as shop_, shop_.client.producer(ORDERS) as producer:
        await producer.send(b"one")
        ticks = await shop_.follower()
        store = shop_.cluster.store
        make = store.transact

        async def open_one_first(ops: Sequence[Op]) -> list[int]:
            if any(isinstance(op, Check) and op.key == TIME_LANES for op in ops):
                await store.put(TIME_LANES, encode(TimedTopic(ORDERS)))
            return await make(ops)

        with replaced(store, "transact", open_one_first), trio.fail_after(5):
            for _ in range(5):
                await ticks.newest(await shop_.now())


async def test_a_new_leader_goes_on_above_the_ticks_that_the_former_one_stored(
    autojump_clock: MockClock,
) -> None:
    """MV-43: in a ledger of its own, once the last one is recovered."""
    async with shop() as shop_, shop_.client.producer(ORDERS) as producer:
        ticks = await shop_.follower()
        made: list[Tick] = []
        for name in ("b2", "b3"):
            for number in range(5):
                await producer.send(b"%d" % number)
                made.append(await ticks.newest(await shop_.now()))
            shop_.leader.cancel()
            shop_.leader = shop_.cluster.lead(name, has_ticks=True)
        await producer.send(b"last")
        made.append(await ticks.newest(await shop_.now()))
        found: list[Tick] = []
        while not found or found[-1].timestamp < made[-1].stored:
            found += await ticks.read()
        assert [t.timestamp for t in found] == sorted({t.timestamp for t in found})
        assert {t.stored for t in made} <= {t.timestamp for t in found}
        for tick in made:
            assert await shop_.check(tick)
        rows = await tick_rows(shop_.context, (await shop_.topic()).uid)
        assert [number for number, _ in rows] == [0, 1, 2]
        again = await (await shop_.follower(after=found[4].timestamp)).read()
        assert again == found[5 : 5 + len(again)]


async def test_a_producer_that_is_held_up_holds_ticks_back_and_its_messages_come_under_later_ones(
    autojump_clock: MockClock,
) -> None:
    """MV-20, MV-39: a message that is stamped and not acknowledged is above every tick."""
    async with (
        shop(2) as shop_,
        shop_.client.producer(ORDERS, partition=0) as slow,
        shop_.client.producer(ORDERS, partition=1) as quick,
    ):
        await slow.send(b"slow")
        ticks = await shop_.follower()
        await quick.send(b"quick")
        await ticks.newest(await shop_.now())
        gate, append = trio.Event(), LaneWriter.append

        async def append_later(
            lane: LaneWriter, batches: Sequence[SealedBatch]
        ) -> list[tuple[int, int]]:
            await gate.wait()
            return await append(lane, batches)

        with replaced(LaneWriter, "append", append_later):
            ticket = slow.send_nowait(b"held")
            await trio.sleep(1)
        await quick.send(b"quick")
        held = (await ticks.newest()).timestamp
        await trio.sleep(1)
        assert (await ticks.newest()).timestamp == held
        lag = await tick_lag(shop_.context, await shop_.topic())
        assert (lag.timestamp, lag.holder) == (held, "lane 0 of partition 0")
        gate.set()
        await ticket.message_id()
        assert await shop_.check(await ticks.newest(await shop_.now())) == 4


async def test_the_lane_of_a_dead_producer_is_closed_and_ticks_go_on(
    autojump_clock: MockClock,
) -> None:
    """MV-36: within its lease and 3 s."""
    async with shop() as shop_:
        ticks = await shop_.follower()
        with replaced(LaneWriter, "close", nothing), replaced(LaneWriter, "abort", nothing):
            async with trio.open_nursery() as nursery:
                sent = trio.Event()

                async def produce() -> None:
                    async with shop_.client.producer(ORDERS) as producer:
                        await producer.send(b"one")
                        sent.set()
                        await trio.sleep_forever()

                nursery.start_soon(produce)
                await sent.wait()
                await ticks.newest(await shop_.now())
                nursery.cancel_scope.cancel()
        died = trio.current_time()
        newest = await ticks.newest(await shop_.now())
        assert trio.current_time() - died < SESSION_S + 3
        assert await shop_.check(newest) == 1


async def test_the_ticks_of_a_deleted_topic_go_with_it(autojump_clock: MockClock) -> None:
    """Rows and ledgers go, and a follower ends."""
    async with shop() as shop_:
        ticks = await shop_.follower()
        async with shop_.client.producer(ORDERS) as producer:
            await producer.send(b"one")
            await ticks.newest(await shop_.now())
        await shop_.client.topics.delete(ORDERS)
        while await ticks.read():
            pass
        await trio.sleep(5)
        store = shop_.cluster.store
        rows = [key for key in store.values if key.startswith((TICKS, LANES_OF_TOPIC))]
        records = [
            shop_.cluster.record(parse_ledger_key(k)) for k in store.values if k.startswith(LEDGERS)
        ]
        left = [record.custom for record in records if ORDERS in record.custom.values()]
        assert rows == []
        assert left == []


class TurningStore(MemoryStore):
    """A store in which a lane goes on in its next ledger while its row is read."""

    async def get(self, key: str) -> Versioned | None:
        if key == lane_ledger_key(7, 0, 0, 0):
            await self.put_lane(1, 19)
        return await super().get(key)

    async def put_lane(self, current: int, base_version: int) -> None:
        """Let the ledger *current* be the open one of the lane."""
        record = LaneRecord(epoch=1, current=current, next_version=base_version)
        await self._put(lane_key(7, 0, 0), record)
        for number in range(current + 1):
            state: Literal["open", "closed"] = "open" if number == current else "closed"
            row = LaneLedger(ledger_id=number, state=state, base_version=base_version)
            await self._put(lane_ledger_key(7, 0, 0, number), row)

    async def _put(self, key: str, record: LaneRecord | LaneLedger) -> None:
        found = await super().get(key)
        version = ABSENT if found is None else found.version
        await self.transact([Put(key, encode(record), version)])


async def test_a_lane_that_turns_to_its_next_ledger_while_it_is_read_is_open_still() -> None:
    """Its messages would come after ticks that say that it ends at its former ledger."""
    store = TurningStore()
    await store.put_lane(0, 15)
    lanes = TimedLanes(7, ORDERS)
    await lanes.read(store)
    assert lanes.views[0, 0].is_open


async def test_a_topic_at_rest_wakes_when_a_lane_opens_and_its_ticks_still_rise(
    autojump_clock: MockClock,
) -> None:
    async with shop() as shop_:
        timekeeper = shop_.cluster.bookies["b1"].timekeeper
        assert timekeeper is not None
        desk = timekeeper.desk
        ticks = await shop_.follower()
        newest = 0
        for number in range(3):
            async with shop_.client.producer(ORDERS) as producer:
                await producer.send(b"%d" % number)
                tick = await ticks.newest(await shop_.now())
                assert not desk.at_rest
            assert tick.timestamp > newest
            assert await shop_.check(tick) == number + 1
            await trio.sleep(5)
            assert desk.at_rest == {(await shop_.topic()).uid}
            rested = await ticks.newest(await shop_.now())
            assert rested.timestamp == desk.moment > tick.timestamp
            assert await shop_.check(rested) == number + 1
            newest = rested.timestamp


async def test_the_ticks_of_a_topic_that_wakes_do_not_go_back(autojump_clock: MockClock) -> None:
    """The first report of its new lane is from before the last tick at rest."""
    async with shop() as shop_:
        ticks = await shop_.follower()
        async with shop_.client.producer(ORDERS) as producer:
            await producer.send(b"one")
        old = await shop_.now()
        await trio.sleep(5)
        report = PartitionWriter.report
        with replaced(PartitionWriter, "report", lambda writer, _fresh: report(writer, old)):
            rested = await ticks.newest(await shop_.now())
            async with shop_.client.producer(ORDERS) as producer:
                await producer.send(b"two")
                for _ in range(20):
                    assert (await ticks.newest()).timestamp >= rested.timestamp
                    await trio.sleep(0.1)
