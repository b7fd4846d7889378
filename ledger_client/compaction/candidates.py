"""Keys that are in several partitions: the latest message of each, of all partitions together.

    partition ──► pass 1 ──► Candidates ──┐
    partition ──► pass 1 ──► Candidates ──┼──► of each key the winner ──► Survivors ──► pass 2
    partition ──► pass 1 ──► Candidates ──┘

A candidate is the latest message of a key in its partition, a tombstone or not. The winner is
that of the greatest order, and among equals that of the greatest partition, and lane.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

from ledger_client.compaction.partition import PartitionFound, is_tombstone
from ledger_client.compaction.portions import Portion, order_of
from ledger_client.compaction.scan import read_left
from ledger_client.topics.client import TopicClient
from native.latest import Survivors


class Candidate(NamedTuple):
    """The latest message of a key in a partition."""

    key: bytes
    order: int
    partition: int
    lane: int
    ordinal: int
    tombstone: bool


async def candidates(client: TopicClient, found: PartitionFound) -> AsyncGenerator[list[Candidate]]:
    """Yield the candidates of a partition, some at a time; *found* is with tombstones.

    Raises as find_survivors().
    """
    for each in found.lanes:
        place = each.lane.partition, each.lane.lane
        left = read_left(client, each.lane, each.table, each.survivors, keyless=False)
        async with aclosing(left) as portions:
            async for portion in portions:
                some = _candidates(portion, each.survivors, place)
                if some:
                    yield some


def _candidates(portion: Portion, survivors: Survivors, place: tuple[int, int]) -> list[Candidate]:
    keys = portion.columns.keys
    if keys is None:
        return []
    data, offsets = bytes(keys.data), keys.offsets
    return [
        Candidate(
            data[offsets[row] : offsets[row + 1]],
            order_of(portion, row),
            *place,
            portion.base + row,
            is_tombstone(portion.columns, row),
        )
        for row in survivors.rows(portion.base, portion.columns.count)
    ]


def leave_only(found: PartitionFound) -> None:
    """Forget the survivors of a partition; winners are marked anew."""
    for each in found.lanes:
        each.survivors = Survivors(each.survivors.count)


def mark_winner(survivors: Survivors, ordinal: int) -> None:
    """Let the message of an ordinal be left."""
    survivors.bits[ordinal >> 3] |= 1 << (ordinal & 7)
    survivors.marked += 1
