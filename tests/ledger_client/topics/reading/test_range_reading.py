"""Ledger ranges give what a reader with the same bounds gives, message by message."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Literal, TypedDict, Unpack

import pytest
from batches import Sent
from laid_topic import (
    CONTROL,
    TOPIC,
    LaidTopic,
    batches_of,
    laid_topic,
    read_all,
    said,
    same,
    some_lane,
)
from trio.testing import MockClock

from ledger_client.errors import BadTopic, Gap, NoSuchEntry, NoSuchLedger, NoSuchTopic
from ledger_client.ledgers.replica_reads import LedgerSource, ask_confirmed
from ledger_client.message_id import MessageId
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import LanePlace, Version
from ledger_client.topics.reading.options import Start
from ledger_client.topics.reading.range_plan import plan_read
from ledger_client.topics.reading.range_reader import RangeReader
from ledger_client.topics.reading.ranges import LedgerRange, split
from ledger_client.topics.times import EventTime, PublishTime, Time, Timestamp


class Bounds(TypedDict, total=False):
    start: Start | None
    inclusive: bool
    end: Start | None
    end_inclusive: bool
    partitions: Sequence[int] | None
    lanes: Sequence[int | str] | None


async def read_ranges(
    topic: LaidTopic, ranges: Sequence[LedgerRange], on_gap: Literal["raise", "skip"] = "raise"
) -> list[Message]:
    found: list[Message] = []
    async with aclosing(
        RangeReader(topic.client._context, on_gap=on_gap).batches(ranges)
    ) as slices:
        async for piece in slices:
            found += piece.messages
    return found


async def planned(topic: LaidTopic, **bounds: Unpack[Bounds]) -> list[Message]:
    """Return the messages of planned ranges, cut into all sizes; each time the same."""
    plan = await plan_read(topic.client._context, TOPIC, **bounds)
    whole = await read_ranges(topic, plan.ranges)
    for target in (1, 40, 10_000):
        parts = [each for group in split(plan.ranges, target) for each in group]
        assert await read_ranges(topic, parts) == whole
    return whole


async def same_as_reader(topic: LaidTopic, **bounds: Unpack[Bounds]) -> list[Message]:
    """Return the messages of planned ranges; the reader gives the same, lane by lane."""
    found = await planned(topic, **bounds)
    async with topic.client.reader(TOPIC, **bounds) as reader:
        read = await read_all(reader)
    assert found == sorted(read, key=lambda m: (m.id.partition, m.lane, m.version))
    return found


async def test_all_of_several_lanes_is_what_a_reader_reads(autojump_clock: MockClock) -> None:
    async with laid_topic(partitions=2) as topic:
        await some_lane(topic, 0, 0)
        await some_lane(topic, 0, 1)
        await some_lane(topic, 1, 0)
        assert len(await same_as_reader(topic)) == 3 * 13
        assert len(await same_as_reader(topic, partitions=[1])) == 13
        assert len(await same_as_reader(topic, lanes=[1])) == 13


async def test_every_message_is_a_bound_inclusive_or_not(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        ids = [laid.id for laid in lane.messages]
        for inclusive in (True, False):
            for index, start in enumerate(ids):
                found = await planned(topic, start=start, inclusive=inclusive)
                assert [m.id for m in found] == ids[index + (not inclusive) :]
                found = await planned(topic, end=start, end_inclusive=inclusive)
                assert [m.id for m in found] == ids[: index + inclusive]
        await same_as_reader(topic, start=ids[3], end=ids[9], end_inclusive=False)
        assert await same_as_reader(topic, start=ids[9], end=ids[3]) == []


async def test_an_id_without_a_place_in_the_batch_is_the_whole_entry(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        entry = lane.messages[1].id._replace(batch_index=-1)
        for inclusive in (True, False):
            await same_as_reader(topic, start=entry, inclusive=inclusive)
            await same_as_reader(topic, end=entry, end_inclusive=inclusive)


@pytest.mark.parametrize("kind", [EventTime, Timestamp, PublishTime])
@pytest.mark.parametrize("order", ["none", "event-time"])
async def test_times_bound_as_they_bound_readers(
    autojump_clock: MockClock, kind: Callable[[int], Time], order: str
) -> None:
    chance = random.Random(5)
    async with laid_topic(order=order, timesync=True) as topic:
        lane = topic.lane()
        stamp, time = 0, 0
        for ledger in range(3):
            batches: list[list[Sent]] = [CONTROL]
            for _ in range(4):
                stamp += chance.randrange(3)
                batch: list[Sent] = []
                for _ in range(chance.randrange(1, 4)):
                    stamp += 1
                    time = time + chance.randrange(3) if order != "none" else chance.randrange(40)
                    batch.append(Sent(b"v", None, time, stamp))
                batches.append(batch)
            await lane.lay(*batches, created_ms=10 * ledger)
        for low in range(0, 42, 3):
            for inclusive in (True, False):
                await same_as_reader(topic, start=kind(low), inclusive=inclusive)
                await same_as_reader(topic, end=kind(low), end_inclusive=inclusive)
            await same_as_reader(topic, start=kind(low), end=kind(low + 9), end_inclusive=False)
        start = lane.messages[len(lane.messages) // 2].id
        for high in range(0, 42, 3):
            await same_as_reader(topic, start=start, end=kind(high))


async def test_versions_bound_by_the_entry(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        last = lane.messages[-1].version
        for version in range(last + 2):
            for inclusive in (True, False):
                found = await planned(topic, start=Version(version), inclusive=inclusive)
                assert [m.version for m in found] == [
                    m.version
                    for m in lane.messages
                    if m.version > version or (inclusive and m.version == version)
                ]
                found = await planned(topic, end=Version(version), end_inclusive=inclusive)
                assert [m.version for m in found] == [
                    m.version
                    for m in lane.messages
                    if m.version < version or (inclusive and m.version == version)
                ]
        await lane.purge(0)
        with pytest.raises(Gap, match=r"5 entries are gone"):
            await planned(topic, start=Version(0))
        async with topic.client.reader(TOPIC, start=Version(6)) as reader:
            assert await read_all(reader) == await planned(topic, start=Version(6))
        with pytest.raises(BadTopic, match="cannot be followed"):
            async with topic.client.reader(TOPIC, start=Version(6), follow=True):
                pass


async def test_positions_bound_every_lane(autojump_clock: MockClock) -> None:
    async with laid_topic(partitions=2) as topic:
        await some_lane(topic, 0, 0)
        await some_lane(topic, 1, 0)
        async with topic.client.reader(TOPIC) as reader:
            some = [await anext(reader) for _ in range(7)]
            position = reader.position()
            rest = await read_all(reader)
        before = await same_as_reader(topic, end=position)
        behind = await same_as_reader(topic, start=position)
        assert sorted(before) == sorted(some)
        assert sorted(behind) == sorted(rest)


async def test_the_end_is_what_was_confirmed_when_it_was_planned(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        async with lane.write() as writer:
            await writer.send(said(["x", "y"]))
            plan = await plan_read(topic.client._context, TOPIC)
            closed = await plan_read(topic.client._context, TOPIC, closed_only=True)
            await writer.send(said(["z"]))
            found = await read_ranges(topic, plan.ranges)
            assert [m.value for m in found[-2:]] == [b"x", b"y"]
            assert plan.ranges[-1].messages == 2
        await lane.lay(said(["later"]))
        assert await read_ranges(topic, plan.ranges) == found
        assert await read_ranges(topic, closed.ranges) == found[:-2]
        # Where one ends the next begins: nothing is read twice, and nothing is passed over.
        more = await plan_read(topic.client._context, TOPIC, start=plan.end)
        assert [m.value for m in await read_ranges(topic, more.ranges)] == [b"z", b"later"]
        await same_as_reader(topic)


async def test_a_kept_end_holds_when_bookies_know_of_less(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the bookie that the writer told last is away: the others lag behind."""

    async def ask_others(source: LedgerSource) -> int:
        return await ask_confirmed(source) - 2

    async with laid_topic() as topic:
        lane = await some_lane(topic)
        async with lane.write() as writer:
            for value in "abcd":
                await writer.send(said([value, value]))
            plan = await plan_read(topic.client._context, TOPIC)
            there = await read_ranges(topic, plan.ranges)
            assert there[-1].value == b"d"
            monkeypatch.setattr("ledger_client.ledgers.reader.ask_confirmed", ask_others)
            assert await read_ranges(topic, plan.ranges) == there
            again = await plan_read(topic.client._context, TOPIC, start=plan.begin, end=plan.end)
            assert again == plan
            assert await same_as_reader(topic, start=plan.begin, end=plan.end) == there
            ended = await plan_read(topic.client._context, TOPIC, end=plan.end, closed_only=True)
            assert len(await read_ranges(topic, ended.ranges)) == len(there) - 8


async def test_a_row_that_is_old_does_not_hide_what_is_in_the_ledger(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic:
        lane = topic.lane()
        await lane.lay(*batches_of("a", [0, 3]), state="open")
        await lane.lay(*batches_of("b", [0, 2]), state="open")
        assert len(await same_as_reader(topic)) == 5


async def test_what_was_removed_is_a_gap_or_passed_over(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        first = lane.messages[1].id
        plan = await plan_read(topic.client._context, TOPIC)
        position = plan.ranges[0].begin._replace(entry=2, version=2)
        start = [LanePlace(topic.record.name, topic.record.uid, -1, 0, position)]
        await lane.purge(0)
        both: list[Start] = [first, start]
        for gone in both:
            with pytest.raises(Gap, match="was removed"):
                await plan_read(topic.client._context, TOPIC, start=gone)
            skipped = await plan_read(topic.client._context, TOPIC, start=gone, on_gap="skip")
            assert len(skipped.gaps) == 1
            assert len(await read_ranges(topic, skipped.ranges)) == 7
        with pytest.raises(Gap, match=f"the first that is left is {lane.rows[1].ledger_id}:0:-1"):
            await read_ranges(topic, plan.ranges)
        assert len(await read_ranges(topic, plan.ranges, on_gap="skip")) == 7
        with pytest.raises(Gap):
            await plan_read(topic.client._context, TOPIC, end=first)
        assert len(await same_as_reader(topic)) == 7


async def test_a_ledger_deleted_out_of_the_middle_is_a_gap_or_passed_over(
    autojump_clock: MockClock,
) -> None:
    """TB-30: by itself, while its row stays; planned before or after."""
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        before = await plan_read(topic.client._context, TOPIC)
        await topic.client.ledgers.delete(lane.rows[1].ledger_id)
        after = await plan_read(topic.client._context, TOPIC)
        for plan in (before, after):
            with pytest.raises(Gap, match=f"left is {lane.rows[2].ledger_id}:0:-1") as told:
                await read_ranges(topic, plan.ranges)
            assert told.value.missing == lane.rows[1].entries
            found = await read_ranges(topic, plan.ranges, on_gap="skip")
            assert same(found, [*lane.of_ledger(0), *lane.of_ledger(2)])


async def test_an_open_ledger_without_a_record_is_no_gap(autojump_clock: MockClock) -> None:
    """Nobody knows what it held: that is for the lane's next writer to find out."""
    async with laid_topic() as topic:
        lane = topic.lane()
        await lane.lay(*batches_of("a", [0, 3]), state="open")
        plan = await plan_read(topic.client._context, TOPIC)
        await topic.client.ledgers.delete(lane.rows[0].ledger_id)
        with pytest.raises(NoSuchLedger):
            await read_ranges(topic, plan.ranges, on_gap="skip")


@pytest.mark.parametrize("field", ["number", "entry", "skip", "version"])
@pytest.mark.parametrize("number", [-2, 1 << 63, 1 << 70])
async def test_positions_that_no_reader_ever_gave_are_refused(
    autojump_clock: MockClock, field: str, number: int
) -> None:
    async with laid_topic() as topic:
        await some_lane(topic)
        (kept,) = (await plan_read(topic.client._context, TOPIC)).end
        position = [kept._replace(place=kept.place._replace(**{field: number}))]
        with pytest.raises(BadTopic, match="is not a place of a lane"):
            await plan_read(topic.client._context, TOPIC, end=position)
        with pytest.raises(BadTopic, match="is not a place of a lane"):
            await plan_read(topic.client._context, TOPIC, start=position)


async def test_a_position_in_other_lanes_of_a_deleted_topic_is_none_of_the_new_one(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic:
        await some_lane(topic)
        (kept,) = (await plan_read(topic.client._context, TOPIC)).end
        former = [kept._replace(uid=kept.uid + 1, lane=kept.lane + 1)]
        with pytest.raises(BadTopic, match="of another topic of this name"):
            await plan_read(topic.client._context, TOPIC, start=former)


async def test_an_end_that_was_never_confirmed_is_told(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic, topic.lane().write() as writer:
        await writer.send(said(["x"]))
        (kept,) = (await plan_read(topic.client._context, TOPIC)).end
        position = [kept._replace(place=kept.place._replace(entry=1 << 40))]
        with pytest.raises(NoSuchEntry):
            await plan_read(topic.client._context, TOPIC, end=position)


async def test_bounds_are_refused_as_a_reader_refuses_them(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        await some_lane(topic, -1, 1)
        with pytest.raises(NoSuchTopic):
            await plan_read(topic.client._context, "shop/none")
        with pytest.raises(BadTopic, match="is a place in one lane"):
            await plan_read(topic.client._context, TOPIC, start=lane.messages[0].id)
        with pytest.raises(BadTopic, match="not in one partition"):
            await plan_read(topic.client._context, TOPIC, start=MessageId(1, 1, 3))
        with pytest.raises(BadTopic, match="is not a place"):
            await plan_read(topic.client._context, TOPIC, start="anywhere")  # type: ignore[arg-type]
        assert len(await same_as_reader(topic, start=lane.messages[4].id, lanes=[0])) == 9


async def test_rows_tell_sizes_before_anything_is_read(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = await some_lane(topic)
        plan = await plan_read(topic.client._context, TOPIC)
        assert [s.messages for s in plan.ranges] == [row.messages for row in lane.rows]


async def test_a_plan_takes_lanes_by_their_names(autojump_clock: MockClock) -> None:
    """As Spark's option "lanes" gives them: numbers, names, and "" for those without one."""
    async with laid_topic() as topic:
        for number, name in enumerate(["left", "", "7"]):
            await topic.lane(-1, number).lay(said([f"in {name}"]))
            if name:
                await topic.client.topics.rename_lane(TOPIC, -1, number, name)
        for lanes, wanted in (
            (("left",), {0}),
            (("", 0), {0, 1}),
            (("7",), {2}),
            ((7,), set()),
            (("nobody",), set()),
        ):
            assert {
                each.lane
                for each in (await plan_read(topic.client._context, TOPIC, lanes=lanes)).ranges
            } == wanted
            await same_as_reader(topic, lanes=lanes)
