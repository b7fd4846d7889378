"""Timestamps as places: not in topics whose messages have none."""

from __future__ import annotations

import pytest
from group_rig import ORDERS, send, shop, take
from trio.testing import MockClock

from ledger_client import BadGroup, BadTopic, Timestamp


async def test_a_timestamp_is_no_place_in_a_topic_without_timesync(
    autojump_clock: MockClock,
) -> None:
    """None of its messages has one, so it would be behind all of them."""
    start = Timestamp(1)
    async with shop(1) as (_, client):
        await send(client, 0, 5)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert await take(consumer, 5) == list(range(5))
            await consumer.commit()
        before = await client.groups.committed("billing")
        with pytest.raises(BadTopic, match="without timesync"):
            await client.groups.reset("billing", start)
        assert await client.groups.committed("billing") == before
        with pytest.raises(BadGroup, match="without timesync"):
            async with client.consumer(ORDERS, group="audit", start=start):
                pass
        async with client.consumer("shop/*", group="all", start=start) as consumer:
            with pytest.raises(BadGroup, match="begin at a publish time"):
                await consumer.poll(wait_s=30)
        assert not await client.groups.committed("all")
        with pytest.raises(BadTopic, match="without timesync"):
            await client.topics.delete_messages(ORDERS, start, "latest")
        with pytest.raises(BadTopic, match="without timesync"):
            await client.topics.delete_messages(ORDERS, "earliest", start)
