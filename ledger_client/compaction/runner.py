"""Who does the work of a compaction, partition by partition; here: this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Literal, Protocol

import msgspec
import trio

from ledger_client.compaction.candidates import candidates, leave_only, mark_winner
from ledger_client.compaction.partition import (
    MEMORY_MAX,
    PartitionFound,
    PartitionResult,
    compact_partition,
    find_survivors,
    floors_of,
    result_of,
    write_survivors,
)
from ledger_client.compaction.plan import CompactionPlan, LanePlan, PartitionPlan
from ledger_client.compaction.winners import Winners, open_winners
from ledger_client.topics.client import TopicClient
from ledger_client.topics.jobs.staging import JobStage

Told = Callable[[float], None]
"""Is told which part of the work is done."""


class Runner(Protocol):
    """Compacts the partitions of a plan; what it writes is staged."""

    @property
    def engine(self) -> Literal["spark", "process"]:
        """What it is, for the report."""

    async def separately(
        self, plan: CompactionPlan, stage: JobStage, told: Told
    ) -> list[PartitionResult]:
        """Compact each partition by itself.

        Where one has keys of another, nothing may be written; results tell.
        """

    async def together(
        self, plan: CompactionPlan, stage: JobStage, told: Told
    ) -> list[PartitionResult]:
        """Compact all partitions, keys of which may be in several."""


class LocalRunner:
    """This process, one partition after the other.

    Args:
        client: connected to the cluster.
        memory_max: bytes of the table of keys.
    """

    engine: Literal["spark", "process"] = "process"

    def __init__(self, client: TopicClient, *, memory_max: int = MEMORY_MAX) -> None:
        self._client = client
        self._memory_max = memory_max

    async def separately(
        self, plan: CompactionPlan, stage: JobStage, told: Told
    ) -> list[PartitionResult]:
        """See Runner. Raises as compact_partition()."""
        results: list[PartitionResult] = []
        for done, partition in enumerate(plan.partitions):
            result = await compact_partition(
                self._client, plan, partition, stage, memory_max=self._memory_max
            )
            results.append(result)
            if result.foreign:
                break
            told((done + 1) / len(plan.partitions))
        return results

    async def together(
        self, plan: CompactionPlan, stage: JobStage, told: Told
    ) -> list[PartitionResult]:
        """See Runner. Raises as compact_partition(), and OSError for the local disk."""
        results: list[PartitionResult] = []
        half = 0.5 / max(len(plan.partitions), 1)
        with open_winners() as winners:
            found: list[PartitionFound] = []
            for partition in plan.partitions:
                found.append(await self._candidates(plan, partition, winners))
                told(len(found) * half)
            keys = await trio.to_thread.run_sync(partial(_mark, found, winners))
        for partition, each in zip(plan.partitions, found, strict=True):
            each.keys = keys.get(partition.partition, 0)
            result = result_of(partition, each)
            floors = floors_of(each.lanes, elsewhere(plan, partition.partition))
            result = await write_survivors(self._client, plan, each, stage, result, floors=floors)
            results.append(msgspec.structs.replace(result, foreign=each.foreign))
            told(0.5 + len(results) * half)
        return results

    async def _candidates(
        self, plan: CompactionPlan, partition: PartitionPlan, winners: Winners
    ) -> PartitionFound:
        found = await find_survivors(
            self._client, plan, partition, memory_max=self._memory_max, tombstones=True
        )
        async with aclosing(candidates(self._client, found)) as pages:
            async for some in pages:
                await trio.to_thread.run_sync(winners.add, some)
        leave_only(found)
        return found


def elsewhere(plan: CompactionPlan, partition: int) -> Sequence[LanePlan]:
    """Return the lanes of all partitions but one."""
    others = [each for each in plan.partitions if each.partition != partition]
    return [*plan.others, *(lane for each in others for lane in each.lanes)]


def _mark(found: Sequence[PartitionFound], winners: Winners) -> dict[int, int]:
    """Let winners be left; return how many of each partition are no tombstones."""
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
