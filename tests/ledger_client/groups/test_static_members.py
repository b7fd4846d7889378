"""Members with a name, that restart within their session."""

from __future__ import annotations

from group_rig import ORDERS, send, shop, take
from trio.testing import MockClock

from ledger_client import Client


async def test_a_named_member_that_restarts_in_its_session_moves_no_partition(
    autojump_clock: MockClock,
) -> None:
    """The other member reads on meanwhile, and the group is not rebalanced."""

    async def rebalances(client: Client) -> int:
        return (await client.groups.describe("billing")).rebalances

    async with (
        shop(4) as (cluster, client),
        cluster.client() as theirs,
        theirs.consumer(ORDERS, group="billing", start="earliest") as other,
    ):
        async with client.consumer(
            ORDERS, group="billing", start="earliest", member="till-3", session_s=60
        ) as first:
            for _ in range(20):
                await first.poll(wait_s=0.5)
                await other.poll(wait_s=0.5)
            mine, before = first.assignment(), await rebalances(client)
            assert len(mine) == len(other.assignment()) == 2
        await send(client, 0, 40)
        found = [int(each.value or b"") for each in await other.poll(wait_s=5)]
        assert found
        async with client.consumer(
            ORDERS, group="billing", start="earliest", member="till-3", session_s=60
        ) as again:
            left = 40 - len(found) - len(await other.poll(wait_s=5))
            assert len(await take(again, left)) == left
            assert again.assignment() == mine
            assert await rebalances(client) == before


async def test_of_several_topics_those_that_are_not_there_yet_are_waited_for(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (_, client):
        await send(client, 0, 5)
        async with client.consumer(
            [ORDERS, "shop/refunds"], group="billing", start="earliest", missing="wait"
        ) as consumer:
            assert sorted(await take(consumer, 5)) == list(range(5))
            await client.topics.create("shop/refunds")
            await send(client, 5, 10, "shop/refunds")
            assert sorted(await take(consumer, 5)) == list(range(5, 10))


async def test_a_consumer_that_was_closed_may_be_closed_again(autojump_clock: MockClock) -> None:
    """TD-60. What was consumed is committed first."""
    async with shop(1) as (_, client):
        await send(client, 0, 5)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            async for message in consumer:
                if message.value == b"2":
                    break
            await consumer.close()
            await consumer.close()
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert await take(consumer, 3) == [2, 3, 4]
