"""Several lanes and topics merged by event time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
from batches import Sent
from hypothesis import given, settings, strategies as st
from laid_topic import TOPIC, Laid, LaidTopic, said
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client.errors import BadTopic, MessagesLost
from ledger_client.topics.messages import Message

OTHER = "shop/returns"
batches = st.lists(st.lists(st.integers(0, 6), max_size=6).map(sorted), max_size=4)
lanes = st.lists(batches, min_size=1, max_size=4)


def in_memory(work: Callable[[], Awaitable[None]]) -> None:
    trio.run(work, clock=MockClock(autojump_threshold=0))


def in_order(lane: Sequence[Sequence[int]]) -> list[list[int]]:
    """Cut the sorted times of a lane as it was cut before."""
    times = iter(sorted(time for batch in lane for time in batch))
    return [[next(times) for _ in batch] for batch in lane]


@settings(max_examples=60)
@given(lanes, st.booleans(), st.booleans())
def test_lanes_are_merged_by_event_time_and_mirrored_in_reverse(
    given_lanes: list[list[list[int]]], two_topics: bool, reverse: bool
) -> None:
    """TB-56, TB-62, TB-72: without names ties by topic, partition and lane; then as written."""

    async def check() -> None:
        async with memory_cluster(1) as cluster, cluster.client() as client:
            topic = LaidTopic(cluster, client, order="event-time", partitions=2)
            other = LaidTopic(cluster, client, name=OTHER, uid=8, order="event-time", partitions=2)
            expected: list[tuple[int, int, int, int, Laid]] = []
            for index, lane in enumerate(given_lanes):
                partition, number = index // 2, index % 2
                rank = index if two_topics and index % 2 else -1
                where = (other if rank >= 0 else topic).lane(partition, number)
                for times in in_order(lane):
                    await where.lay(said(["x"] * len(times), times=times))
                expected += [
                    (laid.sent.event_time or 0, rank >= 0, partition, number, laid)
                    for laid in where.messages
                ]
            expected.sort(key=lambda each: each[:4])
            ids = [each[4].id for each in expected]
            async with client.reader([TOPIC, OTHER], order="event-time", reverse=reverse) as reader:
                assert [m.id async for m in reader] == (ids[::-1] if reverse else ids)
            for count in range(0, len(ids), 5):
                async with client.reader(
                    [TOPIC, OTHER], order="event-time", reverse=reverse
                ) as reader:
                    head = [await anext(reader) for _ in range(count)]
                    await reader.seek(reader.position())
                    found = head + [message async for message in reader]
                    assert [m.id for m in found] == (ids[::-1] if reverse else ids)

    in_memory(check)


@pytest.mark.parametrize("partitions", [0, 2])
async def test_equal_times_come_by_the_name_of_the_lane_and_mirrored_in_reverse(
    autojump_clock: MockClock, partitions: int
) -> None:
    """TB-56: whatever the lanes' numbers, which come from who was first; "" comes first."""
    names = ["zoo", "", "ant", "Bee"]
    async with memory_cluster(1) as cluster, cluster.client() as client:
        topic = LaidTopic(cluster, client, order="event-time", partitions=partitions)
        for number, name in enumerate(names):
            partition = number % partitions if partitions else -1
            lane = topic.lane(partition, number)
            await lane.lay(said([f"{name}1", f"{name}1'"], times=[1, 1]))
            await lane.lay(said([f"{name}2"], times=[2]))
            if name:
                await client.topics.rename_lane(TOPIC, partition, number, name)
        expected = [
            f"{name}{rest}" for rests in (["1", "1'"], ["2"]) for name in sorted(names)
            for rest in rests
        ]  # fmt: skip
        for reverse in (False, True):
            async with client.reader(TOPIC, order="event-time", reverse=reverse) as reader:
                found = [(message.value or b"").decode() async for message in reader]
            assert found == (expected[::-1] if reverse else expected)


async def test_a_lane_that_is_renamed_keeps_its_turn_and_is_read_once(
    autojump_clock: MockClock,
) -> None:
    """TB-56: a reader that follows goes on in its order, and one that begins anew has the new."""
    async with memory_cluster(1) as cluster, cluster.client() as client:
        topic = LaidTopic(cluster, client, order="event-time")
        for number, name in enumerate(["b", "c"]):
            await topic.lane(-1, number).lay(said([name], times=[1]))
            await client.topics.rename_lane(TOPIC, -1, number, name)
        async with client.reader(TOPIC, order="event-time", follow=True) as reader:
            assert values([await anext(reader)]) == [b"b"]
            await client.topics.rename_lane(TOPIC, -1, 0, "d")
            await trio.sleep(60)  # it looks for lanes meanwhile
            await topic.lanes[0].lay(said(["b2"], times=[2]))
            await topic.lanes[1].lay(said(["c2"], times=[2]))
            assert values([await anext(reader) for _ in range(3)]) == [b"c", b"b2", b"c2"]
            await reader.seek("earliest")
            found = values([await anext(reader) for _ in range(4)])
            assert found == [b"c", b"b", b"c2", b"b2"]


async def test_a_topic_without_order_is_not_merged(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        LaidTopic(cluster, client)
        with pytest.raises(BadTopic, match="not ordered by event time"):
            async with client.reader(TOPIC, order="event-time"):
                pass


@pytest.mark.parametrize(
    "batch", [[Sent(b"a", event_time=2), Sent(b"b", event_time=1)], [Sent(b"a")]]
)
async def test_what_is_not_in_order_is_named_and_not_merged(
    autojump_clock: MockClock, batch: list[Sent]
) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        lane = LaidTopic(cluster, client, order="event-time").lane()
        row = await lane.lay(batch)
        async with client.reader(TOPIC, order="event-time") as reader:
            with pytest.raises(MessagesLost, match="event time") as told:
                await anext(reader)
        assert (told.value.ledger_id, told.value.entry_id) == (row.ledger_id, 0)


async def test_a_follower_hands_out_what_all_lanes_have_passed(autojump_clock: MockClock) -> None:
    """TB-62, TB-70: a lane that is idle for too long is not waited for, and comes late then."""
    async with memory_cluster(1) as cluster, cluster.client() as client:
        topic = LaidTopic(cluster, client, order="event-time", partitions=2)
        got: list[tuple[float, bytes | None]] = []
        start = trio.current_time()

        async def read() -> None:
            async with client.reader(TOPIC, order="event-time", follow=True, idle_s=3) as reader:
                async for message in reader:
                    got.append((round(trio.current_time() - start), message.value))  # noqa: PERF401 - one by one

        async with (
            topic.lane(0).write() as one,
            topic.lane(1).write() as two,
            trio.open_nursery() as nursery,
        ):
            await one.send(said(["a1", "a5"], times=[1, 5]))
            await two.send(said(["b2", "b3"], times=[2, 3]))
            nursery.start_soon(read)
            await trio.sleep(1)
            assert [value for _, value in got] == [b"a1", b"b2", b"b3"]
            await two.send(said(["b6"], times=[6]))
            await trio.sleep(1)
            assert [value for _, value in got[3:]] == [b"a5"]
            await trio.sleep(3)  # lane 0 is idle since the beginning
            assert got[4:] == [(3, b"b6")]
            await one.send(said(["a6"], times=[6]))
            await trio.sleep(1)
            assert got[5:] == [(5, b"a6")]
            nursery.cancel_scope.cancel()


async def test_pausing_a_part_holds_back_what_comes_after(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        topic = LaidTopic(cluster, client, order="event-time", partitions=2)
        await topic.lane(0).lay(said(["a1", "a4"], times=[1, 4]))
        await topic.lane(1).lay(said(["b2", "b5"], times=[2, 5]))
        async with client.reader(TOPIC, order="event-time") as reader:
            got = [await anext(reader)]
            reader.pause([1])
            with trio.move_on_after(30):
                pytest.fail(f"{await anext(reader)} came")
            reader.resume([1])
            got += [message async for message in reader]
            assert values(got) == [b"a1", b"b2", b"a4", b"b5"]


def values(messages: Sequence[Message]) -> list[bytes | None]:
    return [message.value for message in messages]
