"""A compaction in this process, one partition after the other.

If keys are in several partitions, their latest messages compete:

    partition ──► pass 1 ──► Candidates ──┐
    partition ──► pass 1 ──► Candidates ──┼──► the winner of each key ──► Survivors ──► pass 2
    partition ──► pass 1 ──► Candidates ──┘

A candidate is the latest message of a key in its partition, tombstone or not. The greatest order
wins; among equals the greatest partition, then the greatest lane. The candidates are compared in
a database in a temporary folder, one row for each key, so memory is bounded by its cache. The
database is never synced.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import trio

from ledger_client.jobs.compaction.entries import EntryMessages, order_of
from ledger_client.jobs.compaction.partition import (
    MEMORY_MAX,
    PartitionSurvivors,
    compact_partition,
    find_survivors,
    floors_of,
    is_tombstone,
    read_left,
    result_of,
    write_survivors,
)
from ledger_client.jobs.compaction.plan import (
    CompactionPlan,
    OnProgress,
    PartitionPlan,
    PartitionResult,
)
from ledger_client.jobs.staging.job import JobStage
from ledger_client.topics.context import TopicContext
from native.latest import Survivors

CACHE_KIB = 65_536
PAGE_ROWS = 10_000
_TABLE = """
CREATE TABLE winners (
    key BLOB PRIMARY KEY, place INTEGER, part INTEGER, lane INTEGER, ordinal INTEGER,
    tombstone INTEGER
) WITHOUT ROWID
"""
_ADD = """
INSERT INTO winners VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET place = excluded.place, part = excluded.part,
    lane = excluded.lane, ordinal = excluded.ordinal, tombstone = excluded.tombstone
WHERE (excluded.place, excluded.part, excluded.lane) > (place, part, lane)
"""


class LocalRunner:
    """Compacts partitions in this process; see Runner in job.py.

    Args:
        context: of the cluster.
        memory_max: bytes of the table of keys.
    """

    engine: Literal["spark", "process"] = "process"

    def __init__(self, context: TopicContext, *, memory_max: int = MEMORY_MAX) -> None:
        self._context = context
        self._memory_max = memory_max

    async def separately(
        self, plan: CompactionPlan, stage: JobStage, on_progress: OnProgress
    ) -> list[PartitionResult]:
        """Compact one partition after the other, and stop at the first with keys of another.

        Raises as compact_partition().
        """
        results: list[PartitionResult] = []
        for done, partition in enumerate(plan.partitions):
            result = await compact_partition(
                self._context, plan, partition, stage, memory_max=self._memory_max
            )
            results.append(result)
            if result.foreign:
                break
            on_progress((done + 1) / len(plan.partitions))
        return results

    async def together(
        self, plan: CompactionPlan, stage: JobStage, on_progress: OnProgress
    ) -> list[PartitionResult]:
        """See Runner. Raises as compact_partition(), and OSError for the local disk."""
        results: list[PartitionResult] = []
        half = 0.5 / max(len(plan.partitions), 1)
        with open_winners() as winners:
            found: list[PartitionSurvivors] = []
            for partition in plan.partitions:
                found.append(await self._candidates(plan, partition, winners))
                on_progress(len(found) * half)
            keys = await trio.to_thread.run_sync(partial(_mark, found, winners))
        for partition, each in zip(plan.partitions, found, strict=True):
            each.keys = keys.get(partition.partition, 0)
            result = result_of(partition, each)
            floors = floors_of(each.lanes, partition)
            result = await write_survivors(self._context, plan, each, stage, result, floors=floors)
            results.append(msgspec.structs.replace(result, foreign=each.foreign))
            on_progress(0.5 + len(results) * half)
        return results

    async def _candidates(
        self, plan: CompactionPlan, partition: PartitionPlan, winners: Winners
    ) -> PartitionSurvivors:
        found = await find_survivors(
            self._context, plan, partition, memory_max=self._memory_max, tombstones=True
        )
        async with aclosing(candidates(self._context, found)) as pages:
            async for some in pages:
                await trio.to_thread.run_sync(winners.add, some)
        leave_only(found)
        return found


def _mark(found: Sequence[PartitionSurvivors], winners: Winners) -> dict[int, int]:
    """Mark the winners as survivors; return each partition's number of keys with a value."""
    lanes = {
        (each.lane.partition, each.lane.lane): each.survivors
        for partition in found
        for each in partition.lanes
    }
    keys: dict[int, int] = {}
    for page in winners.pages():
        for winner in page:
            mark_winner(lanes[winner.partition, winner.lane], winner.ordinal)
            if not winner.tombstone:
                keys[winner.partition] = keys.get(winner.partition, 0) + 1
    return keys


class Winners:
    """The best candidate of each key so far. Calls block: make them in a thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add(self, some: Sequence[Candidate]) -> None:
        """Replace each key's candidate if the new one wins.

        Raises:
            OSError: the disk is full, or fails.
        """
        try:
            self._connection.executemany(_ADD, some)
        except sqlite3.Error as error:
            raise OSError(f"the scratch of a compaction: {error}") from error

    def pages(self) -> Iterator[list[Candidate]]:
        """Yield pages of winners, without their keys. Raises as add()."""
        try:
            rows = self._connection.execute(
                "SELECT x'', place, part, lane, ordinal, tombstone FROM winners"
            )
            while page := rows.fetchmany(PAGE_ROWS):
                yield [Candidate(*row) for row in page]
        except sqlite3.Error as error:
            raise OSError(f"the scratch of a compaction: {error}") from error


@contextmanager
def open_winners() -> Iterator[Winners]:
    """Open an empty Winners for the block; its files are deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="quire-compact-") as folder:
        connection = sqlite3.connect(
            Path(folder) / "winners.db", isolation_level=None, check_same_thread=False
        )
        try:
            for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{CACHE_KIB}"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute(_TABLE)
            yield Winners(connection)
        finally:
            connection.close()


class Candidate(NamedTuple):
    """The latest message of a key in a partition."""

    key: bytes
    order: int
    partition: int
    lane: int
    ordinal: int
    tombstone: bool


async def candidates(
    context: TopicContext, found: PartitionSurvivors
) -> AsyncGenerator[list[Candidate]]:
    """Yield pages of a partition's candidates; *found* must include tombstones.

    Raises as find_survivors().
    """
    for each in found.lanes:
        place = each.lane.partition, each.lane.lane
        left = read_left(context, each.lane, each.table, each.survivors, keyless=False)
        async with aclosing(left) as entries:
            async for messages in entries:
                some = _candidates(messages, each.survivors, place)
                if some:
                    yield some


def _candidates(
    messages: EntryMessages, survivors: Survivors, place: tuple[int, int]
) -> list[Candidate]:
    keys = messages.columns.keys
    if keys is None:
        return []
    data, offsets = bytes(keys.data), keys.offsets
    return [
        Candidate(
            data[offsets[row] : offsets[row + 1]],
            order_of(messages, row),
            *place,
            messages.base + row,
            is_tombstone(messages.columns, row),
        )
        for row in survivors.rows(messages.base, messages.columns.count)
    ]


def leave_only(found: PartitionSurvivors) -> None:
    """Clear the survivors of a partition, so that only winners are marked."""
    for each in found.lanes:
        each.survivors = Survivors(each.survivors.count)


def mark_winner(survivors: Survivors, ordinal: int) -> None:
    """Mark the message at an ordinal as a survivor."""
    survivors.bits[ordinal >> 3] |= 1 << (ordinal & 7)
    survivors.marked += 1
