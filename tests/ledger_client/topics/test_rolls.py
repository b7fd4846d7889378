"""Closing the open ledgers of a topic under their writers."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
import trio
from lane_process import HASTY, Process, shuffle_by
from lane_rig import batch
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import (
    BadTopic,
    MetadataUnavailable,
    NoSuchTopic,
    ReplicasUnavailable,
    WritersSilent,
)
from ledger_client.topics import rolls
from ledger_client.topics.lanes.lane import open_lane
from ledger_client.topics.retention.explanation import LaneExplained
from metadata.topics import (
    LANE_ROLLS,
    LaneRoll,
    RollPolicy,
    TopicRecord,
    encode_row,
    lane_roll_key,
    topic_key,
    writer_lease,
)

TOPIC = "shop/orders"


async def lanes_of(client: Client) -> list[LaneExplained]:
    return (await client.topics.explain(TOPIC, count_open=False)).lanes


async def states(client: Client) -> list[list[str]]:
    return [[fate.ledger.state for fate in lane.ledgers] for lane in await lanes_of(client)]


async def values(client: Client) -> list[bytes | None]:
    async with client.reader(TOPIC) as reader:
        return [message.value async for message in reader]


def requests(cluster: MemoryCluster) -> list[str]:
    return [key for key in cluster.store.values if key.startswith(LANE_ROLLS)]


async def outcomes(client: Client, **settings: float) -> list[str]:
    done = await client.topics.roll(TOPIC, **settings)  # type: ignore[arg-type]  # wait_s
    return [lane.outcome for lane in done.lanes]


async def write_silently(
    client: Client,
    topic: TopicRecord,
    partition: int,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Write a message, and stay without a look at requests."""
    async with open_lane(client._context.ledgers, topic, partition, producer="till") as lane:
        await lane.append([batch("x")])
        task_status.started()
        await trio.sleep_forever()


@asynccontextmanager
async def killed(cluster: MemoryCluster, topic: TopicRecord, partition: int) -> AsyncIterator[None]:
    """For the block, a writer that was killed after a message; its lease lasts some seconds."""
    process = Process(cluster)
    async with process.client() as client, trio.open_nursery() as nursery:
        await nursery.start(write_silently, client, topic, partition)
        process.kill()
        yield
        nursery.cancel_scope.cancel()


# --- a writer that is there ---------------------------------------------------------------


async def test_a_writer_goes_on_in_a_new_ledger_and_keeps_its_lane(
    autojump_clock: MockClock,
) -> None:
    """The age under which its ledgers do not end by themselves does not count."""
    async with memory_cluster() as cluster, cluster.client() as ours, cluster.client() as theirs:
        await ours.topics.create(TOPIC, roll=RollPolicy(age_min_s=1000.0))
        async with ours.producer(TOPIC) as producer:
            for number in range(3):
                await producer.send(b"%d" % number)
            done = await theirs.topics.roll(TOPIC)
            assert [(lane.partition, lane.lane, lane.outcome) for lane in done.lanes] == [
                (-1, 0, "rolled")
            ]
            assert done.closed == 1
            assert await states(ours) == [["closed", "open"]]
            await producer.send(b"3")
            (lane,) = await lanes_of(ours)
            assert (lane.epoch, lane.ledgers[0].ledger.messages) == (1, 3)
            assert lane.ledgers[0].ledger.ledger_id == done.lanes[0].ledger_id
        assert await values(ours) == [b"0", b"1", b"2", b"3"]
        assert not requests(cluster)


async def test_a_ledger_without_messages_stays_so_that_repeating_it_does_nothing(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"0")
            assert await outcomes(client) == ["rolled"]
            for _ in range(3):
                assert await outcomes(client) == ["empty"]
            assert await states(client) == [["closed", "open"]]
            await producer.send(b"1")  # which is in the ledger though no bookie was told so
            assert await outcomes(client) == ["rolled"]
        assert await outcomes(client) == []


async def test_a_lane_in_the_order_of_event_times_ends_between_equal_ones(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, order="event-time")
        async with client.producer(TOPIC) as producer:
            await producer.send(b"0", event_time=5)
            assert await outcomes(client) == ["rolled"]
            await producer.send(b"1", event_time=5)
            (lane,) = await lanes_of(client)
            assert [fate.ledger.shares_first for fate in lane.ledgers] == [False, True]
        assert await values(client) == [b"0", b"1"]


async def test_only_the_partition_that_is_named_is_rolled(autojump_clock: MockClock) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, 3)
        parts: list[float] = []
        async with client.producer(TOPIC) as producer:
            for partition in range(3):
                await producer.send(b"x", partition=partition)
            done = await client.topics.roll(TOPIC, partition=1, on_progress=parts.append)
            assert [lane.partition for lane in done.lanes] == [1]
            assert await states(client) == [["open"], ["closed", "open"], ["open"]]
            done = await client.topics.roll(TOPIC, on_progress=parts.append)
            assert [lane.outcome for lane in done.lanes] == ["rolled", "empty", "rolled"]
        assert parts == pytest.approx([1.0, 1 / 3, 2 / 3, 1.0])
        for wrong in (-1, 3):
            with pytest.raises(BadTopic, match=f"no partition {wrong}"):
                await client.topics.roll(TOPIC, partition=wrong)
        with pytest.raises(NoSuchTopic):
            await client.topics.roll("shop/none")


async def test_who_asks_at_the_same_time_gets_the_same_done(autojump_clock: MockClock) -> None:
    async with memory_cluster() as cluster, cluster.client() as ours, cluster.client() as theirs:
        await ours.topics.create(TOPIC)
        async with ours.producer(TOPIC) as producer:
            await producer.send(b"0")
            async with trio.open_nursery() as nursery:
                for client in (ours, theirs, theirs):
                    nursery.start_soon(client.topics.roll, TOPIC)
            assert await states(ours) == [["closed", "open"]]


async def test_a_request_that_was_left_behind_ends_no_later_ledger(
    autojump_clock: MockClock,
) -> None:
    """Of a process that was killed: its request is obeyed once, and means nothing afterwards."""
    async with memory_cluster() as cluster, cluster.client() as client:
        topic = await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"0")
            (lane,) = await lanes_of(client)
            key = lane_roll_key(topic.uid, -1, 0, lane.ledgers[0].ledger.ledger_id)
            await cluster.store.put(key, encode_row(LaneRoll()))
            await trio.sleep(1)
            assert await states(client) == [["closed", "open"]]
            await producer.send(b"1")
            for _ in range(3):
                await cluster.store.put(key, encode_row(LaneRoll()))
                await trio.sleep(1)
            assert await states(client) == [["closed", "open"]]
        await client.topics.delete(TOPIC)
        assert not requests(cluster)


async def test_a_writer_is_asked_though_the_store_wakes_nobody(autojump_clock: MockClock) -> None:
    async with memory_cluster() as cluster, cluster.client() as ours, cluster.client() as theirs:
        await ours.topics.create(TOPIC)
        async with ours.producer(TOPIC) as producer:
            await producer.send(b"0")
            cluster.store.hints = False
            assert await outcomes(theirs) == ["rolled"]


# --- a writer that is not there, or does not answer -----------------------------------------


async def test_a_lane_without_a_writer_is_closed_as_its_next_writer_would(
    autojump_clock: MockClock,
) -> None:
    """Killed just now: its lease lasts for a while, and is waited for."""
    async with memory_cluster() as cluster, cluster.client() as client:
        topic = await client.topics.create(TOPIC)
        async with killed(cluster, topic, -1):
            assert await outcomes(client) == ["closed"]
        assert await states(client) == [["closed"]]
        (lane,) = await lanes_of(client)
        assert (lane.epoch, lane.ledgers[0].ledger.messages) == (2, 1)
        assert await values(client) == [b"x"]
        assert not requests(cluster)


async def test_a_writer_that_does_not_answer_is_named_and_keeps_its_lane(
    autojump_clock: MockClock,
) -> None:
    """It is paused, or of a version that does not know of requests. All others are rolled."""
    async with memory_cluster() as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = await ours.topics.create(TOPIC, 2)
        async with (
            open_lane(theirs._context.ledgers, topic, 0, producer="till") as silent,
            ours.producer(TOPIC, partition=1) as producer,
        ):
            await silent.append([batch("x")])
            await producer.send(b"1")
            began = trio.current_time()
            with pytest.raises(
                WritersSilent, match=r"1 of 2 .* in time: lane 0 of partition 0 is written by"
            ) as caught:
                await ours.topics.roll(TOPIC, wait_s=20.0)
            assert 20.0 <= trio.current_time() - began < 25.0
            ((partition, lane, who),) = caught.value.writers
            assert (partition, lane) == (0, 0)
            assert who.startswith("producer till (process ")
            assert await states(ours) == [["open"], ["closed", "open"]]
            await silent.append([batch("x")])  # it was not fenced
            assert [lane.epoch for lane in await lanes_of(ours)] == [1, 1]
            assert not requests(cluster)


async def test_other_lanes_of_a_silent_process_are_not_waited_for_as_long(
    autojump_clock: MockClock,
) -> None:
    count = 3 * rolls.ROLLS_MAX
    async with memory_cluster() as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = await ours.topics.create(TOPIC, count)
        async with trio.open_nursery() as nursery:
            for partition in range(count):
                await nursery.start(write_silently, theirs, topic, partition)
            began = trio.current_time()
            with pytest.raises(WritersSilent, match=r"and 45 more\. They are paused"):
                await ours.topics.roll(TOPIC)
            assert trio.current_time() - began < 2 * rolls.ROLL_WAIT_S
            nursery.cancel_scope.cancel()


async def test_a_writer_that_lost_its_lease_is_asked_before_its_lane_is_taken(
    autojump_clock: MockClock,
) -> None:
    """As after an outage of the store, until it has it again."""
    async with memory_cluster() as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = await ours.topics.create(TOPIC)
        async with ours.producer(TOPIC) as producer:
            await producer.send(b"0")
            (lease,) = await cluster.store.leases(writer_lease(topic.uid, -1, 0))
            await cluster.store.release(lease)
            assert await outcomes(theirs) == ["rolled"]
            await producer.send(b"1")
            (lane,) = await lanes_of(ours)
            assert lane.epoch == 1
        assert await values(ours) == [b"0", b"1"]


async def test_what_cannot_be_recovered_is_said_and_all_others_are_rolled(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        topic = await client.topics.create(TOPIC, 2, replication=1, ack_quorum=1)
        async with killed(cluster, topic, 0):
            pass
        async with client.producer(TOPIC, partition=1) as producer:
            await producer.send(b"1")
            first, second = await lanes_of(client)
            (home,) = cluster.record(first.ledgers[0].ledger.ledger_id).fragments[0].bookies
            (other,) = cluster.record(second.ledgers[0].ledger.ledger_id).fragments[0].bookies
            assert home != other  # as drawn
            cluster.kill(home)
            with pytest.raises(ReplicasUnavailable):
                await client.topics.roll(TOPIC)
            assert (await states(client))[1] == ["closed", "open"]
            cluster.revive(home)
            assert await outcomes(client) == ["closed", "empty"]


async def test_writers_that_do_not_answer_are_named_beside_another_failure(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        topic = await client.topics.create(TOPIC, 2, replication=1, ack_quorum=1)
        async with killed(cluster, topic, 0):
            pass
        async with trio.open_nursery() as nursery:
            await nursery.start(write_silently, client, topic, 1)
            homes = [
                cluster.record(lane.ledgers[0].ledger.ledger_id).fragments[0].bookies
                for lane in await lanes_of(client)
            ]
            assert homes[0] != homes[1]  # as drawn
            cluster.kill(homes[0][0])
            with pytest.raises(ReplicasUnavailable) as caught:
                await client.topics.roll(TOPIC)
            first, second = caught.value.__notes__
            assert "lane 0 of partition 1 is written by producer till" in first
            assert second == "2 of 2 ledgers were not closed"
            nursery.cancel_scope.cancel()


async def test_a_writer_is_asked_even_without_a_wait(autojump_clock: MockClock) -> None:
    async with memory_cluster() as cluster, cluster.client() as ours, cluster.client() as theirs:
        await ours.topics.create(TOPIC)
        async with ours.producer(TOPIC) as producer:
            await producer.send(b"0")
            assert await outcomes(theirs, wait_s=0.0) == ["rolled"]


async def test_a_topic_that_is_deleted_meanwhile_keeps_no_request(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster() as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = await ours.topics.create(TOPIC)
        async with trio.open_nursery() as nursery:
            await nursery.start(write_silently, theirs, topic, -1)

            async def delete() -> None:
                await trio.sleep(2.5)
                await ours.topics.delete(TOPIC)
                await trio.sleep(10)
                nursery.cancel_scope.cancel()

            nursery.start_soon(delete)
            with trio.move_on_after(5):
                await ours.topics.roll(TOPIC)
        assert not requests(cluster)


async def test_no_request_is_put_once_the_deletion_of_its_topic_began(
    autojump_clock: MockClock,
) -> None:
    """Else a process that is killed then leaves it for ever."""
    async with memory_cluster() as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = await ours.topics.create(TOPIC)
        made: list[str] = []
        cluster.store.on_change = lambda key, value: made.append(key) if value else None

        def begin_deletion(key: str) -> None:
            if key.startswith(LANE_ROLLS):
                cluster.store.before_put = lambda _key: None
                deleting = msgspec.structs.replace(topic, state="deleting")
                cluster.store.change(topic_key(TOPIC), encode_row(deleting))

        async with trio.open_nursery() as nursery:
            await nursery.start(write_silently, theirs, topic, -1)
            cluster.store.before_put = begin_deletion
            with pytest.raises(NoSuchTopic):
                await ours.topics.roll(TOPIC)
            nursery.cancel_scope.cancel()
        assert not [key for key in made if key.startswith(LANE_ROLLS)]


# --- whatever happens -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
async def test_no_writer_notices_that_its_ledgers_are_closed(
    autojump_clock: MockClock, seed: int
) -> None:
    """Rolled again and again by two others, while bookies and the store come and go."""
    shuffle_by(seed)
    chance = random.Random(seed)
    async with memory_cluster(5, seed=seed) as cluster, cluster.client() as ours:
        await ours.topics.create(TOPIC, 2, replication=3, ack_quorum=2)
        sent: list[bytes] = []
        async with ours.producer(TOPIC, linger_ms=0) as producer:
            with trio.move_on_after(20):
                async with trio.open_nursery() as nursery:
                    for _ in range(2):
                        nursery.start_soon(_roll_for_ever, cluster, chance)
                    nursery.start_soon(_trouble, cluster, chance)
                    while True:
                        value = b"%d" % len(sent)
                        with trio.CancelScope(shield=True):
                            await producer.send(value, key=b"k%d" % (len(sent) % 7))
                        sent.append(value)
                        await trio.sleep(chance.choice([0, 0, 0.05, 0.2]))
        lanes = await lanes_of(ours)
        assert [lane.epoch for lane in lanes] == [1, 1]
        assert all(len(lane.ledgers) > 3 for lane in lanes)
        async with ours.reader(TOPIC) as reader:
            found = [(message.id.partition, message.value) async for message in reader]
        for partition in (0, 1):
            of_one = [int(value) for index, value in found if index == partition and value]
            assert of_one == sorted(of_one)
        assert sorted(int(value or b"-1") for _, value in found) == list(range(len(sent)))
        assert not requests(cluster)


async def _roll_for_ever(cluster: MemoryCluster, chance: random.Random) -> None:
    async with cluster.client(HASTY) as client:
        while True:
            await trio.sleep(chance.uniform(0, 1))
            with trio.move_on_after(chance.choice([0.05, 0.3, 20])):
                with suppress(MetadataUnavailable):
                    await client.topics.roll(TOPIC)


async def _trouble(cluster: MemoryCluster, chance: random.Random) -> None:
    try:
        while True:
            await trio.sleep(chance.uniform(1, 4))
            if chance.random() < 0.5:
                cluster.store.available = False
                await trio.sleep(chance.uniform(0, 2))
                cluster.store.available = True
            else:
                name = chance.choice(sorted(cluster.bookies))
                cluster.kill(name)
                await trio.sleep(chance.uniform(0, 3))
                cluster.revive(name)
    finally:
        cluster.store.available = True
        for name in [*cluster.down]:
            cluster.revive(name)
