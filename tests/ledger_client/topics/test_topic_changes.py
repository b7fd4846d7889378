"""Changes of topics with timesync: they have timestamps, and hold ticks back while under way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec
import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from replaced import replaced
from trio.testing import MockClock

from ledger_client import Client, MetadataUnavailable, Options, TopicEvent
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.tick_follower import TickFollower
from ledger_client.topics.tick_log import tick_lag
from metadata.sessions import GONE_S, HeldLease, ProcessSession
from metadata.store import Put
from metadata.time.tick_rows import TIME_DDL, TickHold

ORDERS = "shop/orders"


class Shop:
    """A cluster with one topic that is written, and a client that follows its ticks."""

    def __init__(self, cluster: MemoryCluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client

    async def follower(self) -> TickFollower:
        context = self.client._context
        return TickFollower(context, (await context.catalogue.get(ORDERS))[0])

    async def now(self) -> int:
        return (await self.client.timestamps.allocate()).first


@asynccontextmanager
async def shop(*, is_at_rest: bool = False) -> AsyncIterator[Shop]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1", has_ticks=True)
        await client.topics.create(ORDERS, 2, timesync=True)
        async with client.producer(ORDERS) as producer:
            await producer.send(b"one", partition=0)
            if not is_at_rest:
                yield Shop(cluster, client)
        if is_at_rest:
            await trio.sleep(5)
            yield Shop(cluster, client)


class Halt:
    """Lets changes of topics wait before their last step, which makes them visible."""

    def __init__(self) -> None:
        self.began = trio.Event()
        self.may_go_on = trio.Event()


@contextmanager
def halted() -> Iterator[Halt]:
    halt, change = Halt(), TopicCatalogue._change

    async def wait(catalogue: TopicCatalogue, *args: object, **named: object) -> bool:
        halt.began.set()
        await halt.may_go_on.wait()
        return await change(catalogue, *args, **named)  # type: ignore[arg-type]

    with replaced(TopicCatalogue, "_change", wait):
        yield halt


async def no_release(_held: HeldLease) -> None:
    """Stands for what a process that was killed does not do."""


async def no_end(_session: ProcessSession) -> None:
    """The same, of its session."""


async def test_each_change_has_a_timestamp_in_the_record_and_in_its_event(
    autojump_clock: MockClock,
) -> None:
    """MV-02, MV-03, MV-07: of the oracle, later than all before it."""
    async with shop() as shop_:
        topics, times = shop_.client.topics, [await shop_.now()]
        created = await topics.create("shop/refunds", 1, timesync=True)
        times += [created.created_timestamp, await shop_.now()]
        altered = await topics.alter("shop/refunds", partitions=2)
        times += [altered.altered_timestamp, await shop_.now()]
        again = await topics.alter("shop/refunds", compression="zstd")
        times += [again.altered_timestamp, await shop_.now()]
        assert again.created_timestamp == created.created_timestamp
        assert altered.deleted_timestamp == 0
        await topics.delete("shop/refunds")
        async with shop_.client.consumer(
            namespace="shop", group="all", start="earliest", with_meta=True
        ) as consumer:
            events: list[TopicEvent] = []
            while len(events) < 5:
                found = await consumer.poll(wait_s=5)
                events += [each for each in found if isinstance(each, TopicEvent)]
        told = [each.changed_at for each in events if each.record.name == "shop/refunds"]
        assert told[:3] == times[1::2]
        assert times == sorted(set(times))
        assert times[-1] < told[3] < await shop_.now()


async def test_a_topic_that_is_being_deleted_keeps_the_timestamp_of_that(
    autojump_clock: MockClock,
) -> None:
    async with shop() as shop_:
        catalogue, before = shop_.client._context.catalogue, await shop_.now()
        await catalogue.mark_deleting(ORDERS)
        found = await catalogue.find(ORDERS)
        assert found is not None
        assert found[0].state == "deleting"
        assert before < found[0].deleted_timestamp < await shop_.now()


async def test_topics_without_timesync_have_no_timestamps_and_hold_nothing(
    autojump_clock: MockClock,
) -> None:
    """They need no oracle, and cost no transaction more."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create("shop/plain", 1)
        altered = await client.topics.alter("shop/plain", partitions=2)
        assert (altered.created_timestamp, altered.altered_timestamp) == (0, 0)
        await client.topics.delete("shop/plain")


@pytest.mark.parametrize("is_at_rest", [False, True])
@pytest.mark.parametrize("is_deletion", [False, True])
async def test_ticks_stay_below_a_change_until_it_shows(
    autojump_clock: MockClock, is_deletion: bool, is_at_rest: bool
) -> None:
    """MV-38: whoever has read a tick has seen all changes up to it."""
    async with shop(is_at_rest=is_at_rest) as shop_, shop_.cluster.client() as other:
        ticks = await shop_.follower()
        with halted() as halt:
            async with trio.open_nursery() as nursery:
                if is_deletion:
                    nursery.start_soon(other._context.catalogue.mark_deleting, ORDERS)
                else:
                    nursery.start_soon(lambda: other.topics.alter(ORDERS, partitions=3))
                await halt.began.wait()
                taken = await shop_.now()
                await trio.sleep(5)
                held = await ticks.newest()
                topic = (await shop_.client._context.catalogue.get(ORDERS))[0]
                lag = await tick_lag(shop_.client._context, topic)
                assert lag.holder.endswith("deleted" if is_deletion else "altered")
                halt.may_go_on.set()
        found = await shop_.client._context.catalogue.find(ORDERS)
        assert found is not None
        changed = max(found[0].deleted_timestamp, found[0].altered_timestamp)
        assert held.timestamp < changed < taken
        if not is_deletion:
            await ticks.newest(await shop_.now())


async def test_messages_before_a_change_are_released_while_it_is_under_way(
    autojump_clock: MockClock,
) -> None:
    async with shop() as shop_, shop_.cluster.client() as other:
        ticks = await shop_.follower()
        async with shop_.client.producer(ORDERS, partition=1) as producer:
            await producer.send(b"before")
            sent = await shop_.now()
            with halted() as halt:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(lambda: other.topics.alter(ORDERS, partitions=3))
                    await halt.began.wait()
                    assert (await ticks.newest(sent)).covers[1, 0] == 2
                    halt.may_go_on.set()


async def test_what_is_sent_to_partitions_that_an_alteration_adds_is_later_than_it(
    autojump_clock: MockClock,
) -> None:
    """MV-03, MV-38: so a tick that has it has the alteration."""
    async with shop() as shop_:
        altered = await shop_.client.topics.alter(ORDERS, partitions=3)
        async with shop_.client.producer(ORDERS, partition=2) as producer:
            await producer.send(b"new")
        ticks = await shop_.follower()
        newest = await ticks.newest(await shop_.now())
        async with shop_.client.reader(ORDERS, partitions=[2]) as reader:
            (message,) = [each async for each in reader]
        assert altered.altered_timestamp < message.timestamp <= newest.timestamp


async def test_the_first_tick_of_a_topic_is_later_than_its_creation(
    autojump_clock: MockClock,
) -> None:
    """MV-38: it has no ticks before it has lanes, and nobody opens lanes before it shows."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1", has_ticks=True)
        await client.topics.create("shop/first", timesync=True)
        async with client.producer("shop/first") as first:
            await first.send(b"a")  # ticks are made of other topics meanwhile
            created = await client.topics.create(ORDERS, timesync=True)
            async with client.producer(ORDERS) as producer:
                await producer.send(b"b")
                ticks = await TickFollower(client._context, created).read()
        assert ticks[0].timestamp >= created.created_timestamp > 0


async def test_a_change_whose_client_was_killed_holds_ticks_until_its_session_ends(
    autojump_clock: MockClock,
) -> None:
    """MV-38: and its change never shows."""
    async with shop() as shop_:
        ticks = await shop_.follower()
        with (
            halted() as halt,
            replaced(HeldLease, "release", no_release),
            replaced(ProcessSession, "aclose", no_end),
        ):
            async with shop_.cluster.client() as other, trio.open_nursery() as nursery:
                nursery.start_soon(lambda: other.topics.alter(ORDERS, partitions=3))
                await halt.began.wait()
                nursery.cancel_scope.cancel()
        killed_at, now = trio.current_time(), await shop_.now()
        await trio.sleep(3)
        assert (await ticks.newest()).timestamp < now
        while True:
            with trio.move_on_after(1):
                await ticks.newest(now)
                break
        assert trio.current_time() - killed_at < GONE_S
        assert (await shop_.client.topics.info(ORDERS)).partitions == 2


async def test_a_change_that_comes_after_its_session_ended_fails_and_ticks_went_on(
    autojump_clock: MockClock,
) -> None:
    """MV-38: a client that was paused for longer changes nothing below a tick."""
    async with shop() as shop_:
        ticks = await shop_.follower()
        with halted() as halt:
            async with shop_.cluster.client() as other, trio.open_nursery() as nursery:
                failures: list[MetadataUnavailable] = []

                async def alter() -> None:
                    try:
                        await other.topics.alter(ORDERS, partitions=3)
                    except MetadataUnavailable as failure:
                        failures.append(failure)

                nursery.start_soon(alter)
                await halt.began.wait()
                session = other._context.ledgers.session._session
                assert session is not None
                await shop_.cluster.store.end_session(session)
                await ticks.newest(await shop_.now())
                halt.may_go_on.set()
        assert "nothing was changed" in str(failures[0])
        assert (await shop_.client.topics.info(ORDERS)).partitions == 2


async def test_a_new_leader_knows_the_changes_that_are_under_way(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client, cluster.client() as other:
        leading = cluster.lead("b1", has_ticks=True)
        await client.topics.create(ORDERS, 2, timesync=True)
        async with client.producer(ORDERS) as producer:
            await producer.send(b"one", partition=0)
            shop_ = Shop(cluster, client)
            ticks = await shop_.follower()
            await ticks.newest(await shop_.now())
            with halted() as halt:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(lambda: other.topics.alter(ORDERS, partitions=3))
                    await halt.began.wait()
                    leading.cancel()
                    cluster.lead("b2", has_ticks=True)
                    await trio.sleep(8)
                    now = await shop_.now()
                    await trio.sleep(3)
                    assert (await ticks.newest()).timestamp < now
                    halt.may_go_on.set()
            await ticks.newest(now)


async def test_a_hold_that_cannot_be_read_lets_its_topic_have_no_ticks(
    autojump_clock: MockClock,
) -> None:
    async with shop() as shop_, shop_.cluster.context() as context:
        ticks = await shop_.follower()
        await ticks.newest(await shop_.now())
        uid = (await shop_.client.topics.info(ORDERS)).uid
        held = await context.ledgers.session.grant(f"{TIME_DDL}{uid:020d}/x", value=b"{")
        await context.store.transact([Put("time/lanes", b'{"name": "shop/orders"}')])
        now = await shop_.now()
        await trio.sleep(3)
        assert (await ticks.newest()).timestamp < now
        await held.release()
        await ticks.newest(now)


async def test_without_an_oracle_a_topic_with_timesync_is_neither_made_nor_changed(
    autojump_clock: MockClock,
) -> None:
    options = Options(metadata_timeout_s=2.0)
    async with memory_cluster(3) as cluster, cluster.client(options) as client:
        with pytest.raises(MetadataUnavailable, match="timestamps"):
            await client.topics.create(ORDERS, timesync=True)
        assert await client.topics.list() == []
        leading = cluster.lead("b1")
        made = await client.topics.create(ORDERS, 1, timesync=True)
        leading.cancel()
        await trio.sleep(1)
        with pytest.raises(MetadataUnavailable, match="timestamps"):
            await client.topics.alter(ORDERS, partitions=2)
        with pytest.raises(MetadataUnavailable, match="timestamps"):
            await client.topics.delete(ORDERS)
        assert await client.topics.info(ORDERS) == made
        assert await client._context.store.leases(TIME_DDL) == []


def test_a_hold_says_what_holds_ticks_back() -> None:
    """The documented value of the lease."""
    hold = TickHold("shop/orders", 7, "altered", "h1", 5)
    assert msgspec.json.encode(hold) == (
        b'{"topic":"shop/orders","below":7,"kind":"altered","host":"h1","process_id":5}'
    )
