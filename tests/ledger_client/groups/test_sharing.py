"""Messages of shared groups that pass from member to member, or fail to, on bookies in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client, Message
from ledger_client.errors import CommitRefused, LedgerError
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.progress import Progress
from ledger_client.groups.share import Share
from ledger_client.groups.sharing import HANDED_OVER, Sharing
from metadata.groups.rows import SLOTS
from metadata.groups.shares import FREE, SHARES, holder_of, slot_part, want_key
from metadata.store import Versioned

ORDERS = "shop/orders"
KEY = b"7"


@asynccontextmanager
async def shop() -> AsyncIterator[tuple[MemoryCluster, Client]]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1")
        await client.topics.create(ORDERS, 1)
        yield cluster, client


async def send(client: Client, *values: int) -> None:
    async with client.producer(ORDERS) as producer:
        for each in values:
            await producer.send(b"%d" % each, key=KEY)


def value(message: Message) -> int:
    return int(message.value or b"")


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        for _ in count():
            if holds():
                return
            await trio.sleep(0.1)


def refuse_to_give(consumer: GroupConsumer, span_s: float) -> list[float]:
    """Let nothing be given away, after a while; return when it was tried."""
    tried: list[float] = []

    async def give(*_: object) -> bool:
        tried.append(trio.current_time())
        await trio.sleep(span_s)
        return False

    async def free(*_: object) -> set[Share]:
        await give()
        return set()

    consumer._shared._rows.give = give  # type: ignore[method-assign, assignment]
    consumer._shared._rows.free = free  # type: ignore[method-assign, assignment]
    return tried


def has(consumer: GroupConsumer, count: int) -> bool:
    return consumer._shared._holdings.left == count


async def hand_over(consumer: GroupConsumer) -> None:
    """Leave all messages of the topic to others."""
    (share,) = consumer._shared._holdings.shares.values()
    parts = {slot_part(share.record.topic, 0, slot) for slot in range(SLOTS)}
    await consumer._shared._sharing.hand_over(parts)


async def test_a_message_that_the_application_took_meanwhile_is_not_given_away(
    autojump_clock: MockClock,
) -> None:
    """It was chosen for another member while it waited, and handed out before it left."""
    async with (
        shop() as (_, client),
        client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer,
    ):
        await send(client, 0)
        tried = refuse_to_give(consumer, 0)
        await until(lambda: consumer._shared._holdings.ready == 1)
        (share,) = consumer._shared._holdings.shares.values()
        passing = consumer._shared._sharing._passing
        want = want_key("a", "other"), Versioned(b"", 1)
        async with trio.open_nursery() as nursery, passing._turn:
            nursery.start_soon(passing.give, share, [0], want)
            assert value(await anext(consumer)) == 0
        assert tried == []


async def test_a_message_that_is_due_while_it_cannot_be_given_comes_again(
    autojump_clock: MockClock,
) -> None:
    async with (
        shop() as (cluster, client),
        client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer,
        cluster.client() as own,
        trio.open_nursery() as nursery,
    ):
        await send(client, 0)
        with trio.fail_after(20):
            message = await anext(consumer)
        tried = refuse_to_give(consumer, 2)

        async def wait_in_vain() -> None:
            async with own.consumer(ORDERS, group="a", mode="shared", start="earliest") as other:
                await other.poll(wait_s=60)

        nursery.start_soon(wait_in_vain)
        await trio.sleep(5)
        consumer.nack(message)
        await until(lambda: bool(tried))
        with trio.fail_after(10):
            again = await anext(consumer)
        assert consumer.deliveries(again) == 2
        await consumer.ack(again)
        nursery.cancel_scope.cancel()


async def test_a_delay_that_ends_while_a_message_cannot_be_given_is_not_forgotten(
    autojump_clock: MockClock,
) -> None:
    async with (
        shop() as (_, client),
        client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest", revoke_s=5
        ) as consumer,
    ):
        await send(client, 0)
        with trio.fail_after(20):
            message = await anext(consumer)
        tried = refuse_to_give(consumer, 2)
        consumer.nack(message, delay_s=HANDED_OVER * 5 + 0.5)
        await hand_over(consumer)
        assert tried
        with trio.fail_after(10):
            assert value(await anext(consumer)) == 0


async def test_a_key_is_free_once_its_message_is_given_on_with_its_slot(
    autojump_clock: MockClock,
) -> None:
    async with (
        shop() as (_, client),
        client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest", revoke_s=5
        ) as consumer,
    ):
        await send(client, 0)
        with trio.fail_after(20):
            message = await anext(consumer)
        consumer.nack(message, delay_s=3600)
        await hand_over(consumer)
        await consumer._shared._sharing.adopt_orphans()
        await send(client, 1)
        with trio.fail_after(10):
            for number in range(2):
                message = await anext(consumer)
                assert value(message) == number
                await consumer.ack(message)


async def test_a_key_is_free_once_others_have_the_messages_that_it_waited_for(
    autojump_clock: MockClock,
) -> None:
    async with (
        shop() as (_, client),
        client.consumer(ORDERS, group="a", mode="key-shared", start="earliest") as consumer,
    ):
        await send(client, 0)
        with trio.fail_after(20):
            message = await anext(consumer)
        consumer.nack(message, delay_s=3600)
        holdings = consumer._shared._holdings
        for share in list(holdings.shares.values()):
            holdings.drop(share)
        await send(client, 1)
        with trio.fail_after(20):
            while value(await anext(consumer)) != 1:
                pass  # it takes over the other one


async def test_messages_of_a_key_that_was_left_are_in_order(autojump_clock: MockClock) -> None:
    """A member left its messages in several shares, whose names say nothing of their order."""
    async with shop() as (_, client):
        async with client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest"
        ) as consumer:
            for number in range(8):
                await send(client, number)
                await until(partial(has, consumer, number + 1))
            assert len(consumer._shared._holdings.shares) > 4
        async with client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest"
        ) as consumer:
            for number in range(8):
                with trio.fail_after(20):
                    message = await anext(consumer)
                assert value(message) == number
                await consumer.ack(message)


async def test_messages_behind_a_dead_letter_come_at_once(autojump_clock: MockClock) -> None:
    async with (
        shop() as (_, client),
        client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest", deliveries_max=1
        ) as consumer,
    ):
        await send(client, 0, 1)
        with trio.fail_after(20):
            message = await anext(consumer)
        consumer.nack(message)
        with trio.fail_after(5):
            assert value(await anext(consumer)) == 1


async def test_what_a_former_run_of_a_member_had_of_other_slots_is_left_to_others(
    autojump_clock: MockClock,
) -> None:
    """It is in the name of a member that lives, so nobody else may take it."""
    async with (
        shop() as (cluster, client),
        client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest", member="m"
        ) as consumer,
    ):
        await send(client, 0)
        with trio.fail_after(20):
            await anext(consumer)
        shared = consumer._shared
        (share,) = shared._holdings.shares.values()
        shared._holdings.drop(share)
        shared._rows.run = "later"
        consumer._partitions.parts = set()
        await shared._sharing.adopt_orphans()
        await consumer.flush()
        holders = [holder_of(key) for key in cluster.store.values if key.startswith(SHARES)]
        assert holders == [FREE]


async def test_a_failure_that_comes_again_and_again_is_raised_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application asks for nothing meanwhile. Then it goes on with the next call."""

    async def unclaimed(*_: object) -> list[int]:
        raise CommitRefused("billing", [])

    async def unread(*_: object) -> None:
        tried.append(trio.current_time())
        raise LedgerError("no bookie answers")

    tried: list[float] = []
    async with (
        shop() as (_, client),
        client.consumer(ORDERS, group="billing", mode="shared") as consumer,
    ):
        await consumer.poll(wait_s=5)
        with monkeypatch.context() as broken:
            broken.setattr(Progress, "claim", unclaimed)
            broken.setattr(Sharing, "adopt_orphans", unread)
            await send(client, 1)
            await until(lambda: len(tried) > 50)
        await trio.sleep(5)
        with pytest.raises(LedgerError, match="no bookie answers"):
            await consumer.poll(wait_s=5)
        assert [value(each) for each in await consumer.poll(wait_s=5)] == [1]
