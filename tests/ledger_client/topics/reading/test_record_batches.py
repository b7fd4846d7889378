"""Reading as pyarrow RecordBatches: the same messages, in batches worth having."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from batches import Sent, plain
from laid_topic import CONTROL, TOPIC, Laid, LaidTopic, batches_of, said
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client.errors import Gap
from ledger_client.message_id import MessageId
from ledger_client.topics.reading.reader import TopicReader


async def read_all(reader: TopicReader, **settings: int) -> list[Any]:
    return [batch async for batch in reader.read_batches(**settings)]


def ids(batches: list[Any]) -> list[MessageId]:
    names = ("ledger_id", "entry_id", "partition", "batch_index")
    return [MessageId(*(row[n] for n in names)) for batch in batches for row in batch.to_pylist()]


def expected(messages: list[Laid]) -> list[MessageId]:
    return [laid.id for laid in messages]


async def test_rows_are_the_messages(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        lane = LaidTopic(cluster, client, partitions=3).lane(2)
        sent = plain(30)
        await lane.lay(sent, created_ms=77)
        async with client.reader(TOPIC) as reader:
            (batch,) = await read_all(reader)
        assert ids([batch]) == expected(lane.messages)
        rows = batch.to_pylist()
        assert [
            Sent(
                row["value"],
                row["key"],
                row["event_time"],
                row["timestamp"],
                {pair["name"]: pair["value"] for pair in row["headers"]},
            )
            for row in rows
        ] == sent
        assert {(row["producer"], row["publish_time"]) for row in rows} == {("p", 77)}


async def test_a_large_batch_is_handed_out_over_the_memory_in_which_it_came(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await LaidTopic(cluster, client).lane().lay(*batches_of("x", [1500, 2000]))
        async with client.reader(TOPIC) as reader:
            first, second = await read_all(reader)
        assert (first.num_rows, second.num_rows) == (1500, 2000)
        places = [batch.column("value").buffers()[2].address for batch in (first, second)]
        assert 0 < places[1] - places[0] < 100_000  # both lie in the one answer of the bookie


async def test_small_batches_are_joined_and_large_ones_cut(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        lane = LaidTopic(cluster, client).lane()
        await lane.lay(CONTROL, *batches_of("x", [10] * 25), *batches_of("y", [120, 3]))
        async with client.reader(TOPIC) as reader:
            found = await read_all(reader, rows_min=100, rows_max=105)
            assert ids(found) == expected(lane.messages)
            assert [batch.num_rows for batch in found] == [100, 100, 105, 68]
            await reader.seek(lane.messages[17].id)
            found = await read_all(reader, rows_min=1)
            assert ids(found) == expected(lane.messages[17:])
            assert found[0].num_rows == 3


async def test_objects_and_batches_can_be_taken_in_turn(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        lane = LaidTopic(cluster, client).lane()
        await lane.lay(*batches_of("x", [7] * 9))
        async with client.reader(TOPIC) as reader:
            got = [(await anext(reader)).id for _ in range(10)]
            batches = reader.read_batches(rows_min=5, rows_max=5)
            got += ids([await anext(batches)])
            position = reader.position()
            got += [m.id for m in await reader.next_messages()]
            got += ids(await read_all(reader))
            assert got == expected(lane.messages)
            await reader.seek(position)
            assert ids(await read_all(reader)) == expected(lane.messages[15:])


@pytest.mark.parametrize("reverse", [False, True])
async def test_merged_batches_are_in_order(autojump_clock: MockClock, reverse: bool) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        topic = LaidTopic(cluster, client, order="event-time", partitions=2)
        for partition in (0, 1):
            lane = topic.lane(partition)
            for first in range(0, 60, 20):
                times = range(first + partition, first + 20, 2)
                await lane.lay(said([str(time) for time in times], times=times))
        async with client.reader(TOPIC, order="event-time", reverse=reverse) as reader:
            found = await read_all(reader)
        times_found = [time for batch in found for time in batch.column("event_time").to_pylist()]
        assert times_found == (list(range(60))[::-1] if reverse else list(range(60)))


async def test_a_gap_comes_behind_what_was_read_before_it(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        lane = LaidTopic(cluster, client).lane()
        for name in "abc":
            await lane.lay(*batches_of(name, [2]))
        await lane.purge(1)
        async with client.reader(TOPIC, start=lane.messages[0].id) as reader:
            await trio.sleep(1)
            batches = reader.read_batches()
            assert ids([await anext(batches)]) == expected(lane.messages[:2])
            with pytest.raises(Gap):
                await anext(batches)
            assert ids([await anext(batches)]) == expected(lane.messages[4:])


async def test_a_gap_is_told_by_whichever_call_comes_next(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        lane = LaidTopic(cluster, client).lane()
        for name in "abc":
            await lane.lay(*batches_of(name, [2]))
        await lane.purge(1)
        async with client.reader(TOPIC, start=lane.messages[0].id) as reader:
            await trio.sleep(1)
            async for batch in reader.read_batches():
                assert ids([batch]) == expected(lane.messages[:2])
                break
            with pytest.raises(Gap):
                await anext(reader)
            assert (await anext(reader)).id == lane.messages[4].id
            await reader.seek(lane.messages[0].id)
            await trio.sleep(1)
            await anext(reader.read_batches())
            await reader.seek(lane.messages[4].id)
            assert (await anext(reader)).id == lane.messages[4].id


async def test_a_follower_hands_out_what_is_here(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        lane = LaidTopic(cluster, client).lane()
        async with lane.write() as writer, client.reader(TOPIC, follow=True) as reader:
            batches = reader.read_batches()
            for round_ in range(3):
                await writer.send(said(["a", "b"]))
                await writer.send(said(["c"]))
                with trio.fail_after(1):
                    rows = 0
                    while rows < 3:
                        rows += (await anext(batches)).num_rows
                assert rows == 3, round_
