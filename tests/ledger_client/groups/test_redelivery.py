"""Messages of shared groups that come again, and what goes on meanwhile."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
import trio
from shared_shop import ORDERS, rows, send, shop, until, value
from trio.testing import MockClock

from ledger_client import BadGroup, LedgerError, Message, MetadataUnavailable, NoSuchTopic
from ledger_client.groups.dead_letters import DeadLetters
from ledger_client.groups.share_rows import ShareRows
from ledger_client.topics.producing.producer import Producer
from metadata.groups.shares import want_key
from metadata.store import Versioned


async def test_messages_go_on_once_those_that_filled_the_memory_are_stored(
    autojump_clock: MockClock,
) -> None:
    """There is room again only after the acknowledgement that the last message waits for."""
    async with (
        shop() as (_, client),
        client.consumer(
            ORDERS, group="a", mode="shared", start="earliest", read_ahead_size=3000
        ) as consumer,
    ):
        async with client.producer(ORDERS, batching=False) as producer:
            for number in range(20):
                await producer.send(b"%1000d" % number)
        with trio.fail_after(5):
            for _ in range(20):
                consumer.ack_nowait(await anext(consumer))


async def test_messages_go_on_once_a_dead_letter_is_durable(autojump_clock: MockClock) -> None:
    async with (
        shop() as (_, client),
        client.consumer(
            ORDERS, group="a", mode="shared", start="earliest", unacked_max=1, deliveries_max=1
        ) as consumer,
    ):
        async with client.producer(ORDERS, batching=False) as producer:
            for number in range(4):
                await producer.send(b"%d" % number)
        with trio.fail_after(5):
            for number in range(4):
                message = await anext(consumer)
                assert value(message) == number
                consumer.nack(message)


@pytest.mark.parametrize("limit", [1, 3])
async def test_a_message_that_was_counted_and_then_could_not_be_given_comes_again(
    autojump_clock: MockClock, limit: int
) -> None:
    """The application asks again while the message is on its way to another member."""
    async with (
        shop() as (_, client),
        client.consumer(
            ORDERS, group="a", mode="shared", start="earliest", deliveries_max=limit
        ) as consumer,
    ):
        await send(client, 0, 1)
        shared = consumer._shared
        if limit > 1:
            message = await anext(consumer)
            consumer.nack(message, delay_s=0)
        await until(lambda: bool(shared.due()))
        ((share, index),) = shared.due()

        async def give(*_: object) -> bool:
            with trio.move_on_after(1):
                await consumer.poll(wait_s=5)
            return False

        shared._rows.give = give  # type: ignore[method-assign, assignment]
        want = want_key("a", "other"), Versioned(b"", 1)
        assert not await shared._sharing._passing.give(share, [index], want)
        with trio.fail_after(5):
            message = await anext(consumer)
        assert consumer.deliveries(message) == min(limit, 2)


async def test_a_poll_that_does_not_wait_gets_messages_that_come_again(
    autojump_clock: MockClock,
) -> None:
    async with (
        shop() as (_, client),
        client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer,
    ):
        await send(client, 0, 1)
        consumer.nack(await anext(consumer), delay_s=0)
        messages: list[Message] = []
        for _ in range(20):
            messages += await consumer.poll(wait_s=0)
            await trio.sleep(0.1)
        assert [consumer.deliveries(each) for each in messages] == [2]


async def test_a_message_that_comes_again_waits_while_its_partition_is_paused(
    autojump_clock: MockClock,
) -> None:
    async with (
        shop() as (_, client),
        client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer,
    ):
        await send(client, 0, 2)
        first, second = await anext(consumer), await anext(consumer)
        consumer.nack(first, delay_s=0)
        consumer.pause()
        consumer.nack(second, delay_s=1)
        assert await consumer.poll(wait_s=10) == []
        consumer.resume()
        with trio.fail_after(5):
            assert {(await anext(consumer)).id, (await anext(consumer)).id} == {first.id, second.id}


async def test_the_end_waits_for_no_dead_letter_and_closes_their_topic(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        await send(client, 0, 1)
        async with cluster.client() as own:
            async with own.consumer(
                ORDERS, group="a", mode="shared", start="earliest", deliveries_max=1
            ) as consumer:
                consumer.nack(await anext(consumer))
                await until(lambda: not rows(cluster))
            end = trio.current_time()
        assert trio.current_time() - end < 1
        async with client.producer("shop/a.dead", access="exclusive"):
            pass  # nobody has it open


async def test_dead_letters_that_fail_leave_no_producers_behind(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_letter, failures = Producer.send, list[LedgerError]()

    async def fail(producer: Producer, *values: object, **named: object) -> object:
        if len(failures) < 5 and "headers" in named:
            failures.append(LedgerError("no"))
            raise failures[-1]
        return await send_letter(producer, *values, **named)  # type: ignore[arg-type]

    async with shop() as (cluster, client):
        await send(client, 0, 1)
        async with client.consumer(
            ORDERS, group="a", mode="shared", start="earliest", deliveries_max=1
        ) as consumer:
            letters = consumer._shared._dead
            assert isinstance(letters, DeadLetters)
            monkeypatch.setattr(Producer, "send", fail)
            consumer.nack(await anext(consumer))
            await until(lambda: not rows(cluster))
            assert len(failures) == 5
            assert len(letters._open) == 1
        async with client.reader("shop/a.dead", end="latest") as reader:
            assert [value(letter) async for letter in reader] == [0]


async def test_what_was_acknowledged_too_late_keeps_nothing_from_others(
    autojump_clock: MockClock,
) -> None:
    """An acknowledgement that is refused at the end, and a message that goes to the next member."""
    async with shop() as (cluster, client):
        await send(client, 0, 3)
        async with client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer:
            first, _ = await anext(consumer), await anext(consumer)
            shared = consumer._shared
            shared._saver._refused = {next(iter(shared._holdings.shares.values())).part}
            consumer.ack_nowait(first)
        async with client.consumer(ORDERS, group="a", mode="shared") as consumer:
            rest = [await anext(consumer), await anext(consumer)]
            assert {value(each): consumer.deliveries(each) for each in rest} == {1: 2, 2: 1}
            await consumer.ack(rest)
        assert rows(cluster) == []


@pytest.mark.parametrize("reason", ["\udcff", "x" * 5_000_000])
async def test_any_reason_fits_into_a_dead_letter(autojump_clock: MockClock, reason: str) -> None:
    async with shop() as (cluster, client):
        await send(client, 0, 1)
        async with client.consumer(
            ORDERS, group="a", mode="shared", start="earliest", deliveries_max=1
        ) as consumer:
            consumer.nack(await anext(consumer), reason=reason)
            await until(lambda: not rows(cluster))
        async with client.reader("shop/a.dead", end="latest") as reader:
            letters = [letter async for letter in reader]
        assert [value(letter) for letter in letters] == [0]
        assert len(letters[0].headers["quire-dead-reason"]) <= 1000


async def test_a_group_that_gets_its_own_dead_letters_buries_them_once(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        await send(client, 0, 1)
        topics: list[str] = []
        async with client.consumer(
            "shop/*", group="a", mode="shared", start="earliest", deliveries_max=2
        ) as consumer:
            with trio.move_on_after(60):
                while True:
                    for message in await consumer.poll(wait_s=5):
                        topics.append(message.topic)
                        consumer.nack(message, delay_s=0)
        assert topics == [ORDERS] * 2 + ["shop/a.dead"] * 2
        assert rows(cluster) == []


async def test_messages_of_a_topic_that_is_deleted_come_again_and_are_acknowledged(
    autojump_clock: MockClock,
) -> None:
    """The member reads nothing of the topic any more, and has some messages in hand."""
    async with shop() as (cluster, client):
        await client.topics.create("shop/other")
        await send(client, 0, 4)
        async with client.consumer(
            [ORDERS, "shop/other"], group="a", mode="shared", start="earliest", ack_timeout_s=5
        ) as consumer:
            await anext(consumer)
            await client.topics.delete(ORDERS, force=True)
            await trio.sleep(20)
            found: list[str] = []
            async with client.producer("shop/other") as producer:
                await producer.send(b"9")
            for _ in range(20):
                with suppress(NoSuchTopic):
                    messages = await consumer.poll(wait_s=1)
                    found += [message.topic for message in messages]
                    await consumer.ack(messages)
            assert found.count("shop/other") == 1
            assert found.count(ORDERS) == 4
        assert rows(cluster) == []


async def test_a_topic_for_dead_letters_that_cannot_be_is_refused_at_once(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (_, client):
        with pytest.raises(BadGroup, match="'nonsense' is not namespace/name"):
            async with client.consumer(ORDERS, group="a", mode="shared", dead_topic="nonsense"):
                pass


@pytest.mark.parametrize("delay_s", [-1, math.inf, math.nan, "x", None])
async def test_a_message_is_not_refused_for_what_is_no_time(
    autojump_clock: MockClock, delay_s: object
) -> None:
    async with (
        shop() as (_, client),
        client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer,
    ):
        await send(client, 0, 1)
        message = await anext(consumer)
        with pytest.raises(BadGroup, match=r"is not 0 to 86400"):
            consumer.nack(message, delay_s=delay_s)  # type: ignore[arg-type]
        await consumer.ack(message)


async def test_what_is_at_hand_does_not_wait_for_a_delivery_that_cannot_be_stored(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_rows: ShareRows, _values: object) -> None:
        await trio.sleep(10)
        raise MetadataUnavailable("away")

    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", mode="shared", start="earliest") as consumer,
    ):
        await send(client, 0, 20)
        await trio.sleep(5)
        (first,) = await consumer.poll(messages_max=1)
        with monkeypatch.context() as outage:
            outage.setattr(ShareRows, "_save", away)
            consumer.nack(first, delay_s=0)
            await trio.sleep(1)
            assert len(await consumer.poll(wait_s=0, messages_max=9)) == 9
            assert len(await consumer.poll(wait_s=1)) == 10
        await trio.sleep(20)
        (again,) = await consumer.poll(wait_s=60)
        assert again.value == first.value


@pytest.mark.parametrize("by_poll", [True, False])
async def test_what_is_at_hand_goes_out_at_once_after_a_delivery_could_not_be_stored(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, by_poll: bool
) -> None:
    async def away(_rows: ShareRows, _values: object) -> None:
        await trio.sleep(2)
        raise MetadataUnavailable("away")

    async def take() -> tuple[float, list[Message]]:
        began = trio.current_time()
        if by_poll:
            found = await consumer.poll(wait_s=60, messages_max=1)
        else:
            found = [await anext(consumer)]
        return trio.current_time() - began, found

    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", mode="shared", start="earliest") as consumer,
    ):
        await send(client, 0, 20)
        await trio.sleep(5)
        (first,) = await consumer.poll(messages_max=1)
        with monkeypatch.context() as outage:
            outage.setattr(ShareRows, "_save", away)
            consumer.nack(first, delay_s=0)
            await trio.sleep(1)
            taken = [await take() for _ in range(19)]
            values = {message.value for _, found in taken for message in found}
            assert values == {b"%d" % number for number in range(1, 20)}
            assert taken[0][0] < 2.1
            assert [waited_s for waited_s, _ in taken[1:]] == [0] * 18
            with pytest.raises(MetadataUnavailable):
                await take()
        _, (again,) = await take()
        assert again.value == first.value


async def test_deliveries_are_counted_first_again_soon_after_the_store_is_back(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_rows: ShareRows, _values: object) -> None:
        raise MetadataUnavailable("away")

    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", mode="shared", start="earliest") as consumer,
    ):
        await send(client, 0, 60)
        await trio.sleep(5)
        (first,) = await consumer.poll(messages_max=1)
        with monkeypatch.context() as outage:
            outage.setattr(ShareRows, "_save", away)
            consumer.nack(first, delay_s=0)
            await trio.sleep(1)
            assert (await anext(consumer)).value == b"1"
        values = []
        for _ in range(30):
            values.append((await anext(consumer)).value)
            await trio.sleep(1)
        assert first.value in values


async def test_messages_come_again_in_time_where_polls_are_short(autojump_clock: MockClock) -> None:
    async with shop(1) as (_, client):
        await send(client, 0, 600)
        async with client.consumer(
            ORDERS, group="billing", mode="shared", start="earliest"
        ) as consumer:
            await trio.sleep(3)
            waiting: dict[bytes | None, float] = {}
            waits_s: list[float] = []
            for number in range(500):
                for message in await consumer.poll(wait_s=0, messages_max=1):
                    if message.value in waiting:
                        waits_s.append(trio.current_time() - waiting.pop(message.value))
                    elif number % 10 == 0:
                        waiting[message.value] = trio.current_time()
                        consumer.nack(message, delay_s=1)
                        continue
                    consumer.ack_nowait(message)
                await trio.sleep(0.1)
        assert len(waits_s) >= 30
        assert max(waits_s) < 2
