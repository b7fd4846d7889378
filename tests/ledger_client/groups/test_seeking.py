"""A seek while another task polls: messages come from the new place on, and position() agrees."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from group_rig import ORDERS, send, shop, take
from shared_shop import until
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.feed import FoundLanes
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.positions import Position


async def test_a_poll_that_waits_at_the_end_returns_what_a_seek_goes_back_to(
    autojump_clock: MockClock,
) -> None:
    """TD-62, TD-63."""
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", start="earliest") as consumer,
    ):
        await send(client, 0, 10)
        assert await take(consumer, 3) == [0, 1, 2]
        third = consumer.position()
        assert await take(consumer, 7) == list(range(3, 10))
        got: list[int] = []

        async def poll() -> None:
            messages = await consumer.poll(wait_s=100, messages_max=4)
            got.extend(int(each.value or b"") for each in messages)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await wait_all_tasks_blocked()
            await consumer.seek(third)
            assert consumer.position() == third
        assert got == [3, 4, 5, 6]
        after = consumer.position()
        assert await take(consumer, 3) == [7, 8, 9]
        await consumer.seek(after)
        assert await take(consumer, 3) == [7, 8, 9]


async def test_what_a_poll_returns_during_a_seek_does_not_move_the_new_place(
    autojump_clock: MockClock,
) -> None:
    """TD-62: the seek waits for the metadata, and messages of the old place come meanwhile."""
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", start="earliest") as consumer,
    ):
        await send(client, 0, 10)
        assert await take(consumer, 2) == [0, 1]
        second = consumer.position()
        (feed,) = consumer._partitions.feeds.values()
        look_up, may_find = feed.look_up, trio.Event()

        async def wait_and_look(places: Mapping[int, Any]) -> FoundLanes:
            found = await look_up(places)
            await may_find.wait()
            return found

        feed.look_up = wait_and_look  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.seek, second)
            await wait_all_tasks_blocked()
            assert await take(consumer, 3) == [2, 3, 4]
            assert consumer.position() != second
            may_find.set()
        assert consumer.position() == second
        assert await take(consumer, 8) == list(range(2, 10))


@pytest.mark.parametrize("seed", range(8))
async def test_polls_go_on_from_the_last_seek_whenever_it_comes(
    autojump_clock: MockClock, seed: int
) -> None:
    """TD-62, TD-63: against a model that knows the number of the next message."""
    chance = random.Random(seed)
    count = 200
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", start="earliest") as consumer,
    ):
        for first in range(0, count, 20):
            async with client.producer(ORDERS) as producer:
                await producer.send_many([b"%d" % number for number in range(first, first + 20)])
        model = Model(consumer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(model.poll, chance)
            for _ in range(60):
                await trio.sleep(chance.choice([0, 0.001, 0.05]))
                await model.seek(chance)
            await until(lambda: model.next == count)
            nursery.cancel_scope.cancel()
        assert model.returned > count


class Model:
    """What a consumer of numbered messages is to return next."""

    def __init__(self, consumer: GroupConsumer) -> None:
        self.next = 0
        self.returned = 0
        self._consumer = consumer
        self._places: list[tuple[Position, int]] = []

    async def poll(self, chance: random.Random) -> None:
        """Check messages and position until cancelled."""
        while True:
            messages = await self._consumer.poll(wait_s=0.05, messages_max=chance.randint(1, 30))
            values = [int(each.value or b"") for each in messages]
            assert values == list(range(self.next, self.next + len(values)))
            self.next += len(values)
            self.returned += len(values)
            if values:
                self._places.append((self._consumer.position(), self.next))
            if chance.random() < 0.3:
                await trio.sleep(0.01)

    async def seek(self, chance: random.Random) -> None:
        """Go to a place that was reached before."""
        if self._places:
            place, number = chance.choice(self._places)
            await self._consumer.seek(place)
            self.next = number
            assert self._consumer.position() == place


async def test_a_lane_that_appears_during_a_seek_is_read(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is slow with another topic, after the lanes of this one were looked up."""
    real, is_slow = TopicCatalogue.get, False

    async def get(self: TopicCatalogue, name: str) -> object:
        if is_slow and name == "shop/other":
            await trio.sleep(1)
        return await real(self, name)

    monkeypatch.setattr(TopicCatalogue, "get", get)
    async with shop(1) as (cluster, writer), cluster.client() as client:
        await writer.topics.create("shop/other")
        topics = [ORDERS, "shop/other"]
        async with (
            writer.producer(ORDERS, access="shared") as one,
            client.consumer(topics, group="billing", start="earliest") as consumer,
        ):
            await one.send(b"0")
            await send(writer, 1, 2, "shop/other")
            assert sorted(await take(consumer, 2)) == [0, 1]
            is_slow = True
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.seek, consumer.position())
                await trio.sleep(0.2)
                async with writer.producer(ORDERS, access="shared") as another:
                    await another.send(b"2")
            is_slow = False
            assert await take(consumer, 1) == [2]
