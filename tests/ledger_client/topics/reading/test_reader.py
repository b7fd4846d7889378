"""Reading one lane: places, directions, and the bounds of a read."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
import trio.testing
from batches import Sent, plain
from laid_topic import CONTROL, TOPIC, batches_of, laid_topic, read_all, said, same, some_lane
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client.errors import BadTopic, Busy, ReaderClosed
from ledger_client.message_id import MessageId
from ledger_client.topics.messages import Message
from ledger_client.topics.reading.lane_ranges import LaneRange
from ledger_client.topics.reading.options import Start
from ledger_client.topics.reading.source import LOOK_S
from ledger_client.topics.times import EventTime
from metadata.topics import RollPolicy
from native.frame import Opcode


async def test_a_message_is_what_was_sent_with_its_id(autojump_clock: MockClock) -> None:
    """PS-01, PS-02: four parts; the partition is -1 where there are none. TD-08."""
    async with laid_topic() as topic:
        lane = topic.lane()
        sent = plain(40)
        await lane.lay(sent, created_ms=1234)
        async with topic.client.reader(TOPIC) as reader:
            found = await read_all(reader)
        ledger_id = lane.rows[0].ledger_id
        assert [m.id for m in found] == [MessageId(ledger_id, 0, -1, i) for i in range(40)]
        assert [str(m.id) for m in found[:2]] == [f"{ledger_id}:0:-1:0", f"{ledger_id}:0:-1:1"]
        assert [
            Sent(m.value, m.key, m.event_time, m.timestamp, dict(m.headers)) for m in found
        ] == sent
        assert [m.sequence for m in found] == list(range(40))
        assert {(m.producer, m.publish_time, m.topic) for m in found} == {("p", 1234, TOPIC)}


async def test_a_message_that_is_no_batch_has_batch_index_minus_one(
    autojump_clock: MockClock,
) -> None:
    """PS-03."""
    async with laid_topic(partitions=2) as topic:
        lane = topic.lane(1)
        await lane.lay([Sent(b"one")], [Sent(b"two")], batched=False)
        async with topic.client.reader(TOPIC) as reader:
            found = await read_all(reader)
            ledger_id = lane.rows[0].ledger_id
            assert [m.id for m in found] == [
                MessageId(ledger_id, 0, 1, -1),
                MessageId(ledger_id, 1, 1, -1),
            ]
            await reader.seek(found[0].id, inclusive=False)
            assert await read_all(reader) == found[1:]


async def test_control_entries_are_no_messages_but_count_as_versions(
    autojump_clock: MockClock,
) -> None:
    """TD-05: versions have gaps. TB-27: reading goes on in the next ledger."""
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        async with topic.client.reader(TOPIC) as reader:
            found = await read_all(reader)
        assert same(found, lane.messages)
        assert [m.version for m in found] == [1, 1, 1, 2, 4, 4, 6, 6, 8, 9, 9, 9, 9]


async def test_reverse_is_the_mirror_of_forward(autojump_clock: MockClock) -> None:
    """TB-72."""
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        async with topic.client.reader(TOPIC, reverse=True) as reader:
            assert same(await read_all(reader), lane.messages[::-1])


async def test_every_id_starts_and_ends_reading_in_both_directions(
    autojump_clock: MockClock,
) -> None:
    """PS-34: from any MessageId, inclusive or not."""
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        everything = lane.messages
        for i, laid in enumerate(everything):
            for inclusive in (True, False):
                async with topic.client.reader(TOPIC, start=laid.id, inclusive=inclusive) as reader:
                    assert same(await read_all(reader), everything[i + (not inclusive) :])
                async with topic.client.reader(
                    TOPIC, end=laid.id, end_inclusive=inclusive
                ) as reader:
                    assert same(await read_all(reader), everything[: i + inclusive])
                async with topic.client.reader(
                    TOPIC, start=laid.id, inclusive=inclusive, reverse=True
                ) as reader:
                    assert same(await read_all(reader), everything[: i + inclusive][::-1])
                async with topic.client.reader(
                    TOPIC, end=laid.id, end_inclusive=inclusive, reverse=True
                ) as reader:
                    assert same(await read_all(reader), everything[i + (not inclusive) :][::-1])


async def test_an_id_without_batch_index_names_the_whole_entry(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        entry = MessageId(lane.rows[0].ledger_id, 1)
        async with topic.client.reader(TOPIC, start=entry) as reader:
            assert same(await read_all(reader), lane.messages)
            await reader.seek(entry, inclusive=False)
            assert same(await read_all(reader), lane.messages[3:])


async def test_a_reader_begins_at_a_message_that_is_not_there_yet(
    autojump_clock: MockClock,
) -> None:
    """It waits for it, and for nothing before it."""
    async with laid_topic() as topic:
        lane = topic.lane()
        async with lane.write() as writer:
            await writer.send(said(["a"]))
            later = MessageId(lane.rows[0].ledger_id, 2)
            async with topic.client.reader(TOPIC, start=later, follow=True) as reader:
                for text in ("b", "c"):
                    await writer.send(said([text]))
                assert (await anext(reader)).id == later._replace(batch_index=0)


async def test_latest_begins_behind_what_was_acknowledged(autojump_clock: MockClock) -> None:
    """PS-34."""
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        async with topic.client.reader(TOPIC, start="latest") as reader:
            assert await read_all(reader) == []
        async with lane.write() as writer:
            await writer.send(said(["old"]))
            async with topic.client.reader(TOPIC, start="latest", follow=True) as reader:
                await writer.send(CONTROL)
                await writer.send(said(["new"]))
                assert (await anext(reader)).value == b"new"


async def test_a_reader_that_follows_nothing_gets_all_that_was_acknowledged_before(
    autojump_clock: MockClock,
) -> None:
    """TB-69: it ends where the topic ends."""
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        async with lane.write() as writer:
            for i in range(20):
                await writer.send(said([f"d{i}"]))
                async with topic.client.reader(TOPIC) as reader:
                    assert same(await read_all(reader), lane.messages)


async def test_prepared_ledgers_are_not_read(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        lane.prepare(99_999)
        async with topic.client.reader(TOPIC) as reader:
            assert same(await read_all(reader), lane.messages)


async def test_a_follower_goes_from_ledger_to_ledger(autojump_clock: MockClock) -> None:
    """TB-07, TB-27."""
    async with laid_topic() as topic:
        lane = topic.lane()
        async with topic.client.reader(TOPIC, follow=True) as reader:
            for round_ in range(3):
                async with lane.write() as writer:
                    for i in range(3):
                        await writer.send(CONTROL)
                        await writer.send(said([f"{round_}.{i}"]))
                        with trio.fail_after(0.1):
                            assert (await anext(reader)).value == f"{round_}.{i}".encode()
                await trio.sleep(20)


@pytest.mark.parametrize("hints", [True, False])
async def test_a_ledger_that_ended_behind_its_rows_back_is_left_for_the_next(
    autojump_clock: MockClock, hints: bool
) -> None:
    """Somebody recovered it: the row says "open", its record says closed."""
    async with laid_topic() as topic:
        topic.cluster.store.hints = hints
        lane = topic.lane()
        await lane.lay(*batches_of("a", [0, 2]), state="open")
        async with topic.client.reader(TOPIC, follow=True) as reader:
            assert [(await anext(reader)).value for _ in range(2)] == [b"a0", b"a1"]
            with trio.move_on_after(1):
                await anext(reader)
            await lane.lay(*batches_of("b", [0, 1]))
            with trio.fail_after(6 if hints else LOOK_S + 6):
                assert (await anext(reader)).value == b"b0"
        async with topic.client.reader(TOPIC) as reader:
            assert same(await read_all(reader), lane.messages)


async def test_a_bounded_reader_ends_although_the_lane_goes_on_and_on(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        async with topic.client.reader(TOPIC) as reader:
            first = await anext(reader)
            await lane.lay(*batches_of("later", [5]))
            assert same([first, *await read_all(reader)], lane.messages[:-5])


async def test_position_is_exact_to_the_message_and_can_be_resumed_anywhere(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        for reverse in (False, True):
            expected = lane.messages[::-1] if reverse else lane.messages
            for count in range(len(expected) + 1):
                async with topic.client.reader(TOPIC, reverse=reverse) as reader:
                    head = [await anext(reader) for _ in range(count)]
                    position = reader.position()
                async with topic.client.reader(TOPIC, start=position, reverse=reverse) as reader:
                    assert same(head + await read_all(reader), expected)
                async with topic.client.reader(
                    TOPIC, start=position, reverse=not reverse
                ) as reader:
                    assert same(await read_all(reader), expected[:count][::-1])


async def test_a_position_ends_reading_too(autojump_clock: MockClock) -> None:
    async with laid_topic(partitions=2) as topic:
        lanes = [await some_lane(topic, partition) for partition in (0, 1)]
        async with topic.client.reader(TOPIC) as reader:
            for _ in range(9):
                await anext(reader)
            position = reader.position()
        async with topic.client.reader(TOPIC, end=position) as reader:
            head = await read_all(reader)
        async with topic.client.reader(TOPIC, start=position) as reader:
            tail = await read_all(reader)
        assert len(head) == 9
        for lane in lanes:
            got = [m for m in head + tail if m.id.partition == lane.partition]
            assert same(got, lane.messages)


async def test_seek_goes_anywhere_and_nothing_comes_twice(autojump_clock: MockClock) -> None:
    """TB-63."""
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        async with topic.client.reader(TOPIC) as reader:
            for i in (5, 0, 12, 3, 3, 7):
                await reader.seek(lane.messages[i].id)
                got = [await anext(reader) for _ in range(min(3, 13 - i))]
                assert same(got, lane.messages[i : i + 3])
            await reader.seek("earliest")
            assert same(await read_all(reader), lane.messages)
            await reader.seek("latest")
            assert await read_all(reader) == []


async def test_a_seek_that_cannot_be_changes_nothing(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        async with topic.client.reader(TOPIC) as reader:
            got = [await anext(reader) for _ in range(2)]
            with pytest.raises(BadTopic, match="no ledger 99999"):
                await reader.seek(MessageId(99_999, 0))
            with pytest.raises(BadTopic, match="not in one partition"):
                await reader.seek(MessageId(lane.rows[0].ledger_id, 0, 3))
            for wrong in ("first", 5, [5]):
                with pytest.raises(BadTopic, match="is not a place"):
                    await reader.seek(wrong)  # type: ignore[arg-type]
            assert same(got + await read_all(reader), lane.messages)


async def test_seek_wakes_a_reader_that_waits(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        async with (
            topic.client.reader(TOPIC, start="latest", follow=True) as reader,
            trio.open_nursery() as nursery,
        ):
            got: list[Message] = []

            async def wait() -> None:
                got.append(await anext(reader))

            nursery.start_soon(wait)
            await trio.sleep(1)
            await reader.seek("earliest")
            await trio.sleep(1)
            assert same(got, lane.messages[:1])


async def test_caught_up_is_told_once_between_history_and_news(autojump_clock: MockClock) -> None:
    """TB-71."""
    async with laid_topic(partitions=2) as topic:
        lanes = [await some_lane(topic, partition) for partition in (0, 1)]
        history = [m.sent.value for lane in lanes for m in lane.messages]
        events: list[object] = []
        async with (
            topic.client.reader(
                TOPIC, follow=True, on_caught_up=lambda: events.append("caught up")
            ) as reader,
            lanes[0].write() as writer,
            trio.open_nursery() as nursery,
        ):

            async def read() -> None:
                while True:
                    events.append((await anext(reader)).value)

            nursery.start_soon(read)
            await reader.wait_caught_up()
            await writer.send(said(["news"]))
            await writer.send(said(["more"]))
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert Counter(events[:-3]) == Counter(history)
        assert events[-3:] == ["caught up", b"news", b"more"]


async def test_a_paused_partition_gives_nothing_until_it_is_resumed(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic(partitions=2) as topic:
        lanes = [await some_lane(topic, partition) for partition in (0, 1)]
        async with topic.client.reader(TOPIC) as reader:
            got = [await anext(reader)]
            reader.pause([0])
            left = len(lanes[1].messages) - (got[0].id.partition == 1)
            got += [await anext(reader) for _ in range(left)]
            assert same([m for m in got if m.id.partition == 1], lanes[1].messages)
            with trio.move_on_after(30):
                pytest.fail(f"{await anext(reader)} came")
            reader.resume()
            got += await read_all(reader)
            assert same([m for m in got if m.id.partition == 0], lanes[0].messages)


async def test_partitions_and_lanes_can_be_chosen(autojump_clock: MockClock) -> None:
    """TB-36, TB-54: any subset of them."""
    async with laid_topic(partitions=3) as topic:
        lanes = {(p, n): await some_lane(topic, p, n) for p in (0, 2) for n in (0, 1)}
        for partitions, numbers in [
            (None, None),
            ([0], None),
            (None, [1]),
            ([2, 0], [0]),
            ([1], None),
        ]:
            async with topic.client.reader(TOPIC, partitions=partitions, lanes=numbers) as reader:
                found = await read_all(reader)
            for (partition, number), lane in lanes.items():
                wanted = (partitions is None or partition in partitions) and (
                    numbers is None or number in numbers
                )
                got = [m for m in found if (m.id.partition, m.lane) == (partition, number)]
                assert same(got, lane.messages if wanted else [])
        with pytest.raises(BadTopic, match="no partition 3"):
            async with topic.client.reader(TOPIC, partitions=[3]):
                pass


@pytest.mark.parametrize("hints", [True, False])
async def test_lanes_that_appear_are_followed(autojump_clock: MockClock, hints: bool) -> None:
    """TB-36."""
    async with laid_topic(partitions=2) as topic:
        topic.cluster.store.hints = hints
        async with topic.client.reader(TOPIC, start="latest", follow=True) as reader:
            for place in [(1, 0), (0, 3), (1, 1)]:
                lane = topic.lane(*place)
                await lane.lay(*batches_of("x", [0, 2]))
                with trio.fail_after(0.5 if hints else LOOK_S + 1):
                    got = [await anext(reader) for _ in range(2)]
                assert same(got, lane.messages)


async def test_a_lane_that_appears_while_a_place_is_looked_up_is_followed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look that finds it is over before the reader goes on from that place."""
    async with (
        laid_topic(partitions=2) as topic,
        topic.client.reader(TOPIC, start="latest", follow=True) as reader,
    ):
        await trio.sleep(1)
        find = reader._lanes.ranges

        async def find_late(start: Start, *, after: bool) -> list[LaneRange]:
            found = await find(start, after=after)
            await topic.lane(1, 0).lay(*[[Sent(b"%d" % n, event_time=n)] for n in (1, 2)])
            await trio.sleep(1)
            return found

        monkeypatch.setattr(reader._lanes, "ranges", find_late)
        await reader.seek(EventTime(0))
        with trio.fail_after(0.5):
            got = [await anext(reader) for _ in range(2)]
        assert same(got, topic.lanes[0].messages)


async def test_an_id_where_several_lanes_are_read_is_refused(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lanes = [await some_lane(topic, -1, number) for number in (0, 1)]
        start = lanes[1].messages[4].id
        with pytest.raises(BadTopic, match="name the lane"):
            async with topic.client.reader(TOPIC, start=start):
                pass
        async with topic.client.reader(TOPIC, start=start, lanes=[1]) as reader:
            assert same(await read_all(reader), lanes[1].messages[4:])


async def test_small_read_ahead_and_many_lanes_read_the_same(autojump_clock: MockClock) -> None:
    async with laid_topic(partitions=30) as topic:
        lanes = [topic.lane(partition) for partition in range(30)]
        for lane in lanes:
            await lane.lay(*[[Sent(bytes([lane.partition]) * 3000)] * 3] * 10)
        async with topic.client.reader(TOPIC, read_ahead_size=1) as reader:
            found = await read_all(reader)
        for lane in lanes:
            assert same([m for m in found if m.id.partition == lane.partition], lane.messages)


async def test_readers_of_the_same_ledger_read_from_the_same_bookie(
    autojump_clock: MockClock,
) -> None:
    """TB-37: the last of its list, whoever reads, in either direction; another if that is lost."""
    async with memory_cluster(4) as cluster:
        async with cluster.client() as client:
            await client.topics.create(TOPIC, replication=3, roll=RollPolicy(entries=10))
            async with client.producer(TOPIC, batch_messages=1) as producer:
                for number in range(60):
                    await producer.send(b"%d" % number)
            (lane,) = (await client.topics.explain(TOPIC)).lanes
        lists = {
            fate.ledger.ledger_id: cluster.record(fate.ledger.ledger_id).fragments[-1].bookies
            for fate in lane.ledgers
        }

        async def read_from(*, reverse: bool = False) -> dict[int, set[str]]:
            """Return which bookies were asked for entries of which ledger by a new client."""
            for bookie in cluster.bookies.values():
                bookie.requests.clear()
            async with (
                cluster.client() as client,
                client.reader(TOPIC, reverse=reverse) as reader,
            ):
                assert len([message async for message in reader]) == 60
            asked: dict[int, set[str]] = {}
            for name, bookie in cluster.bookies.items():
                for request in bookie.requests:
                    is_read = request.opcode in {Opcode.READ, Opcode.BATCH_READ}
                    if is_read and request.entry_id >= 0:
                        asked.setdefault(request.ledger_id, set()).add(name)
            return asked

        tails = {ledger_id: {bookies[-1]} for ledger_id, bookies in lists.items()}
        assert len({bookies[-1] for bookies in lists.values()}) > 1
        for reverse in (False, False, True):
            assert await read_from(reverse=reverse) == tails
        first = next(iter(lists))
        cluster.kill(lists[first][-1])
        assert lists[first][-2] in (await read_from())[first]


async def test_a_second_task_that_takes_is_refused_and_the_first_goes_on(
    autojump_clock: MockClock,
) -> None:
    """Before, both hung when the reader had come to its end."""
    async with laid_topic() as topic:
        lane = topic.lane()
        await lane.lay(*batches_of("x", [3, 4]))
        for bookie in topic.cluster.bookies.values():
            bookie.delay_s = lambda _request: 0.01
        async with topic.client.reader(TOPIC) as reader, trio.open_nursery() as nursery:
            found: list[Message] = []

            async def take_all() -> None:
                found.extend(await read_all(reader))

            nursery.start_soon(take_all)
            await trio.testing.wait_all_tasks_blocked()
            assert not found
            with pytest.raises(Busy, match="another task or thread"):
                await anext(reader)
            with pytest.raises(Busy):
                await reader.next_messages()
            with pytest.raises(Busy):
                await anext(reader.read_batches())
        assert same(found, lane.messages)


async def test_a_task_that_gave_up_waiting_leaves_the_reader_to_others(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic, topic.lane().write() as writer:
        await writer.send(said(["a"]))
        async with topic.client.reader(TOPIC, follow=True) as reader:
            assert (await anext(reader)).value == b"a"
            with trio.move_on_after(1) as scope:
                await anext(reader)
            assert scope.cancelled_caught
            await writer.send(said(["b"]))
            assert (await anext(reader)).value == b"b"


@pytest.mark.parametrize("start", ["earliest", EventTime(0)])
async def test_a_seek_that_looks_for_its_place_while_the_reader_is_closed_is_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with laid_topic() as topic:
        await some_lane(topic)
        async with topic.client.reader(TOPIC) as reader:
            await read_all(reader)
            ranges = reader._lanes.ranges

            async def find(start: Start, *, after: bool) -> list[LaneRange]:
                found = await ranges(start, after=after)
                await reader.close()
                return found

            monkeypatch.setattr(reader._lanes, "ranges", find)
            with pytest.raises(ReaderClosed):
                await reader.seek(start)
            with pytest.raises(ReaderClosed):
                with trio.fail_after(60):
                    await reader.wait_caught_up()
