"""When a member of a shared group is told of a gap, and what comes before and behind it."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress
from typing import Literal

import pytest
import trio
from group_rig import ORDERS, send, shop
from lost_member import Left, drained, left_some, lose, slow_adoptions
from trio.testing import MockClock

from ledger_client import Client, Gap, Message, MessageId
from ledger_client.errors import LedgerError, MemberRemoved
from metadata.topics import RollPolicy

ID = MessageId(1, 0, 0, 0)


async def took_over(client: Client, lost: int) -> list[int | None]:
    """Let *lost* messages and five more be left; return what the next one gets, None for a gap."""
    left = Left(client, "key-shared")
    await left_some(client, left, lost)
    found: list[int | None] = []
    async with left.consumer() as consumer:
        until = trio.current_time() + 60
        while trio.current_time() < until and found[-1:] != [lost + 4]:
            try:
                batch = await consumer.poll(wait_s=0.1)
            except Gap as gap:
                found.append(None)
                assert gap.missing == lost
            else:
                found += [int(each.value or b"") for each in batch]
                await consumer.ack(batch)
    return found


@pytest.mark.parametrize("seconds", [0, 0.03, 0.06, 0.15, 2])
@pytest.mark.parametrize("lost", [6, 12])
async def test_a_gap_comes_before_the_messages_behind_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, seconds: float, lost: int
) -> None:
    """Also if the application asks again while the rest of it is being found."""
    slow_adoptions(monkeypatch, seconds)
    async with shop(1) as (_, client):
        assert await took_over(client, lost) == [None, *range(lost, lost + 5)]


async def test_failures_that_come_later_hide_no_gap(autojump_clock: MockClock) -> None:
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", mode="shared") as consumer,
    ):
        await consumer.poll(wait_s=1)
        taking = lose(consumer, 0)
        taking.fail(Gap(ORDERS, partition=0, lane=0, position=ID, first=None, missing=1))
        taking.fail(LedgerError("no bookie answers"))
        consumer._membership.fail(MemberRemoved("billing", "m", "it was silent"))
        for kind in (Gap, Gap, MemberRemoved):
            with pytest.raises(kind):
                await consumer.poll(wait_s=1)


@pytest.mark.parametrize("call", ["poll", "next"])
@pytest.mark.parametrize("pause_s", [0, 0.3, 5])
async def test_messages_at_hand_come_between_gaps(
    autojump_clock: MockClock, call: str, pause_s: float
) -> None:
    """However much is found to be lost, and however long the application takes over a gap."""

    async def following() -> Message:
        if call == "next":
            return await anext(consumer)
        (message,) = await consumer.poll(wait_s=math.inf, messages_max=1)
        return message

    async with (
        shop(4) as (_, client),
        client.consumer(ORDERS, group="billing", mode="shared", start="earliest") as consumer,
    ):
        await send(client, 0, 20)
        await following()
        found: list[str] = []
        lose(consumer, *range(4))
        for _ in range(8):
            try:
                await following()
                found.append("message")
            except Gap:
                found.append("gap")
                if len(found) < 6:
                    lose(consumer, 0)
                await trio.sleep(pause_s)
        assert found == ["gap", "message"] * 4
        await drained(consumer)


async def test_without_a_message_at_hand_all_gaps_come_at_once(autojump_clock: MockClock) -> None:
    async with (
        shop(4) as (_, client),
        client.consumer(ORDERS, group="billing", mode="shared") as consumer,
    ):
        await consumer.poll(wait_s=1)
        lose(consumer, 0, 1, 2)
        now = trio.current_time()
        for partition in range(3):
            with pytest.raises(Gap) as raised:
                await consumer.poll(wait_s=math.inf)
            assert raised.value.partition == partition
        assert trio.current_time() == now


async def test_what_comes_again_behind_a_gap_is_not_at_hand(autojump_clock: MockClock) -> None:
    """It is not counted as delivered before the gap is told, and delays no other gap."""
    async with (
        shop(2) as (_, client),
        client.consumer(ORDERS, group="billing", mode="key-shared", start="earliest") as consumer,
    ):
        await send(client, 0, 8)
        messages: list[Message] = []
        while len(messages) < 8:
            messages += await consumer.poll(wait_s=5)
        again = max(messages, key=lambda each: each.id.partition)
        other = min(messages, key=lambda each: each.id.partition)
        assert again.id.partition > other.id.partition
        consumer.nack(again, delay_s=1)
        lose(consumer, other.id.partition, again.id.partition)
        await trio.sleep(5)
        for partition in (other.id.partition, again.id.partition):
            with pytest.raises(Gap) as raised:
                await consumer.poll(wait_s=math.inf)
            assert raised.value.partition == partition
            assert consumer.deliveries(again) == 1
        assert [each.id for each in await consumer.poll(wait_s=1)] == [again.id]
        assert consumer.deliveries(again) == 2


@pytest.mark.parametrize("wait_s", [10, math.inf])
async def test_a_call_goes_on_waiting_where_what_is_there_waits_for_another_one_of_its_key(
    autojump_clock: MockClock, wait_s: float
) -> None:
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", mode="key-shared", start="earliest") as consumer,
    ):
        async with client.producer(ORDERS, batching=False) as producer:
            for number in range(3):
                await producer.send(b"%d" % number, key=b"k")
        (first,) = await consumer.poll(wait_s=5, messages_max=1)
        await trio.sleep(1)
        consumer.nack(first, delay_s=5)
        began = trio.current_time()
        (again,) = await consumer.poll(wait_s=wait_s, messages_max=1)
        assert again.id == first.id
        assert trio.current_time() - began >= 5


async def test_a_partition_waits_for_its_own_gap_alone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for the rest of a look that takes long."""
    slow_adoptions(monkeypatch, 1)
    async with shop(1) as (_, client):
        left = Left(client, "key-shared")
        await left.fill(2, 12)
        await left.purge(12)
        began, times = trio.current_time(), dict[int, float]()
        async with left.consumer() as consumer:
            while len(times) < 2:
                try:
                    await consumer.poll(wait_s=1)
                except Gap as gap:
                    times.setdefault(gap.partition, trio.current_time() - began)
            await drained(consumer)
        first, second = sorted(times.values())
        assert second - first >= 3


@pytest.mark.parametrize(("on_gap", "waits"), [("raise", True), ("skip", False)])
async def test_nothing_waits_for_a_gap_that_is_skipped(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    on_gap: Literal["raise", "skip"],
    waits: bool,
) -> None:
    slow_adoptions(monkeypatch, 2)
    async with shop(1) as (_, client):
        left = Left(client, "key-shared")
        await left_some(client, left, 6)
        began = trio.current_time()
        async with left.consumer(on_gap) as consumer:
            with suppress(Gap), trio.fail_after(100):
                await anext(consumer)
            assert (trio.current_time() - began >= 11 * 2) is waits
            await drained(consumer)


@pytest.mark.parametrize("on_gap", ["raise", "skip"])
async def test_other_messages_come_while_much_is_found_to_be_lost(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, on_gap: Literal["raise", "skip"]
) -> None:
    """It takes several seconds to take over what the other member had."""
    slow_adoptions(monkeypatch, 0.15)
    async with shop(1) as (cluster, client), cluster.client() as theirs:
        left = Left(theirs, "shared")
        await client.topics.delete(ORDERS)
        await client.topics.create(ORDERS, roll=RollPolicy(entries=6))
        await client.topics.create("shop/other")
        async with trio.open_nursery() as nursery:
            async with left.consumer() as member, theirs.producer(ORDERS, batching=False) as fill:
                await member.poll(wait_s=5)
                for _ in range(36):
                    await fill.send(b"lost")
                    await member.poll(wait_s=5)
                consumer = await nursery.start(ask, client, on_gap)
                await theirs.topics.purge(ORDERS)
            async with client.producer("shop/other", batching=False) as producer:
                for _ in range(20):
                    await producer.send(b"")
                    await trio.sleep(0.3)
            nursery.cancel_scope.cancel()
        times = [at for at, is_gap in consumer if not is_gap]
        assert len(times) == 20
        assert max(later - at for at, later in itertools.pairwise(times)) < 1
        assert any(is_gap for _, is_gap in consumer) == (on_gap == "raise")


async def ask(
    client: Client,
    on_gap: Literal["raise", "skip"],
    *,
    task_status: trio.TaskStatus[list[tuple[float, bool]]],
) -> None:
    """Acknowledge messages until cancelled; tell when each came, and each gap."""
    found: list[tuple[float, bool]] = []
    async with client.consumer(
        [ORDERS, "shop/other"], group="billing", mode="shared", start="earliest", on_gap=on_gap
    ) as consumer:
        await consumer.poll(wait_s=5)
        task_status.started(found)
        while True:
            try:
                batch = await consumer.poll(wait_s=math.inf)
            except Gap:
                found.append((trio.current_time(), True))
            else:
                assert batch
                found += [(trio.current_time(), False)] * len(batch)
                await consumer.ack(batch)


async def test_an_application_that_waits_is_told_of_a_gap_at_once(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", mode="shared") as consumer,
    ):
        await consumer.poll(wait_s=1)

        async def lose_one() -> None:
            await trio.sleep(1)
            lose(consumer, 0)

        nursery.start_soon(lose_one)
        with pytest.raises(Gap), trio.fail_after(1.1):
            await consumer.poll(wait_s=math.inf)
