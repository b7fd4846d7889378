"""Columns of compacted messages are those of the same messages read raw."""

from __future__ import annotations

from contextlib import aclosing

import pyarrow as pa
import pytest
from batches import Sent
from laid_set import expected, keyed_lane, lay_set
from laid_topic import TOPIC, LaidTopic, laid_topic
from trio.testing import MockClock

from ledger_client.jobs import arrow_columns
from ledger_client.topics.messages import MessageRange
from ledger_client.topics.reading.range_plan import plan_read
from ledger_client.topics.reading.range_reader import RangeReader


async def message_ranges(topic: LaidTopic, *, compacted: bool) -> list[MessageRange]:
    """Return all messages of the topic."""
    plan = await plan_read(topic.client._context, TOPIC, compacted=compacted)
    async with aclosing(RangeReader(topic.client._context).batches(plan.ranges)) as slices:
        return [piece async for piece in slices]


def rows_of(slices: list[MessageRange], *, rows_min: int) -> list[dict[str, object]]:
    """Return the messages as Spark gets them."""
    found: list[dict[str, object]] = []
    batches = arrow_columns.batches_of(
        iter(slices), arrow_columns.NAMES, rows_min=rows_min, rows_max=7
    )
    for rows, arrays in batches:
        batch = pa.RecordBatch.from_arrays(arrays, names=list(arrow_columns.NAMES))
        batch.validate(full=True)
        assert batch.num_rows == rows
        found += batch.to_pylist()
    return found


@pytest.mark.parametrize("rows_min", [1, 7])
async def test_every_column_of_a_compacted_message_is_what_it_was(
    autojump_clock: MockClock, rows_min: int
) -> None:
    """PS-37: Spark and readers agree on what is compacted."""
    async with laid_topic(partitions=2) as topic:
        lanes = [await keyed_lane(topic, 1, 0), await keyed_lane(topic, 1, 1, shift=4)]
        single = topic.lane(0)
        await single.lay([Sent(b"one", b"k1")], [Sent(b"two", b"k2")], batched=False)
        for _ in range(3):
            await single.lay([Sent(b"three", b"k3")], batched=False)
        lanes.insert(0, single)
        topic.lanes.sort(key=lambda lane: (lane.partition, lane.lane))
        raw = {
            row["message_id"]: row
            for row in rows_of(await message_ranges(topic, compacted=False), rows_min=1)
        }
        await lay_set(topic, ledgers=3, entry_messages=5, compression="lz4")
        found = rows_of(await message_ranges(topic, compacted=True), rows_min=rows_min)
        wanted = [str(message.id) for lane in expected(lanes, 3) for message in lane]
        assert [row["message_id"] for row in found] == wanted
        assert found == [raw[message_id] for message_id in wanted]
