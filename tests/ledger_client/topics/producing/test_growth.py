"""Partitions added to a topic while it is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest
import trio
from fake_lane import FakeLanes, make_record, producing
from leases import grant
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import NotEnoughBookies, ProducerBusy, SendUnknown
from ledger_client.message_id import MessageId
from ledger_client.topics.producing.producer import Producer
from metadata.topics import LaneOwner, encode_row, writer_lease
from native.route import murmur3

TOPIC = "shop/orders"
KEYS = [b"k%d" % number for number in range(200)]


def partition_of(key: bytes, partitions: int) -> int:
    return (murmur3(key) & 0x7FFFFFFF) % partitions


MOVING = next(key for key in KEYS if partition_of(key, 2) != partition_of(key, 8))
STAYING = next(
    key for key in KEYS if partition_of(key, 2) == partition_of(key, 8) == partition_of(MOVING, 2)
)


async def values_of(client: Client) -> list[bytes | None]:
    async with client.reader(TOPIC) as reader:
        return [message.value async for message in reader]


async def grown(client: Client, producer: Producer, partitions: int) -> None:
    """Add partitions and wait until the producer writes them."""
    await client.topics.alter(TOPIC, partitions=partitions)
    with trio.fail_after(30):
        while len(producer._writers) < partitions:  # noqa: ASYNC110 - nobody is told
            await trio.sleep(0.1)


# --- noticing -----------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"access": "exclusive"}, {"producer_name": "p"}])
async def test_a_running_producer_uses_partitions_that_are_added(
    autojump_clock: MockClock, settings: dict[str, str]
) -> None:
    """PS-02, TB-36: keys are routed as by a producer that begins afterwards."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, partitions=2)
        async with client.producer(TOPIC, **settings) as producer:  # type: ignore[arg-type]
            before = await producer.send_many(KEYS, keys=KEYS)
            await grown(client, producer, 8)
            after = await producer.send_many(KEYS, keys=KEYS)
            single = [await producer.send(key, key=key) for key in KEYS[:8]]
        assert [each.partition for each in before] == [partition_of(key, 2) for key in KEYS]
        assert [each.partition for each in after] == [partition_of(key, 8) for key in KEYS]
        assert [each.partition for each in single] == [partition_of(key, 8) for key in KEYS[:8]]
        assert len(await values_of(client)) == 2 * len(KEYS) + 8


async def test_who_writes_one_partition_goes_on_with_it_alone(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, partitions=2)
        async with client.producer(TOPIC, partition=1) as producer:
            await client.topics.alter(TOPIC, partitions=4)
            await trio.sleep(20)
            assert (await producer.send(b"x", key=MOVING)).partition == 1


async def test_a_call_that_is_under_way_ends_in_the_partitions_it_began_with(
    autojump_clock: MockClock,
) -> None:
    """PS-27: its order holds for each key."""
    lanes = FakeLanes(delay_s=0.05)
    many = [b"%d" % number for number in range(20_000)]
    keys = [KEYS[number % len(KEYS)] for number in range(20_000)]
    async with producing(lanes, make_record(partitions=2), batch_bytes=100_000) as producer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: producer.send_many(many, keys=keys))
            await trio.sleep(0.01)
            await producer._use_partitions(make_record(partitions=8))
        assert sum(len(lanes.values(index)) for index in range(2)) == 20_000
        assert (await producer.send(b"x", key=MOVING)).partition == partition_of(MOVING, 8)


async def test_partitions_that_somebody_else_writes_are_left_until_they_are_free(
    autojump_clock: MockClock,
) -> None:
    """With exclusive access everything of a key is where the producer may write it."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = await client.topics.create(TOPIC, partitions=2)
        taken = partition_of(MOVING, 8)
        async with client.producer(TOPIC, access="exclusive") as producer:
            owner = encode_row(LaneOwner(producer="other"))
            lease = writer_lease(topic.uid, taken, 0)
            await grant(client._context.store, lease, "other/1", ttl_s=12, value=owner)
            await client.topics.alter(TOPIC, partitions=8)
            await trio.sleep(8)
            sent = await producer.send(b"x", key=MOVING)
            assert sent.partition == partition_of(MOVING, 2)
            await trio.sleep(12)
            assert (await producer.send(b"y", key=MOVING)).partition == taken


async def test_a_lane_that_cannot_be_opened_changes_nothing(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, make_record(partitions=2), producer_name="p") as producer:
        lanes.refusal = NotEnoughBookies(healthy=0, needed=1)
        with pytest.raises(NotEnoughBookies):
            await producer._use_partitions(make_record(partitions=8))
        assert (await producer.send(b"x", key=MOVING)).partition == partition_of(MOVING, 2)
        lanes.refusal = None
        await producer._use_partitions(make_record(partitions=8))
        assert (await producer.send(b"y", key=MOVING)).partition == partition_of(MOVING, 8)


# --- what is sent again ---------------------------------------------------------------


async def test_what_is_sent_again_after_partitions_were_added_is_kept_once(
    autojump_clock: MockClock,
) -> None:
    """PS-39: the number is looked for where the key was; the id is that of the first."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, partitions=2)
        async with client.producer(TOPIC, producer_name="p") as producer:
            first = await producer.send(b"0", key=MOVING, sequence=0)
            await grown(client, producer, 8)
            assert await producer.send(b"0", key=MOVING, sequence=0) == first
            assert await producer.send_nowait(b"0", key=MOVING, sequence=0).message_id() == first
            await producer.send(b"1", key=MOVING, sequence=1)
        assert sorted(filter(None, await values_of(client))) == [b"0", b"1"]


async def test_a_number_of_after_the_change_is_no_duplicate_of_one_in_the_old_partition(
    autojump_clock: MockClock,
) -> None:
    """Numbers go on in the old partition with other keys, and that says nothing of this key."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, partitions=2)
        async with client.producer(TOPIC, producer_name="p") as producer:
            await producer.send(b"0", key=MOVING, sequence=0)
            await grown(client, producer, 8)
            await producer.send(b"2", key=STAYING, sequence=2)
            sent = await producer.send(b"1", key=MOVING, sequence=1)
            assert sent.partition == partition_of(MOVING, 8)
        assert sorted(filter(None, await values_of(client))) == [b"0", b"1", b"2"]


Again = Callable[[Producer], Awaitable[MessageId]]


@pytest.mark.parametrize("access", ["shared", "exclusive"])
async def test_a_producer_that_comes_back_after_the_change_knows_what_it_sent_before(
    autojump_clock: MockClock, access: str
) -> None:
    """PS-39: across runs, and for every change between them, in order."""
    options = {"producer_name": "p", "access": access}
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, partitions=2)
        number = 0
        for partitions in (3, 5, 8):
            async with client.producer(TOPIC, **options) as producer:  # type: ignore[arg-type]
                for key in KEYS[:20]:
                    await producer.send(b"%d" % number, key=key, sequence=number)
                    number += 1
            await client.topics.alter(TOPIC, partitions=partitions)
        async with client.producer(TOPIC, **options) as producer:  # type: ignore[arg-type]
            for again in range(number):
                key = KEYS[:20][again % 20]
                await producer.send(b"%d" % again, key=key, sequence=again)
            await producer.send(b"new", key=KEYS[0], sequence=number)
        found = await values_of(client)
        assert sorted(filter(None, found)) == sorted([b"new", *(b"%d" % n for n in range(number))])


async def test_the_change_is_durable_before_what_is_routed_by_it(
    autojump_clock: MockClock,
) -> None:
    """A number of after the change is not taken for one of before by the next run."""
    async with memory_cluster(3) as cluster:
        async with cluster.client() as client:
            await client.topics.create(TOPIC, partitions=2)
        with trio.CancelScope() as killed:
            async with (
                cluster.client() as client,
                client.producer(TOPIC, producer_name="p") as producer,
            ):
                await producer.send(b"0", key=MOVING, sequence=0)
                await grown(client, producer, 8)
                await producer.send(b"2", key=STAYING, sequence=2)
                killed.cancel()
        async with cluster.client() as client:
            async with client.producer(TOPIC, producer_name="p") as producer:
                await producer.send(b"0", key=MOVING, sequence=0)
                await producer.send(b"1", key=MOVING, sequence=1)
            assert sorted(filter(None, await values_of(client))) == [b"0", b"1", b"2"]


async def test_what_is_unknown_before_the_change_is_kept_once_after_it(
    autojump_clock: MockClock,
) -> None:
    """Whether it was kept or not, its lane says so: it goes where it went before."""
    for kept in (0, 1):
        lanes = FakeLanes()
        record = make_record(partitions=2)
        async with producing(lanes, record, producer_name="p") as producer:
            lanes.fail_next(kept=kept)
            with pytest.raises(SendUnknown):
                await producer.send(b"0", key=MOVING, sequence=0)
            await producer._use_partitions(msgspec.structs.replace(record, partitions=8))
            await producer.send(b"0", key=MOVING, sequence=0)
            await producer.send(b"1", key=MOVING, sequence=1)
        assert lanes.values(partition_of(MOVING, 2))[0] == b"0"
        assert sum(len(lanes.values(index)) for index in range(8)) == 2


async def test_a_producer_without_access_to_a_new_partition_says_so_only_in_its_log(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes, make_record(partitions=2), access="exclusive") as producer:
        lanes.refusal = ProducerBusy(TOPIC, partition=2, lane=0, owner="somebody")
        with pytest.raises(ProducerBusy):
            await producer._use_partitions(make_record(partitions=3))
        lanes.refusal = None
        await producer.send(b"x", key=MOVING)
    assert lanes.left == 2
