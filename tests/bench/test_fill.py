"""What benchmarks write before they read it: as much as they were told."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_cluster import memory_cluster

from ledger_client.commands.bench import read, replay
from ledger_client.commands.bench.disk import Floor, GroupFloor
from ledger_client.commands.bench.load import Percentiles
from ledger_client.commands.bench.read import ReadPlan
from ledger_client.commands.bench.replay import FROM, ReplayPlan

GROUP = GroupFloor(4096, 1.0, Percentiles(1.0, 1.0, 1.0))
FLOOR = Floor(GROUP, [GROUP], 1.0, direct=True, folder="/", in_memory=False)


@pytest.mark.parametrize("messages", [100, 10_000, 10_001])
async def test_a_replay_in_order_of_event_time_has_the_messages_it_was_told(
    tmp_path: Path, messages: int
) -> None:
    plan = ReplayPlan(
        bookies=1,
        partitions=1,
        message_size=1,
        messages=messages,
        order="event-time",
        verify=False,
        folder=tmp_path,
        floor_size=0,
    )
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await replay._fill(client, plan)
        assert (await client.topics.explain(FROM)).extent.messages == messages


async def test_the_size_of_the_ledger_is_that_of_what_was_written(tmp_path: Path) -> None:
    plan = ReadPlan(
        sequential=True,
        entry_size=100,
        size=1050,
        reads=1,
        outstanding=1,
        bookies=1,
        folder=tmp_path,
        floor_size=0,
    )
    async with (
        memory_cluster(1) as cluster,
        cluster.client() as client,
        client.ledgers.open(await read._fill(client, plan)) as reader,
    ):
        result = await read._read(plan, FLOOR, [], reader)
    assert (result.entries, result.ledger_bytes) == (10, 1000)
