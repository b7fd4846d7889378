"""Members that fall behind retention."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Literal

import pytest
import trio
from group_rig import ORDERS, rest, shop, take
from lost_member import Left, drained, lose, slow_adoptions, told
from memory_cluster import MemoryCluster
from trio.testing import MockClock

from ledger_client import Client, Gap, Message, MessageId
from ledger_client.errors import CommitRefused, MemberRemoved
from ledger_client.groups.consumer import GroupConsumer, note_unseen
from ledger_client.groups.feed import TopicFeed
from ledger_client.groups.in_order import InOrder
from ledger_client.groups.membership import Membership
from ledger_client.groups.sources import Kept
from ledger_client.topics.positions import Place
from metadata.groups.rows import member_key
from metadata.groups.shares import ShareRecord, decode_share, shares_prefix
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


def shares_in(cluster: MemoryCluster) -> list[ShareRecord]:
    """What is stored of the messages that are not acknowledged."""
    return [
        decode_share(key, found.value)
        for key, found in cluster.store.values.items()
        if key.startswith(shares_prefix("billing"))
    ]


async def test_a_member_that_leaves_takes_nothing_over_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it left would count as delivered to nobody."""
    leave = Membership.leave

    async def slowly(self: Membership, *, in_vain: bool) -> None:
        await trio.sleep(0.3)
        await leave(self, in_vain=in_vain)

    monkeypatch.setattr(Membership, "leave", slowly)
    async with shop(1) as (cluster, client):
        await Left(client, "shared").fill(1, 12)
        rows = shares_in(cluster)
        assert len(rows) > 3
        assert not any(row.is_blind for row in rows)


@pytest.mark.parametrize("mode", ["shared", "key-shared"])
async def test_a_look_ends_as_its_member_leaves(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """What it took over by then is left to others at once."""
    async with shop(1) as (cluster, client):
        left = Left(client, mode)
        await left.fill(1, 40)
        slow_adoptions(monkeypatch, 0.5)
        async with left.consumer():
            await trio.sleep(1.6)
            began = trio.current_time()
        assert trio.current_time() - began < 1
        assert not any(row.is_blind for row in shares_in(cluster))
        began = trio.current_time()
        async with left.consumer() as consumer:
            assert await consumer.poll(wait_s=10)
        assert trio.current_time() - began < 5


async def test_a_look_ends_as_its_member_goes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = TopicFeed.read, list[float]()

    async def slowly(self: TopicFeed, partition: int, lane: int, start: Place, end: Place) -> Kept:
        reads.append(trio.current_time())
        await trio.sleep(1)
        return await read(self, partition, lane, start, end)

    async with shop(1) as (cluster, client):
        left = Left(client, "shared")
        await left.fill(1, 100)
        monkeypatch.setattr(TopicFeed, "read", slowly)
        async with left.consumer() as consumer:
            await trio.sleep(1.5)
            before = len(reads)
            assert 0 < before < 60
            await cluster.store.delete(member_key("billing", consumer._membership.member))
            await trio.sleep(30)
            assert len(reads) == before


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
        await consumer.poll(wait_s=1)
        before = told(client, "read_gaps_total") or 0
        for _ in range(3):
            lose(consumer, 0)
            await trio.sleep(60)
        assert (told(client, "read_gaps_total") or 0) - before == 3


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


@pytest.mark.parametrize("mode", ["shared", "key-shared"])
async def test_a_member_that_leaves_while_it_takes_over_warns_of_nothing(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mode: str,
) -> None:
    async with shop(1) as (_, client):
        left = Left(client, mode)
        await left.fill(1, 40)
        slow_adoptions(monkeypatch, 0.5)
        caplog.clear()
        async with left.consumer():
            await trio.sleep(1.6)
        assert not [each for each in caplog.records if each.name.startswith("ledger_client")]


async def test_a_gap_is_left_to_others_where_another_one_ends_the_block(
    autojump_clock: MockClock,
) -> None:
    unseen = Gap(ORDERS, partition=7, lane=0, position=MessageId(99, 0), first=None, missing=1)
    async with shop(2) as (_, client):
        left = Left(client, "shared")
        await left.fill(2, 12)
        await left.purge(12)
        with pytest.raises(Gap) as raised:
            async with left.consumer() as consumer:
                await trio.sleep(5)
                note_unseen(consumer, unseen)
        assert raised.value is unseen
        async with left.consumer() as consumer:
            gaps, _ = await drained(consumer)
        wanted = {left.first(partition)[:3] for partition in (0, 1)}
        assert wanted <= {gap.position[:3] for gap in gaps}


async def test_a_gap_that_ends_the_block_names_what_else_went_wrong(
    autojump_clock: MockClock, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: InOrder) -> None:
        raise CommitRefused("billing", [])

    unseen = Gap(ORDERS, partition=7, lane=0, position=MessageId(99, 0), first=None, missing=1)
    monkeypatch.setattr(InOrder, "raise_failures", fail)
    with pytest.raises(Gap) as raised:
        async with client.consumer(ORDERS, group="other") as consumer:
            note_unseen(consumer, unseen)
    assert raised.value.__notes__ == [f"besides: {CommitRefused('billing', [])}"]
