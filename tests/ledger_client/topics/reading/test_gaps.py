"""Messages that a reader cannot read: removed, lost, damaged, or out of reach."""

from __future__ import annotations

from typing import Literal

import pytest
import trio
from batches import Sent
from laid_topic import TOPIC, batches_of, laid_topic, read_all, said, same, some_lane
from trio.testing import MockClock

from ledger_client.errors import (
    BadTopic,
    EntryLost,
    Gap,
    MessagesLost,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchTopic,
    ReplicasUnavailable,
)
from ledger_client.message_id import MessageId
from ledger_client.topics.lanes.ledger_rows import LedgerRows
from ledger_client.topics.messages import Message
from ledger_client.topics.times import EventTime
from metadata.topics import LaneRecord, topic_key


async def test_a_position_behind_the_last_message_of_a_purged_ledger_is_no_gap(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        async with topic.client.reader(TOPIC) as reader:
            for _ in lane.of_ledger(0):
                await anext(reader)
            position = reader.position()
        await lane.purge(0)
        async with topic.client.reader(TOPIC, start=position) as reader:
            assert same(await read_all(reader), lane.messages[6:])
        await lane.purge(1)
        async with topic.client.reader(TOPIC, start=position) as reader:
            with pytest.raises(Gap) as told:
                await anext(reader)
            assert told.value.missing == 2
            assert told.value.first == MessageId(lane.rows[2].ledger_id, 0)
            assert same(await read_all(reader), lane.messages[8:])


async def test_everything_read_and_everything_purged_is_no_gap(autojump_clock: MockClock) -> None:
    """TB-76: purging disturbs nobody who has read it."""
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        async with topic.client.reader(TOPIC, follow=True) as reader:
            assert len([await anext(reader) for _ in lane.messages]) == len(lane.messages)
            position = reader.position()
            for number in range(3):
                await lane.purge(number)
            await trio.sleep(20)
            await lane.lay(*batches_of("d", [0, 1]))
            assert (await anext(reader)).value == b"d0"
        async with topic.client.reader(TOPIC, start=position) as reader:
            assert [m.value for m in await read_all(reader)] == [b"d0"]


async def test_ledgers_that_come_about_between_two_looks_are_no_gap(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PS-07: a lane may turn twice before a reader that follows it has seen the first."""
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        look = LedgerRows.record

        async def turn_twice(rows: LedgerRows) -> LaneRecord | None:
            if len(lane.rows) == 3:
                await lane.lay(*batches_of("d", [0, 2]))
                await lane.lay(*batches_of("e", [0, 1]))
            return await look(rows)

        async with topic.client.reader(TOPIC, follow=True) as reader:
            monkeypatch.setattr(LedgerRows, "record", turn_twice)
            got = [await anext(reader) for _ in range(len(lane.messages) + 3)]
        assert same(got, lane.messages)


@pytest.mark.parametrize("on_gap", ["raise", "skip"])
async def test_a_start_that_was_removed_is_a_gap_once(
    autojump_clock: MockClock, on_gap: str
) -> None:
    """TB-73."""
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        start = lane.messages[1].id
        await lane.purge(0)
        async with topic.client.reader(
            TOPIC,
            start=start,
            on_gap=on_gap,  # type: ignore[arg-type]  # one of the literals
        ) as reader:
            gaps: list[Gap] = []
            if on_gap == "raise":
                with pytest.raises(Gap) as told:
                    await anext(reader)
                gaps.append(told.value)
            assert same(await read_all(reader), lane.messages[6:])
            (gap,) = [*gaps, *reader.gaps]
            assert gap.position == start
            assert gap.first == MessageId(lane.rows[1].ledger_id, 0)
            await reader.seek(gap.first)
            assert same(await read_all(reader), lane.messages[6:])


async def test_a_start_in_a_ledger_that_the_lane_never_had_is_refused(
    autojump_clock: MockClock,
) -> None:
    """It is no gap: a ledger that exists elsewhere, or one that no removal can have taken."""
    async with laid_topic() as topic, topic.client.ledgers.create(1, 1, 1) as other:
        lane = await some_lane(topic)
        elsewhere, unknown = MessageId(other.id, 0), MessageId(0, 0)
        for strange in (elsewhere, unknown):
            with pytest.raises(BadTopic, match=f"no ledger {strange.ledger_id} there"):
                async with topic.client.reader(TOPIC, start=strange, on_gap="skip") as reader:
                    await anext(reader)
        await lane.purge(0)
        with pytest.raises(BadTopic, match=f"no ledger {other.id} there"):
            async with topic.client.reader(TOPIC, start=elsewhere, on_gap="skip") as reader:
                await anext(reader)
        async with topic.client.reader(TOPIC, start=unknown, on_gap="skip") as reader:
            assert same(await read_all(reader), lane.messages[6:])


async def test_a_ledger_that_is_purged_under_the_reader_is_a_gap(autojump_clock: MockClock) -> None:
    """TB-73, TB-76: never a silent skip."""
    async with laid_topic() as topic:
        lane = topic.lane()
        await lane.lay(*[[Sent(b"%d" % i + bytes(400_000))] for i in range(40)])
        await lane.lay(*batches_of("b", [1]))
        async with topic.client.reader(TOPIC, follow=True, read_ahead_size=1 << 20) as reader:
            first = await anext(reader)
            await lane.purge(0)
            for bookie in topic.cluster.bookies.values():
                bookie.ledgers.pop(lane.rows[0].ledger_id, None)
            got = [first]
            with pytest.raises(Gap) as told:
                while True:
                    got.append(await anext(reader))
            assert same(got, lane.messages[: len(got)])
            assert told.value.missing == 40 - len(got)
            assert told.value.position.entry_id == len(got)
            assert (await anext(reader)).value == b"b0"


async def test_a_reader_from_the_earliest_takes_what_is_there(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        await lane.purge(0)
        async with topic.client.reader(TOPIC) as reader:
            assert same(await read_all(reader), lane.messages[6:])
        async with topic.client.reader(TOPIC, reverse=True) as reader:
            assert same(await read_all(reader), lane.messages[6:][::-1])


async def test_the_beginning_of_a_lane_that_is_younger_than_the_position_is_a_gap(
    autojump_clock: MockClock,
) -> None:
    """TB-73: the position names neither the lane nor, in it, a ledger."""
    async with laid_topic() as topic:
        await some_lane(topic, -1, 0)
        async with topic.client.reader(TOPIC) as reader:
            await read_all(reader)
            position = reader.position()
        young = await some_lane(topic, -1, 1)
        async with topic.client.reader(TOPIC, start=position) as reader:
            assert same(await read_all(reader), young.messages)
        await young.purge(0)
        async with topic.client.reader(TOPIC, start=position) as reader:
            with pytest.raises(Gap) as told:
                await anext(reader)
            assert (told.value.lane, told.value.missing) == (1, young.rows[0].entries)
            assert same(await read_all(reader), young.messages[6:])
        async with topic.client.reader(TOPIC, start=position, reverse=True) as reader:
            assert len(await read_all(reader)) == 13


async def test_a_lane_that_a_position_left_out_is_read_from_what_is_left(
    autojump_clock: MockClock,
) -> None:
    """It may be of another partition than were read, or one at whose beginning nothing was."""
    async with laid_topic(partitions=2) as topic:
        await some_lane(topic, 0, 0)
        other = await some_lane(topic, 1, 0)
        async with topic.client.reader(TOPIC, partitions=[0]) as reader:
            begin = reader.position()
            await read_all(reader)
            position = reader.position()
        await other.purge(0)
        async with topic.client.reader(TOPIC, start=position) as reader:
            assert same(await read_all(reader), other.messages[6:])
        beside = await some_lane(topic, 0, 1)
        await beside.purge(0)
        async with topic.client.reader(TOPIC, start=begin, lanes=[1]) as reader:
            assert same(await read_all(reader), beside.messages[6:])


async def test_reading_in_reverse_tells_what_was_removed_under_it(
    autojump_clock: MockClock,
) -> None:
    """PS-42: the lane's beginning, as it was when reading began, was to be read."""
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        async with topic.client.reader(TOPIC, reverse=True, read_ahead_size=1) as reader:
            got = [await anext(reader)]
            await lane.purge(0)
            with pytest.raises(Gap) as told:
                while True:
                    got.append(await anext(reader))
            assert told.value.missing == lane.rows[0].entries
            position = reader.position()
        assert same(got, lane.messages[6:][::-1])
        async with topic.client.reader(TOPIC, reverse=True, start=position) as reader:
            assert await read_all(reader) == []


async def test_a_damaged_batch_is_named_and_can_be_passed(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = topic.lane()
        async with lane.write() as writer:
            await writer.send(said(["a"]))
            await writer.ledger.append(b"QB nothing of ours")
            writer.entries += 1
            await writer.send(said(["b"]))
        async with topic.client.reader(TOPIC) as reader:
            assert (await anext(reader)).value == b"a"
            damaged = MessageId(lane.rows[0].ledger_id, 1)
            for _ in range(2):
                with pytest.raises(MessagesLost) as told:
                    await anext(reader)
                assert (told.value.ledger_id, told.value.entry_id) == damaged[:2]
            await reader.seek(damaged, inclusive=False)
            assert (await anext(reader)).value == b"b"


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_lost_entry_is_told_behind_those_before_it_and_read_when_it_is_back(
    autojump_clock: MockClock, reverse: bool
) -> None:
    async with laid_topic() as topic:
        lane = topic.lane()
        row = await lane.lay(*batches_of("a", [1] * 5))
        ledgers = [bookie.ledgers.get(row.ledger_id) for bookie in topic.cluster.bookies.values()]
        (held,) = filter(None, ledgers)
        gone = held.entries.pop(2)
        expected = lane.messages[::-1] if reverse else lane.messages
        async with topic.client.reader(TOPIC, reverse=reverse) as reader:
            got: list[Message] = []
            for _ in range(2):
                with pytest.raises((EntryLost, NoSuchEntry), match="entry 2"):
                    while True:
                        got.append(await anext(reader))
                assert same(got, expected[:2])
            position = reader.position()
            held.entries[2] = gone
            got += await read_all(reader)
            assert same(got, expected)
            await reader.seek(position)
            assert same(await read_all(reader), expected[2:])


async def test_without_bookies_reading_fails_in_time_and_goes_on_later(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        async with topic.client.reader(TOPIC) as reader:
            for name in topic.cluster.bookies:
                topic.cluster.kill(name)
            with trio.fail_after(60), pytest.raises(ReplicasUnavailable):
                await anext(reader)
            for name in topic.cluster.bookies:
                topic.cluster.revive(name)
            assert same(await read_all(reader), lane.messages)


async def test_without_the_store_an_open_ledger_is_read_on(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = topic.lane()
        async with (
            lane.write() as writer,
            topic.client.reader(TOPIC, follow=True) as reader,
        ):
            await writer.send(said(["a"]))
            assert (await anext(reader)).value == b"a"
            topic.cluster.store.available = False
            await trio.sleep(30)
            await writer.send(said(["b"]))
            with trio.fail_after(5):
                assert (await anext(reader)).value == b"b"
            topic.cluster.store.available = True
        topic.cluster.store.available = False
        with pytest.raises(MetadataUnavailable):
            async with topic.client.reader(TOPIC):
                pass


async def test_a_topic_that_is_not_there_or_goes_away_is_told(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        with pytest.raises(NoSuchTopic):
            async with topic.client.reader("shop/nothing"):
                pass
        await some_lane(topic)
        async with topic.client.reader(TOPIC, start="latest", follow=True) as reader:
            await topic.cluster.store.delete(topic_key(TOPIC))
            with trio.fail_after(10), pytest.raises(NoSuchTopic):
                await anext(reader)


async def test_where_nothing_is_left_there_is_one_gap(autojump_clock: MockClock) -> None:
    """TB-73: however many ledgers are gone."""
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        async with topic.client.reader(TOPIC) as reader:
            await anext(reader)
            position = reader.position()
        for number in range(3):
            await lane.purge(number)
        async with topic.client.reader(TOPIC, start=position, follow=True, on_gap="skip") as reader:
            await trio.sleep(20)
            await lane.lay(*batches_of("d", [0, 1]))
            assert (await anext(reader)).value == b"d0"
            (gap,) = reader.gaps
            assert gap.first is None


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("on_gap", ["raise", "skip"])
async def test_a_reader_goes_on_behind_a_ledger_that_was_deleted_out_of_the_middle(
    autojump_clock: MockClock, on_gap: Literal["raise", "skip"], reverse: bool
) -> None:
    """TB-30: ledgers are independent; a person deleted one by itself, and its row stays."""
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        lost, behind = lane.rows[1], lane.rows[0 if reverse else 2]
        await topic.client.ledgers.delete(lost.ledger_id)
        expected = [*lane.of_ledger(0), *lane.of_ledger(2)]
        if reverse:
            expected.reverse()
        gaps: list[Gap] = []
        got: list[Message] = []
        async with topic.client.reader(TOPIC, reverse=reverse, on_gap=on_gap) as reader:
            while True:
                try:
                    got.append(await anext(reader))
                except Gap as told:
                    gaps.append(told)
                except StopAsyncIteration:
                    break
            assert same(got, expected)
            assert len(gaps) == (on_gap == "raise")
            (gap,) = [*gaps, *reader.gaps]
        assert gap.missing == lost.entries
        if not reverse:
            assert gap.position == MessageId(lost.ledger_id, 0, -1, 0)
        following = lane.rows[2].ledger_id
        assert gap.first == MessageId(following, 0)
        assert behind.ledger_id in {message.id.ledger_id for message in got}


async def test_a_position_inside_a_ledger_that_was_deleted_counts_what_is_missing(
    autojump_clock: MockClock,
) -> None:
    """TB-30: only what was to be read is missing; nothing, behind its last message."""
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        positions = []
        async with topic.client.reader(TOPIC) as reader:
            for _ in lane.of_ledger(0):
                await anext(reader)
                positions.append(reader.position())
        await topic.client.ledgers.delete(lane.rows[0].ledger_id)
        for position, missing in ((positions[3], [2]), (positions[5], [])):
            async with topic.client.reader(TOPIC, start=position, on_gap="skip") as reader:
                assert same(await read_all(reader), lane.messages[6:])
                assert [gap.missing for gap in reader.gaps] == missing
        async with topic.client.reader(
            TOPIC, start=positions[2], end=positions[3], on_gap="skip"
        ) as reader:
            assert await read_all(reader) == []
            assert [gap.missing for gap in reader.gaps] == [1]


@pytest.mark.parametrize("order", ["none", "event-time"])
async def test_a_time_inside_a_ledger_that_was_deleted_is_a_gap(
    autojump_clock: MockClock, order: Literal["none", "event-time"]
) -> None:
    """TB-30: with "skip" reading begins behind it."""
    async with laid_topic(order=order) as topic:
        lane = topic.lane()
        for first in (0, 10, 20):
            await lane.lay(said([f"{first + i}" for i in range(5)], times=range(first, first + 5)))
        await topic.client.ledgers.delete(lane.rows[1].ledger_id)
        async with topic.client.reader(
            TOPIC, start=EventTime(12), on_gap="skip", order="arrival"
        ) as reader:
            assert same(await read_all(reader), lane.of_ledger(2))
            assert [gap.missing for gap in reader.gaps] == [lane.rows[1].entries]


async def test_a_follower_goes_on_behind_a_ledger_that_is_deleted_under_it(
    autojump_clock: MockClock,
) -> None:
    """TB-30: once its bookies have freed it, and whoever writes goes on."""
    async with laid_topic() as topic:
        lane = topic.lane()
        await lane.lay(*[[Sent(b"%d" % i + bytes(400_000))] for i in range(40)])
        await lane.lay(*batches_of("b", [1]))
        async with topic.client.reader(
            TOPIC, follow=True, read_ahead_size=1 << 20, on_gap="skip"
        ) as reader:
            got = [await anext(reader)]
            await topic.client.ledgers.delete(lane.rows[0].ledger_id)
            for bookie in topic.cluster.bookies.values():
                bookie.ledgers.pop(lane.rows[0].ledger_id, None)
            while got[-1].value != b"b0":
                got.append(await anext(reader))
            await lane.lay(*batches_of("c", [1]))
            got.append(await anext(reader))
            assert got[-1].value == b"c0"
            (gap,) = reader.gaps
            assert gap.missing == 40 - (len(got) - 2)
