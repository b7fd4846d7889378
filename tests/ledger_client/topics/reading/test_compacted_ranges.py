"""Ledger ranges of a compacted topic give what its reader gives, for any bounds."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import aclosing

import pytest
from laid_set import expected, keyed_lane, lay_set, remove_ledger
from laid_topic import TOPIC, LaidTopic, laid_topic, read_all
from trio.testing import MockClock

from ledger_client.errors import MessagesLost
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import Version
from ledger_client.topics.reading.options import ReadSettings, Start
from ledger_client.topics.reading.range_plan import plan_read
from ledger_client.topics.reading.range_reader import RangeReader
from ledger_client.topics.reading.ranges import LedgerRange, split
from ledger_client.topics.times import EventTime, PublishTime, Timestamp


async def read_ranges(topic: LaidTopic, ranges: Sequence[LedgerRange]) -> list[Message]:
    """Return the messages of ranges."""
    found: list[Message] = []
    async with aclosing(RangeReader(topic.client._context).batches(ranges)) as slices:
        async for piece in slices:
            found += piece.messages
    return found


async def compare(topic: LaidTopic, settings: ReadSettings) -> None:
    """Spans, whole and in pieces, give what a reader does, lane by lane."""
    bounds = {name: settings[name] for name in settings if name != "compacted"}  # type: ignore[literal-required]
    plan = await plan_read(topic.client._context, TOPIC, compacted=True, **bounds)
    found = await read_ranges(topic, plan.ranges)
    async with topic.client.reader(TOPIC, compacted=True, **bounds) as reader:
        read = await read_all(reader)
    assert found == sorted(read, key=lambda m: (m.id.partition, m.lane, m.version)), settings
    for target in (1, 10_000):
        parts = [each for group in split(plan.ranges, target, groups_min=3) for each in group]
        assert await read_ranges(topic, pickle.loads(pickle.dumps(parts))) == found


@pytest.mark.parametrize("order", ["none", "event-time"])
async def test_spans_and_readers_agree_for_all_bounds(
    autojump_clock: MockClock, order: str
) -> None:
    """PS-37, PS-38: what Spark reads of a compacted topic is what a reader reads."""
    async with laid_topic(order=order, timesync=True) as topic:
        lane = await keyed_lane(topic)
        await lay_set(topic, ledgers=3)
        await compare(topic, {})
        ids = [each.id for each in lane.messages]
        for at in range(0, len(ids), 13):
            points: list[Start] = [
                ids[at],
                Version(at // 3),
                EventTime(100 + 3 * at),
                Timestamp(500 + at),
                PublishTime(100 * at),
            ]
            for point in points:
                for inclusive in (True, False):
                    await compare(topic, {"start": point, "inclusive": inclusive})
                    await compare(topic, {"end": point, "end_inclusive": inclusive})
        await compare(topic, {"start": ids[4], "end": ids[30]})
        await compare(topic, {"start": ids[7], "end": ids[9], "end_inclusive": False})
        await compare(topic, {"start": ids[9], "end": ids[7]})


async def test_a_plan_covers_all_lanes_and_counts_what_is_left(autojump_clock: MockClock) -> None:
    async with laid_topic(partitions=2) as topic:
        lanes = [await keyed_lane(topic, 0, 0), await keyed_lane(topic, 0, 1, shift=5)]
        lanes.append(await keyed_lane(topic, 1, 0, shift=9))
        await lay_set(topic, ledgers=4)
        await compare(topic, {})
        plan = await plan_read(topic.client._context, TOPIC, compacted=True)
        assert all(each.compacted for each in plan.ranges)
        assert sum(each.messages for each in plan.ranges) == sum(map(len, expected(lanes, 4)))


async def test_positions_of_a_plan_begin_the_next_one(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = await keyed_lane(topic)
        await lay_set(topic, ledgers=4)
        plan = await plan_read(topic.client._context, TOPIC, compacted=True)
        await lane.lay(*[[each.sent] for each in lane.messages[:3]])
        after = await plan_read(topic.client._context, TOPIC, compacted=True, start=plan.end)
        found = await read_ranges(topic, after.ranges)
        assert [each.id for each in found] == [each.id for each in lane.messages[-3:]]


async def test_a_ledger_that_went_after_planning_is_told(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        await keyed_lane(topic)
        made = await lay_set(topic, ledgers=3)
        plan = await plan_read(topic.client._context, TOPIC, compacted=True)
        await remove_ledger(topic, made.ledgers[0].ledger_id)
        with pytest.raises(MessagesLost) as told:
            await read_ranges(topic, plan.ranges)
        assert told.value.ledger_id == made.ledgers[0].ledger_id
