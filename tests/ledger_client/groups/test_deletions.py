"""Consumers hear of each deleted topic that they name once, whatever comes between."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio
from group_rig import ORDERS, nothing_more, send, shop, take
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import Client, MetadataUnavailable, NoSuchTopic
from ledger_client.groups import heartbeats
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.options import Missing
from ledger_client.topics.catalogue import TopicCatalogue
from metadata.groups.rows import Mode, members_prefix
from metadata.topics import TopicRecord

MODES = pytest.mark.parametrize("mode", ["exclusive", "shared", "key-shared"])


async def deletions_heard_of(consumer: GroupConsumer) -> list[str]:
    """The topics of which an application hears that asks for messages for a minute."""
    heard: list[str] = []
    with trio.move_on_after(60):
        while len(heard) < 5:
            try:
                assert await consumer.poll(wait_s=1) == []
            except NoSuchTopic as gone:
                heard.append(gone.topic)
    return heard


async def goes_on_with_a_new_topic(client: Client, consumer: GroupConsumer) -> bool:
    await client.topics.create(ORDERS, partitions=1)
    await send(client, 0, 5)
    return await take(consumer, 5) == list(range(5)) and await nothing_more(consumer)


@MODES
@pytest.mark.parametrize("missing", ["fail", "wait"])
async def test_a_deletion_is_told_once_though_the_member_keeps_the_partitions_for_long(
    autojump_clock: MockClock, mode: Mode, missing: Missing
) -> None:
    """Nobody leads, who would take them away; and not at all to those who wait for topics."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leading = cluster.lead("b1")
        await client.topics.create(ORDERS, 2)
        async with client.consumer(
            ORDERS, group="a", mode=mode, start="earliest", missing=missing
        ) as consumer:
            await consumer.poll(wait_s=15)
            assert len(consumer.assignment()) == 2
            leading.cancel()
            await client.topics.delete(ORDERS, force=True)
            assert await deletions_heard_of(consumer) == [ORDERS] * (missing == "fail")


@MODES
async def test_a_deletion_is_told_though_the_store_does_not_answer_when_partitions_go(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    find, is_away = TopicCatalogue.find, True

    async def silent(catalogue: TopicCatalogue, name: str) -> tuple[TopicRecord, int] | None:
        if is_away and name == ORDERS:
            raise MetadataUnavailable("the store is away")
        return await find(catalogue, name)

    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="a", mode=mode, start="earliest") as consumer,
    ):
        await consumer.poll(wait_s=3)
        await client.topics.delete(ORDERS, force=True)
        monkeypatch.setattr(TopicCatalogue, "find", silent)
        await trio.sleep(20)
        assert consumer.assignment() == []
        is_away = False
        assert await deletions_heard_of(consumer) == [ORDERS]
        assert await goes_on_with_a_new_topic(client, consumer)


@MODES
async def test_a_deletion_is_told_to_a_member_that_is_lost_meanwhile(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    monkeypatch.setattr(heartbeats, "time", SimpleNamespace(monotonic=trio.current_time))
    async with (
        shop(1) as (cluster, client),
        client.consumer(ORDERS, group="a", mode=mode, start="earliest", poll_s_max=10) as consumer,
    ):
        await consumer.poll(wait_s=3)
        await trio.sleep(20)
        assert await cluster.store.list(members_prefix("a")) == []
        assert consumer.assignment() == []
        await client.topics.delete(ORDERS, force=True)
        assert await deletions_heard_of(consumer) == [ORDERS]
        assert await goes_on_with_a_new_topic(client, consumer)


@MODES
async def test_a_deletion_is_told_that_comes_before_the_partitions_do(
    autojump_clock: MockClock, mode: Mode
) -> None:
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="a", mode=mode, start="earliest") as consumer,
    ):
        await client.topics.delete(ORDERS, force=True)
        assert await deletions_heard_of(consumer) == [ORDERS]
        assert await goes_on_with_a_new_topic(client, consumer)


@MODES
async def test_a_deletion_is_told_that_comes_just_as_partitions_are_to_begin(
    autojump_clock: MockClock, mode: Mode
) -> None:
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="a", mode=mode, start="earliest") as consumer,
    ):
        search = consumer._partitions._search
        find = search.topic

        async def too_late(uid: int) -> TopicRecord:
            search.topic = find  # type: ignore[method-assign]
            await client.topics.delete(ORDERS, force=True)
            return await find(uid)

        search.topic = too_late  # type: ignore[method-assign]
        assert await deletions_heard_of(consumer) == [ORDERS]
        assert await goes_on_with_a_new_topic(client, consumer)


async def test_a_member_that_has_no_partition_does_not_hear_of_a_topic_that_is_there(
    autojump_clock: MockClock,
) -> None:
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="a") as first,
        client.consumer(ORDERS, group="a") as second,
    ):
        async with trio.open_nursery() as nursery:
            for consumer in (first, second):
                nursery.start_soon(nothing_more, consumer, 30)
        assert len(first.assignment() + second.assignment()) == 1
