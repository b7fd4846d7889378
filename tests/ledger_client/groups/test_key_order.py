"""Messages of a key-shared group stay in order, and are not lost, as slots and members move."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Container, Mapping, Sequence, Set as AbstractSet
from functools import partial

import trio
from memory_cluster import MemoryCluster
from shared_shop import ORDERS, crash, rows, send, shop, until, value
from trio.testing import MockClock

from ledger_client import Client, CommitRefused, Message, MetadataUnavailable
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.options import TopicPartition
from ledger_client.groups.share import Share, messages_left
from ledger_client.groups.sharing import Fetched, Orphan
from ledger_client.groups.slots import Units
from ledger_client.groups.sources import Kept
from ledger_client.message_id import MessageId
from metadata.groups.assignment import Part
from metadata.groups.rows import member_key
from metadata.groups.shares import FREE, SHARES, ShareRecord, decode_share, holder_of
from metadata.store import Item, Op, Put
from native.frame import Opcode


async def take_all(consumer: GroupConsumer, count: int) -> list[int]:
    """Take and acknowledge so many messages; return their values."""
    found: list[int] = []
    with trio.fail_after(60):
        while len(found) < count:
            messages = await consumer.poll(wait_s=5)
            found += map(value, messages)
            await consumer.ack(messages)
    return found


async def send_one_by_one(client: Client, first: int, stop: int) -> None:
    async with client.producer(ORDERS, batching=False) as producer:
        for number in range(first, stop):
            await producer.send(b"%d" % number, key=b"k")
            await trio.sleep(0.1)


async def test_what_a_lost_member_left_comes_in_the_order_of_the_topic(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        async with client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest"
        ) as consumer:
            await until(lambda: bool(consumer.assignment()))
            await send_one_by_one(client, 0, 12)
            await until(lambda: len(rows(cluster)) == 12)
            crash(consumer)
        await send_one_by_one(client, 12, 15)
        async with client.consumer(ORDERS, group="a", mode="key-shared") as other:
            assert await take_all(other, 15) == list(range(15))


async def test_what_a_lost_member_left_is_read_at_once_and_taken_in_order(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        async with client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest"
        ) as consumer:
            await until(lambda: bool(consumer.assignment()))
            await send_one_by_one(client, 0, 32)
            await until(lambda: len(rows(cluster)) == 32)
            crash(consumer)
        for bookie in cluster.bookies.values():
            bookie.delay_s = lambda request: 0.5 if request.opcode == Opcode.BATCH_READ else 0.0
        async with client.consumer(ORDERS, group="a", mode="key-shared") as other:
            await until(lambda: bool(other.assignment()))
            begun_at = trio.current_time()
            assert await take_all(other, 32) == list(range(32))
            assert trio.current_time() - begun_at < 8


async def take_and_crash(cluster: MemoryCluster, client: Client, member: str, count: int) -> None:
    """Let a member take messages, each a share of its own, and die."""
    async with client.consumer(
        ORDERS, group="a", mode="key-shared", start="earliest", member=member
    ) as consumer:
        await until(lambda: bool(consumer.assignment()))
        await send_one_by_one(client, 0, count)
        await until(lambda: len(rows(cluster)) == count)
        crash(consumer)


async def test_what_a_member_left_is_not_in_its_name_when_it_comes_back(
    autojump_clock: MockClock,
) -> None:
    """Others take nothing of a member that lives, and may have later messages of its keys."""
    async with shop() as (cluster, client):
        await take_and_crash(cluster, client, "cat", 5)
        row, held = member_key("a", "cat"), list[list[str]]()
        await until(lambda: row not in cluster.store.values)

        def note(key: str) -> None:
            if key == row:
                held.append([holder_of(each) for each in rows(cluster)])

        cluster.store.before_put = note
        async with client.consumer(ORDERS, group="a", mode="key-shared", member="cat") as other:
            assert await take_all(other, 5) == list(range(5))
        assert held[0] == [FREE] * 5


async def test_what_a_member_had_is_its_own_while_it_is_a_member(
    autojump_clock: MockClock,
) -> None:
    """It was started again within its session, so nobody else has its slots."""
    async with shop() as (cluster, client):
        await take_and_crash(cluster, client, "cat", 5)
        kept = rows(cluster)
        async with client.consumer(ORDERS, group="a", mode="key-shared", member="cat") as other:
            assert rows(cluster) == kept
            assert await take_all(other, 5) == list(range(5))


async def test_what_was_taken_without_an_answer_comes_before_what_follows(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        transact, lost = cluster.store.transact, list[str]()

        async def lose_answer(ops: Sequence[Op]) -> list[int]:
            versions = await transact(ops)
            taken = [op.key for op in ops if isinstance(op, Put) and op.key.startswith(SHARES)]
            if taken and not lost:
                lost.extend(taken)
                raise MetadataUnavailable("the answer is lost")
            return versions

        cluster.store.transact = lose_answer  # type: ignore[method-assign]
        async with client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest"
        ) as consumer:
            await until(lambda: bool(consumer.assignment()))
            await send_one_by_one(client, 0, 10)
            assert await take_all(consumer, 10) == list(range(10))
        assert lost
        assert rows(cluster) == []


async def test_a_slot_that_comes_begins_where_its_former_member_was(
    autojump_clock: MockClock,
) -> None:
    """The new one reads its other slots on while the application is told, and is far ahead."""

    async def wait(_: Sequence[TopicPartition]) -> None:
        await trio.sleep(3)

    async with shop() as (cluster, client):
        found = Counter[int]()

        async def consume() -> None:
            async with client.consumer(
                ORDERS, group="a", mode="key-shared", start="earliest", on_assigned=wait
            ) as consumer:
                while True:
                    messages = await consumer.poll(wait_s=1)
                    found.update(map(value, messages))
                    await consumer.ack(messages)

        async with trio.open_nursery() as nursery:
            async with (
                cluster.client() as own,
                own.consumer(ORDERS, group="a", mode="key-shared", start="earliest") as slow,
            ):
                slow._shared._taking.stop()
                await until(lambda: bool(slow.assignment()))
                nursery.start_soon(consume)
                await trio.sleep(20)
                await send(client, 0, 100, keys=50)
                await until(lambda: len(found) > 20)
            for first in range(100, 160, 10):
                await send(client, first, first + 10, keys=50)
                await trio.sleep(1)
            await until(lambda: len(found) == 160)
            nursery.cancel_scope.cancel()
        assert set(found.values()) == {1}


async def test_what_cannot_be_left_to_others_yet_is_not_handed_out(
    autojump_clock: MockClock,
) -> None:
    """The store is away while slots move, for the member that gives them up."""
    async with shop() as (cluster, client):
        taken: dict[str, list[int]] = {"first": [], "second": []}

        async def consume(name: str, consumer: GroupConsumer) -> None:
            while True:
                messages: list[Message] = await consumer.poll(wait_s=1, messages_max=10)
                taken[name] += map(value, messages)
                await consumer.ack(messages)

        async with (
            client.consumer(
                ORDERS, group="a", mode="key-shared", start="earliest", revoke_s=2
            ) as first,
            trio.open_nursery() as nursery,
        ):
            await until(lambda: bool(first.assignment()))
            await send(client, 0, 100, keys=50)
            free, tried = first._shared._rows.free, list[float]()

            async def refuse(*_: object) -> set[Share]:
                tried.append(trio.current_time())
                raise MetadataUnavailable("the store is away")

            first._shared._rows.free = refuse  # type: ignore[method-assign, assignment]
            async with (
                cluster.client() as own,
                own.consumer(ORDERS, group="a", mode="key-shared", start="earliest") as second,
            ):
                await until(lambda: bool(tried) and bool(second.assignment()))
                nursery.start_soon(consume, "first", first)
                nursery.start_soon(consume, "second", second)
                await trio.sleep(3)
                before = set(taken["first"])
                assert 0 < len(before) < 100
                first._shared._rows.free = free  # type: ignore[method-assign]
                await until(lambda: len(taken["first"] + taken["second"]) == 100)
                nursery.cancel_scope.cancel()
        assert set(taken["first"]) == before
        assert sorted(taken["first"] + taken["second"]) == list(range(100))


async def test_slots_are_given_up_while_what_is_left_of_others_is_taken_over(
    autojump_clock: MockClock,
) -> None:
    """That may take long; nobody else gets the slots for revoke_s otherwise."""
    async with (
        shop() as (cluster, client),
        client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest", revoke_s=60
        ) as first,
    ):
        adopt = first._shared._sharing.adopt_orphans
        first._shared._sharing.adopt_orphans = trio.sleep_forever  # type: ignore[method-assign]
        await until(lambda: bool(first.assignment()))
        async with (
            cluster.client() as own,
            own.consumer(ORDERS, group="a", mode="key-shared", start="earliest") as second,
        ):
            begun_at = trio.current_time()
            await until(lambda: bool(second.assignment()))
            assert trio.current_time() - begun_at < 10
            assert not first._partitions.active & second._partitions.active
        first._shared._sharing.adopt_orphans = adopt  # type: ignore[method-assign]


async def test_what_is_left_comes_in_order_though_slots_come_meanwhile(
    autojump_clock: MockClock,
) -> None:
    """What was passed over before they came is looked at again first."""
    async with (
        shop() as (cluster, client),
        client.consumer(ORDERS, group="a", mode="key-shared", start="earliest") as consumer,
    ):
        await until(lambda: bool(consumer.assignment()))
        await send_one_by_one(client, 0, 5)
        await until(lambda: len(rows(cluster)) == 5)
        sharing, partitions = consumer._shared._sharing, consumer._partitions
        message = next(iter(consumer._shared._holdings.shares.values())).messages[0]
        units, every = Units("key-shared"), partitions.parts
        assert message is not None
        slot = units.slot_of(message)
        partitions.parts = {part for part in every if units.slot(part) != slot}
        await sharing.hand_over(every)
        assert [holder_of(each) for each in rows(cluster)] == [FREE] * 5
        adopt, receive = sharing._adopt, consumer._shared.receive
        received: list[int] = []

        async def gain(item: Item, parts: AbstractSet[Part], fetched: Fetched) -> bool:
            is_done = await adopt(item, parts, fetched)
            partitions.parts = every
            return is_done

        def note(share: Share) -> None:
            received.append(share.record.entry)
            receive(share)

        sharing._adopt = gain  # type: ignore[method-assign]
        consumer._shared.receive = note  # type: ignore[method-assign]
        await sharing.adopt_orphans()
        assert len(received) == 5
        assert received == sorted(received)


async def test_what_a_member_leaves_too_late_is_found_at_once(autojump_clock: MockClock) -> None:
    """The new owner of its slots has them by force, and has looked already."""
    async with (
        shop() as (cluster, client),
        client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest", revoke_s=2
        ) as first,
    ):
        await until(lambda: bool(first.assignment()))
        await send(client, 0, 100, keys=50)
        free, given, until_s = first._shared._rows.free, list[float](), math.inf

        async def free_late(left: Mapping[Share, Sequence[int]]) -> set[Share]:
            if trio.current_time() < until_s:
                raise MetadataUnavailable("the store is away")
            shares = await free(left)
            given.append(trio.current_time())
            return shares

        first._shared._rows.free = free_late  # type: ignore[method-assign]
        async with (
            cluster.client() as own,
            own.consumer(ORDERS, group="a", mode="key-shared", start="earliest") as second,
        ):
            await until(lambda: bool(second.assignment()))
            until_s = trio.current_time() + 1.5
            with trio.fail_after(60):
                await anext(second)
            assert trio.current_time() - given[0] < 1


async def test_a_message_that_is_being_left_to_others_is_not_acknowledged_here(
    autojump_clock: MockClock,
) -> None:
    """The acknowledgement would be stored, and the message go on with its slot all the same."""
    async with (
        shop() as (cluster, client),
        client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest", revoke_s=1
        ) as consumer,
    ):
        await send_one_by_one(client, 0, 1)
        message = await anext(consumer)
        sharing, free = consumer._shared._sharing, consumer._shared._rows.free
        refused: list[CommitRefused] = []

        async def free_late(left: Mapping[Share, Sequence[int]]) -> set[Share]:
            try:
                await consumer.ack(message)
            except CommitRefused as refusal:
                refused.append(refusal)
            return await free(left)

        consumer._shared._rows.free = free_late  # type: ignore[method-assign]
        parts = set(consumer._partitions.parts)
        consumer._partitions.parts = set()
        await sharing.hand_over(parts)
        assert refused
        (key,) = rows(cluster)
        assert messages_left(decode_share(key, cluster.store.values[key].value)) == 1
        consumer._partitions.parts = parts


async def test_slots_are_handed_over_though_messages_are_being_taken(
    autojump_clock: MockClock,
) -> None:
    """What is being taken when the time is up follows once it is there."""
    async with (
        shop() as (cluster, client),
        client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest", revoke_s=2
        ) as consumer,
    ):
        await until(lambda: bool(consumer.assignment()))
        await send_one_by_one(client, 0, 3)
        await until(lambda: len(rows(cluster)) == 3)
        transact, late = cluster.store.transact, list[int]()

        async def answer_late(ops: Sequence[Op]) -> list[int]:
            versions = await transact(ops)
            if not late and any(op.key.startswith(SHARES) for op in ops if isinstance(op, Put)):
                late.append(1)
                await trio.sleep(4)
            return versions

        cluster.store.transact = answer_late  # type: ignore[method-assign]
        await send_one_by_one(client, 3, 4)
        await until(lambda: bool(late))
        parts = set(consumer._partitions.parts)
        consumer._partitions.parts = set()
        with trio.move_on_after(1):
            await consumer._shared.finish(parts)
        await trio.sleep(10)
        assert all("/~/" in key for key in rows(cluster))
        assert len(rows(cluster)) == 4
        assert await consumer.poll(wait_s=1) == []
        consumer._partitions.parts = parts


async def leave_some(consumer: GroupConsumer, cluster: MemoryCluster, count: int) -> set[Part]:
    """Send messages of one key, and let only the first *count* be left to others.

    Return what the member had; it has nothing any more. The store stays away for the rest.
    """
    await until(lambda: bool(consumer.assignment()))
    async with cluster.client() as own:
        await send_one_by_one(own, 0, 5)
    await until(lambda: len(rows(cluster)) == 5)
    ours, free = consumer._shared._rows, consumer._shared._rows.free

    async def free_first(left: Mapping[Share, Sequence[int]]) -> set[Share]:
        if len(left) <= 5 - count:
            raise MetadataUnavailable("the store is away")
        return await free(dict(list(left.items())[:count]))

    ours.free = free_first  # type: ignore[method-assign]
    parts, consumer._partitions.parts = consumer._partitions.parts, set()
    await consumer._shared._sharing.hand_over(parts)
    entries = {
        key: decode_share(key, cluster.store.values[key].value).entry for key in rows(cluster)
    }
    left = [entry for key, entry in entries.items() if holder_of(key) == FREE]
    assert sorted(left) == sorted(entries.values())[:count], "in the order of their lane"
    return parts


async def test_what_stays_here_comes_after_what_was_left_before_it(
    autojump_clock: MockClock,
) -> None:
    """The slots came back before the store had taken everything that was to be left."""
    async with (
        shop() as (cluster, client),
        client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest", revoke_s=2
        ) as consumer,
    ):
        consumer._partitions.parts = await leave_some(consumer, cluster, 3)
        sharing = consumer._shared._sharing
        find, early = sharing._find_orphans, []

        async def find_slowly() -> list[Orphan]:
            early.append(await consumer.poll(wait_s=0.5))
            return await find()

        sharing._find_orphans = find_slowly  # type: ignore[method-assign]
        await sharing.adopt_orphans()
        del consumer._shared._rows.free
        assert early == [[]], "handed out before what was left"
        assert await take_all(consumer, 5) == list(range(5))


async def test_what_was_left_too_late_comes_before_what_waits_for_the_application(
    autojump_clock: MockClock,
) -> None:
    """The new owner of the slots has taken later messages of the key by then."""
    async with (
        shop() as (cluster, client),
        client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest", revoke_s=2
        ) as consumer,
    ):
        consumer._shared._rows.orphans = no_orphans  # type: ignore[method-assign, assignment]
        consumer._partitions.parts = await leave_some(consumer, cluster, 5)
        await send_one_by_one(client, 5, 8)
        await until(lambda: consumer._shared._holdings.left == 3)
        del consumer._shared._rows.orphans
        await consumer._shared._sharing.adopt_orphans()
        assert await take_all(consumer, 8) == list(range(8))


async def no_orphans(_known: Container[str]) -> AsyncIterator[Item]:
    for each in list[Item]():
        yield each


async def test_what_is_withheld_while_other_messages_of_its_share_are_left_is_left_next(
    autojump_clock: MockClock,
) -> None:
    async with (
        shop() as (cluster, client),
        client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest", revoke_s=2
        ) as consumer,
    ):
        await until(lambda: bool(consumer.assignment()))
        async with client.producer(ORDERS) as producer, trio.open_nursery() as nursery:
            for number in range(100):  # one batch
                nursery.start_soon(partial(producer.send, b"%d" % number, key=b"%d" % number))
        await until(lambda: consumer._shared._holdings.left == 100)
        assert len(rows(cluster)) < 5
        sharing, free = consumer._shared._sharing, consumer._shared._rows.free
        every, units = consumer._partitions.parts, Units("key-shared")
        low = {part for part in every if units.slot(part) < 8}

        async def free_slowly(left: Mapping[Share, Sequence[int]]) -> set[Share]:
            given = await free(left)
            sharing._passing.withhold(dict(sharing._passing.of_slots(every - low)))
            return given

        consumer._shared._rows.free = free_slowly  # type: ignore[method-assign]
        consumer._partitions.parts = set()
        await sharing.hand_over(low)
        assert not sharing._passing.is_leaving
        assert {holder_of(key) for key in rows(cluster)} == {FREE}
        records = [decode_share(key, cluster.store.values[key].value) for key in rows(cluster)]
        assert sum(map(messages_left, records)) == 100
        consumer._partitions.parts = every


async def test_what_others_are_to_take_over_is_read_once(autojump_clock: MockClock) -> None:
    """A member looks at every hint; nobody else is there to take it."""
    async with (
        shop() as (cluster, client),
        client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest", revoke_s=2
        ) as consumer,
    ):
        every = await leave_some(consumer, cluster, 5)
        sharing, units = consumer._shared._sharing, Units("key-shared")
        message = Message(MessageId(0, 0, 0, 0), b"k", None, None, 0, 0, {}, "", -1, 0, ORDERS, 0)
        slot = units.slot_of(message)
        consumer._partitions.parts = {part for part in every if units.slot(part) != slot}
        read, count = sharing._read, list[int]()

        async def read_and_count(record: ShareRecord) -> Kept:
            count.append(record.entry)
            return await read(record)

        sharing._read = read_and_count  # type: ignore[method-assign]
        for _ in range(3):
            await sharing.adopt_orphans()
        assert len(count) == 5
        consumer._partitions.parts = every
        await sharing.adopt_orphans()
        assert await take_all(consumer, 5) == list(range(5))


async def test_what_others_changed_while_it_was_taken_over_is_looked_at_again(
    autojump_clock: MockClock,
) -> None:
    """The share has messages of others, too; the store did not make the change."""
    async with (
        shop() as (_, client),
        client.consumer(
            ORDERS, group="a", mode="key-shared", start="earliest", revoke_s=2
        ) as consumer,
    ):
        await until(lambda: bool(consumer.assignment()))
        async with client.producer(ORDERS) as producer, trio.open_nursery() as nursery:
            for number in range(100):  # one batch
                nursery.start_soon(partial(producer.send, b"%d" % number, key=b"%d" % number))
        await until(lambda: consumer._shared._holdings.left == 100)
        sharing, adopt = consumer._shared._sharing, consumer._shared._rows.adopt
        every, consumer._partitions.parts = consumer._partitions.parts, set()
        await sharing.hand_over(every)
        units, refused = Units("key-shared"), list[str]()

        async def refuse_first(item: Item, share: Share, rest: ShareRecord | None) -> bool:
            if len(refused) < 20:
                refused.append(item[0])
                return False
            return await adopt(item, share, rest)

        consumer._shared._rows.adopt = refuse_first  # type: ignore[method-assign]
        consumer._partitions.parts = {part for part in every if units.slot(part) < 8}
        with trio.fail_after(60):
            await sharing.adopt_orphans()
        assert 0 < consumer._shared._holdings.left < 100
        consumer._partitions.parts = every
        await sharing.adopt_orphans()
        assert consumer._shared._holdings.left == 100
