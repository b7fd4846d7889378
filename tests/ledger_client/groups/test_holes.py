"""Acknowledged messages between others, which a shared group keeps apart however many they are."""

from __future__ import annotations

import pytest
import trio
from memory_cluster import memory_cluster
from shared_shop import ORDERS, crash, rows, value
from trio.testing import MockClock

from ledger_client.groups.consumer import GroupConsumer

MESSAGES = 20_000
BATCH = 100


async def take_all(consumer: GroupConsumer, count: int, *, odd_stay: bool) -> list[int]:
    """Return the next *count* messages; acknowledge them, or only those of even numbers."""
    seen: list[int] = []
    with trio.fail_after(60):
        while len(seen) < count:
            messages = await consumer.poll(wait_s=5)
            done = [each for each in messages if not (odd_stay and value(each) % 2)]
            consumer.ack_nowait(done)
            seen += map(value, messages)
    await consumer.flush()
    return seen


@pytest.mark.parametrize("end", ["closed", "lost"])
async def test_ten_thousand_holes_survive_the_member_and_the_leader(
    autojump_clock: MockClock, end: str
) -> None:
    """Every second message is acknowledged: exactly the others come again, each once."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leading = cluster.lead("b1")
        await client.topics.create(ORDERS)
        async with client.producer(ORDERS) as producer:
            for first in range(0, MESSAGES, BATCH):
                await producer.send_many([b"%d" % (first + each) for each in range(BATCH)])
        settings = {"group": "billing", "mode": "shared", "start": "earliest"}
        bounds = {"unacked_max": MESSAGES, "ack_timeout_s": 3600.0}
        async with client.consumer(ORDERS, **settings, **bounds) as consumer:  # type: ignore[arg-type]
            assert await take_all(consumer, MESSAGES, odd_stay=True) == list(range(MESSAGES))
            if end == "lost":
                crash(consumer)
        cluster.lead("b2")
        leading.cancel()
        cluster.kill("b1")
        cluster.bookies["b1"].coordinator = None
        async with client.consumer(ORDERS, **settings, **bounds) as consumer:  # type: ignore[arg-type]
            again = await take_all(consumer, MESSAGES // 2, odd_stay=False)
            assert sorted(again) == list(range(1, MESSAGES, 2))
            assert await consumer.poll(wait_s=60) == []
        assert rows(cluster) == []
