"""Lanes with names: made by a producer, listed, renamed, deleted."""

from __future__ import annotations

import pytest
import trio
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import BadTopic, ProducerBusy, ProducerFenced, TopicBusy
from ledger_client.topics.producing.producer_options import ProducerSettings

TOPIC = "shop/orders"


async def send(client: Client, *values: bytes, **settings: object) -> None:
    options: ProducerSettings = settings  # type: ignore[assignment]
    async with client.producer(TOPIC, **options) as producer:
        for number, value in enumerate(values):
            await producer.send(value, event_time=number, partition=None)


async def named(client: Client) -> dict[tuple[int, int], tuple[str, int]]:
    """Name and messages of each lane, by partition and lane."""
    lanes = await client.topics.lanes(TOPIC)
    return {(lane.partition, lane.lane): (lane.name, lane.extent.messages) for lane in lanes}


async def values(client: Client, **settings: object) -> list[bytes | None]:
    async with client.reader(TOPIC, **settings) as reader:  # type: ignore[arg-type]
        return [message.value async for message in reader]


async def test_a_lane_is_made_when_its_name_is_first_asked_for(autojump_clock: MockClock) -> None:
    """TB-53, TB-55: no name is the empty one; names last, and each lane has times of its own."""
    async with memory_cluster(3) as cluster:
        async with cluster.client() as client:
            await client.topics.create(TOPIC, order="event-time")
            await send(client, b"a", b"b")
            await send(client, b"c", lane_name="left")
            await send(client, b"d", b"e", b"f", lane_name="right")
        async with cluster.client() as client:
            await send(client, b"g", lane_name="left", producer_name="p", access="shared")
            assert await named(client) == {
                (-1, 0): ("", 2),
                (-1, 1): ("left", 2),
                (-1, 2): ("right", 3),
            }
            extents = [lane.extent for lane in await client.topics.lanes(TOPIC)]
            assert [extent.last_event_time for extent in extents] == [1, 0, 2]


@pytest.mark.parametrize("partitions", [0, 2])
async def test_before_any_write_each_partition_has_the_one_lane_without_a_name(
    autojump_clock: MockClock, partitions: int
) -> None:
    """TB-53, TB-55: it has no times; whoever writes first writes that lane."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, partitions=partitions)
        indexes = range(partitions) if partitions else [-1]
        assert await named(client) == {(index, 0): ("", 0) for index in indexes}
        (lane, *_) = await client.topics.lanes(TOPIC)
        assert (lane.owner, lane.epoch, lane.ledgers) == (None, 0, [])
        assert (lane.extent.first_event_time, lane.extent.first_timestamp) == (None, None)
        with pytest.raises(BadTopic, match="nothing was ever written"):
            await client.topics.rename_lane(TOPIC, indexes[0], 0, "x")
        async with client.producer(TOPIC) as producer:
            await producer.send(b"a", partition=indexes[-1] if partitions else None)
        found = await named(client)
        assert found.pop((indexes[-1], 0)) == ("", 1)
        assert set(found.values()) <= {("", 0)}
        assert len(found) == len(indexes) - 1


async def test_a_name_is_written_by_one_at_a_time_and_by_nobody_who_does_not_ask_for_it(
    autojump_clock: MockClock,
) -> None:
    """TB-53."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC, lane_name="left") as one:
            await one.send(b"a")
            with pytest.raises(ProducerBusy, match="another producer name or lane name"):
                await send(client, b"b", lane_name="left")
            with pytest.raises(ProducerBusy, match=r'or share it \("shared"\)'):
                await send(client, b"b", access="exclusive")
            await send(client, b"c")
        await send(client, b"d", b"e", lane_name="left")
        await send(client, b"f")
        assert await named(client) == {(-1, 0): ("", 2), (-1, 1): ("left", 3)}
        with pytest.raises(BadTopic, match="needs shared access"):
            await send(client, b"x", lane_name="left", access="exclusive")
        with pytest.raises(BadTopic, match="printable bytes"):
            await send(client, b"x", lane_name="\n")


async def test_two_who_ask_for_a_new_name_at_once_get_one_lane(autojump_clock: MockClock) -> None:
    for seed in range(5):
        async with memory_cluster(3, seed=seed) as cluster, cluster.client() as client:
            await client.topics.create(TOPIC)
            refused = 0

            async def ask(client: Client = client) -> None:
                nonlocal refused
                try:
                    async with client.producer(TOPIC, lane_name="left") as producer:
                        await producer.send(b"x")
                        await trio.sleep(1)
                except ProducerBusy:
                    refused += 1

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(ask)
            assert refused == 2
            assert [name for name, _ in (await named(client)).values()].count("left") == 1


async def test_a_lane_is_renamed_while_it_is_written(autojump_clock: MockClock) -> None:
    """TB-53."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        await send(client, b"0", lane_name="taken")
        async with client.producer(TOPIC, lane_name="left") as producer:
            await producer.send(b"a")
            await client.topics.rename_lane(TOPIC, -1, 2, "right/hand side")
            await producer.send(b"b")
        assert (await named(client))[-1, 2] == ("right/hand side", 2)
        await send(client, b"c", lane_name="right/hand side")
        assert (await named(client))[-1, 2] == ("right/hand side", 3)
        with pytest.raises(BadTopic, match=": lane 1 has the name"):
            await client.topics.rename_lane(TOPIC, -1, 2, "taken")
        with pytest.raises(BadTopic, match="there is no lane 7"):
            await client.topics.rename_lane(TOPIC, -1, 7, "x")
        await client.topics.rename_lane(TOPIC, -1, 2, "")
        assert (await named(client))[-1, 2] == ("", 3)


async def test_a_lane_is_deleted_by_itself(autojump_clock: MockClock) -> None:
    """TB-53: with its name; positions in it are nothing else's afterwards."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        await send(client, b"a", b"b")
        await send(client, b"c", b"d", lane_name="left", producer_name="p")
        async with client.reader(TOPIC, lanes=[1]) as reader:
            await anext(reader)
            position = reader.position()
        async with client.producer(TOPIC, lane_name="left") as producer:
            await producer.send(b"x")
            with pytest.raises(TopicBusy):
                await client.topics.delete_lane(TOPIC, -1, 1)
        went = await client.topics.delete_lane(TOPIC, -1, 1)
        assert went.messages == 3
        assert await named(client) == {(-1, 0): ("", 2)}
        with pytest.raises(BadTopic, match="no such lane"):
            await client.topics.delete_lane(TOPIC, -1, 1)
        await send(client, b"e", lane_name="other", producer_name="p")
        assert await named(client) == {(-1, 0): ("", 2), (-1, 1): ("other", 1)}
        assert sorted(filter(None, await values(client))) == [b"a", b"b", b"e"]
        assert await values(client, start=position, lanes=[1]) == [b"e"]


async def test_who_writes_a_lane_that_is_deleted_by_force_learns_it(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        with pytest.raises(ProducerFenced):
            async with client.producer(TOPIC, lane_name="left") as producer:
                await producer.send(b"x")
                await client.topics.delete_lane(TOPIC, -1, 1, force=True)
                await producer.send(b"y")
        await send(client, b"z", lane_name="left")
        assert await values(client) == [b"z"]


async def test_lanes_are_read_by_their_names(autojump_clock: MockClock) -> None:
    """TB-54: one or several, the one without a name too."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, partitions=2)
        for name in ("", "left", "right"):
            await send(client, name.encode(), name.encode(), lane_name=name)
        assert set(await values(client, lanes=["left"])) == {b"left"}
        assert set(await values(client, lanes=["left", ""])) == {b"left", b""}
        assert await values(client, lanes=["none"]) == []
