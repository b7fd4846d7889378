"""Whether groups are done with one message, as `Topics.why` reports it."""

from __future__ import annotations

import trio
from group_rig import ORDERS, rest, send, shop
from trio.testing import MockClock

from ledger_client import Client, MessageId
from ledger_client.topics.tracing.whereabouts import GroupStanding


async def standings(client: Client, message_id: MessageId) -> list[GroupStanding]:
    found = await client.topics.why(ORDERS, message_id)
    assert found.verdict == "readable"
    return list(found.groups)


async def test_a_group_is_past_a_message_once_it_committed(autojump_clock: MockClock) -> None:
    async with shop(1) as (_, client):
        await send(client, 0, 3)
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=None
        ) as consumer:
            first, second = await anext(consumer), await anext(consumer)
            waiting = [await standings(client, each.id) for each in (first, second)]
            assert [each.state for found in waiting for each in found] == ["to come", "to come"]
            await consumer.commit(first)
            past = await standings(client, first.id)
            coming = await standings(client, second.id)
        assert past == [GroupStanding(group="billing", mode="exclusive", state="passed")]
        assert coming == [GroupStanding(group="billing", mode="exclusive", state="to come")]


async def test_a_group_that_does_not_consume_the_topic_is_left_out(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (_, client):
        await client.topics.create("shop/bills")
        await send(client, 0, 1, topic="shop/bills")
        await send(client, 0, 1)
        async with client.consumer("shop/bills", group="g", start="earliest") as consumer:
            await rest(consumer)
        async with client.reader(ORDERS) as reader:
            message = await anext(reader)
        assert await standings(client, message.id) == []


async def test_a_member_has_a_message_until_it_acknowledges_it(autojump_clock: MockClock) -> None:
    async with shop(1) as (_, client):
        await send(client, 0, 2)
        async with client.consumer(
            ORDERS, group="g", mode="shared", start="earliest", member="m1"
        ) as consumer:
            first, second = await anext(consumer), await anext(consumer)
            held = await standings(client, first.id)
            assert held == [
                GroupStanding(group="g", mode="shared", state="held", member="m1", deliveries=1)
            ]
            await consumer.ack(first)
            await trio.sleep(1)  # acknowledgements are stored together
            (done,) = await standings(client, first.id)
            assert done.state == "passed"
            consumer.nack(second, delay_s=0.1)
            again = await anext(consumer)
            assert again.id == second.id
            (twice,) = await standings(client, second.id)
        assert (twice.state, twice.member, twice.deliveries) == ("held", "m1", 2)


async def test_a_message_that_a_member_left_is_nobodys(autojump_clock: MockClock) -> None:
    async with shop(1) as (_, client):
        await send(client, 0, 2)
        async with client.consumer(ORDERS, group="g", mode="shared", start="earliest") as consumer:
            message = await anext(consumer)
        (left,) = await standings(client, message.id)
        assert (left.state, left.member) == ("held", "")


async def test_a_message_that_failed_too_often_is_a_dead_letter(autojump_clock: MockClock) -> None:
    async with shop(1) as (_, client):
        await send(client, 0, 2)
        async with client.consumer(
            ORDERS, group="g", mode="shared", start="earliest", deliveries_max=1
        ) as consumer:
            first = await anext(consumer)
            consumer.nack(first)
            await consumer.ack(await anext(consumer))
            await trio.sleep(5)
            (found,) = await standings(client, first.id)
        async with client.reader("shop/g.dead") as reader:
            letter = await anext(reader)
        assert (found.state, found.dead_letter) == ("dead letter", letter.id)


async def test_a_key_shared_group_has_progress_for_each_slot(autojump_clock: MockClock) -> None:
    async with shop(1) as (_, client):
        await send(client, 0, 2)
        async with client.consumer(
            ORDERS, group="g", mode="key-shared", start="earliest", member="m1"
        ) as consumer:
            first, second = await anext(consumer), await anext(consumer)
            await consumer.ack(first)
            await trio.sleep(1)
            (done,) = await standings(client, first.id)
            (held,) = await standings(client, second.id)
        assert (done.state, done.mode) == ("passed", "key-shared")
        assert (held.state, held.member) == ("held", "m1")
