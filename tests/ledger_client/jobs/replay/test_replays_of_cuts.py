"""Replays that begin or end at a cut. D-02."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from memory_cluster import memory_cluster
from replay_rig import SOURCE, TARGET, copied_fields, read
from trio.testing import MockClock

from ledger_client.errors import BadCut
from metadata.topics import RollPolicy


async def test_a_replay_of_a_cut_copies_its_messages_whatever_came_later(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Into a topic and into Parquet, and what came after it by another replay."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1", has_ticks=True)
        await client.topics.create(SOURCE, 2, timesync=True, roll=RollPolicy(entries=3))
        for part in ("before", "after"):
            async with client.producer(SOURCE) as producer:
                for number in range(10):
                    await producer.send(f"{part} {number}".encode(), key=b"%d" % number)
            if part == "before":
                await client.cuts.create("noon", SOURCE)
        await client.topics.create(TARGET, 2)
        report = await client.replay(SOURCE, TARGET, ending_cut="noon", verify=True)
        assert report.messages == 10
        wanted = await read(client, SOURCE, ending_cut="noon")
        found = await read(client, TARGET)
        assert sorted(map(copied_fields, found), key=repr) == sorted(
            map(copied_fields, wanted), key=repr
        )
        again = await client.replay(SOURCE, TARGET, ending_cut="noon")
        assert again.finished_before
        rest = await client.replay(SOURCE, TARGET, starting_cut="noon")
        assert rest.messages == 10
        assert len(await read(client, TARGET)) == 20
        await client.replay(SOURCE, tmp_path / "files", ending_cut="noon")
        rows = pq.read_table(tmp_path / "files", columns=["value"]).column("value").to_pylist()
        assert sorted(rows) == sorted(message.value or b"" for message in wanted)
        with pytest.raises(BadCut, match="none of this name"):
            await client.replay(SOURCE, TARGET, ending_cut="night")
