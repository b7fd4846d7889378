"""Events of topics in the stream of a consumer, in order with the messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio
from group_rig import ORDERS, send, shop
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import BadGroup, Client, Gap, MessageId, NoSuchTopic, Retention, TopicEvent
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.feed import TopicFeed
from ledger_client.groups.turns import Barrier, Turns
from ledger_client.topics.messages import MergedBatch, Message
from metadata.groups.assignment import Part
from metadata.groups.rows import member_key

REFUNDS = "shop/refunds"


def told(messages: list[Message]) -> list[str]:
    """Return events as kind and topic, and messages as their values."""
    return [
        f"{each.kind} {each.record.name}"
        if isinstance(each, TopicEvent)
        else (each.value or b"").decode()
        for each in messages
    ]


async def drain(consumer: GroupConsumer, wait_s: float = 5.0) -> list[Message]:
    found: list[Message] = []
    while messages := await consumer.poll(wait_s=wait_s):
        found += messages
    return found


@asynccontextmanager
async def mirror(client: Client, group: str = "mirror") -> AsyncIterator[GroupConsumer]:
    async with client.consumer(
        namespace="shop", group=group, start="earliest", with_meta=True, missing="wait"
    ) as consumer:
        yield consumer


async def test_a_namespace_brings_all_its_topics_and_those_to_come(
    autojump_clock: MockClock,
) -> None:
    """TD-16, TD-42, TD-69: without with_meta there are messages alone."""
    async with shop(2) as (_, client):
        await send(client, 0, 5)
        async with client.consumer(namespace="shop", group="all", start="earliest") as consumer:
            assert sorted(told(await drain(consumer))) == list("01234")
            await client.topics.create(REFUNDS)
            await client.topics.create("other/refunds")
            await send(client, 5, 8, REFUNDS)
            assert sorted(told(await drain(consumer))) == list("567")


async def test_topics_are_told_in_order_with_their_messages(autojump_clock: MockClock) -> None:
    """TD-02, TD-42, TD-69: created, its messages, altered, deleted; enough to rebuild them."""
    async with shop(1) as (_, client):
        await send(client, 0, 3)
        async with mirror(client) as consumer:
            assert told(await drain(consumer)) == [f"created {ORDERS}", "0", "1", "2"]
            made = await client.topics.create(REFUNDS, 2, retention=Retention(age_s=900))
            await send(client, 3, 4, REFUNDS)
            await drained_into(client, consumer, made_uid=made.uid)
            await client.topics.alter(REFUNDS, retention=Retention(age_s=600))
            (altered,) = await drain(consumer)
            assert isinstance(altered, TopicEvent)
            assert (altered.kind, altered.record.retention.age_s) == ("altered", 600)
            await client.topics.delete(REFUNDS)
            (deleted,) = await drain(consumer)
            assert isinstance(deleted, TopicEvent)
            assert (deleted.kind, deleted.record.name) == ("deleted", REFUNDS)
            await send(client, 4, 5)
            assert told(await drain(consumer)) == ["4"]


async def drained_into(client: Client, consumer: GroupConsumer, *, made_uid: int) -> None:
    """Rebuild what is told in another namespace, as a replicator would."""
    created, message = await drain(consumer)
    assert isinstance(created, TopicEvent)
    assert created.record.uid == made_uid
    record = created.record
    again = await client.topics.create(
        "copy/refunds", record.partitions, retention=record.retention
    )
    assert (again.partitions, again.retention) == (2, Retention(age_s=900))
    assert message.value == b"3"


async def test_what_was_told_is_not_told_again(autojump_clock: MockClock) -> None:
    """Events are committed like messages."""
    async with shop(1) as (_, client):
        await send(client, 0, 3)
        async with mirror(client) as consumer:
            assert len(await drain(consumer)) == 4
        await client.topics.create(REFUNDS)
        await send(client, 3, 5)
        async with mirror(client) as consumer:
            assert sorted(told(await drain(consumer))) == ["3", "4", f"created {REFUNDS}"]
        async with mirror(client) as consumer:
            assert await drain(consumer) == []
            events = [each for each in consumer.assignment() if each.topic == "shop/__events"]
            assert len(events) == 1


async def test_a_creation_that_is_published_late_still_comes_first(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (_, client), mirror(client) as consumer:
        assert told(await drain(consumer)) == [f"created {ORDERS}"]
        publish, client.topics._publish = client.topics._publish, quiet  # type: ignore[method-assign]
        await client.topics.create(REFUNDS)
        await send(client, 0, 3, REFUNDS)
        assert await drain(consumer, wait_s=10) == []
        await publish(REFUNDS)
        assert told(await drain(consumer)) == [f"created {REFUNDS}", "0", "1", "2"]


async def test_messages_of_added_partitions_come_after_the_alteration(
    autojump_clock: MockClock,
) -> None:
    """TD-69: each time some are added, even if it is published late; nothing is lost."""
    async with shop(2) as (_, client), mirror(client) as consumer:
        await send(client, 0, 10)
        assert len(await drain(consumer)) == 11
        publish = client.topics._publish
        for first, partitions in ((10, 5), (50, 9)):
            client.topics._publish = quiet  # type: ignore[method-assign]
            await client.topics.alter(ORDERS, partitions=partitions)
            await trio.sleep(5)  # the leader assigns them
            await send(client, first, first + 40)
            early = await drain(consumer, wait_s=10)
            await publish(ORDERS)
            event, *late = await drain(consumer)
            assert told([event]) == [f"altered {ORDERS}"]
            assert sorted(map(int, told([*early, *late]))) == [*range(first, first + 40)]
            assert {each.id.partition for each in late} >= {*range(partitions - 3, partitions)}
            assert not {each.id.partition for each in early} & {*range(partitions - 3, partitions)}


async def test_messages_of_added_partitions_wait_for_the_member_that_has_the_alteration(
    autojump_clock: MockClock,
) -> None:
    async with shop(2) as (_, client), mirror(client) as first, mirror(client) as second:
        await send(client, 0, 10)
        await trio.sleep(10)
        seen: list[str] = []

        async def note(consumer: GroupConsumer) -> None:
            async for message in consumer:
                (text,) = told([message])
                seen.append(text)
                if text.startswith("altered"):
                    await trio.sleep(20)
                    seen.append("committed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, first)
            nursery.start_soon(note, second)
            await trio.sleep(60)
            assert len(seen) == 11
            await client.topics.alter(ORDERS, partitions=8)
            await trio.sleep(5)
            async with client.producer(ORDERS, partition=7) as producer:
                await producer.send(b"in an added one")
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        assert seen[11:] == [f"altered {ORDERS}", "committed", "in an added one"]


async def quiet(name: str) -> None:
    """Publish nothing about *name*, as a client that is killed after its change."""


async def test_one_member_of_a_group_is_told_and_the_others_wait_for_it(
    autojump_clock: MockClock,
) -> None:
    """A topic's messages come once the group has committed its creation."""
    async with shop(2) as (_, client), mirror(client) as first, mirror(client) as second:
        await trio.sleep(10)
        seen: list[tuple[str, float]] = []

        async def note(consumer: GroupConsumer) -> None:
            async for message in consumer:
                (text,) = told([message])
                seen.append((text, trio.current_time()))
                if text.startswith("created"):
                    await trio.sleep(20)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, first)
            nursery.start_soon(note, second)
            await trio.sleep(60)
            await client.topics.create(REFUNDS, 4)
            await send(client, 0, 20, REFUNDS)
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        texts = [text for text, _ in seen]
        assert sorted(texts) == sorted(
            [f"created {ORDERS}", f"created {REFUNDS}", *map(str, range(20))]
        )
        assert texts[:2] == [f"created {ORDERS}", f"created {REFUNDS}"]
        assert seen[2][1] - seen[1][1] >= 20, "it was committed only then"


async def test_what_has_arrived_of_a_deleted_topic_comes_before_its_deletion(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (_, client), mirror(client) as consumer:
        await send(client, 0, 5)
        await drain(consumer)
        async with client.producer(ORDERS) as producer:
            await producer.send_many([b"%d" % number for number in range(5, 10)])
        await trio.sleep(3)
        await client.topics.delete(ORDERS)
        await trio.sleep(0.5)  # the event has arrived, too
        assert told(await drain(consumer)) == ["5", "6", "7", "8", "9", f"deleted {ORDERS}"]


@pytest.mark.parametrize("is_removed", [False, True])
async def test_what_a_member_holds_back_comes_also_if_it_joins_anew_meanwhile(
    autojump_clock: MockClock, is_removed: bool
) -> None:
    """It waits for the member that has the events, and reads the topic anew."""
    seen: list[str] = []

    async def note(consumer: GroupConsumer) -> None:
        async for message in consumer:
            seen.extend(text := told([message]))
            if text == [f"created {REFUNDS}"]:
                busy.append(consumer)
                await trio.sleep(30)

    busy: list[GroupConsumer] = []
    async with shop(2) as (cluster, client), mirror(client) as first, mirror(client) as second:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, first)
            nursery.start_soon(note, second)
            await trio.sleep(60)
            await client.topics.create(REFUNDS, 4)
            await send(client, 0, 8, REFUNDS)
            await trio.sleep(5)
            (other,) = {first, second} - {*busy}
            if is_removed:
                await cluster.store.delete(member_key("mirror", other._membership.member))
            await trio.sleep(300)
            nursery.cancel_scope.cancel()
        assert {*seen} >= {*map(str, range(8))}


async def test_a_hold_ends_where_another_one_begins(
    autojump_clock: MockClock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition may be added before the task of the last hold has ended."""
    events = Part(1, -1)
    feed = SimpleNamespace(
        topic=SimpleNamespace(uid=7, name=ORDERS), newest=0, take=lambda: None, is_over=False
    )
    wakes = []

    async def barrier(_turns: Turns, feed: TopicFeed) -> Barrier:
        newest = feed.newest
        await trio.sleep(0.3)
        return Barrier(events, {}, newest)

    monkeypatch.setattr(Turns, "_barrier", barrier)
    turns = Turns(
        None,  # type: ignore[arg-type]
        "billing",
        {7: feed},  # type: ignore[dict-item]
        {events},
        nursery,
        with_meta=True,
        on_arrival=lambda: wakes.append(trio.current_time()),
        on_deleted=lambda _: None,
    )
    for newest in range(4):
        feed.newest = newest
        for _ in range(11):
            turns.take(lambda _: {})
            await trio.sleep(0.05)
    await trio.sleep(10)
    wakes.clear()
    await trio.sleep(60)
    assert wakes == []
    assert not nursery.child_tasks


async def test_a_deletion_is_told_though_reading_the_topic_fails(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps = [Gap(ORDERS, partition=0, lane=0, position=MessageId(1, 0), first=None, missing=1)]
    take = TopicFeed.take

    def fail(feed: TopicFeed) -> MergedBatch | None:
        if feed.topic.name == ORDERS and gaps:
            raise gaps.pop()
        return take(feed)

    async with shop(1) as (_, client), mirror(client) as consumer:
        await send(client, 0, 3)
        assert len(await drain(consumer)) == 4
        await client.topics.delete(ORDERS)
        await trio.sleep(0.5)
        monkeypatch.setattr(TopicFeed, "take", fail)
        with pytest.raises(Gap):
            await drain(consumer)
        assert told(await drain(consumer)) == [f"deleted {ORDERS}"]


@pytest.mark.parametrize("is_told_before", [True, False])
async def test_what_has_arrived_of_a_topic_that_got_partitions_comes_before_its_deletion(
    autojump_clock: MockClock, is_told_before: bool
) -> None:
    """And after the alteration, of which messages of new partitions may be."""
    async with shop(1) as (_, client), mirror(client) as consumer:
        await send(client, 0, 5)
        await drain(consumer)
        async with client.producer(ORDERS) as producer:
            await producer.send_many([b"%d" % number for number in range(5, 10)])
        await trio.sleep(3)
        publish = client.topics._publish
        if not is_told_before:
            client.topics._publish = quiet  # type: ignore[method-assign]
        await client.topics.alter(ORDERS, partitions=2)
        await trio.sleep(5)  # the leader assigns it
        found = await consumer.poll(wait_s=0, messages_max=1) if is_told_before else []
        await client.topics.delete(ORDERS)
        await publish(ORDERS)
        await trio.sleep(0.5)
        assert told([*found, *await drain(consumer)]) == [
            *(f"altered {ORDERS}", "5", "6", "7", "8", "9"),
            f"deleted {ORDERS}",
        ]


async def test_a_topic_that_is_deleted_and_made_again_is_another_one(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (_, client), mirror(client) as consumer:
        await send(client, 0, 2)
        assert told(await drain(consumer)) == [f"created {ORDERS}", "0", "1"]
        await client.topics.delete(ORDERS)
        await client.topics.create(ORDERS)
        await send(client, 2, 4)
        expected = [f"deleted {ORDERS}", f"created {ORDERS}", "2", "3"]
        assert told(await drain(consumer)) == expected


async def test_a_deleted_topic_that_a_pattern_matched_is_no_failure(
    autojump_clock: MockClock,
) -> None:
    """One that the consumer names is told once; the others go on. TD-70."""
    async with shop(1) as (_, client):
        await client.topics.create(REFUNDS)
        async with (
            client.consumer("shop/*", group="a", start="earliest") as by_pattern,
            client.consumer([ORDERS, REFUNDS], group="b", start="earliest") as by_name,
        ):
            assert await drain(by_pattern) == await drain(by_name) == []
            await client.topics.delete(REFUNDS, force=True)
            assert await drain(by_pattern) == []
            with pytest.raises(NoSuchTopic):
                await by_name.poll(wait_s=10)
            assert await drain(by_name) == []
            await send(client, 0, 3)
            assert told(await drain(by_pattern)) == told(await drain(by_name)) == list("012")
            assert list(by_name._partitions.feeds) == list(by_pattern._partitions.feeds)


async def test_a_pattern_that_matches_nothing_is_refused_or_waited_for(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1")
        before = dict(cluster.store.values)
        for settings in ({"namespace": "shop"}, {"topics": "shop/*"}):
            with pytest.raises(NoSuchTopic, match="matches no topic"):
                async with client.consumer(**settings, group="a"):  # type: ignore[arg-type]
                    pass
        for strange in (3, [3], [ORDERS, None]):
            with pytest.raises(
                TypeError, match=r"neither the name of a topic nor several: (3|None)"
            ):
                await client.consumer(strange, group="billing")  # type: ignore[arg-type]
        with pytest.raises(BadGroup, match="no topic"):
            async with client.consumer(group="a"):
                pass
        with pytest.raises(BadGroup, match=r"'shop\*' is not namespace/name"):
            async with client.consumer("shop*", group="a"):
                pass
        with pytest.raises(BadGroup, match="with_meta needs namespaces"):
            async with client.consumer("*/orders", group="a", with_meta=True, missing="wait"):
                pass
        assert dict(cluster.store.values) == before
        async with mirror(client) as consumer:
            assert await drain(consumer) == []
            await client.topics.create(ORDERS)
            await send(client, 0, 1)
            assert told(await drain(consumer)) == [f"created {ORDERS}", "0"]
