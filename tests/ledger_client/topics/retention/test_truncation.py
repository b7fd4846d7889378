"""Messages deleted from the end of a topic, and out of its middle."""

from __future__ import annotations

import random
from contextlib import aclosing, suppress

import pytest
import trio
from lane_process import Process
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.background import Background
from ledger_client.errors import (
    BadTopic,
    EventTimeBack,
    Gap,
    LedgerError,
    NoSuchTopic,
    ProducerFenced,
    TopicBusy,
)
from ledger_client.jobs.staging.job import open_job
from ledger_client.message_id import MessageId
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import Place
from ledger_client.topics.reading.options import ReadSettings
from ledger_client.topics.reading.range_plan import plan_read
from ledger_client.topics.reading.range_reader import RangeReader
from ledger_client.topics.retention import truncation
from ledger_client.topics.retention.holdings import LaneHoldings
from ledger_client.topics.retention.lane_parts import LanePart
from ledger_client.topics.times import EventTime, PublishTime
from metadata.compaction import CompactedSet, Horizon, compacted_key, encode_set
from metadata.records import LEDGERS
from metadata.topics import (
    LANE_LEDGERS,
    LANE_REMOVALS,
    LaneLedger,
    RollPolicy,
    decode_lane_ledger,
    topic_prefix,
)

TOPIC = "shop/orders"


async def read(client: Client, **settings: object) -> list[Message]:
    options: ReadSettings = settings  # type: ignore[assignment]
    async with client.reader(TOPIC, **options) as reader:
        return [message async for message in reader]


async def numbers(client: Client, **settings: object) -> list[int]:
    return [int(message.value or b"-1") for message in await read(client, **settings)]


async def written(
    client: Client, count: int, *, first: int = 0, batch: int = 3, name: str = ""
) -> list[MessageId]:
    """Send so many numbers, each with itself as event time."""
    ids: list[MessageId] = []
    async with client.producer(
        TOPIC, access="exclusive", producer_name=name, batch_messages=batch
    ) as producer:
        for start in range(first, first + count, 7):
            some = range(start, min(start + 7, first + count))
            ids += await producer.send_many([b"%d" % n for n in some], event_times=list(some))
    return ids


def rows(cluster: MemoryCluster) -> list[LaneLedger]:
    prefix = topic_prefix(LANE_LEDGERS, 1)
    found = sorted((k, v.value) for k, v in cluster.store.values.items() if k.startswith(prefix))
    return [decode_lane_ledger(key, value) for key, value in found]


async def make(client: Client, *, order: str = "event-time", entries: int = 5) -> None:
    await client.topics.create(TOPIC, order=order, roll=RollPolicy(entries=entries))  # type: ignore[arg-type]


# --- from a place on ------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, 20, 21, 22, 58, 59, 60])
async def test_what_is_at_or_after_a_time_is_not_there_any_more(
    autojump_clock: MockClock, cut: int
) -> None:
    """TB-75: forward, in reverse, by time and by id; ids of the others are as they were."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client)
        ids = await written(client, 60)
        expected = list(range(cut))
        planned = await client.topics.truncate(TOPIC, EventTime(cut), dry_run=True)
        assert await numbers(client) == list(range(60))
        done = await client.topics.truncate(TOPIC, EventTime(cut))
        assert (done.messages, done.ledgers) == (planned.messages, planned.ledgers)
        assert done.messages == 60 - cut
        assert [message.id for message in await read(client)] == ids[:cut]
        assert await numbers(client) == expected
        assert await numbers(client, reverse=True) == expected[::-1]
        assert await numbers(client, order="event-time") == expected
        for start in range(max(cut - 8, 0), min(cut + 8, 60)):
            assert await numbers(client, start=EventTime(start)) == expected[start:]
            assert await numbers(client, start=ids[start]) == expected[start:]
            assert await numbers(client, end=EventTime(start)) == expected[: start + 1]
            back = await numbers(client, start=ids[start], reverse=True)
            assert back == expected[: start + 1][::-1]
        told = await client.topics.explain(TOPIC)
        assert told.extent.messages == cut
        assert told.extent.last_event_time == (cut - 1 if cut else None)


async def test_writing_goes_on_from_the_last_message_that_stays(
    autojump_clock: MockClock,
) -> None:
    """TB-75: the lane's last time and numbers are those of that message; versions rise on."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client)
        await written(client, 60, name="loader")
        highest = (await read(client))[-1].version
        await client.topics.truncate(TOPIC, EventTime(31))
        async with client.producer(TOPIC, access="exclusive", producer_name="loader") as producer:
            assert await producer.last_sequence() == 30
            with pytest.raises(EventTimeBack):
                await producer.send(b"-", event_time=29)
            for again in range(25, 45):  # what is there already is kept once
                await producer.send(b"%d" % again, event_time=again, sequence=again)
        found = await read(client)
        assert [int(m.value or b"") for m in found] == list(range(45))
        assert all(message.version > highest for message in found[31:])
        assert len({message.id for message in found}) == 45
        assert await numbers(client, start=EventTime(35)) == list(range(35, 45))
        assert await numbers(client, end=EventTime(35)) == list(range(36))
        assert await numbers(client, reverse=True) == list(range(44, -1, -1))


async def test_a_topic_can_be_cleared(autojump_clock: MockClock) -> None:
    """TB-75: clear; only what the next writer must know is left."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client, order="none")
        await written(client, 40, name="p")
        done = await client.topics.truncate(TOPIC, "earliest")
        assert done.messages == 40
        assert await numbers(client) == []
        assert [row.messages for row in rows(cluster)] == [0]
        held = [key for key in cluster.store.values if key.startswith(LEDGERS)]
        events = 1
        assert len(held) == 1 + events
        again = await client.topics.truncate(TOPIC, "earliest")
        assert again.lanes == []
        await written(client, 5, name="p")
        assert await numbers(client) == list(range(5))


async def test_a_message_or_a_time_of_writing_says_from_where(autojump_clock: MockClock) -> None:
    """TB-75: on a topic without order."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client, order="none")
        ids = await written(client, 30)
        await client.topics.truncate(TOPIC, ids[22])
        assert await numbers(client) == list(range(22))
        with pytest.raises(BadTopic, match="not ordered by event time"):
            await client.topics.truncate(TOPIC, EventTime(4))
        with pytest.raises(BadTopic):
            await client.topics.truncate(TOPIC, MessageId(999, 0))
        published = (await read(client))[0].publish_time
        assert (await client.topics.truncate(TOPIC, PublishTime(published + 10**9))).lanes == []
        await client.topics.truncate(TOPIC, PublishTime(published))
        assert await numbers(client) == []


async def test_a_message_that_retention_removed_is_no_place_to_cut_at(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client)
        ids = await written(client, 60)
        await client.topics.purge(TOPIC, before=EventTime(30))
        with pytest.raises(Gap):
            await client.topics.truncate(TOPIC, ids[0])
        assert await numbers(client)


async def test_every_lane_is_cut_at_its_own_place(autojump_clock: MockClock) -> None:
    """TB-75: partitions and lanes, by a position or a time."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, partitions=3, roll=RollPolicy(entries=4))
        async with (
            client.producer(TOPIC, producer_name="a", batch_messages=2) as one,
            client.producer(TOPIC, producer_name="b", batch_messages=2) as other,
        ):
            await one.send_many([b"%d" % n for n in range(50)], keys=[b"%d" % n for n in range(50)])
            await other.send_many([b"7"] * 9)
        async with client.reader(TOPIC) as reader:
            for _ in range(25):
                await anext(reader)
            position = reader.position()
        before = await numbers(client, end=position, end_inclusive=False)
        assert len(before) == 25
        done = await client.topics.truncate(TOPIC, position)
        assert done.messages == 34
        assert sorted(await numbers(client)) == sorted(before)
        await client.topics.truncate(TOPIC, "earliest", partition=1)
        left = [message.id.partition for message in await read(client)]
        assert 1 not in left
        assert left


# --- between two places -----------------------------------------------------------------


async def test_what_lies_between_two_times_goes_while_somebody_writes(
    autojump_clock: MockClock,
) -> None:
    """TB-75: delete, both ends included; the producer writes on and notices nothing."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client)
        async with client.producer(TOPIC, batch_messages=3) as producer:
            for number in range(60):
                await producer.send(b"%d" % number, event_time=number)
            done = await client.topics.delete_messages(TOPIC, EventTime(13), EventTime(37))
            assert done.messages == 25
            assert done.ledgers > 2
            expected = [*range(13), *range(38, 60)]
            assert await numbers(client) == expected
            await producer.send(b"60", event_time=60)
        assert await numbers(client, reverse=True) == [*expected, 60][::-1]
        assert await numbers(client, start=EventTime(20)) == list(range(38, 61))
        assert await numbers(client, end=EventTime(20)) == list(range(13))
        with pytest.raises(TopicBusy, match="by force"):
            async with client.producer(TOPIC) as producer:
                await producer.send(b"61", event_time=61)
                await client.topics.delete_messages(TOPIC, EventTime(61), EventTime(61))


async def test_a_reader_inside_goes_on_behind_what_was_deleted(autojump_clock: MockClock) -> None:
    """TB-73, TB-75: at a position, at an id, and in the middle of reading, without a Gap."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client)
        ids = await written(client, 60)
        async with (
            client.reader(TOPIC, start=ids[20]) as reader,
            client.reader(TOPIC, reverse=True, read_ahead_size=1) as back,
        ):
            await anext(reader)
            position = reader.position()
            assert (await anext(back)).value == b"59"
            await client.topics.delete_messages(TOPIC, EventTime(10), EventTime(49))
            rest = [int(message.value or b"") async for message in back]
            assert rest[-10:] == list(range(9, -1, -1))
        for start in (position, ids[20], ids[10]):
            assert await numbers(client, start=start) == list(range(50, 60))
        for start in (position, ids[20], ids[49]):
            assert await numbers(client, start=start, reverse=True) == list(range(9, -1, -1))
        assert await numbers(client, start=ids[20], end=ids[55]) == list(range(50, 56))


async def test_a_reader_that_follows_sees_what_is_written_after_a_truncation(
    autojump_clock: MockClock,
) -> None:
    """TB-73: what it had not reached is not there for it; no Gap is told."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client)
        ids = await written(client, 60)
        async with client.reader(TOPIC, start=ids[40], follow=True) as reader:
            assert (await anext(reader)).value == b"40"
            position = reader.position()
            await client.topics.truncate(TOPIC, EventTime(30))
            await written(client, 10, first=30)
            with trio.fail_after(30):
                while (await anext(reader)).value != b"39":
                    pass
        assert await numbers(client, start=position) == list(range(30, 40))


async def test_what_was_deleted_of_a_lane_younger_than_the_position_is_no_gap(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client, order="none")
        async with client.producer(TOPIC) as one, client.producer(TOPIC, batch_messages=3) as two:
            await one.send(b"0")
            async with client.reader(TOPIC) as reader:
                await anext(reader)
                position = reader.position()
            await two.send_many([b"%d" % number for number in range(1, 60)])
        async with client.reader(TOPIC, start=position) as reader:
            for _ in range(36):
                await anext(reader)
            middle = reader.position()
        await client.topics.delete_messages(TOPIC, position, middle)
        assert await numbers(client, start=position) == list(range(37, 60))
        await client.topics.truncate(TOPIC, position)
        assert await numbers(client, start=position) == []


async def test_spans_leave_out_what_was_deleted(autojump_clock: MockClock) -> None:
    """TB-75: what jobs read is what readers read, also across ledgers that are gone."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client)
        ids = await written(client, 60)
        await client.topics.delete_messages(TOPIC, EventTime(13), EventTime(37))
        await client.topics.truncate(TOPIC, EventTime(50))
        for start in ("earliest", ids[20], EventTime(20)):
            plan = await plan_read(client._context, TOPIC, start=start)
            async with aclosing(RangeReader(client._context).batches(plan.ranges)) as slices:
                found = [int(m.value or b"") async for piece in slices for m in piece.messages]
            assert found == await numbers(client, start=start)


async def test_many_deletions_agree_with_a_list(autojump_clock: MockClock) -> None:
    """TB-75: whatever is deleted, in any order, written again and deleted again."""
    for seed in range(6):
        chance = random.Random(seed)
        async with memory_cluster(3) as cluster, cluster.client() as client:
            await make(client, entries=chance.choice([3, 5, 50]))
            model: list[int] = []
            following = 0
            for _ in range(8):
                count = chance.randint(1, 25)
                await written(client, count, first=following, batch=chance.randint(1, 9))
                model += range(following, following + count)
                following += count
                start = chance.randint(0, following)
                stop = start + chance.randint(0, following)
                if chance.random() < 0.4:
                    start = chance.randint(following // 2, following)
                    await client.topics.truncate(TOPIC, EventTime(start))
                    model = [number for number in model if number < start]
                    following = model[-1] + 1 if model else 0
                else:
                    await client.topics.delete_messages(TOPIC, EventTime(start), EventTime(stop))
                    model = [number for number in model if not start <= number <= stop]
                assert await numbers(client) == model
                assert await numbers(client, reverse=True) == model[::-1]
                at = chance.randint(0, following)
                later = [number for number in model if number >= at]
                assert await numbers(client, start=EventTime(at)) == later
                assert (await client.topics.explain(TOPIC)).extent.messages == len(model)


# --- who is in the way ------------------------------------------------------------------


async def test_who_writes_a_lane_is_ended_only_by_force(autojump_clock: MockClock) -> None:
    """TB-75: and learns it; nothing of it is acknowledged any more."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client)
        async with cluster.client() as elsewhere:
            with pytest.raises(ProducerFenced):
                async with elsewhere.producer(TOPIC) as producer:
                    for number in range(20):
                        await producer.send(b"%d" % number, event_time=number)
                    with pytest.raises(TopicBusy, match="is written by"):
                        await client.topics.truncate(TOPIC, EventTime(10))
                    assert await numbers(client) == list(range(20))
                    await client.topics.truncate(TOPIC, EventTime(10), force=True)
                    assert await numbers(client) == list(range(10))
                    with trio.fail_after(30):
                        await producer.send(b"x", event_time=99)
        await written(client, 5, first=10)
        assert await numbers(client) == list(range(15))


async def test_what_a_writer_that_was_killed_left_is_recovered_and_cut(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client)
        process = Process(cluster)
        with pytest.raises((LedgerError, trio.Cancelled)):
            async with process.client() as killed, killed.producer(TOPIC) as producer:
                for number in range(20):
                    await producer.send(b"%d" % number, event_time=number)
                process.kill()
        await trio.sleep(15)
        done = await client.topics.truncate(TOPIC, EventTime(11))
        assert done.messages == 9
        assert await numbers(client) == list(range(11))


async def test_what_a_job_needs_is_not_deleted_under_it(autojump_clock: MockClock) -> None:
    """PS-35: pins win, also over force; and what is compacted already is refused."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client)
        await written(client, 60)
        topic = await client.topics.info(TOPIC)
        async with open_job(client._context.ledgers, topic, "replay", pins=[(-1, 0, 3)]):
            with pytest.raises(TopicBusy, match="replay job"):
                await client.topics.truncate(TOPIC, EventTime(10), force=True)
            await client.topics.delete_messages(TOPIC, EventTime(0), EventTime(3))  # before the pin
        horizon = Horizon(partition=-1, lane=0, number=2, ledger_id=9, version=12)
        row = encode_set(CompactedSet(generation=1, horizons=[horizon]))
        await client._context.store.put(compacted_key(topic.uid), row)
        with pytest.raises(TopicBusy, match="quire compact shop/orders --drop"):
            await client.topics.truncate(TOPIC, EventTime(10))
        await client.topics.truncate(TOPIC, EventTime(50))  # behind the horizon
        assert await numbers(client) == list(range(4, 50))


@pytest.mark.parametrize("stop", [None, EventTime(40)])
async def test_a_job_that_begins_while_it_is_looked_what_goes_is_noticed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, stop: EventTime | None
) -> None:
    """PS-35: it would read what is deleted then, and keep it."""
    plan, looks = truncation.LaneTruncation.plan, 0
    async with memory_cluster(3) as cluster, cluster.client() as client, Background() as jobs:
        await make(client)
        await written(client, 60)
        topic = await client.topics.info(TOPIC)

        async def work(task_status: trio.TaskStatus[None]) -> None:
            async with open_job(client._context.ledgers, topic, "replay", pins=[(-1, 0, 3)]):
                task_status.started()
                await trio.sleep_forever()

        async def slowly(
            lane: truncation.LaneTruncation,
            found: LaneHoldings,
            start: Place,
            stop: Place | None,
        ) -> LanePart:
            nonlocal looks
            looks += 1
            if looks == 4:  # of all lanes, of this one, and twice for the transaction
                await jobs.start(work)
            return await plan(lane, found, start, stop)

        monkeypatch.setattr(truncation.LaneTruncation, "plan", slowly)
        with pytest.raises(TopicBusy, match="replay job"):
            if stop is None:
                await client.topics.truncate(TOPIC, EventTime(20))
            else:
                await client.topics.delete_messages(TOPIC, EventTime(20), stop)
        assert await numbers(client) == list(range(60))


async def test_a_topic_that_is_not_there_is_told(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        with pytest.raises(NoSuchTopic):
            await client.topics.truncate(TOPIC, "earliest")
        with pytest.raises(BadTopic, match="quire's own"):
            await client.topics.truncate("shop/__events", "earliest")


# --- steps and crashes ------------------------------------------------------------------


@pytest.mark.parametrize("punch", [False, True])
async def test_many_ledgers_go_in_several_steps(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, punch: bool
) -> None:
    monkeypatch.setattr(truncation, "WHOLE_MAX", 3)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client, entries=3)
        ids = await written(client, 80)
        if punch:
            done = await client.topics.delete_messages(TOPIC, EventTime(7), EventTime(70))
            assert await numbers(client, start=ids[30]) == list(range(71, 80))
            assert await numbers(client) == [*range(7), *range(71, 80)]
        else:
            done = await client.topics.truncate(TOPIC, EventTime(7))
            assert await numbers(client, start=ids[30]) == []
            assert await numbers(client) == list(range(7))
        assert done.ledgers > 6
        removals = [key for key in cluster.store.values if key.startswith(LANE_REMOVALS)]
        assert len(removals) == 1


@pytest.mark.parametrize("stop", [None, EventTime(11)])
async def test_ledgers_without_messages_do_not_end_a_step(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, stop: EventTime | None
) -> None:
    """TB-75: however many there are, what lies on their other side goes too."""
    monkeypatch.setattr(truncation, "WHOLE_MAX", 2)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client)
        await written(client, 2)
        for first in (2, 12):
            for _ in range(5):
                await written(client, 0)
            await written(client, 10, first=first)
        for _ in range(5):
            await written(client, 0)
        if stop is None:
            assert (await client.topics.truncate(TOPIC, EventTime(1))).messages == 21
            assert await numbers(client) == [0]
        else:
            assert (await client.topics.delete_messages(TOPIC, EventTime(2), stop)).messages == 10
            assert await numbers(client) == [0, 1, *range(12, 22)]


async def test_a_lane_is_cut_or_as_it_was_wherever_the_process_ends(
    autojump_clock: MockClock,
) -> None:
    """TB-75: and doing it again does it."""
    for transactions in range(8):
        async with memory_cluster(3) as cluster:
            async with cluster.client() as client:
                await make(client)
                await written(client, 40, name="p")
            process = Process(cluster)
            with trio.move_on_after(120):
                async with process.client() as killed:
                    _kill_after(process, transactions)
                    with suppress(LedgerError):
                        await killed.topics.truncate(TOPIC, EventTime(17))
            async with cluster.client() as client:
                found = await numbers(client)
                assert found in (list(range(40)), list(range(17)))
                await trio.sleep(15)
                await client.topics.truncate(TOPIC, EventTime(17))
                assert await numbers(client) == list(range(17))
                await written(client, 3, first=17, name="p")
                assert await numbers(client) == list(range(20))
                known = {row.ledger_id for row in rows(cluster)}
                assert len(known) == len(rows(cluster))


async def test_a_store_that_loses_answers_leaves_a_lane_cut_or_as_it_was(
    autojump_clock: MockClock,
) -> None:
    """TB-75: what was made, and what is made later, is made once."""
    for seed in range(12):
        async with memory_cluster(3, seed=seed) as cluster, cluster.client() as client:
            await make(client)
            await written(client, 40, name="p")
            process = Process(cluster, losses=0.4)
            with trio.move_on_after(300):
                async with process.client() as doubtful:
                    with suppress(LedgerError):
                        await doubtful.topics.truncate(TOPIC, EventTime(17))
            process.kill()
            assert await numbers(client) in (list(range(40)), list(range(17)))
            await trio.sleep(15)
            await client.topics.truncate(TOPIC, EventTime(17))
            assert await numbers(client) == list(range(17))
            await written(client, 3, first=17, name="p")
            assert await numbers(client) == list(range(20))
            held = [key for key in cluster.store.values if key.startswith(LEDGERS)]
            assert len(held) == len(rows(cluster)) + 1  # and that of __events


def _kill_after(process: Process, transactions: int) -> None:
    """Let the process end with its next transaction but so many, as seen by the store."""
    real, left = process.line.transact, transactions

    async def transact(ops: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            process.kill()
        return await real(ops)  # type: ignore[arg-type]

    process.line.transact = transact  # type: ignore[assignment, method-assign]


async def test_deleting_the_topic_leaves_nothing_of_what_was_deleted_before(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await make(client)
        await written(client, 40)
        await client.topics.truncate(TOPIC, EventTime(3))
        await client.topics.delete(TOPIC)
        kinds = (topic_prefix(LANE_REMOVALS, 1), topic_prefix(LANE_LEDGERS, 1))
        assert not [key for key in cluster.store.values if key.startswith(kinds)]
