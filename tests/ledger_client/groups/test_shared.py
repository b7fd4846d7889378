"""Shared groups, whose messages are acknowledged one by one, on bookies in memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import pytest
import trio
from shared_shop import ORDERS, crash, rows, send, shop, until, value
from trio.testing import MockClock

from ledger_client import BadGroup, CommitRefused, LedgerError, Message, MetadataUnavailable
from ledger_client.groups.options import TopicPartition
from metadata import errors
from metadata.groups.shares import SHARE_WANTS, SHARES
from metadata.store import Op, Put


async def test_messages_are_acknowledged_one_by_one(autojump_clock: MockClock) -> None:
    async with shop() as (cluster, client):
        await send(client, 0, 10)
        async with client.consumer(
            ORDERS, group="billing", mode="shared", start="earliest"
        ) as consumer:
            seen = []
            with trio.fail_after(20):
                async for message in consumer:
                    seen.append(value(message))
                    if len(seen) % 2:
                        await consumer.ack(message)
                    if len(seen) == 10:
                        break
            assert seen == list(range(10))
        async with client.consumer(ORDERS, group="billing", mode="shared") as consumer:
            with trio.fail_after(20):
                messages: list[Message] = []
                while len(messages) < 5:
                    messages += await consumer.poll(wait_s=5)
            assert sorted(map(value, messages)) == [1, 3, 5, 7, 9]
            assert all(consumer.deliveries(each) == 2 for each in messages)
            await consumer.ack(messages)
            assert rows(cluster) == []
            assert await consumer.poll(wait_s=40) == []


@pytest.mark.parametrize("way", ["poll", "iterate"])
async def test_a_failure_does_not_wait_until_nothing_is_at_hand(
    autojump_clock: MockClock, way: str
) -> None:
    """Nothing is taken of any partition before the application was told."""

    async def take() -> int:
        if way == "iterate":
            return value(await anext(consumer))
        (message,) = await consumer.poll(wait_s=5, messages_max=1)
        return value(message)

    async with (
        shop() as (_, client),
        client.consumer(ORDERS, group="billing", mode="shared", start="earliest") as consumer,
    ):
        await send(client, 0, 10)
        found = [await take()]
        (feed,) = consumer._partitions.feeds.values()
        take_batch = feed.take

        def fail() -> None:
            feed.take = take_batch  # type: ignore[method-assign]
            raise MetadataUnavailable("the bookies are away")

        feed.take = fail  # type: ignore[method-assign]
        await send(client, 10, 11)
        await trio.sleep(1)
        with pytest.raises(MetadataUnavailable):
            await take()
        await trio.sleep(1)
        assert consumer._shared._holdings.left == 11
        found += [await take() for _ in range(10)]
        assert sorted(found) == list(range(11))


async def test_a_message_that_is_refused_comes_again_after_its_delay(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (_, client):
        await send(client, 0, 3)
        async with client.consumer(
            ORDERS, group="billing", mode="shared", start="earliest"
        ) as consumer:
            first = await anext(consumer)
            await trio.sleep(0.1)
            consumer.nack(first, delay_s=5)
            since = trio.current_time()
            others = [await anext(consumer), await anext(consumer)]
            await consumer.ack(others)
            again = await anext(consumer)
            assert again.id == first.id
            assert 5 <= trio.current_time() - since < 5.1
            assert consumer.deliveries(again) == 2
            await consumer.ack(again)


async def test_a_message_that_is_not_acknowledged_in_time_comes_again(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (_, client):
        await send(client, 0, 2)
        async with client.consumer(
            ORDERS, group="billing", mode="shared", start="earliest", ack_timeout_s=10
        ) as consumer:
            since = trio.current_time()
            slow, fast = [await anext(consumer), await anext(consumer)]
            for _ in range(3):
                await trio.sleep(5)
                consumer.extend(fast)
            again = await anext(consumer)
            assert again.id == slow.id
            assert trio.current_time() - since < 16
            await consumer.ack([again, fast])
            assert await consumer.poll(wait_s=30) == []


@pytest.mark.parametrize(("limit", "dead_topic"), [(1, ""), (2, "shop/graveyard"), (4, "")])
async def test_a_message_that_fails_too_often_becomes_a_dead_letter(
    autojump_clock: MockClock, limit: int, dead_topic: str
) -> None:
    """In the topic that is named, or the group's; and it is counted."""
    async with shop() as (cluster, client):
        await send(client, 0, 6)
        times = Counter[int]()
        async with client.consumer(
            ORDERS,
            group="billing",
            mode="shared",
            start="earliest",
            deliveries_max=limit,
            dead_topic=dead_topic,
        ) as consumer:
            while messages := await consumer.poll(wait_s=5):
                for message in messages:
                    times[value(message)] += 1
                    if value(message) % 3 == 1:
                        consumer.nack(message, delay_s=0.5, reason="cannot be parsed")
                    else:
                        await consumer.ack(message)
        assert times == {0: 1, 1: limit, 2: 1, 3: 1, 4: limit, 5: 1}
        counted = client._context.figures.consuming("billing", ORDERS)
        assert (counted.redeliveries, counted.dead_letters) == (2 * (limit - 1), 2)
        async with client.reader(dead_topic or "shop/billing.dead", end="latest") as reader:
            letters = [message async for message in reader]
        assert sorted(map(value, letters)) == [1, 4]
        for letter in letters:
            assert letter.headers["quire-dead-topic"] == ORDERS.encode()
            assert letter.headers["quire-dead-reason"] == b"cannot be parsed"
            assert letter.headers["quire-dead-deliveries"] == b"%d" % limit
            assert letter.headers["quire-dead-group"] == b"billing"
        assert rows(cluster) == []


async def test_what_a_lost_member_had_goes_to_others_and_the_poison_alone_is_counted(
    autojump_clock: MockClock,
) -> None:
    """The member that gets message 3 is lost each time."""
    async with shop() as (cluster, client):
        await send(client, 0, 20)
        times = Counter[int]()
        done = set[int]()

        async def consume() -> None:
            async with (
                cluster.client() as own,
                own.consumer(
                    ORDERS, group="billing", mode="shared", start="earliest", deliveries_max=3
                ) as consumer,
            ):
                with trio.move_on_after(60):
                    async for message in consumer:
                        times[value(message)] += 1
                        if value(message) == 3:
                            crash(consumer)
                            return
                        await consumer.ack(message)
                        done.add(value(message))

        for _ in range(5):
            await consume()
        assert times[3] == 3
        assert done == {*range(20)} - {3}
        assert max(count for number, count in times.items() if number != 3) <= 2
        async with client.reader("shop/billing.dead", end="latest") as reader:
            assert [value(message) async for message in reader] == [3]
        assert rows(cluster) == []


async def test_members_without_work_get_what_a_slow_one_does_not_ask_for(
    autojump_clock: MockClock,
) -> None:
    """Any number of members read one partition, and fast ones do more."""
    async with shop() as (cluster, client):
        await send(client, 0, 400)
        seen = Counter[int]()
        by_member = Counter[str]()

        async def work(name: str, each_s: float) -> None:
            async with (
                cluster.client() as own,
                own.consumer(ORDERS, group="g", mode="shared", start="earliest") as consumer,
            ):
                async for message in consumer:
                    await trio.sleep(each_s)
                    await consumer.ack(message)
                    seen[value(message)] += 1
                    by_member[name] += 1

        async with trio.open_nursery() as nursery:
            for name, each_s in {"slow": 0.5, "a": 0.02, "b": 0.02, "c": 0.02}.items():
                nursery.start_soon(work, name, each_s)
                await trio.sleep(0.5)
            await until(lambda: len(seen) == 400)
            nursery.cancel_scope.cancel()
        assert set(seen.values()) == {1}
        assert by_member["slow"] < 100
        assert all(by_member[name] > 50 for name in "abc")


async def test_a_key_belongs_to_one_member_and_stays_in_order(autojump_clock: MockClock) -> None:
    async with shop(2) as (cluster, client):
        order: dict[int, list[int]] = {}
        owners: dict[int, list[str]] = {}
        chance = random.Random(1)

        async def work(name: str) -> None:
            async with (
                cluster.client() as own,
                own.consumer(
                    ORDERS, group="g", mode="key-shared", start="earliest", ack_timeout_s=60
                ) as consumer,
            ):
                async for message in consumer:
                    await trio.sleep(chance.uniform(0, 0.02))
                    number = value(message)
                    order.setdefault(number % 50, []).append(number)
                    owners.setdefault(number % 50, []).append(name)
                    await consumer.ack(message)

        async with trio.open_nursery() as nursery:
            for name in "abcd":
                nursery.start_soon(work, name)
            await trio.sleep(5)
            await send(client, 0, 1000, keys=50)
            await until(lambda: sum(map(len, order.values())) == 1000)
            nursery.start_soon(work, "e")
            await trio.sleep(8)
            await send(client, 1000, 2000, keys=50)
            await until(lambda: sum(map(len, order.values())) == 2000)
            nursery.cancel_scope.cancel()
        for key, numbers in order.items():
            assert numbers == list(range(key, 2000, 50))
            assert len(set(owners[key][:20])) == 1
            assert len(set(owners[key][20:])) == 1
        assert len({each[0] for each in owners.values()}) == 4
        assert "e" in {each[-1] for each in owners.values()}
        assert rows(cluster) == []


async def test_calls_of_another_mode_are_refused(autojump_clock: MockClock) -> None:
    async with shop() as (_, client):
        await send(client, 0, 2)
        async with client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer:
            message = await anext(consumer)
            with pytest.raises(BadGroup, match="acknowledge its messages with ack"):
                await consumer.commit()
            with pytest.raises(BadGroup, match=r"take them with poll\(\)"):
                await consumer.poll_batches()
            with pytest.raises(BadGroup, match="its members have no places"):
                consumer.position()
            await consumer.ack(message)
            with pytest.raises(CommitRefused, match=f"partition 0 of {ORDERS}: their messages"):
                consumer.extend(message)
            with pytest.raises(BadGroup, match="delay_s -1"):
                consumer.nack(message, delay_s=-1)
            with pytest.raises(TypeError, match="reason takes a text, not 3"):
                consumer.nack(message, reason=3)  # type: ignore[arg-type]
            for strange in (5, [5], [message, None]):
                with pytest.raises(TypeError, match=r"neither a message nor several: (5|None)"):
                    await consumer.ack(strange)  # type: ignore[arg-type]
                with pytest.raises(TypeError, match=r"neither a message nor several: (5|None)"):
                    consumer.ack_nowait(strange)  # type: ignore[arg-type]
            for call in (consumer.nack, consumer.extend, consumer.deliveries):
                with pytest.raises(TypeError, match="not a message: 5"):
                    call(5)  # type: ignore[arg-type]
        async with client.consumer(ORDERS, group="b", start="earliest") as consumer:
            message = await anext(consumer)
            with pytest.raises(BadGroup, match="group b is exclusive: commit"):
                await consumer.ack(message)


async def test_the_end_leaves_nothing_but_what_is_not_acknowledged(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        await send(client, 0, 5)
        async with client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer:
            for _ in range(3):
                consumer.ack_nowait(await anext(consumer))
        assert len(rows(cluster)) == 1
        assert not [key for key in cluster.store.values if key.startswith(SHARE_WANTS)]
        async with client.consumer(ORDERS, group="a", mode="shared") as consumer:
            rest = [await anext(consumer), await anext(consumer)]
            assert sorted(map(value, rest)) == [3, 4]
            assert [consumer.deliveries(each) for each in rest] == [1, 1]
            await consumer.ack(rest)
        assert rows(cluster) == []


@pytest.mark.parametrize("mode", ["shared", "key-shared"])
async def test_lag_counts_what_is_not_acknowledged_and_a_reset_forgets_it(
    autojump_clock: MockClock, mode: Literal["shared", "key-shared"]
) -> None:
    async with shop(2) as (cluster, client):
        await send(client, 0, 40, keys=20)
        async with client.consumer(ORDERS, group="a", mode=mode, start="earliest") as consumer:
            messages: list[Message] = []
            while some := await consumer.poll(wait_s=5):
                messages += some
            assert len(messages) == 40
            await consumer.ack(messages[:30])
            with pytest.raises(BadGroup, match="has members"):
                await client.groups.reset("a", "earliest")
        lanes = await client.groups.lag("a")
        assert sum(lane.unacked for lane in lanes) == 10
        assert sum(lane.lag for lane in lanes) == 10
        await client.groups.reset("a", "earliest")
        assert rows(cluster) == []
        assert sum(lane.lag for lane in await client.groups.lag("a")) == 40
        async with client.consumer(ORDERS, group="a", mode=mode) as consumer:
            seen: list[int] = []
            while some := await consumer.poll(wait_s=5):
                seen += map(value, some)
                await consumer.ack(some)
        assert sorted(seen) == list(range(40))
        await client.groups.delete("a")
        assert not [key for key in cluster.store.values if key.startswith((SHARES, "progress/"))]


@pytest.mark.parametrize("changes", [0, 1])
async def test_a_reset_that_fails_midway_loses_nothing(
    autojump_clock: MockClock, changes: int
) -> None:
    """After any of its changes: what was not acknowledged comes, from where it was or again."""
    async with shop() as (cluster, client):
        await send(client, 0, 10)
        async with client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer:
            assert len(await consumer.poll(wait_s=5)) == 10
        transact, left = cluster.store.transact, changes

        async def fail_soon(ops: Sequence[Op]) -> list[int]:
            nonlocal left
            if not left:
                raise errors.MetadataUnavailable("the store is away")
            left -= 1
            return await transact(ops)

        cluster.store.transact = fail_soon  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailable):
            await client.groups.reset("a", "latest" if changes == 0 else "earliest")
        cluster.store.transact = transact  # type: ignore[method-assign]
        seen: set[int] = set()
        async with client.consumer(ORDERS, group="a", mode="shared") as consumer:
            while some := await consumer.poll(wait_s=30):
                seen.update(map(value, some))
                await consumer.ack(some)
        assert seen == set(range(10))


async def test_a_member_that_sees_its_own_share_before_the_answer_does_not_take_it_twice(
    autojump_clock: MockClock,
) -> None:
    """The hint about a change may come before the answer to it."""
    async with shop() as (cluster, client):
        await send(client, 0, 10)
        transact = cluster.store.transact

        async def answer_late(ops: Sequence[Op]) -> list[int]:
            versions = await transact(ops)
            if any(op.key.startswith(SHARES) for op in ops if isinstance(op, Put)):
                await trio.sleep(2)
            return versions

        cluster.store.transact = answer_late  # type: ignore[method-assign]
        seen: list[int] = []
        async with client.consumer(
            ORDERS, group="billing", mode="shared", start="earliest"
        ) as consumer:
            with trio.move_on_after(20):
                async for message in consumer:
                    seen.append(value(message))
                    consumer.extend(message)
        assert seen == list(range(10))


async def test_a_member_gets_messages_of_its_own_topics_alone(autojump_clock: MockClock) -> None:
    async with shop() as (cluster, client):
        await client.topics.create("shop/refunds")
        await send(client, 0, 30)
        seen: list[Message] = []

        async def wait_for_refunds() -> None:
            async with (
                cluster.client() as own,
                own.consumer("shop/refunds", group="a", mode="shared") as consumer,
            ):
                while True:
                    seen.extend(await consumer.poll(wait_s=5))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_refunds)
            async with (
                cluster.client() as own,
                own.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer,
            ):
                await anext(consumer)
                await trio.sleep(20)  # the other one has nothing to do
                crash(consumer)
            await trio.sleep(40)
            assert seen == []
            nursery.cancel_scope.cancel()
        assert len(rows(cluster)) == 1


async def test_a_message_is_kept_until_its_dead_letter_is_durable(
    autojump_clock: MockClock,
) -> None:
    class Failing:
        """Fails twice, then takes letters."""

        letters: list[bytes | None]

        def __init__(self) -> None:
            self.letters = []
            self.failures = 2

        async def send(self, message: Message, *, deliveries: int, reason: str) -> None:
            assert (deliveries, reason) == (1, "refused")
            self.failures -= 1
            if self.failures >= 0:
                raise LedgerError("no")
            self.letters.append(message.value)

        async def close(self) -> None:
            pass

    async with shop() as (cluster, client):
        await send(client, 0, 1)
        async with client.consumer(
            ORDERS, group="a", mode="shared", start="earliest", deliveries_max=1
        ) as consumer:
            sender = consumer._shared._dead = Failing()
            consumer.nack(await anext(consumer))
            await trio.sleep(0.7)
            assert len(rows(cluster)) == 1
            assert sender.letters == []
            await trio.sleep(2)
            assert sender.letters == [b"0"]
            assert rows(cluster) == []


async def test_an_acknowledgement_that_is_not_stored_yet_is_stored_later(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        await send(client, 0, 1)
        async with client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer:
            message = await anext(consumer)
            cluster.store.available = False
            with pytest.raises(MetadataUnavailable):
                await consumer.ack(message)
            cluster.store.available = True
            with trio.fail_after(20):
                await consumer.flush()
            assert rows(cluster) == []
            assert await consumer.poll(wait_s=60) == []


async def test_a_member_that_is_removed_keeps_nothing_and_may_acknowledge_nothing(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        await send(client, 0, 4)
        async with client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer:
            message = await anext(consumer)
            consumer._membership._heartbeats.remove(consumer._membership.pulse)
            await trio.sleep(1)
            async with (
                cluster.client() as own,
                own.consumer(ORDERS, group="a", mode="shared") as other,
            ):
                taken: list[Message] = []
                with trio.fail_after(60):
                    while len(taken) < 4:
                        taken += await other.poll(wait_s=5)
                with pytest.raises(CommitRefused, match=f"partition 0 of {ORDERS}: their messages"):
                    await consumer.ack(message)
                counts = {value(each): other.deliveries(each) for each in taken}
                assert counts[value(message)] == 2
                assert set(counts.values()) <= {1, 2}
                await other.ack(taken)
        assert rows(cluster) == []


async def test_later_messages_of_a_key_wait_for_one_that_comes_again(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (_, client):
        await send(client, 0, 6, keys=2)
        async with client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest"
        ) as consumer:
            first = await anext(consumer)
            consumer.nack(first, delay_s=3)
            order = [value(first)]
            with trio.fail_after(20):
                while len(order) < 7:
                    message = await anext(consumer)
                    order.append(value(message))
                    await consumer.ack(message)
        other = 1 - order[0] % 2
        assert order[1:4] == [other, other + 2, other + 4]
        assert order[4:] == [order[0], order[0] + 2, order[0] + 4]


async def test_a_paused_partition_waits_and_others_go_on(autojump_clock: MockClock) -> None:
    async with (
        shop(2) as (_, client),
        client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer,
    ):
        await send(client, 0, 40, keys=20)
        first = await anext(consumer)
        consumer.pause([TopicPartition(ORDERS, first.id.partition)])
        await consumer.ack(first)
        await send(client, 40, 80, keys=20)
        seen: list[Message] = []
        while some := await consumer.poll(wait_s=5):
            seen += some
            await consumer.ack(some)
        assert {each.id.partition for each in seen} == {1 - first.id.partition}
        consumer.resume()
        while some := await consumer.poll(wait_s=5):
            seen += some
            await consumer.ack(some)
        assert sorted(map(value, [first, *seen])) == list(range(80))


async def test_a_message_that_nobody_could_be_given_is_handed_out_after_all(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        await send(client, 0, 2)
        async with (
            client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer,
            cluster.client() as own,
            trio.open_nursery() as nursery,
        ):
            given: list[int] = []

            async def wait_in_vain() -> None:
                async with own.consumer(
                    ORDERS, group="a", mode="shared", start="earliest"
                ) as other:
                    await other.poll(wait_s=60)

            async def give(*_: object) -> bool:
                given.append(1)
                await trio.sleep(2)
                return False

            consumer._shared._rows.give = give  # type: ignore[method-assign, assignment]
            with trio.fail_after(20):
                await consumer.ack(await anext(consumer))
            nursery.start_soon(wait_in_vain)
            await until(lambda: bool(given))
            with trio.fail_after(10):
                await consumer.ack(await anext(consumer))
            nursery.cancel_scope.cancel()
