"""Partitions that go while they begin, or while another handler of the application runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
import trio
from group_rig import ORDERS, send, shop
from shared_shop import shop as shared_shop
from trio.testing import MockClock

from ledger_client import Client, Message
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.feed import FoundLanes, TopicFeed
from ledger_client.groups.options import TopicPartition

OTHER = "shop/other"


class Work:
    """Members that work on messages for a while; each message is at work at one of them only."""

    def __init__(self) -> None:
        self.at_work: dict[tuple[str, int], str] = {}
        """by topic and number: the member"""
        self.twice: list[object] = []
        self.done = 0

    async def run(self, name: str, consumer: GroupConsumer, work_s: float) -> None:
        """Poll, and work so long on what comes, until cancelled."""
        while True:
            batch = await consumer.poll(wait_s=0.5)
            for message in batch:
                here = _key(message)
                if here in self.at_work:
                    self.twice.append((here, self.at_work[here], name))
                self.at_work[here] = name
            await trio.sleep(work_s if batch else 0)
            for message in batch:
                self.at_work.pop(_key(message), None)
                self.done += 1


def _key(message: Message) -> tuple[str, int]:
    return message.topic, int(message.value or b"")


async def test_what_is_being_given_up_is_not_read_again_as_its_lanes_are_found(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look-up for its beginning ends while the application is at work on others that go."""
    look_up = TopicFeed.look_up

    async def slowly(self: TopicFeed, places: Mapping[int, object]) -> FoundLanes:
        if is_slow and self.topic.name == OTHER:
            await trio.sleep(5)
        return await look_up(self, places)  # type: ignore[arg-type]

    is_slow = False
    monkeypatch.setattr(TopicFeed, "look_up", slowly)
    async with shop(2) as (cluster, client), cluster.client() as theirs:
        await client.topics.create(OTHER, 2)
        await send(client, 0, 8)
        await send(client, 0, 8, OTHER)
        is_slow, work = True, Work()
        async with (
            client.consumer([ORDERS, OTHER], group="billing", start="earliest") as one,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(work.run, "one", one, 6)
            await trio.sleep(1)
            async with theirs.consumer([ORDERS, OTHER], group="billing", start="earliest") as two:
                nursery.start_soon(work.run, "two", two, 1)
                await trio.sleep(40)
                nursery.cancel_scope.cancel()
    assert work.done >= 16
    assert work.twice == []


async def test_what_goes_while_its_handler_runs_is_not_handed_out(
    autojump_clock: MockClock,
) -> None:
    handed: list[int] = []
    going: list[int] = []

    async def assigned(_parts: Sequence[TopicPartition]) -> None:
        is_told.set()
        await trio.sleep(6)

    async def revoked(parts: Sequence[TopicPartition]) -> None:
        going.extend(part.partition for part in parts)
        await trio.sleep(2)

    is_told = trio.Event()
    async with shop(4) as (cluster, client), cluster.client() as theirs:
        await send(client, 0, 40)
        async with client.consumer(
            ORDERS,
            group="billing",
            start="earliest",
            on_assigned=assigned,
            on_revoked=revoked,
            revoke_s=20,
        ) as one:
            await is_told.wait()
            async with theirs.consumer(ORDERS, group="billing", start="earliest"):
                for _ in range(30):
                    found = await one.poll(wait_s=0.5, messages_max=3)
                    handed += [each.id.partition for each in found]
                assert len(going) == 2
                assert set(handed) == {0, 1, 2, 3} - {*going}


@pytest.mark.parametrize("handler_s", [5, 7, 11])
async def test_on_revoked_waits_for_another_handler_and_has_its_time_then(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, handler_s: float
) -> None:
    """It begins by 0.4 of revoke_s, or after the partitions went: it is never cut short."""
    calls = itertools.count(1)
    is_told, is_done = trio.Event(), trio.Event()

    async def assigned(parts: Sequence[TopicPartition]) -> None:
        if parts[0].topic == OTHER and next(calls) == 2:
            is_told.set()
            await trio.sleep(handler_s)

    async def revoked(_parts: Sequence[TopicPartition]) -> None:
        await trio.sleep(4.5)
        is_done.set()

    async with shop(2) as (cluster, client), cluster.client() as theirs:
        await client.topics.create(OTHER, 1)
        async with client.consumer(
            [ORDERS, OTHER],
            group="billing",
            start="earliest",
            on_assigned=assigned,
            on_revoked=revoked,
            revoke_s=10,
        ) as one:
            await one.poll(wait_s=3)
            await client.topics.alter(OTHER, partitions=2)
            while not is_told.is_set():
                await one.poll(wait_s=0.1)
            async with theirs.consumer(ORDERS, group="billing", start="earliest"):
                until = trio.current_time() + 30
                while not is_done.is_set() and trio.current_time() < until:
                    await one.poll(wait_s=0.1)
    assert is_done.is_set()
    assert "cut off" not in caplog.text


async def test_a_handler_of_one_topic_holds_up_no_partition_of_which_nobody_is_told(
    autojump_clock: MockClock,
) -> None:
    async def assigned(parts: Sequence[TopicPartition]) -> None:
        if parts[0].topic == OTHER:
            is_told.set()
            await trio.sleep(60)

    is_told = trio.Event()
    async with shop(2) as (cluster, client), cluster.client() as theirs:
        await send(client, 0, 8)
        await client.topics.create(OTHER, 2)
        async with client.consumer(
            [ORDERS, OTHER], group="billing", start="earliest", on_assigned=assigned, revoke_s=30
        ) as one:
            while not is_told.is_set():
                await one.poll(wait_s=0.1)
            begun_at = trio.current_time()
            async with theirs.consumer(ORDERS, group="billing", start="earliest") as two:
                while not two.assignment():
                    await one.poll(wait_s=0.1)
                    await two.poll(wait_s=0)
                assert trio.current_time() - begun_at < 10


async def test_what_a_late_handler_commits_after_it_was_cut_off_is_its_own_alone(
    autojump_clock: MockClock,
) -> None:
    """A thread goes on: it must not commit what the application has in hand of others."""
    calls = itertools.count(1)
    committed = trio.Event()

    async def assigned(parts: Sequence[TopicPartition]) -> None:
        if parts[0].topic == OTHER and next(calls) == 2:
            is_told.set()
            await trio.sleep(9)

    async def later() -> None:
        await trio.sleep(12)
        await one.commit()
        committed.set()

    async def revoked(_parts: Sequence[TopicPartition]) -> None:
        outside.start_soon(later)
        await trio.sleep(1000)

    is_told = trio.Event()
    async with shop(2) as (cluster, client), cluster.client() as theirs:
        await client.topics.create(OTHER, 1)
        async with (
            trio.open_nursery() as outside,
            client.consumer(
                [ORDERS, OTHER],
                group="billing",
                start="earliest",
                on_assigned=assigned,
                on_revoked=revoked,
                auto_commit_s=None,
                revoke_s=10,
            ) as one,
        ):
            await one.poll(wait_s=3)
            await client.topics.alter(OTHER, partitions=2)
            while not is_told.is_set():
                await one.poll(wait_s=0.1)
            async with theirs.consumer(ORDERS, group="billing", start="earliest"):
                while len(one.assignment()) > 3:
                    await one.poll(wait_s=0.1)
                await send(client, 0, 40)
                in_hand: list[Message] = []
                while not in_hand:
                    in_hand = await one.poll(wait_s=0.1, messages_max=1)
                await committed.wait()
                assert _reached(one) <= in_hand[0].id.entry_id
                await one.commit()
                assert _reached(one) > in_hand[0].id.entry_id


def _reached(consumer: GroupConsumer) -> int:
    return max(each.place.entry for each in consumer.committed() if each.topic == ORDERS)


@pytest.mark.parametrize("mode", ["shared", "key-shared"])
async def test_a_partition_that_a_handler_paused_takes_no_room_of_others(
    autojump_clock: MockClock, mode: str
) -> None:
    async def send_keys(client: Client, topic: str, count: int) -> None:
        async with client.producer(topic) as producer:
            for number in range(count):
                await producer.send(b"%d" % number, key=b"k%d" % number)

    async with shared_shop() as (_, client):
        await client.topics.create("shop/two", 1)
        async with client.consumer(
            [ORDERS, "shop/two"],
            group="billing",
            mode=mode,  # type: ignore[arg-type]
            start="earliest",
            on_assigned=lambda parts: one.pause([p for p in parts if p.topic == ORDERS]),
            unacked_max=50,
        ) as one:
            await one.poll(wait_s=5)
            await send_keys(client, ORDERS, 200)
            await one.poll(wait_s=1)
            await send_keys(client, "shop/two", 20)
            found: list[Message] = []
            while len(found) < 20:
                batch = await one.poll(wait_s=1)
                assert batch
                await one.ack(batch)
                found += batch
            assert {each.topic for each in found} == {"shop/two"}
            one.resume()
            assert {each.topic for each in await one.poll(wait_s=5)} == {ORDERS}


async def test_a_consumer_that_is_cancelled_while_it_joins_is_no_member_afterwards(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        now_ms = cluster.store.now_ms

        async def slowly() -> int:
            opening.cancel()
            return await now_ms()

        with trio.CancelScope() as opening:
            cluster.store.now_ms = slowly  # type: ignore[method-assign]
            async with client.consumer(ORDERS, group="billing", session_s=60):
                pytest.fail("it was cancelled")
        await trio.sleep(10)
        assert (await client.groups.describe("billing")).members == []


@pytest.mark.parametrize("mode", ["exclusive", "shared", "key-shared"])
async def test_what_was_paused_while_it_went_is_not_paused_when_it_comes_back(
    autojump_clock: MockClock, mode: str
) -> None:
    async def poll(seconds: int) -> list[Message]:
        found: list[Message] = []
        for _ in range(seconds):
            batch = await one.poll(wait_s=1)
            if mode != "exclusive" and batch:
                await one.ack(batch)
            found += batch
        return found

    async with (
        shop(2) as (cluster, client),
        cluster.client() as theirs,
        client.consumer(
            ORDERS,
            group="billing",
            mode=mode,  # type: ignore[arg-type]
            start="earliest",
            on_revoked=lambda _parts: one.pause(),
        ) as one,
    ):
        await poll(5)
        async with theirs.consumer(
            ORDERS,
            group="billing",
            mode=mode,  # type: ignore[arg-type]
            start="earliest",
        ):
            await poll(10)
            one.resume(one.assignment())
        await poll(20)
        await send(client, 0, 40)
        assert sorted(int(each.value or b"") for each in await poll(20)) == list(range(40))


async def test_what_is_taken_back_stays_paused(autojump_clock: MockClock) -> None:
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", start="earliest") as one,
    ):
        await send(client, 0, 10)
        assert len(await one.poll(wait_s=5, messages_max=2)) == 2
        one.pause()
        one.take_back()
        assert await one.poll(wait_s=5) == []
        one.resume()
        assert len(await one.poll(wait_s=5)) == 10
