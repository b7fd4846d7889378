"""Members that fall behind retention."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
from group_rig import ORDERS, rest, shop, take
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from ledger_client import Client, Gap
from metadata.topics import RollPolicy


@pytest.fixture
async def client(autojump_clock: MockClock) -> AsyncIterator[Client]:
    """A group that committed three of twelve messages, of which the first ten were removed."""
    async with shop(1) as (_, client):
        await client.topics.delete(ORDERS)
        await client.topics.create(ORDERS, roll=RollPolicy(entries=3))
        async with client.producer(ORDERS, batching=False) as producer:
            for number in range(12):
                await producer.send(b"%d" % number)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert await take(consumer, 3) == [0, 1, 2]
        async with client.producer(ORDERS, batching=False) as producer:  # closes the last ledger
            await producer.send(b"12")
            await client.topics.purge(ORDERS)
            await producer.send(b"13")
        yield client


def told(client: Client, name: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(client.metrics)
    return registry.get_sample_value(f"quire_client_{name}", {"topic": ORDERS})


async def test_a_member_gets_a_gap_once_and_goes_on_after_it(
    client: Client, autojump_clock: MockClock
) -> None:
    """TD-73: never a silent skip."""
    async with client.consumer(ORDERS, group="billing") as consumer:
        with pytest.raises(Gap):
            await consumer.poll(wait_s=5)
        values = await rest(consumer)
        assert values
        assert values[-1] == 13
        assert values[0] > 3


async def test_a_member_may_skip_gaps_which_are_counted(
    client: Client, autojump_clock: MockClock
) -> None:
    """TD-73."""
    before = told(client, "read_gaps_total") or 0
    assert told(client, "read_lag_seconds") is None
    async with client.consumer(ORDERS, group="billing", on_gap="skip") as consumer:
        values = await rest(consumer)
        assert told(client, "read_lag_seconds") is not None
    assert values[-1] == 13
    assert values[0] > 3
    assert told(client, "read_gaps_total") == before + 1


@pytest.mark.parametrize("mode", ["shared", "key-shared"])
@pytest.mark.parametrize("skips", [True, False])
async def test_what_a_lost_member_had_and_retention_took_is_a_gap_too(
    autojump_clock: MockClock, mode: str, skips: bool
) -> None:
    """TD-73. They are told of, once, as nobody is done with them."""
    async with shop(1) as (_, client):
        await client.topics.delete(ORDERS)
        await client.topics.create(ORDERS, roll=RollPolicy(entries=3))
        opened = partial(
            client.consumer,
            ORDERS,
            group="billing",
            mode=mode,  # type: ignore[arg-type]
            start="earliest",
        )
        async with opened() as lost:
            await lost.poll(wait_s=5)
            async with client.producer(ORDERS, batching=False) as producer:
                for number in range(12):
                    await producer.send(b"%d" % number, key=b"k%d" % number)
            assert len(await lost.poll(wait_s=5, messages_max=3)) == 3
        async with client.producer(ORDERS, batching=False) as producer:  # closes the last ledger
            await producer.send(b"12", key=b"k")
            await client.topics.purge(ORDERS)
        before = told(client, "read_gaps_total") or 0
        async with opened(on_gap="skip" if skips else "raise") as consumer:
            failures, found = 0, list[int]()
            for _ in range(20):
                try:
                    batch = await consumer.poll(wait_s=1)
                except Gap:
                    failures += 1
                else:
                    await consumer.ack(batch)
                    found += [int(each.value or b"") for each in batch]
            counted = (told(client, "read_gaps_total") or 0) - before
            assert found == [12]
            # One for all shares of the lost member, one for what nobody had taken.
            assert counted == 2
            assert failures == (0 if skips else 2)
        async with opened() as consumer:
            assert await consumer.poll(wait_s=5) == []
