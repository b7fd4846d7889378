"""The tables of consumers and subscriptions."""

from __future__ import annotations

from typing import Literal

import pytest
import trio
from group_rig import ORDERS, shop
from trio.testing import MockClock

from ledger_client import BadGroup, Client
from ledger_client.groups.consumers import ConsumerInfo
from ledger_client.groups.options import ConsumerOptions
from metadata.groups.rows import PARAMETERS_SIZE_MAX


async def only(client: Client, group: str = "billing") -> ConsumerInfo:
    (found,) = await client.groups.consumers(group)
    return found


async def test_a_consumer_shows_who_it_is_and_how_it_consumes(autojump_clock: MockClock) -> None:
    """TD-77."""
    async with shop(2) as (cluster, client):
        await trio.sleep(1)
        up_ms = await cluster.store.now_ms()
        async with client.consumer(
            [ORDERS, "shop/r*"],
            group="billing",
            client_id="till",
            start="earliest",
            auto_commit_s=7,
            missing="wait",
        ):
            await trio.sleep(5)
            found = await only(client)
            assert (found.group, found.client_id, found.state) == ("billing", "till", "ready")
            assert found.topics == [ORDERS, "shop/r*"]
            for part in ("start=earliest", "auto_commit_s=7", "session_s=12.0", "revoke_s=10.0"):
                assert part in found.parameters
            assert up_ms <= found.up_ms <= found.joined_ms <= found.rebalanced_ms
            assert found.rebalanced_ms < up_ms + 5000
            assert found.process_id > 0
            assert await client.groups.consumers() == [await only(client)]
        assert await client.groups.consumers("billing") == []
        with pytest.raises(BadGroup, match="no group"):
            await client.groups.consumers("nobody")


async def test_a_consumer_that_joins_again_is_up_since_it_was_started(
    autojump_clock: MockClock,
) -> None:
    """TD-77: up time, subscribe time and rebalance time are different ones."""
    async with (
        shop(2) as (_, client),
        client.consumer(ORDERS, group="billing") as consumer,
    ):
        await consumer.poll(wait_s=1)
        first = await only(client)
        await trio.sleep(60)
        await client.groups.delete("billing", force=True)
        await trio.sleep(10)
        await consumer.poll(wait_s=3)
        again = await only(client)
        assert again.up_ms == first.up_ms
        assert again.joined_ms > first.joined_ms + 50_000
        assert again.rebalanced_ms > first.rebalanced_ms + 50_000


async def test_subscriptions_show_who_has_what_and_how_far_it_came(
    autojump_clock: MockClock,
) -> None:
    """TD-77: also partitions without messages, and those that nobody has."""
    async with shop(3) as (_, client):
        async with client.producer(ORDERS) as producer:
            for partition in (0, 0, 1):
                await producer.send(b"m", partition=partition)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert len(await consumer.poll(wait_s=5)) > 0
            member = (await only(client)).member
            found = await client.groups.subscriptions("billing")
            assert [(s.topic, s.partition, s.member) for s in found] == [
                (ORDERS, partition, member) for partition in range(3)
            ]
            assert [s.lag for s in found] == [2, 1, 0]
            assert [(s.lane, s.position) for s in found] == [(0, -1), (0, -1), (-1, -1)]
            while await consumer.poll(wait_s=3):
                pass
        found = await client.groups.subscriptions("billing")
        assert [(s.member, s.lag) for s in found] == [("", 0), ("", 0), ("", 0)]
        assert all(s.position == s.end for s in found[:2])
        assert (found[2].position, found[2].end) == (-1, 0)


@pytest.mark.parametrize(("mode", "slots"), [("shared", 0), ("key-shared", 3 * 16)])
async def test_slots_are_not_counted_as_partitions(
    autojump_clock: MockClock, mode: Literal["shared", "key-shared"], slots: int
) -> None:
    async with shop(3) as (_, client):
        await client.topics.create("shop/plain")
        async with client.consumer(ORDERS, group="billing", mode=mode):
            await trio.sleep(5)
            found = await only(client)
            assert (found.partitions, found.slots) == (3, slots)
        async with client.consumer("shop/plain", group="plain", mode=mode):
            await trio.sleep(5)
            found = await only(client, "plain")
            assert (found.partitions, found.slots) == (1, slots and 16)


async def test_parameters_have_a_bound() -> None:
    options = ConsumerOptions(group="g", start="none", on_assigned=print)
    assert "print" not in options.parameters
    assert "group=" not in options.parameters
    assert len(options.parameters) < PARAMETERS_SIZE_MAX
