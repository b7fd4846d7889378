"""What a stream shows, and what of its batches is a repetition."""

from __future__ import annotations

import pytest
import trio
from memory_cluster import MemoryCluster
from staged_rig import NAME, ledgers_count, made, read_all, rows, write_job
from topic_rig import stored

from ledger_client import Client
from ledger_client.errors import MetadataBroken, ReplayConflict
from ledger_client.jobs.staging.writing_job import SinkBatch
from metadata.jobs import SINKS, sink_key


async def test_a_batch_of_a_stream_is_shown_once(cluster: MemoryCluster, client: Client) -> None:
    await made(client)
    assert await write_job(client._context.ledgers, NAME, {-1: rows("a")}, sink=SinkBatch("q", 0))
    assert not await write_job(
        client._context.ledgers, NAME, {-1: rows("a")}, sink=SinkBatch("q", 0)
    )
    assert await write_job(client._context.ledgers, NAME, {-1: rows("b")}, sink=SinkBatch("q", 1))
    assert await write_job(
        client._context.ledgers, NAME, {-1: rows("c")}, sink=SinkBatch("other", 0)
    )
    assert await read_all(client, NAME) == ["a", "b", "c"]
    assert ledgers_count(cluster) == 3
    assert len(stored(cluster.store, SINKS)) == 2
    await client.topics.delete(NAME)
    assert stored(cluster.store, SINKS) == []


@pytest.mark.parametrize(
    ("again", "is_error"),
    [
        (SinkBatch("q", 7, "second", "/c", 2), False),  # a restart before Spark had noted it
        (SinkBatch("q", 7, "first", "", 3), False),  # Spark makes a batch of a run once
        (SinkBatch("q", 7), False),
        (SinkBatch("q", 7, "second", "/c", 3), True),
        (SinkBatch("q", 7, "second", "/copy", 2), True),
        (SinkBatch("q", 6, "second", "/c", 2), True),
        (SinkBatch("q", 0, "first", "/c", 2), True),
    ],
)
async def test_a_stream_whose_checkpoint_does_not_go_with_the_topic_is_told(
    cluster: MemoryCluster, client: Client, again: SinkBatch, is_error: bool
) -> None:
    """What is no repetition of the last batch would be lost without a word."""
    await made(client)
    last = SinkBatch("q", 7, "first", "/c", 2)
    assert await write_job(client._context.ledgers, NAME, {-1: rows("a", "b")}, sink=last)
    if is_error:
        with pytest.raises(ReplayConflict, match=r"up to batch 7 with 2 .* option sinkName"):
            await write_job(client._context.ledgers, NAME, {-1: rows("x")}, sink=again)
    else:
        assert not await write_job(client._context.ledgers, NAME, {-1: rows("x")}, sink=again)
    assert await read_all(client, NAME) == ["a", "b"]
    assert ledgers_count(cluster) == 1  # what was staged is given up
    assert await write_job(
        client._context.ledgers, NAME, {-1: rows("c")}, sink=SinkBatch("q", 8, "z", "/z", 1)
    )
    assert await read_all(client, NAME) == ["a", "b", "c"]


async def test_a_mark_that_is_damaged_is_told_and_nothing_is_shown(
    cluster: MemoryCluster, client: Client
) -> None:
    topic = await made(client)
    assert await write_job(client._context.ledgers, NAME, {-1: rows("a")}, sink=SinkBatch("q", 0))
    await client._context.store.put(sink_key(topic.uid, "q"), b"{")
    with pytest.raises(MetadataBroken, match="sinks/"):
        await write_job(client._context.ledgers, NAME, {-1: rows("b")}, sink=SinkBatch("q", 1))
    assert await read_all(client, NAME) == ["a"]
    assert ledgers_count(cluster) == 1


async def test_one_batch_shown_by_two_at_once_is_there_once(client: Client) -> None:
    await made(client)
    results: list[bool] = []

    async def show() -> None:
        results.append(
            await write_job(client._context.ledgers, NAME, {-1: rows("a")}, sink=SinkBatch("q", 3))
        )

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(show)
    assert sorted(results) == [False, False, True]
    assert await read_all(client, NAME) == ["a"]
