"""Topics over real producers and readers, on bookies in memory."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Literal

import msgspec
import pytest
import trio
from leases import grant
from memory_cluster import MemoryCluster, memory_cluster
from topic_rig import ledger_ids
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.housekeeping import Housekeeper, HousekeepingOptions
from ledger_client.errors import (
    BadTopic,
    NoSuchTopic,
    NotEnoughBookies,
    TopicError,
    TopicExists,
)
from ledger_client.topics.events import pending_events
from ledger_client.topics.lanes.lane_end import close_lane
from ledger_client.topics.retention.explanation import Explanation
from ledger_client.topics.times import EventTime
from metadata.leadership import Term
from metadata.records import cookie_key, draining_key
from metadata.topics import Retention, RollPolicy, TopicEvent, decode_event
from native import batch as native_batch

DAY_MS = 86_400_000


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(4) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected


async def events(client: Client, namespace: str = "shop") -> list[TopicEvent]:
    """What is told on the namespace's topic of events."""
    async with client.reader(f"{namespace}/__events") as reader:
        messages = [message async for message in reader]
    return [decode_event(str(message.key), message.value or b"") for message in messages]


async def values(client: Client, name: str) -> list[bytes | None]:
    async with client.reader(name) as reader:
        return [message.value async for message in reader]


def ledgers(found: Explanation) -> list[str]:
    return [fate.ledger.state for lane in found.lanes for fate in lane.ledgers]


# --- events -----------------------------------------------------------------------------


async def test_every_change_is_a_message_on_the_namespaces_events(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    made = await client.topics.create("shop/orders", 2)
    altered = await client.topics.alter("shop/orders", partitions=3)
    await client.topics.create("other/topic")
    await client.topics.delete("shop/orders")
    told = await events(client)
    assert [(event.kind, event.record) for event in told] == [
        ("created", made),
        ("altered", altered),
        ("deleted", altered),
    ]
    assert await pending_events(cluster.store) == []
    assert [topic.name for topic in await client.topics.list()] == ["other/topic"]
    own = [topic.name for topic in await client.topics.list(own=True)]
    assert own == ["other/__events", "other/topic", "shop/__events"]


async def test_changes_at_once_are_each_told_once_in_their_order(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    async def make(number: int) -> None:
        async with cluster.client() as client:
            await client.topics.create(f"shop/{number}")

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(make, number)
    async with cluster.client() as client:
        await client.topics.publish_events("shop")
        told = [event.topic for event in await events(client)]
    assert sorted(told) == [f"shop/{number}" for number in range(6)]


async def test_with_too_few_bookies_a_change_is_made_and_told_later(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    for name in cluster.bookies:
        cluster.kill(name)
    await client.topics.create("shop/orders")
    assert len(await pending_events(cluster.store)) == 1
    for name in cluster.bookies:
        cluster.revive(name)
    housekeeper = Housekeeper(client._context, HousekeepingOptions(poll_s=1))
    term = Term(await grant(cluster.store, "coordinator", "me", ttl_s=3600))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(housekeeper.lead, term)
        await trio.sleep(120)
        nursery.cancel_scope.cancel()
    assert [event.topic for event in await events(client)] == ["shop/orders"]


# --- making -----------------------------------------------------------------------------


async def test_copies_are_two_but_at_most_the_bookies_that_take_writes(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """TB-24: the replication factor is set at creation; by default 2."""
    topic = await client.topics.create("shop/two")
    assert (topic.replication, topic.ack_quorum) == (2, 2)
    three = await client.topics.create("shop/three", replication=3)
    assert (three.replication, three.ack_quorum) == (3, 2)
    with pytest.raises(NotEnoughBookies, match="4 healthy, writable bookies, 5 needed"):
        await client.topics.create("shop/five", replication=5)
    for name in ("b1", "b2", "b3"):
        cluster.store.bookies.pop(name)
    one = await client.topics.create("shop/one")
    assert (one.replication, one.ack_quorum) == (1, 1)
    cluster.store.bookies.pop("b4")
    with pytest.raises(NotEnoughBookies):
        await client.topics.create("shop/none")


async def test_bookies_that_are_read_only_are_named_where_they_are_missing(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    for name in ("b1", "b2", "b3", "b4"):
        record = cluster.store.bookies[name]
        cluster.store.bookies[name] = msgspec.structs.replace(record, read_only=True)
    words = "0 healthy, writable bookies, 2 needed; 4 more are read-only.*quire topic purge"
    with pytest.raises(NotEnoughBookies, match=words) as few:
        await client.topics.create("shop/two")
    assert few.value.read_only == 4
    with pytest.raises(NotEnoughBookies, match=r"; 4 more are read-only"):
        async with client.ledgers.create():
            pass


async def test_bookies_that_are_away_take_no_copies_from_a_topic(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """Else a topic made while they are down keeps one copy for ever, and nobody knows."""
    for name in ("b1", "b2", "b3"):
        cluster.store.bookies.pop(name)
        await cluster.store.put(cookie_key(name), b"{}")
    with pytest.raises(NotEnoughBookies, match="1 healthy, writable bookies, 2 needed"):
        await client.topics.create("shop/two")
    asked = await client.topics.create("shop/one", replication=1)
    assert (asked.replication, asked.ack_quorum) == (1, 1)
    with pytest.raises(TopicExists):
        await client.topics.create("shop/one")
    for name in ("b1", "b2", "b3"):  # they are being decommissioned
        await cluster.store.put(draining_key(name), b"{}")
    assert (await client.topics.create("shop/last")).replication == 1


async def test_a_topic_with_one_copy_in_a_cluster_of_one_bookie_is_warned_of(
    autojump_clock: MockClock,
    cluster: MemoryCluster,
    client: Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("b1", "b2", "b3"):
        cluster.store.bookies.pop(name)
    await client.topics.create("shop/asked", replication=1)
    assert not caplog.records
    await client.topics.create("shop/one")
    assert [each.getMessage() for each in caplog.records] == [
        "topic shop/one: messages have one copy, as the cluster has one bookie;"
        " once it has more, alter the topic to replication 2"
    ]


async def test_what_cannot_be_made_is_refused(client: Client) -> None:
    await client.topics.create("shop/orders")
    with pytest.raises(TopicExists):
        await client.topics.create("shop/orders")
    with pytest.raises(BadTopic, match="partitions: expected int <= 10000"):
        await client.topics.create("shop/more", 10_001)
    with pytest.raises(BadTopic, match="quire's own"):
        await client.topics.create("shop/__events")
    with pytest.raises(NoSuchTopic):
        await client.topics.info("shop/more")


# --- ledgers ----------------------------------------------------------------------------


async def test_a_partition_is_larger_than_a_bookie_and_its_ledgers_lie_all_over(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """TB-04, TB-05, TB-06, TB-12, TB-30, TD-04."""
    await client.topics.create("shop/orders", 2, roll=RollPolicy(size=2000))
    async with client.producer("shop/orders", batch_messages=1) as producer:
        for number in range(400):
            await producer.send(b"%0100d" % number, partition=number % 2)
    found = await client.topics.explain("shop/orders")
    for partition in (0, 1):
        rows = [f.ledger for lane in found.lanes for f in lane.ledgers if f.partition == partition]
        assert len(rows) >= 10
        places = [frozenset(cluster.record(r.ledger_id).fragments[0].bookies) for r in rows]
        assert all(len(place) == 2 for place in places)
        assert len(set(places)) > 3
        held = {name: sum(name in place for place in places) for name in cluster.bookies}
        assert min(held.values()) >= len(rows) // 8
    assert found.extent.messages == 400
    assert len(await values(client, "shop/orders")) == 400


async def places_of(seed: int) -> list[tuple[str, ...]]:
    """The bookies of a lane's ledgers, in order: three bookies, two copies."""
    async with memory_cluster(3, seed=seed) as cluster, cluster.client() as client:
        await client.topics.create("shop/orders", replication=2, roll=RollPolicy(entries=1))
        async with client.producer("shop/orders", batch_messages=1) as producer:
            for _ in range(60):
                await producer.send(b"x")
        (lane,) = (await client.topics.explain("shop/orders")).lanes
        ids = [fate.ledger.ledger_id for fate in lane.ledgers]
        return [tuple(cluster.record(each).fragments[0].bookies) for each in ids]


async def test_ledgers_lie_on_bookies_by_chance_and_evenly(autojump_clock: MockClock) -> None:
    """TB-28: three bookies, two copies: each pair, in either order, no turn, no favourite."""
    places = await places_of(1)
    pairs = [(a, b) for a in ("b1", "b2", "b3") for b in ("b1", "b2", "b3") if a != b]
    assert set(places) == set(pairs)
    held = {name: sum(name in place for place in places) for name in ("b1", "b2", "b3")}
    assert all(len(places) * 0.45 < count < len(places) * 0.85 for count in held.values()), held
    for period in range(1, 13):  # a round of any length would come again
        assert places[period:] != places[:-period]
    assert await places_of(2) != places


async def test_a_bookie_has_ledgers_of_any_lanes_and_serves_them_by_id_alone(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """TB-29: what a bookie holds of a lane has holes, and it needs nothing that topics say."""
    for name in ("shop/orders", "shop/returns"):
        await client.topics.create(name, 2, replication=2, roll=RollPolicy(entries=2))
        async with client.producer(name, batch_messages=1) as producer:
            for number in range(40):
                await producer.send(b"%d" % number, partition=number % 2)
    lanes: dict[tuple[str, int], list[int]] = {}
    for name in ("shop/orders", "shop/returns"):
        for lane in (await client.topics.explain(name)).lanes:
            lanes[name, lane.partition] = [fate.ledger.ledger_id for fate in lane.ledgers]
    for bookie in cluster.bookies.values():
        holds = {
            where: [number for number, each in enumerate(ids) if each in bookie.ledgers]
            for where, ids in lanes.items()
        }
        assert all(holds.values())  # something of each lane
        assert any(numbers != [*range(numbers[0], numbers[-1] + 1)] for numbers in holds.values())
    for key in [key for key in cluster.store.values if not key.startswith("ledgers/")]:
        await cluster.store.delete(key)
    messages = 0
    for ledger_id in itertools.chain.from_iterable(lanes.values()):
        async with client.ledgers.open(ledger_id) as reader:
            for entry in await reader.read(0, reader.last_confirmed):
                opened = native_batch.decode_messages(entry.payload)
                messages += 0 if opened is None else opened.columns.count
    assert messages == 80


async def test_one_ledger_of_a_lane_is_open_and_the_closed_ones_know_their_times(
    autojump_clock: MockClock, client: Client
) -> None:
    """PS-04, TB-13."""
    await client.topics.create("shop/orders", order="event-time", roll=RollPolicy(entries=5))
    async with client.producer("shop/orders", batch_messages=1) as producer:
        for number in range(23):
            await producer.send(b"x", event_time=number * 10)
        states = ledgers(await client.topics.explain("shop/orders"))
        assert states.count("open") == 1
        assert states[: states.index("open")] == ["closed"] * states.index("open")
    found = await client.topics.explain("shop/orders")
    assert set(ledgers(found)) == {"closed"}
    spans = [
        (f.ledger.first_event_time, f.ledger.last_event_time)
        for f in found.lanes[0].ledgers
        if f.ledger.messages
    ]
    assert spans == sorted(spans)
    assert (spans[0][0], spans[-1][1]) == (0, 220)
    assert (found.extent.first_event_time, found.extent.last_event_time) == (0, 220)


@pytest.mark.parametrize("order", ["event-time", "none"])
async def test_an_open_ledger_has_a_start_and_no_end(
    autojump_clock: MockClock, client: Client, order: Literal["event-time", "none"]
) -> None:
    """TB-13: also the first of a writer, one that follows another, and with one message alone."""
    await client.topics.create("shop/orders", order=order, roll=RollPolicy(entries=2))
    found: list[tuple[int, int | None]] = []
    async with client.producer("shop/orders", batch_messages=1) as producer:
        for number in range(5):
            await producer.send(b"x", event_time=70 + number)
            await trio.sleep(0.1)  # it is published beside sending
            (lane,) = (await client.topics.explain("shop/orders")).lanes
            for row in [fate.ledger for fate in lane.ledgers if fate.ledger.state == "open"]:
                assert row.last_event_time is None
                found.append((number, row.first_event_time))
            assert lane.extent.first_event_time == 70
    starts = {0: 70, 2: 72, 4: 74}  # of each ledger, by its first message
    assert {number: start for number, start in found if number in starts} == starts
    assert len(found) >= len(starts)


async def test_a_descriptor_has_the_bookies_and_the_times_of_a_ledger(
    autojump_clock: MockClock, client: Client
) -> None:
    """TB-26, TB-40, TB-41: a block is of one lane and range of time; its head and tail."""
    await client.topics.create(
        "shop/orders", partitions=2, order="event-time", roll=RollPolicy(entries=2), replication=3
    )
    async with client.producer("shop/orders", batch_messages=1) as producer:
        for number in range(5):
            await producer.send(b"x", event_time=70 + number, partition=1)
        await trio.sleep(0.1)
        _, lane = (await client.topics.explain("shop/orders")).lanes
        for fate in lane.ledgers:
            found = await client.ledgers.describe(fate.ledger.ledger_id)
            info = await client.ledgers.info(fate.ledger.ledger_id)
            assert (found.topic, found.partition, found.lane) == ("shop/orders", 1, 0)
            assert (found.number, found.bookies) == (fate.number, info.bookies)
            assert (found.head, found.tail) == (info.bookies[-1][1][0], info.bookies[-1][1][2])
            assert found.first_event_time == fate.ledger.first_event_time
            assert found.last_event_time == fate.ledger.last_event_time
            assert found.messages == fate.ledger.messages
        first = await client.ledgers.describe(lane.ledgers[0].ledger.ledger_id)
        assert (first.first_event_time, first.last_event_time, first.messages) == (70, 71, 2)


@pytest.mark.parametrize(
    "custom",
    [
        {},
        {"topic": "shop/orders"},
        {"topic": "shop/orders", "partition": "-1", "lane": "0"},
        {"topic": "shop/orders", "partition": "x", "lane": "0"},
        {"topic": "shop/orders", "partition": "5", "lane": "-3"},
        {"topic": "no topic", "partition": "-1", "lane": "0"},
        {"topic": "shop/gone", "partition": "-1", "lane": "0"},
    ],
)
async def test_a_ledger_that_only_says_it_is_a_topics_has_no_place_there(
    autojump_clock: MockClock, client: Client, custom: dict[str, str]
) -> None:
    """TB-41: head and tail it has all the same."""
    await client.topics.create("shop/orders")
    async with client.producer("shop/orders") as producer:
        await producer.send(b"x", event_time=1)
    async with client.ledgers.create(3, 3, 2, custom=custom) as ledger:
        pass
    found = await client.ledgers.describe(ledger.id)
    assert (found.topic, found.number, found.first_event_time) == ("", -1, None)
    ((_, bookies),) = found.bookies
    assert (found.head, found.tail) == (bookies[0], bookies[-1])


async def test_a_ledger_without_times_costs_metadata_nothing_for_its_start(
    autojump_clock: MockClock, client: Client
) -> None:
    """TB-13: what has no times has no start."""
    await client.topics.create("shop/orders")
    async with client.producer("shop/orders") as producer:
        await producer.send(b"x")
        before = (await client.topics.explain("shop/orders")).lanes[0].ledgers[0].version
        await producer.send(b"y")
        await trio.sleep(1)
        (fate,) = (await client.topics.explain("shop/orders")).lanes[0].ledgers
        assert (fate.version, fate.ledger.first_event_time) == (before, None)


async def test_a_purge_disturbs_neither_writers_nor_readers(
    autojump_clock: MockClock, client: Client
) -> None:
    """TB-76: no errors; what is left begins at the purge's time, or before it in its ledger."""
    await client.topics.create("shop/orders", order="event-time", roll=RollPolicy(entries=10))
    read: list[bytes | None] = []

    async def follow() -> None:
        async with client.reader("shop/orders", follow=True) as reader:
            async for message in reader:
                read.append(message.value)
                if len(read) == 300:
                    return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        async with client.producer("shop/orders", batch_messages=1) as producer:
            for number in range(300):
                await producer.send(b"%d" % number, event_time=number)
                if number % 50 == 49:
                    await trio.sleep(1)  # the reader is at the end
                    await client.topics.purge("shop/orders", before=EventTime(number - 20))
    assert read == [b"%d" % number for number in range(300)]
    found = await client.topics.explain("shop/orders")
    assert found.extent.first_event_time is not None
    assert 279 - 11 < found.extent.first_event_time <= 279
    left = await values(client, "shop/orders")
    assert left == read[found.extent.first_event_time :]


async def test_a_range_deleted_from_the_beginning_ends_exactly_at_its_time(
    autojump_clock: MockClock, client: Client
) -> None:
    """TB-76: a purge takes whole ledgers; this makes the range begin at the time, as quietly."""
    await client.topics.create("shop/orders", order="event-time", roll=RollPolicy(entries=10))
    read: list[bytes | None] = []

    async def follow() -> None:
        async with client.reader("shop/orders", follow=True) as reader:
            async for message in reader:
                read.append(message.value)
                if len(read) == 200:
                    return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        async with client.producer("shop/orders", batch_messages=1) as producer:
            for number in range(200):
                await producer.send(b"%d" % number, event_time=number)
                if number % 50 == 49:
                    await trio.sleep(1)  # the reader is at the end
                    before = number - 20
                    await client.topics.delete_messages(
                        "shop/orders", "earliest", EventTime(before - 1)
                    )
                    extent = (await client.topics.explain("shop/orders")).extent
                    assert extent.first_event_time == before
                    async with client.reader("shop/orders") as reader:
                        assert (await anext(reader)).event_time == before
    assert read == [b"%d" % number for number in range(200)]


async def test_with_fewer_bookies_than_copies_nothing_new_begins_until_somebody_says_so(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """TB-45, which is different here on purpose (README): refused typed, degraded when asked to."""
    await client.topics.create("shop/orders", replication=3)
    for name in ("b3", "b4"):
        del cluster.store.bookies[name]
        cluster.kill(name)
    async with client.producer("shop/orders") as producer:
        with pytest.raises(NotEnoughBookies, match="or ask for fewer copies") as refused:
            await producer.send(b"x")
        assert (refused.value.healthy, refused.value.needed) == (2, 3)
    with pytest.raises(NotEnoughBookies):
        await client.topics.create("shop/returns", replication=3)
    await client.topics.alter("shop/orders", replication=2)
    async with client.producer("shop/orders") as producer:
        sent = await producer.send(b"x")
    assert set(cluster.record(sent.ledger_id).fragments[0].bookies) == {"b1", "b2"}


async def test_what_a_dead_producer_left_is_closed_and_goes(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """PS-07, PS-35: so that what it acknowledged last can be read, and then frees the disk."""
    limits = {"roll": RollPolicy(age_s=3600), "retention": Retention(age_s=60)}
    topic = await client.topics.create("shop/orders", **limits)  # type: ignore[arg-type]
    async with cluster.client() as dying, trio.open_nursery() as nursery:

        async def write() -> None:
            async with dying.producer("shop/orders") as producer:
                await producer.send(b"one")
                cluster.store.available = False  # it cannot say goodbye
                nursery.cancel_scope.cancel()

        nursery.start_soon(write)
    cluster.store.available = True
    assert "open" in ledgers(await client.topics.explain("shop/orders"))
    await trio.sleep(60)  # its lease is over
    found = await client.topics.explain("shop/orders")
    now_ms = found.lanes[0].ledgers[0].ledger.created_ms + 1000
    cluster.store.wall_ms = lambda: now_ms
    housekeeper = Housekeeper(client._context, HousekeepingOptions())
    term = Term(await grant(cluster.store, "coordinator", "me", ttl_s=86400))
    await housekeeper.look_after_all(term)
    assert "open" in ledgers(await client.topics.explain("shop/orders"))
    await housekeeper.look_after_all(term)
    assert ledgers(await client.topics.explain("shop/orders")) == ["closed"]
    assert await values(client, "shop/orders") == [b"one"]
    now_ms += DAY_MS
    await housekeeper.look_after_all(term)
    assert ledger_ids(cluster.store) == []
    async with client.producer("shop/orders") as producer:
        await producer.send(b"two")
    assert await values(client, topic.name) == [b"two"]


async def test_closing_a_lane_loses_nothing_and_repeats_nothing(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """PS-39: the next producer of the name goes on with its numbers."""
    topic = await client.topics.create("shop/orders")
    async with client.producer("shop/orders", producer_name="till", access="exclusive") as producer:
        for number in range(5):
            await producer.send(b"%d" % number, sequence=number)
        with pytest.raises(TopicError, match="is written by"):
            await close_lane(client._context.ledgers, topic, -1, 0)
    await close_lane(client._context.ledgers, topic, -1, 0)  # nothing is open: nothing happens
    async with client.producer("shop/orders", producer_name="till", access="exclusive") as producer:
        await producer.send(b"4 again", sequence=4)
        await producer.send(b"5", sequence=5)
    assert await values(client, "shop/orders") == [b"0", b"1", b"2", b"3", b"4", b"5"]
    purged = await client.topics.purge("shop/orders")
    assert [fate.reason for fate in purged.kept] == ["resend"]
    async with client.producer("shop/orders", producer_name="till", access="exclusive") as producer:
        await producer.send(b"5 again", sequence=5)
        await producer.send(b"6", sequence=6)
    assert b"5 again" not in await values(client, "shop/orders")


async def test_who_writes_a_topic_that_is_deleted_learns_it(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.topics.create("shop/orders")
    with pytest.raises(TopicError):
        async with client.producer("shop/orders") as producer:
            await producer.send(b"one")
            await client.topics.delete("shop/orders")
            await producer.send(b"two")
    assert await client.topics.list() == []
