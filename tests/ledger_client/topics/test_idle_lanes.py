"""What lanes cost the metadata store: while nothing happens, and when they are opened.

tests/system/test_idle.py has open lanes that are followed: the bookies here are fakes, at which no
follower can rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
from metadata_costs import Cost, during, small_cluster, store_of
from trio.testing import MockClock

WARM_S = 40.0
WINDOW_S = 300.0


async def written(*, topics: int, lanes: int) -> Cost:
    """Return the cost of open lanes of one client."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(small_cluster(3))
        client = await stack.enter_async_context(cluster.client())
        for number in range(topics):
            await client.topics.create(f"idle/t{number}", lanes, replication=2)
            producer = await client.producer(f"idle/t{number}")
            for partition in range(lanes):
                await producer.send(b"x", partition=partition)
        await trio.sleep(WARM_S)
        return await during(cluster, WINDOW_S)


async def followed(*, topics: int, lanes: int) -> Cost:
    """Return the cost of one client that follows lanes whose producers have gone."""
    names = [f"idle/t{number}" for number in range(topics)]
    async with small_cluster(3) as cluster, cluster.client() as client:
        for name in names:
            await client.topics.create(name, lanes, replication=2)
            async with client.producer(name) as producer:
                for partition in range(lanes):
                    await producer.send(b"x", partition=partition)
        async with client.reader(names, follow=True) as reader, trio.open_nursery() as nursery:
            count = 0
            while count < topics * lanes:
                count += len(await reader.next_messages())
            nursery.start_soon(reader.next_messages)
            await trio.sleep(WARM_S)
            found = await during(cluster, WINDOW_S)
            nursery.cancel_scope.cancel()
            return found


@pytest.mark.parametrize("cost", [written, followed])
async def test_lanes_and_topics_that_are_held_or_followed_cost_nothing(
    autojump_clock: MockClock, cost: Callable[..., Awaitable[Cost]]
) -> None:
    """A session is kept, and a client waits for hints; nothing is asked for each lane."""
    one = await cost(topics=1, lanes=1)
    many = await cost(topics=4, lanes=6)
    assert (many.changes, many.commits) == (one.changes, one.commits)
    assert abs(many.reads - one.reads) <= 2  # the wait for hints begins at another moment
    assert one.reads < WINDOW_S / 10


async def test_opening_a_lane_asks_the_metadata_for_little(autojump_clock: MockClock) -> None:
    """Its lease, who else writes, the lane, two changes, and once whether it is still ours.

    Ids of ledgers come several at once. The topic is as the producer found it.
    """
    lanes = 20
    async with small_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create("idle/t", lanes, replication=2)
        async with client.producer("idle/t") as producer:
            before = Counter(store_of(cluster).calls)
            async with trio.open_nursery() as nursery:
                for partition in range(lanes):
                    nursery.start_soon(partial(producer.send, b"x", partition=partition))
            await trio.sleep(5)
            calls = Counter(store_of(cluster).calls)
            calls.subtract(before)
    assert (calls["grant"], calls["transact"]) == (lanes, 2 * lanes)
    few = 3  # of the topic, and of the client
    assert calls["get"] <= 2 * lanes + few
    assert calls["list"] <= few
    assert calls["leases"] + calls["next_id"] < 2.5 * lanes
