"""Members that fall behind retention."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator
from typing import Literal

import pytest
import trio
from group_rig import ORDERS, rest, send, shop, take
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


@pytest.fixture
def slow_adoptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a while to take over a share."""
    adopt = ShareRows.adopt

    async def slowly(self: ShareRows, item: Item, share: Share, rest: ShareRecord | None) -> bool:
        await trio.sleep(0.15)
        return await adopt(self, item, share, rest)

    monkeypatch.setattr(ShareRows, "adopt", slowly)


async def took_over(client: Client, mode: str, lost: int) -> list[int | None]:
    """Let *lost* messages and five more be left; return what the next member gets, None for a gap.

    *lost*: a multiple of six.
    """
    left = Left(client, mode)
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
        until = trio.current_time() + 12
        while trio.current_time() < until and found[-1:] != [lost + 4]:
            try:
                batch = await consumer.poll(wait_s=0.1)
            except Gap:
                found.append(None)
            else:
                found += [int(each.value or b"") for each in batch]
                await consumer.ack(batch)
    return found


@pytest.mark.usefixtures("slow_adoptions")
async def test_a_gap_comes_before_the_messages_behind_it(autojump_clock: MockClock) -> None:
    """Also if the application asks again while the rest of it is being found."""
    async with shop(1) as (_, client):
        found = await took_over(client, "key-shared", 6)
        assert found[0] is None
        assert found[-5:] == [*range(6, 11)]
        assert {*found[:-5]} == {None}


GAP = Gap(ORDERS, partition=0, lane=0, position=MessageId(1, 0, 0, 0), first=None, missing=1)


def lose_one(consumer: GroupConsumer) -> Taking:
    """Let a message of a lost member be gone."""
    delivery = consumer._delivery
    assert isinstance(delivery, Shared)
    delivery.miss(GAP, [Place(0)])
    return delivery._taking


async def test_failures_that_come_later_hide_no_gap(autojump_clock: MockClock) -> None:
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", mode="shared") as consumer,
    ):
        await consumer.poll(wait_s=1)
        taking = lose_one(consumer)
        await trio.sleep(1)
        taking.fail(GAP)  # a reader met another one
        taking.fail(LedgerError("no bookie answers"))
        consumer._membership.fail(MemberRemoved("billing", "m", "it was silent"))
        for kind in (Gap, Gap, MemberRemoved):
            with pytest.raises(kind):
                await consumer.poll(wait_s=1)


@pytest.mark.parametrize("call", ["poll", "next"])
async def test_what_is_at_hand_waits_until_a_gap_is_told(
    autojump_clock: MockClock, call: str
) -> None:
    """A call that ends before has nothing, and one that waits longer does not end with nothing."""

    async def following() -> Message:
        if call == "next":
            return await anext(consumer)
        return (await consumer.poll(wait_s=math.inf, messages_max=1))[0]

    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", mode="shared", start="earliest") as consumer,
    ):
        await send(client, 0, 2)
        assert (await following()).value == b"0"
        lose_one(consumer)
        assert await consumer.poll(wait_s=0.1) == []
        with pytest.raises(Gap), trio.fail_after(5):
            await following()
        assert (await following()).value == b"1"


@pytest.mark.usefixtures("slow_adoptions")
@pytest.mark.parametrize("on_gap", ["raise", "skip"])
async def test_other_messages_come_while_much_is_found_to_be_lost(
    autojump_clock: MockClock, on_gap: Literal["raise", "skip"]
) -> None:
    """It takes several seconds to take over what the other member had."""
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


async def test_gaps_that_nobody_asked_for_are_logged_at_the_end(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the application is done, which raises one of them, or its block failed."""
    async with shop(1) as (_, client):
        for kind in (Gap, KeyError):
            caplog.clear()
            left = Left(client, "shared")
            await left.fill(2, 12)
            await left.purge(12)
            with pytest.raises(kind) as raised:
                async with left.consumer():
                    await trio.sleep(5)
                    if kind is KeyError:
                        raise KeyError
            told = caplog.text + str(raised.value)
            for partition in (0, 1):
                assert told.count(str(left.first(partition))) == 1
