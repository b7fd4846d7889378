"""What a streaming query's reader plans, on bookies in memory and without Spark."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from laid_topic import TOPIC, LaidTopic, laid_topic, said, some_lane
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ledger_client.errors import BadTopic, Gap
from ledger_client.spark.options import NewOffset, parse_options
from ledger_client.spark.schema import columns_of
from ledger_client.spark.source import QuireStreamReader, RangePartition


class Stream:
    """A query's reader, which asks the cluster in memory."""

    def __init__(self, topic: LaidTopic, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        given = parse_options({"topic": TOPIC, **options})
        self._reader = QuireStreamReader(columns_of([topic.record], None), given)

        def ask(question: Callable[[Any], Awaitable[object]]) -> object:
            return trio.from_thread.run(question, topic.client._context)

        monkeypatch.setattr(self._reader, "_ask", ask)

    async def first(self) -> NewOffset:
        return await trio.to_thread.run_sync(self._reader.initialOffset)

    async def latest(self, start: NewOffset) -> NewOffset:
        latest = self._reader.latestOffset
        return await trio.to_thread.run_sync(latest, start, ReadAllAvailable())

    async def entries(self, start: NewOffset, end: NewOffset) -> int:
        """Return the number of entries that a micro-batch has."""
        tasks = await trio.to_thread.run_sync(self._reader.partitions, start, end)
        assert all(isinstance(task, RangePartition) for task in tasks)
        return sum(each.entries for task in tasks for each in task.ranges)


@pytest.mark.parametrize("lane", [(0, 1), (1, 0)])
async def test_the_beginning_of_what_is_younger_than_the_offset_is_not_lost_silently(
    monkeypatch: pytest.MonkeyPatch, lane: tuple[int, int]
) -> None:
    """A lane or a partition began, and its first ledger was removed, while the query was down."""
    async with laid_topic(partitions=2) as topic:
        await some_lane(topic, 0, 0)
        stream = Stream(topic, monkeypatch)
        offset = await stream.latest(await stream.first())
        young = await some_lane(topic, *lane)
        after = await stream.latest(offset)
        assert await stream.entries(offset, after) == sum(row.entries for row in young.rows)
        await young.purge(0)
        with pytest.raises(Gap) as told:
            await stream.latest(offset)
        assert (told.value.partition, told.value.lane) == lane
        assert told.value.missing == young.rows[0].entries
        with pytest.raises(Gap):
            await stream.entries(offset, after)
        skipping = Stream(topic, monkeypatch, failOnDataLoss="false")
        assert await skipping.latest(offset) == after
        left = sum(row.entries for row in young.rows[1:])
        assert await skipping.entries(offset, after) == left


async def test_a_topic_without_lanes_yet_loses_nothing_silently_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with laid_topic() as topic:
        stream = Stream(topic, monkeypatch)
        offset = await stream.first()
        assert offset == {TOPIC: {"uid": topic.record.uid}}
        await (await some_lane(topic)).purge(0)
        with pytest.raises(Gap):
            await stream.latest(offset)


async def test_a_query_that_begins_at_a_message_takes_what_is_left_of_other_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first offset names the lane of this message alone."""
    async with laid_topic(partitions=2) as topic:
        lane = await some_lane(topic, 0, 0)
        other = await some_lane(topic, 1, 0)
        await other.purge(0)
        start = lane.messages[0].id
        stream = Stream(topic, monkeypatch, startingIds=str(start))
        offset = await stream.first()
        left = sum(row.entries for row in [*lane.rows, *other.rows[1:]]) - start.entry_id
        assert await stream.entries(offset, await stream.latest(offset)) == left


async def test_a_stream_from_a_time_takes_all_that_is_written_after_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As docs/guides/spark.md says: an offset is a place, and cannot say what time it waits for."""
    async with laid_topic() as topic:
        lane = topic.lane()
        await lane.lay(said(["a", "b"], times=[1, 2]))
        stream = Stream(topic, monkeypatch, startingEventTime="100")
        offset = await stream.first()
        await lane.lay(said(["c"], times=[3]))
        assert await stream.entries(offset, await stream.latest(offset)) == 1


async def test_an_offset_of_a_deleted_topic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with laid_topic() as topic:
        await some_lane(topic)
        stream = Stream(topic, monkeypatch)
        offset = await stream.first()
        offset[TOPIC]["uid"] = topic.record.uid + 1
        with pytest.raises(BadTopic, match="another topic of this name"):
            await stream.latest(offset)
