"""Times as places: what a group has from there on, and topics in which a timestamp is none."""

from __future__ import annotations

import pytest
from group_rig import ORDERS, send, shop, take
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import BadGroup, BadTopic, EventTime, Timestamp


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


async def test_a_group_that_begins_at_a_time_of_the_future_has_all_that_comes(
    autojump_clock: MockClock,
) -> None:
    """Its progress is places alone. A reader that follows leaves out what is earlier."""
    start = EventTime(100)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1")
        await client.topics.create(ORDERS)
        async with client.producer(ORDERS) as producer:
            await producer.send(b"", event_time=10)
            async with (
                client.consumer(ORDERS, group="g", start=start) as consumer,
                client.reader(ORDERS, start=start, follow=True) as reader,
            ):
                assert not await consumer.poll(wait_s=5)
                for time in (20, 110, 30):
                    await producer.send(b"", event_time=time)
                    (message,) = await consumer.poll(wait_s=5)
                    assert message.event_time == time
                assert [(await anext(reader)).event_time for _ in range(2)] == [110, 30]
