"""Topics and partitions that are younger than a group: it misses none of their messages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio
from group_rig import ORDERS, nothing_more, rest, send, shop
from trio.testing import MockClock

from ledger_client.groups import heartbeats
from ledger_client.groups.consumer import GroupConsumer

NEW = "shop/new"


async def rest_of(*consumers: GroupConsumer) -> list[int]:
    """Return the values of all messages there are for these members together, sorted."""
    found: list[int] = []
    for _ in range(2):  # a rebalance may be under way
        for consumer in consumers:
            found += await rest(consumer)
    return sorted(found)


async def test_a_member_that_had_nothing_of_a_topic_reads_its_new_partitions_from_their_beginning(
    autojump_clock: MockClock,
) -> None:
    """It looks the topic up only when it gets the partitions, which have messages by then."""
    async with shop(1) as (_, client):
        await send(client, 0, 5)
        async with (
            client.consumer(ORDERS, group="billing") as one,
            client.consumer(ORDERS, group="billing") as other,
        ):
            assert await nothing_more(one)
            assert await nothing_more(other)
            await client.topics.alter(ORDERS, partitions=8)
            await send(client, 5, 100)
            assert await rest_of(one, other) == list(range(5, 100))
            assert one.assignment() and other.assignment()


async def test_a_member_that_was_removed_reads_a_topic_that_was_created_meanwhile(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "time", SimpleNamespace(monotonic=trio.current_time))
    async with (
        shop(1) as (_, client),
        client.consumer("shop/*", group="billing", poll_s_max=30) as consumer,
    ):
        await consumer.poll(wait_s=5)
        await trio.sleep(60)
        assert (await client.groups.describe("billing")).members == []
        await client.topics.create(NEW)
        await send(client, 0, 5, NEW)
        assert await rest_of(consumer) == list(range(5))


async def test_a_member_that_joins_late_reads_a_topic_that_others_wanted_before(
    autojump_clock: MockClock,
) -> None:
    """It is there before the group is rebalanced for the topic, and gets it."""
    async with shop(1) as (_, client), client.consumer("shop/*", group="billing") as one:
        assert await nothing_more(one)
        await client.topics.create(NEW, 8)
        await send(client, 0, 50, NEW)
        async with client.consumer("shop/*", group="billing") as other:
            assert await rest_of(other, one) == list(range(50))
            assert other.assignment()


async def test_a_group_reads_what_is_younger_than_itself_whenever_it_goes_on(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (_, client):
        await send(client, 0, 5)
        async with client.consumer("shop/*", group="billing") as consumer:
            assert await nothing_more(consumer)
        await client.topics.create(NEW)
        await client.topics.alter(ORDERS, partitions=4)
        await trio.sleep(3600)
        await send(client, 5, 30)
        await send(client, 30, 40, NEW)
        async with client.consumer("shop/*", group="billing") as consumer:
            assert await rest_of(consumer) == list(range(5, 40))


async def test_a_group_begins_at_the_latest_message_of_a_topic_that_it_names_later(
    autojump_clock: MockClock,
) -> None:
    """It may be older than the group, or younger: nobody wanted it."""
    async with shop(1) as (_, client):
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert await nothing_more(consumer)
        await client.topics.create(NEW, 2)
        await client.topics.alter(NEW, partitions=4)
        await send(client, 0, 30, NEW)
        await trio.sleep(1)
        async with client.consumer([ORDERS, NEW], group="billing") as consumer:
            assert await nothing_more(consumer)
            await send(client, 30, 40, NEW)
            assert await rest_of(consumer) == list(range(30, 40))
