"""Entries of survivors fit a frame, whatever their messages and places are."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from ledger_client.jobs.compaction.entries import ENTRY_COUNT, StagedLane
from ledger_client.jobs.staging.job import JobStage
from metadata.topics import TopicRecord
from native import compacted
from native.batch import Columns
from native.compacted import Origin


class Single:
    """A messages in which every message was an entry of its own."""

    def __init__(self, first: int, count: int, *, name_size: int = 0) -> None:
        self.columns = Columns.of([b""] * count, keys=[b"%d" % i for i in range(count)])
        self.first = first
        self.name_size = name_size

    def origins(self, rows: array[int]) -> list[Origin]:
        """See EntryMessages."""
        name = f"{self.first}" + "x" * self.name_size if self.name_size else ""
        return [Origin(0, 1, self.first + i, producer=name) for i in rows]

    def indexes(self, rows: array[int]) -> list[int]:
        """See EntryMessages."""
        return [-1] * len(rows)


class Collected(StagedLane):
    """A lane whose entries are not written."""

    payloads: list[bytes]

    async def _append(self) -> None:
        self.payloads = [*getattr(self, "payloads", []), *self._ready]
        self._ready = []

    async def _seal(self) -> None:
        pass


async def written(entries: list[Any]) -> list[compacted.Compacted]:
    """Return the entries of all messages of *entries*."""
    stage = JobStage(topic=TopicRecord(name="a/b", uid=1), job_id="j")
    lane = Collected(None, stage, partition=-1, lane=0, size=1 << 40)  # type: ignore[arg-type] # not asked
    for messages in entries:
        await lane.add(messages, array("I", range(messages.columns.count)))
    await lane.finish()
    return [compacted.decode(payload) for payload in lane.payloads]


@pytest.mark.parametrize("step", [1000, 70_000])
async def test_messages_with_an_origin_each_are_divided_into_entries_that_fit(step: int) -> None:
    total = 140_000
    entries = await written([Single(at, step) for at in range(0, total, step)])
    assert max(entry.header.count for entry in entries) <= ENTRY_COUNT
    places = [origin for entry in entries for origin in entry.origins.entry_ids]
    assert places == list(range(total))


async def test_long_names_of_many_producers_end_an_entry() -> None:
    entries = await written([Single(at, 1, name_size=60_000) for at in range(12)])
    assert [entry.header.count for entry in entries] == [5, 5, 2]
    names = [name for entry in entries for name in entry.origins.names]
    assert [int(name.rstrip("x")) for name in names] == list(range(12))
