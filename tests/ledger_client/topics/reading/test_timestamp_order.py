"""Reading topics in the order of their timestamps, with a service of ticks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client, MessageId, Producer, Timestamp
from ledger_client.errors import BadTopic, Gap, NoSuchTopic
from ledger_client.topics.messages import Message
from ledger_client.topics.reading.range_plan import plan_read
from ledger_client.topics.reading.reader import TopicReader

TOPIC = "shop/orders"
OTHER = "shop/returns"


class Shop:
    """A cluster with topics that have timesync, and a client."""

    def __init__(self, cluster: MemoryCluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        self.leader = cluster.lead("b1", has_ticks=True)

    @asynccontextmanager
    async def producers(self, count: int, topic: str = TOPIC) -> AsyncIterator[list[Producer]]:
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(self.client.producer(topic)) for _ in range(count)
            ]

    async def truth(self, *topics: str) -> list[Message]:
        """All messages by timestamp."""
        async with self.client.reader(topics or TOPIC) as reader:
            found = [message async for message in reader]
        return sorted(found, key=lambda message: message.timestamp)

    async def ordered(self, *topics: str) -> list[Message]:
        async with self.client.reader(topics or TOPIC, order="timestamp") as reader:
            return [message async for message in reader]


@asynccontextmanager
async def shop(partitions: int = 0) -> AsyncIterator[Shop]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        made = Shop(cluster, client)
        await client.topics.create(TOPIC, partitions, timesync=True)
        yield made


async def send(producers: Sequence[Producer], count: int, *, pause_s: float = 0.0) -> None:
    for number in range(count):
        await producers[number % len(producers)].send(b"%d" % number, key=b"k%d" % number)
        await trio.sleep(pause_s)


def ids(messages: Sequence[Message]) -> list[MessageId]:
    return [message.id for message in messages]


async def test_many_lanes_are_read_in_one_order_that_is_the_same_for_everybody(
    autojump_clock: MockClock,
) -> None:
    """MV-16, MV-23, MV-40: to the end, followed, resumed anywhere, and as Arrow batches."""
    async with shop(2) as place, place.producers(3) as producers:
        followed: list[Message] = []

        async def follow() -> None:
            async with place.client.reader(TOPIC, order="timestamp", follow=True) as reader:
                followed.extend([await anext(reader) for _ in range(60)])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await send(producers, 60, pause_s=0.03)
        truth = ids(await place.truth())
        assert len(truth) == 60
        assert ids(followed) == truth
        assert ids(await place.ordered()) == truth
        for count in range(0, 60, 7):
            async with place.client.reader(TOPIC, order="timestamp") as reader:
                head = [await anext(reader) for _ in range(count)]
                position = reader.position()
            async with place.client.reader(TOPIC, order="timestamp", start=position) as reader:
                rest = [message async for message in reader]
            assert ids(head + rest) == truth
        async with place.client.reader(TOPIC, order="timestamp") as reader:
            rows = [
                value async for batch in reader.read_batches(rows_max=7)
                for value in batch.column("value").to_pylist()
            ]  # fmt: skip
        assert rows == [message.value for message in followed]


async def test_a_reader_that_does_not_follow_gets_all_that_was_acknowledged_before(
    autojump_clock: MockClock,
) -> None:
    """MV-14: a topic is the stream's queue itself: only bookies stand between both ends."""
    async with shop() as place, place.producers(2) as producers:
        assert await place.ordered() == []
        for number in range(5):
            await send(producers, 2)
            assert len(await place.ordered()) == 2 * number + 2


async def test_a_large_entry_is_one_batch_of_arrow_data(autojump_clock: MockClock) -> None:
    """It keeps the memory in which it arrived: entries are joined up to *rows_min* alone."""
    async with shop() as place, place.producers(2) as producers:
        for producer in [*producers, *producers]:
            await producer.send_many([b"x"] * 100)
        async with place.client.reader(TOPIC, order="timestamp") as reader:
            rows = [batch.num_rows async for batch in reader.read_batches(rows_min=100)]
        assert rows == [100] * 4


async def test_reading_begins_and_ends_at_timestamps(autojump_clock: MockClock) -> None:
    """MV-04: what is visible at a moment are the messages up to its timestamp."""
    async with shop() as place, place.producers(2) as producers:
        await send(producers, 20, pause_s=0.05)
        truth = await place.truth()
        for first, last in ((0, 19), (3, 12), (7, 7)):
            start, end = Timestamp(truth[first].timestamp), Timestamp(truth[last].timestamp)
            for inside in (True, False):
                for follow in (True, False):
                    async with place.client.reader(
                        TOPIC, order="timestamp", start=start, end=end, follow=follow,
                        inclusive=inside, end_inclusive=inside,
                    ) as reader:  # fmt: skip
                        found = [message async for message in reader]
                    skipped = 0 if inside else 1
                    assert found == truth[first + skipped : last + 1 - skipped]


async def test_latest_begins_behind_what_was_acknowledged(autojump_clock: MockClock) -> None:
    async with shop() as place, place.producers(2) as producers:
        await send(producers, 4)
        async with place.client.reader(
            TOPIC, order="timestamp", start="latest", follow=True
        ) as reader:
            await producers[1].send(b"one")
            await producers[0].send(b"two")
            assert [(await anext(reader)).value for _ in range(2)] == [b"one", b"two"]


async def test_a_follower_finds_lanes_that_open_later_and_knows_when_it_has_caught_up(
    autojump_clock: MockClock,
) -> None:
    """MV-20: a tick is reached once all of it was returned."""
    async with shop() as place:
        caught_up: list[int] = []
        got: list[Message] = []
        async with place.client.reader(
            TOPIC, order="timestamp", follow=True, on_caught_up=lambda: caught_up.append(len(got))
        ) as reader, place.producers(1) as former:  # fmt: skip
            with trio.move_on_after(2):
                await anext(reader)
            assert caught_up == [0]
            await send(former, 3)
            async with place.producers(2) as later:
                await send([*later, *former], 9)
                for _ in range(12):
                    message = await anext(reader)
                    assert reader.tick.value < message.timestamp or len(got) == 11
                    got.append(message)
        assert ids(got) == ids(await place.truth())
        assert reader.tick.value >= got[-1].timestamp
        assert caught_up == [0]


async def test_several_topics_have_one_order(autojump_clock: MockClock) -> None:
    async with shop() as place:
        await place.client.topics.create(OTHER, timesync=True)
        async with place.producers(2) as ours, place.producers(1, OTHER) as theirs:
            async with place.client.reader(
                [TOPIC, OTHER], order="timestamp", follow=True
            ) as reader:
                await send([*ours, *theirs], 12, pause_s=0.07)
                followed = [await anext(reader) for _ in range(12)]
                await send(ours, 4)  # the other topic is idle
                followed += [await anext(reader) for _ in range(4)]
            truth = ids(await place.truth(TOPIC, OTHER))
            assert ids(followed) == truth
            assert ids(await place.ordered(TOPIC, OTHER)) == truth


async def test_chosen_lanes_and_partitions_wait_for_no_others(autojump_clock: MockClock) -> None:
    async with shop(2) as place, place.producers(3) as producers:
        await send(producers, 30)
        truth = await place.truth()
        async with place.client.reader(TOPIC, order="timestamp", partitions=[1]) as reader:
            assert [m async for m in reader] == [m for m in truth if m.id.partition == 1]
        async with place.client.reader(TOPIC, order="timestamp", lanes=[0, 2]) as reader:
            assert [m async for m in reader] == [m for m in truth if m.lane != 1]


async def test_seek_pause_and_resume_are_exact_to_the_message(autojump_clock: MockClock) -> None:
    async with shop(2) as place, place.producers(2) as producers:
        await send(producers, 24)
        truth = await place.truth()
        async with place.client.reader(TOPIC, order="timestamp") as reader:
            got = [await anext(reader) for _ in range(5)]
            position = reader.position()
            got += [await anext(reader) for _ in range(6)]
            reader.pause()
            with trio.move_on_after(5):
                pytest.fail(f"{await anext(reader)} came")
            reader.resume()
            got += [message async for message in reader]
            assert got == truth
            await reader.seek(position)
            assert [message async for message in reader] == truth[5:]
            await reader.seek(Timestamp(truth[9].timestamp))
            assert [message async for message in reader] == truth[9:]


async def test_batches_are_cut_at_ticks_also_after_a_place_where_a_lane_had_no_message_yet(
    autojump_clock: MockClock,
) -> None:
    """The place is after the lane's state; what comes first there is not before it."""
    async with (
        shop(2) as place,
        place.client.producer(TOPIC, partition=0, access="exclusive") as first,
        place.client.producer(TOPIC, partition=1, access="exclusive") as second,
    ):
        await first.send(b"0")
        async with place.client.reader(TOPIC, order="timestamp", follow=True) as reader:
            await reader.next_messages()
            await trio.sleep(1)
            position = reader.position()
        await first.send(b"1")
        await trio.sleep(1)
        await second.send(b"2")
        async with place.client.reader(TOPIC, order="timestamp", start=position) as reader:
            found = [[message.value for message in await reader.next_messages()] for _ in range(2)]
        assert found == [[b"1"], [b"2"]]


async def test_a_replay_by_timestamp_is_the_same_as_what_readers_get(
    autojump_clock: MockClock,
) -> None:
    """MV-40: while producers go on, it has all messages up to a moment and none later."""
    async with shop(2) as place, place.producers(3) as producers:
        await place.client.topics.create("shop/copy", timesync=True)
        await place.client.topics.create("shop/plain")
        with pytest.raises(BadTopic, match="without timesync"):
            await place.client.replay("shop/plain", to="shop/copy", order="timestamp")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(send, producers, 90, pause_s=0.01))
            await trio.sleep(0.5)
            before = await place.truth()
            await place.client.replay(TOPIC, to="shop/copy", order="timestamp")
        values = [message.value for message in await place.ordered()]
        copied = [message.value for message in await place.ordered("shop/copy")]
        assert len(before) <= len(copied) <= len(values) == 90
        assert copied == values[: len(copied)]
        middle = (await place.ordered())[40].timestamp
        await place.client.replay(
            TOPIC, to="shop/copy", order="timestamp", end=Timestamp(middle), name="middle"
        )
        again = [message.value for message in await place.ordered("shop/copy")]
        assert again[len(copied) :] == values[:41]


async def test_removed_messages_are_a_gap(autojump_clock: MockClock) -> None:
    async with shop() as place:
        async with place.producers(2) as producers:
            await send(producers, 6)
        async with place.client.reader(TOPIC, order="timestamp") as reader:
            first = await anext(reader)
            position = reader.position()
        await place.client.topics.purge(TOPIC)
        async with place.client.reader(TOPIC, order="timestamp", start=position) as reader:
            with pytest.raises(Gap):
                await anext(reader)
        assert await place.ordered() == []
        async with place.producers(1) as producers:
            await send(producers, 1)
        (left,) = await place.ordered()
        assert left.timestamp > first.timestamp


async def test_the_end_of_the_topic_is_the_end_of_its_readers(autojump_clock: MockClock) -> None:
    async with (
        shop() as place,
        place.client.reader(TOPIC, order="timestamp", follow=True) as reader,
    ):
        await place.client.topics.delete(TOPIC)
        with pytest.raises(NoSuchTopic):
            await anext(reader)


@pytest.mark.parametrize(
    "settings",
    [
        {"reverse": True},
        {"compacted": True},
        {"start": MessageId(1, 0)},
        {"end": MessageId(1, 0)},
        {"end": "latest", "follow": True},
    ],
)
async def test_what_has_no_order_by_timestamp_is_refused(
    autojump_clock: MockClock, settings: dict[str, object]
) -> None:
    async with shop() as place:
        with pytest.raises(BadTopic, match="timestamp"):
            async with place.client.reader(TOPIC, order="timestamp", **settings):  # type: ignore[arg-type]
                pass
        reader: TopicReader
        async with place.client.reader(TOPIC, order="timestamp") as reader:
            with pytest.raises(BadTopic, match="one lane"):
                await reader.seek(MessageId(1, 0))


async def test_a_topic_without_timesync_has_no_such_order(autojump_clock: MockClock) -> None:
    async with shop() as place:
        await place.client.topics.create(OTHER)
        with pytest.raises(BadTopic, match="without timesync"):
            async with place.client.reader(OTHER, order="timestamp"):
                pass


async def test_a_timestamp_is_no_place_in_a_topic_without_timesync(
    autojump_clock: MockClock,
) -> None:
    """Nothing there has one: all would be passed over."""
    async with shop() as place:
        client = place.client
        await client.topics.create(OTHER)
        for settings in ({"start": Timestamp(1)}, {"end": Timestamp(1)}):
            with pytest.raises(BadTopic, match="name a publish time"):
                async with client.reader(OTHER, **settings):  # type: ignore[arg-type]
                    pass
            with pytest.raises(BadTopic, match="name a publish time"):
                await plan_read(client._context, OTHER, **settings)  # type: ignore[arg-type]
        async with client.reader([TOPIC, OTHER]) as reader:
            position = reader.position()
            with pytest.raises(BadTopic, match=f"{OTHER}: its messages have no timestamps"):
                await reader.seek(Timestamp(1))
            assert reader.position() == position
