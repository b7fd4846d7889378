"""One partition compacted: its survivors found, then written to staged ledgers.

    pass 1   all messages ──► Latest, a slice of the keys at a time ──► Survivors of each lane
    pass 2   entries with survivors ──► StagedLane of each lane

Memory is bounded by that of the table, a bit for each message and some bytes for each entry:
when the keys do not fit the table, pass 1 is made again for slices of them.

A tombstone removes its key and goes itself, unless an older message of the key may come to
light later: from another lane of the partition that is being written. Then it stays until
that lane is compacted up to its time.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import aclosing

import msgspec
import trio

from ledger_client.compaction.plan import CompactionPlan, LanePlan, PartitionPlan
from ledger_client.compaction.portions import Portion, order_of
from ledger_client.compaction.scan import EntryTable, read_all, read_left
from ledger_client.compaction.staged_lane import StagedLane, stage_lane
from ledger_client.topics.client import TopicClient
from ledger_client.topics.jobs.staging import JobStage
from metadata.compaction import CompactedLedger, Horizon
from native.columns import Binary, Columns
from native.errors import Full
from native.latest import MEMORY_MIN, Latest, Survivors

MEMORY_MAX = 256 << 20
"""Bytes of a partition's table of keys, where nothing else is said."""
SLICES_MAX = 4096
NEVER = 1 << 63
"""Greater than every order."""


class Found(msgspec.Struct):
    """What pass 1 found out of a lane."""

    lane: LanePlan
    table: EntryTable
    survivors: Survivors


class PartitionFound(msgspec.Struct):
    """What pass 1 found out of a partition."""

    lanes: list[Found]
    keys: int
    """with a message that is left; of all slices"""
    foreign: int
    """keys of other partitions, by their hash"""


class PartitionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a partition. Plain values."""

    partition: int
    horizons: tuple[Horizon, ...] = ()
    ledgers: tuple[CompactedLedger, ...] = ()
    keys: int = 0
    messages_in: int = 0
    bytes_in: int = 0
    ranges: int = 0
    tombstones: int = 0
    foreign: int = 0
    """keys of other partitions; more than none: nothing was written, unless asked for"""


async def compact_partition(
    client: TopicClient,
    plan: CompactionPlan,
    partition: PartitionPlan,
    stage: JobStage,
    *,
    memory_max: int = MEMORY_MAX,
) -> PartitionResult:
    """Compact one partition, whose keys are in no other; nothing is shown to readers.

    Where keys of other partitions are met, nothing is written, and the result counts them.

    Args:
        client: connected to the cluster.
        plan: of the topic.
        partition: which one of it.
        stage: the job's.
        memory_max: bytes of the table of keys.

    Raises:
        CompactedLost: a ledger of the former generation is gone.
        JobLost: the job's lease is over.
        LedgerError: as reading and writing.
    """
    may_stay = len(partition.lanes) > 1 and any(lane.goes_on for lane in partition.lanes)
    found = await find_survivors(
        client, plan, partition, memory_max=memory_max, tombstones=may_stay
    )
    result = result_of(partition, found)
    if found.foreign:
        return msgspec.structs.replace(result, foreign=found.foreign)
    floors = floors_of(found.lanes) if may_stay else None
    return await write_survivors(client, plan, found, stage, result, floors=floors)


# --- pass 1 -----------------------------------------------------------------------


async def find_survivors(
    client: TopicClient,
    plan: CompactionPlan,
    partition: PartitionPlan,
    *,
    memory_max: int,
    tombstones: bool,
) -> PartitionFound:
    """Return which messages of a partition are the latest of their key; *tombstones*: these, too.

    Raises as compact_partition().
    """
    found = [Found(lane, EntryTable(), Survivors(0)) for lane in partition.lanes]
    slices, at = 1, 0
    keys = foreign = 0
    while at < slices:
        latest = Latest(
            memory_max=max(memory_max, MEMORY_MIN),
            slices=slices,
            slice_index=at,
            partitions=plan.topic.partitions,
            partition=max(partition.partition, 0),
        )
        try:
            await _show(client, found, latest)
        except Full:
            if slices >= SLICES_MAX:
                raise
            slices, at = 2 * slices, 0
            keys = foreign = 0
            _clear(found)
            continue
        state = latest.state
        keys, foreign = keys + state.keys - state.tombstones, foreign + state.foreign
        for each in found:
            latest.mark(each.survivors, lane=each.lane.lane, tombstones=tombstones)
        at += 1
    return PartitionFound(found, keys, foreign)


async def _show(client: TopicClient, found: Sequence[Found], latest: Latest) -> None:
    """Show a table all messages of a partition."""
    for each in found:
        table = EntryTable()
        async with aclosing(read_all(client, each.lane, table)) as portions:
            async for portion in portions:
                latest.add(
                    portion.columns, base=portion.base, lane=each.lane.lane, orders=portion.orders
                )
        each.table = table
        if each.survivors.count != table.messages:
            each.survivors = Survivors(table.messages)


def _clear(found: Sequence[Found]) -> None:
    for each in found:
        each.survivors = Survivors(each.survivors.count)


# --- pass 2 -----------------------------------------------------------------------


def floors_of(lanes: Sequence[Found], others: Sequence[LanePlan] = ()) -> dict[int, int]:
    """Return for each lane the order from which on its tombstones stay.

    *others* are lanes of other partitions in which its keys may be, too.
    """
    floors: dict[int, int] = {}
    for each in lanes:
        orders = [one.table.last_order for one in lanes if one is not each and one.lane.goes_on]
        orders += [one.order_key for one in others if one.goes_on]
        floors[each.lane.lane] = min(orders, default=NEVER)
    return floors


def result_of(partition: PartitionPlan, found: PartitionFound) -> PartitionResult:
    """Return what is known of a partition before anything is written."""
    horizons = [
        msgspec.structs.replace(each.lane.horizon, order_key=each.table.last_order)
        for each in found.lanes
        if each.lane.horizon is not None
    ]
    return PartitionResult(
        partition=partition.partition,
        horizons=tuple(horizons),
        keys=found.keys,
        messages_in=sum(each.survivors.count for each in found.lanes),
        bytes_in=partition.size,
        ranges=len(horizons),
    )


async def write_survivors(
    client: TopicClient,
    plan: CompactionPlan,
    found: PartitionFound,
    stage: JobStage,
    result: PartitionResult,
    *,
    floors: dict[int, int] | None,
) -> PartitionResult:
    """Write what pass 1 found to staged ledgers; return *result* with these.

    Of each lane, tombstones stay from the order on that *floors* says; None: there are none.

    Raises as compact_partition().
    """
    ledgers: list[CompactedLedger] = []
    tombstones = 0
    for each in found.lanes:
        where = {"partition": each.lane.partition, "lane": each.lane.lane}
        async with stage_lane(client, stage, **where, size=plan.ledger_size) as staged:
            tombstones += await _write(client, plan, each, staged, floors)
        ledgers += staged.ledgers
    return msgspec.structs.replace(result, ledgers=tuple(ledgers), tombstones=tombstones)


async def _write(
    client: TopicClient,
    plan: CompactionPlan,
    found: Found,
    staged: StagedLane,
    floors: dict[int, int] | None,
) -> int:
    """Write the survivors of a lane; return how many tombstones stay."""
    keyless = plan.null_keys == "keep"
    tombstones = 0
    left = read_left(client, found.lane, found.table, found.survivors, keyless=keyless)
    async with aclosing(left) as portions:
        async for portion in portions:
            if keyless:
                found.survivors.keep_null_keys(portion.columns, portion.base)
            rows = found.survivors.rows(portion.base, portion.columns.count)
            if floors is not None:
                rows, kept = _without_tombstones(portion, rows, floors[found.lane.lane])
                tombstones += kept
            if rows:
                await staged.add(portion, rows)
            await trio.lowlevel.checkpoint_if_cancelled()
    return tombstones


def _without_tombstones(portion: Portion, rows: array[int], floor: int) -> tuple[array[int], int]:
    """Return *rows* without tombstones whose order is below *floor*, and how many others stay.

    A message without a key is none, whatever its value.
    """
    empty = [row for row in rows if is_tombstone(portion.columns, row)]
    if not empty:
        return rows, 0
    gone = {row for row in empty if order_of(portion, row) < floor}
    return array("I", [row for row in rows if row not in gone]), len(empty) - len(gone)


def is_tombstone(columns: Columns, row: int) -> bool:
    """Whether a message says that nothing is left of its key."""
    keys, values = columns.keys, columns.values
    return keys is not None and _is_there(keys, row) and _is_empty(values, row)


def _is_empty(strings: Binary, row: int) -> bool:
    return strings.offsets[row] == strings.offsets[row + 1] or not _is_there(strings, row)


def _is_there(strings: Binary, row: int) -> bool:
    validity = strings.validity
    return validity is None or bool(memoryview(validity)[row // 8] >> row % 8 & 1)
