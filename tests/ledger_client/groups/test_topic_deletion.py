"""Topics that members of groups name are deleted by force only; TD-70."""

from __future__ import annotations

import pytest
import trio
from group_rig import ORDERS, nothing_more, send, shop, take
from trio.testing import MockClock

from ledger_client import NoSuchTopic, TopicBusy
from ledger_client.groups import partitions
from metadata.groups.rows import Mode, member_key
from metadata.topics import TopicRecord


async def test_a_topic_that_consumers_name_is_deleted_by_force_only(
    autojump_clock: MockClock,
) -> None:
    """TD-70: the error names their groups, and nothing changes. By force, consumers get errors."""
    async with shop(1) as (cluster, client):
        await client.topics.create("shop/refunds")
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            async with client.consumer(
                ["shop/refunds", ORDERS], group="audit", mode="shared"
            ) as other:
                await other.poll(wait_s=3)
                await consumer.poll(wait_s=3)
                before = dict(cluster.store.values)
                with pytest.raises(TopicBusy) as refused:
                    await client.topics.delete(ORDERS)
                assert str(refused.value) == (
                    f"topic {ORDERS}: groups audit, billing consume it; stop their members, "
                    "or force the deletion (--force)"
                )
                assert refused.value.groups == ("audit", "billing")
                assert dict(cluster.store.values) == before
            with pytest.raises(TopicBusy, match=": group billing consumes it; stop its members"):
                await client.topics.delete(ORDERS)
            await send(client, 0, 5)
            assert await take(consumer, 5) == list(range(5))
            await client.topics.delete(ORDERS, force=True)
            with pytest.raises(NoSuchTopic):
                await consumer.poll(wait_s=10)
        assert await client.topics.list("shop") == [await client.topics.info("shop/refunds")]


@pytest.mark.parametrize("mode", ["exclusive", "shared", "key-shared"])
async def test_a_deleted_topic_that_a_consumer_names_is_told_once_unless_it_waits_for_such(
    autojump_clock: MockClock, mode: Mode
) -> None:
    """And it is consumed once it is made anew."""
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="fails", mode=mode, start="earliest") as failing,
        client.consumer(
            ORDERS, group="waits", mode=mode, start="earliest", missing="wait"
        ) as waiting,
    ):
        for consumer in (failing, waiting):
            await consumer.poll(wait_s=3)
        await client.topics.delete(ORDERS, force=True)
        with pytest.raises(NoSuchTopic, match=ORDERS):
            await failing.poll(wait_s=30)
        for consumer in (failing, waiting):
            assert await nothing_more(consumer)
        await client.topics.create(ORDERS, partitions=1)
        await send(client, 0, 5)
        for consumer in (failing, waiting):
            assert await take(consumer, 5) == list(range(5))


async def test_groups_without_members_and_patterns_do_not_stop_a_deletion(
    autojump_clock: MockClock,
) -> None:
    """TD-70: who matches a topic by a pattern goes on without it."""
    async with shop(1) as (_, client):
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            await consumer.poll(wait_s=3)
        async with client.consumer("shop/*", group="all", start="earliest") as consumer:
            await consumer.poll(wait_s=3)
            await client.topics.delete(ORDERS)
            assert await nothing_more(consumer)


async def test_names_of_topics_that_come_and_go_do_not_add_up(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "NAMES_KEPT", 2)
    async with (
        shop(1) as (_, client),
        client.consumer("shop/*", group="all", start="earliest") as consumer,
    ):
        for number in range(4):
            name = f"shop/day-{number}"
            await client.topics.create(name)
            await send(client, number, number + 1, name)
            assert await take(consumer, 1) == [number]
            await client.topics.delete(name)
            assert await nothing_more(consumer)
        names = set(consumer._partitions._topic_names.values())
        assert names == {ORDERS, "shop/day-3"}


async def test_a_consumer_that_joins_during_a_deletion_gets_an_error_and_does_not_stop_it(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (_, client):
        catalogue = client._context.catalogue
        mark = catalogue.mark_deleting
        is_checked, has_joined = trio.Event(), trio.Event()

        async def wait_and_mark(name: str) -> TopicRecord:
            is_checked.set()
            await has_joined.wait()
            return await mark(name)

        catalogue.mark_deleting = wait_and_mark  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.topics.delete, ORDERS)
            await is_checked.wait()
            async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
                await consumer.poll(wait_s=3)
                assert len(consumer.assignment()) == 1
                has_joined.set()
                with pytest.raises(NoSuchTopic):
                    await consumer.poll(wait_s=10)
                assert await nothing_more(consumer)
                assert consumer.assignment() == []
        assert await client.topics.list() == []


async def test_a_deletion_that_was_interrupted_goes_on_without_a_question(
    autojump_clock: MockClock,
) -> None:
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", start="earliest") as consumer,
    ):
        await consumer.poll(wait_s=3)
        await client._context.catalogue.mark_deleting(ORDERS)
        await client.topics.delete(ORDERS)
        assert await client._context.catalogue.find(ORDERS) is None


async def test_a_topic_that_is_not_there_is_no_busy_one(autojump_clock: MockClock) -> None:
    """Also while a consumer waits for it."""
    async with shop(1) as (_, client):
        waited = client.consumer("shop/refunds", group="billing", missing="wait")
        async with waited as consumer:
            await consumer.poll(wait_s=3)
            with pytest.raises(NoSuchTopic):
                await client.topics.delete("shop/refunds")


async def test_many_groups_are_counted_and_a_damaged_row_is_passed_over(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (cluster, client):
        async with client.consumer(ORDERS, group="g1", member="m") as consumer:
            await consumer.poll(wait_s=3)
            row = cluster.store.values[member_key("g1", "m")].value
        for number in range(2, 7):
            await cluster.store.put(member_key(f"g{number}", "m"), row)
        await cluster.store.put(member_key("g1", "m"), b"damaged")
        with pytest.raises(TopicBusy, match="groups g2, g3, g4 and 2 more consume it") as refused:
            await client.topics.delete(ORDERS)
        assert refused.value.groups == ("g2", "g3", "g4", "g5", "g6")
