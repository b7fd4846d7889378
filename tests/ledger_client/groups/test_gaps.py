"""Members that fall behind retention."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Literal

import pytest
import trio
from group_rig import ORDERS, rest, send, shop, take
from group_shares import share_of
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from ledger_client import Client, Gap, Message, MessageId
from ledger_client.errors import LedgerError, MemberRemoved
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.share import Share
from ledger_client.groups.share_rows import ShareRows
from ledger_client.groups.shared import Shared
from ledger_client.groups.taking import Taking
from ledger_client.opening import Opening
from ledger_client.topics.positions import Place
from metadata.groups.assignment import Part
from metadata.groups.rows import member_key
from metadata.groups.shares import ShareRecord
from metadata.store import Item
from metadata.topics import RollPolicy


@pytest.fixture
async def client(autojump_clock: MockClock) -> AsyncIterator[Client]:
    """A group that committed three of twelve messages, of which the first ten were removed."""
    async with shop(1) as (_, client):
        await client.topics.delete(ORDERS)
        await client.topics.create(ORDERS, roll=RollPolicy(entries=3))
        async with client.producer(ORDERS, batching=False) as producer:
            for number in range(12):
                await producer.send(b"%d" % number)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert await take(consumer, 3) == [0, 1, 2]
        async with client.producer(ORDERS, batching=False) as producer:  # closes the last ledger
            await producer.send(b"12")
            await client.topics.purge(ORDERS)
            await producer.send(b"13")
        yield client


ID = MessageId(1, 0, 0, 0)


def told(client: Client, name: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(client.metrics)
    return registry.get_sample_value(f"quire_client_{name}", {"topic": ORDERS})


async def test_a_member_gets_a_gap_once_and_goes_on_after_it(
    client: Client, autojump_clock: MockClock
) -> None:
    """TD-73: never a silent skip."""
    async with client.consumer(ORDERS, group="billing") as consumer:
        with pytest.raises(Gap):
            await consumer.poll(wait_s=5)
        values = await rest(consumer)
        assert values
        assert values[-1] == 13
        assert values[0] > 3


async def test_a_member_may_skip_gaps_which_are_counted(
    client: Client, autojump_clock: MockClock
) -> None:
    """TD-73."""
    before = told(client, "read_gaps_total") or 0
    assert told(client, "read_lag_seconds") is None
    async with client.consumer(ORDERS, group="billing", on_gap="skip") as consumer:
        values = await rest(consumer)
        assert told(client, "read_lag_seconds") is not None
    assert values[-1] == 13
    assert values[0] > 3
    assert told(client, "read_gaps_total") == before + 1


class Left:
    """What a member that went had, in a topic of ledgers of three entries."""

    def __init__(self, client: Client, mode: str) -> None:
        self._client = client
        self._mode = mode
        self.had: list[Message] = []

    def consumer(self, on_gap: Literal["raise", "skip"] = "raise") -> Opening[GroupConsumer]:
        return self._client.consumer(
            ORDERS,
            group="billing",
            mode=self._mode,  # type: ignore[arg-type]
            start="earliest",
            on_gap=on_gap,
        )

    async def fill(self, partitions: int, count: int) -> None:
        """Let a member take *count* messages, and go."""
        await self._client.topics.delete(ORDERS)
        await self._client.topics.create(ORDERS, partitions, roll=RollPolicy(entries=3))
        async with self.consumer() as lost:
            await lost.poll(wait_s=5)
            async with self._client.producer(ORDERS, batching=False) as producer:
                for number in range(count):
                    await producer.send(b"%d" % number, key=b"k%d" % number)
            while len(self.had) < count:
                self.had += await lost.poll(wait_s=5)

    async def purge(self, count: int) -> None:
        """Remove all ledgers that are closed, after *count* more messages."""
        async with self._client.producer(ORDERS, batching=False) as producer:
            for number in range(count):
                await producer.send(b"later", key=b"z%d" % number)
            await self._client.topics.purge(ORDERS)

    def first(self, partition: int = -1) -> MessageId:
        """The first message that the member had, of a partition if there are several."""
        return min(each.id for each in self.had if partition in (-1, each.id.partition))


async def drained(consumer: GroupConsumer) -> tuple[list[Gap], list[Message]]:
    """Return what it raises, and what it hands out."""
    gaps, found = list[Gap](), list[Message]()
    for _ in range(20):
        try:
            batch = await consumer.poll(wait_s=1)
        except Gap as gap:
            gaps.append(gap)
        else:
            await consumer.ack(batch)
            found += batch
    return gaps, found


@pytest.mark.parametrize("mode", ["shared", "key-shared"])
@pytest.mark.parametrize("on_gap", ["skip", "raise"])
async def test_what_a_lost_member_had_and_retention_took_is_a_gap_too(
    autojump_clock: MockClock, mode: str, on_gap: Literal["raise", "skip"]
) -> None:
    """TD-73. It is one gap for all of it; nobody is done with these messages."""
    async with shop(1) as (_, client):
        left = Left(client, mode)
        await left.fill(1, 12)
        await left.purge(1)
        before = told(client, "read_gaps_total") or 0
        async with left.consumer(on_gap) as consumer:
            gaps, found = await drained(consumer)
        assert [each.value for each in found] == [b"later"]
        # Another one is where the group would go on: entries of which nobody had taken anything.
        assert (told(client, "read_gaps_total") or 0) - before == 2
        if on_gap == "raise":
            (gap,) = [each for each in gaps if each.position[:2] == left.first()[:2]]
            assert gap.missing == 12
        else:
            assert gaps == []
        async with left.consumer() as consumer:
            assert await drained(consumer) == ([], [])


async def test_all_gaps_are_told_to_an_application_that_asks_late(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (_, client):
        left = Left(client, "shared")
        await left.fill(3, 36)
        await left.purge(24)
        async with left.consumer() as consumer:
            await trio.sleep(5)
            gaps, _found = await drained(consumer)
        for partition in range(3):
            first = left.first(partition)
            (gap,) = [
                each
                for each in gaps
                if each.partition == partition and each.position[:2] == first[:2]
            ]
            assert gap.missing == sum(each.id.partition == partition for each in left.had)


async def test_what_was_deleted_on_purpose_is_no_gap_where_more_was_removed_behind_it(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (_, client):
        left = Left(client, "shared")
        await left.fill(1, 3)
        async with client.producer(ORDERS, batching=False) as producer:
            for _ in range(9):
                await producer.send(b"done")
        await client.topics.delete_messages(ORDERS, "earliest", max(each.id for each in left.had))
        await left.purge(1)
        async with left.consumer() as consumer:
            gaps, _found = await drained(consumer)
        assert all(gap.position > max(each.id for each in left.had) for gap in gaps)


async def test_entries_of_which_several_members_had_messages_are_counted_once(
    autojump_clock: MockClock,
) -> None:
    """In a key-shared group; some messages of them are done."""
    async with shop(1) as (cluster, client), cluster.client() as theirs:
        left = Left(client, "key-shared")
        await client.topics.delete(ORDERS)
        await client.topics.create(ORDERS, roll=RollPolicy(entries=3))
        async with left.consumer() as one, Left(theirs, "key-shared").consumer() as two:
            had = dict[GroupConsumer, list[Message]]({one: [], two: []})
            for _ in range(10):
                for each in had:
                    await each.poll(wait_s=1)
            async with client.producer(ORDERS) as producer:
                for _ in range(6):
                    for number in range(20):
                        producer.send_nowait(b"%d" % number, key=b"k%d" % number)
                    await producer.flush()
                for each, found in had.items():
                    while batch := await each.poll(wait_s=5):
                        found += batch
                await one.ack(min(had[one], key=lambda each: each.id))
        assert len(had[one]) + len(had[two]) == 120
        assert had[one]
        assert had[two]
        await left.purge(1)
        async with left.consumer() as consumer:
            gaps, _found = await drained(consumer)
        assert gaps[0].missing == 6


def slow_adoptions(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let it take a while to take over a share."""
    adopt = ShareRows.adopt

    async def slowly(self: ShareRows, item: Item, share: Share, rest: ShareRecord | None) -> bool:
        await trio.sleep(seconds)
        return await adopt(self, item, share, rest)

    monkeypatch.setattr(ShareRows, "adopt", slowly)


async def took_over(client: Client, lost: int) -> list[int | None]:
    """Let *lost* messages and five more be left; return what the next member gets, None for a gap.

    *lost*: a multiple of six.
    """
    left = Left(client, "key-shared")
    await client.topics.delete(ORDERS)
    await client.topics.create(ORDERS, roll=RollPolicy(entries=6))
    async with left.consumer() as member, client.producer(ORDERS, batching=False) as producer:
        await member.poll(wait_s=5)
        for number in range(lost + 5):
            await producer.send(b"%d" % number, key=b"k")
            left.had += await member.poll(wait_s=5)
        await client.topics.purge(ORDERS)
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


def lose(consumer: GroupConsumer, *partitions: int) -> Taking:
    """Let a message of a lost member be gone in each partition; one look finds it."""
    delivery = consumer._delivery
    assert isinstance(delivery, Shared)
    for partition in partitions:
        share = share_of("a", name=f"lost-{partition}")
        share.part = Part(share.part.topic, partition)
        gap = Gap(
            ORDERS,
            partition=partition,
            lane=0,
            position=MessageId(1, 0, partition, 0),
            first=None,
            missing=1,
        )
        delivery.miss(gap, share, [Place(0)])
    delivery.tell()
    return delivery._taking


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


@pytest.mark.parametrize("mode", ["shared", "key-shared"])
@pytest.mark.parametrize("fate", ["failed", "removed", "closed"])
async def test_a_gap_that_a_member_did_not_ask_for_is_told_to_the_next_one(
    autojump_clock: MockClock, mode: str, fate: str
) -> None:
    """Its block failed, it was lost, or it left by close()."""
    async with shop(2) as (cluster, client):
        left = Left(client, mode)
        await left.fill(2, 12)
        await left.purge(12)
        with suppress(KeyError, Gap, MemberRemoved):
            async with left.consumer() as consumer:
                await trio.sleep(5)
                if fate == "failed":
                    raise KeyError
                if fate == "removed":
                    member = consumer._membership.member
                    await cluster.store.delete(member_key("billing", member))
                    await trio.sleep(5)
                    raise KeyError
                await consumer.close()
        async with left.consumer() as consumer:
            gaps, _found = await drained(consumer)
        for partition in (0, 1):
            first = left.first(partition)
            had = sum(each.id.partition == partition for each in left.had)
            (gap,) = [each for each in gaps if each.position[:2] == first[:2]]
            assert gap.missing == had


async def test_the_end_of_the_block_raises_a_gap_and_leaves_the_others_to_the_next_member(
    autojump_clock: MockClock,
) -> None:
    async with shop(2) as (_, client):
        left = Left(client, "shared")
        await left.fill(2, 12)
        await left.purge(12)
        firsts = {left.first(partition)[:2] for partition in (0, 1)}
        told: list[tuple[int, int]] = []
        with pytest.raises(Gap) as raised:
            async with left.consumer():
                await trio.sleep(5)
        told.append(raised.value.position[:2])
        async with left.consumer() as consumer:
            gaps, _found = await drained(consumer)
        told += [each.position[:2] for each in gaps if each.position[:2] in firsts]
        assert sorted(told) == sorted(firsts)


async def test_each_loss_counts_that_is_skipped(autojump_clock: MockClock) -> None:
    """Also where nothing is left of the lane behind it."""
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", mode="shared", on_gap="skip") as consumer,
    ):
        before = told(client, "read_gaps_total") or 0
        for _ in range(3):
            lose(consumer, 0)
            await trio.sleep(60)
        assert (told(client, "read_gaps_total") or 0) - before == 3


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


@pytest.mark.parametrize("mode", ["shared", "key-shared"])
@pytest.mark.parametrize("seconds", [0, 0.5])
async def test_a_member_that_comes_back_is_not_told_what_another_one_was(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, mode: str, seconds: float
) -> None:
    """It was lost after it had found what is left over, or while it did."""
    slow_adoptions(monkeypatch, seconds)
    async with shop(2) as (cluster, client), cluster.client() as theirs:
        left = Left(client, mode)
        await left.fill(2, 12)
        await left.purge(12)
        firsts = {left.first(partition)[:2] for partition in (0, 1)}
        async with left.consumer() as consumer:
            await trio.sleep(5)
            await cluster.store.delete(member_key("billing", consumer._membership.member))
            await trio.sleep(5)
            async with Left(theirs, mode).consumer() as other:
                gaps, _found = await drained(other)
            again, _found = await drained(consumer)
        told = [each.position[:2] for each in gaps]
        assert sorted(each for each in told if each in firsts) == sorted(firsts)
        # Others are those that a reader meets, which has nothing to store yet.
        assert {each.position[:2] for each in again} <= {*told} - firsts
