"""One partition compacted: its survivors are found, then written to staged ledgers.

    pass 1   all messages ──► Latest, a slice of the keys at a time ──► Survivors of each lane
    pass 2   entries with survivors ──► StagedLane of each lane

Memory is bounded: the table of keys, one bit for each message and some bytes for each entry
(EntryTable). If the keys do not fit the table, pass 1 is repeated for slices of them. Pass 1
records each entry's message count and the order before it, so that pass 2 can skip entries
without survivors and still give every message the same ordinal and order.

A tombstone removes its key and is dropped itself, unless another lane, of any partition, is still
written and an older message of the key may yet come from there. Then it stays until that lane is
compacted up to its time.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

import msgspec
import trio

from ledger_client.errors import Gap, MessagesLost, NoSuchLedger
from ledger_client.jobs.compaction.entries import (
    EntryMessages,
    StagedLane,
    compacted_messages,
    greatest_order,
    may_lack_keys,
    order_of,
    raw_messages,
    stage_lane,
)
from ledger_client.jobs.compaction.plan import (
    NEVER,
    CompactionPlan,
    LanePlan,
    PartitionPlan,
    PartitionResult,
    least_of_others,
)
from ledger_client.jobs.staging.job import JobStage
from ledger_client.topics.context import TopicContext
from ledger_client.topics.reading.range_reader import RangeEntries, RangeReader
from ledger_client.topics.reading.ranges import LedgerRange
from metadata.compaction import CompactedLedger
from native.columns import Binary, Columns
from native.errors import Full
from native.latest import MEMORY_MIN, Latest, Survivors

PASSED_SIZE = 4 << 20
"""Bytes between two entries with survivors above which they are skipped, not read."""

MEMORY_MAX = 256 << 20
"""Default size in bytes of a partition's table of keys."""
SLICES_MAX = 4096


class LaneSurvivors(msgspec.Struct):
    """The result of pass 1 for a lane."""

    lane: LanePlan
    table: EntryTable
    survivors: Survivors


class PartitionSurvivors(msgspec.Struct):
    """The result of pass 1 for a partition."""

    lanes: list[LaneSurvivors]
    keys: int
    """keys with a surviving message"""
    foreign: int
    """keys whose hash belongs to another partition"""


async def compact_partition(
    context: TopicContext,
    plan: CompactionPlan,
    partition: PartitionPlan,
    stage: JobStage,
    *,
    memory_max: int = MEMORY_MAX,
) -> PartitionResult:
    """Compact one partition by itself into staged ledgers.

    If it holds keys of other partitions, nothing is written; the result counts them.

    Args:
        context: of the cluster.
        plan: of the topic.
        partition: the partition.
        stage: the job's.
        memory_max: bytes of the table of keys.

    Raises:
        MessagesLost: a ledger of the generation before is gone.
        JobLost: the job's lease is over.
        LedgerError: as reading and writing.
    """
    own = len(partition.lanes) > 1 and any(lane.goes_on for lane in partition.lanes)
    may_stay = own or partition.floor < NEVER
    found = await find_survivors(
        context, plan, partition, memory_max=memory_max, tombstones=may_stay
    )
    result = result_of(partition, found)
    if found.foreign:
        return msgspec.structs.replace(result, foreign=found.foreign)
    floors = floors_of(found.lanes, partition) if may_stay else None
    return await write_survivors(context, plan, found, stage, result, floors=floors)


# --- pass 1 -----------------------------------------------------------------------


async def find_survivors(
    context: TopicContext,
    plan: CompactionPlan,
    partition: PartitionPlan,
    *,
    memory_max: int,
    tombstones: bool,
) -> PartitionSurvivors:
    """Find the latest message of each key; with *tombstones* these survive too.

    Raises as compact_partition().
    """
    found = [LaneSurvivors(lane, EntryTable(), Survivors(0)) for lane in partition.lanes]
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
            await _show(context, found, latest)
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
    return PartitionSurvivors(found, keys, foreign)


async def _show(context: TopicContext, found: Sequence[LaneSurvivors], latest: Latest) -> None:
    """Add all messages of a partition to a table."""
    for each in found:
        table = EntryTable()
        async with aclosing(read_all(context, each.lane, table)) as entries:
            async for messages in entries:
                latest.add(
                    messages.columns,
                    base=messages.base,
                    lane=each.lane.lane,
                    orders=messages.orders,
                )
        each.table = table
        if each.survivors.count != table.messages:
            each.survivors = Survivors(table.messages)


def _clear(found: Sequence[LaneSurvivors]) -> None:
    for each in found:
        each.survivors = Survivors(each.survivors.count)


# --- pass 2 -----------------------------------------------------------------------


def floors_of(lanes: Sequence[LaneSurvivors], partition: PartitionPlan) -> dict[int, int]:
    """Return for each lane of a partition the lowest order of the tombstones that stay."""
    floors = least_of_others(
        {each.lane.lane: each.table.last_order if each.lane.goes_on else NEVER for each in lanes}
    )
    return {lane: min(floor, partition.floor) for lane, floor in floors.items()}


def result_of(partition: PartitionPlan, found: PartitionSurvivors) -> PartitionResult:
    """Return the partition's result before anything is written."""
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
    context: TopicContext,
    plan: CompactionPlan,
    found: PartitionSurvivors,
    stage: JobStage,
    result: PartitionResult,
    *,
    floors: dict[int, int] | None,
) -> PartitionResult:
    """Write the survivors to staged ledgers; return *result* with these.

    *floors* has for each lane the lowest order of the tombstones that stay; `None` if pass 1
    left out tombstones.

    Raises as compact_partition().
    """
    ledgers: list[CompactedLedger] = []
    kept: dict[int, KeptTombstones] = {}
    for each in found.lanes:
        where = {"partition": each.lane.partition, "lane": each.lane.lane}
        async with stage_lane(context.ledgers, stage, **where, size=plan.ledger_size) as staged:
            kept[each.lane.lane] = await _write(context, plan, each, staged, floors)
        ledgers += staged.ledgers
    horizons = [
        msgspec.structs.replace(horizon, tombstone_order=kept[horizon.lane].order)
        for horizon in result.horizons
    ]
    return msgspec.structs.replace(
        result,
        horizons=tuple(horizons),
        ledgers=tuple(ledgers),
        tombstones=sum(each.count for each in kept.values()),
    )


class KeptTombstones(msgspec.Struct):
    """The tombstones among the survivors of a lane."""

    count: int = 0
    order: int | None = None
    """the greatest of theirs"""

    def add(self, order: int) -> None:
        """Count a tombstone."""
        self.count += 1
        self.order = order if self.order is None else max(order, self.order)


async def _write(
    context: TopicContext,
    plan: CompactionPlan,
    found: LaneSurvivors,
    staged: StagedLane,
    floors: dict[int, int] | None,
) -> KeptTombstones:
    """Write the survivors of a lane; return the tombstones among them."""
    keyless = plan.null_keys == "keep"
    kept = KeptTombstones()
    left = read_left(context, found.lane, found.table, found.survivors, keyless=keyless)
    async with aclosing(left) as entries:
        async for messages in entries:
            if keyless:
                found.survivors.keep_null_keys(messages.columns, messages.base)
            rows = found.survivors.rows(messages.base, messages.columns.count)
            if floors is not None:
                rows = _without_tombstones(messages, rows, floors[found.lane.lane], kept)
            if rows:
                await staged.add(messages, rows)
            await trio.lowlevel.checkpoint_if_cancelled()
    return kept


def _without_tombstones(
    messages: EntryMessages, rows: array[int], floor: int, kept: KeptTombstones
) -> array[int]:
    """Return *rows* without tombstones below *floor*; add the others to *kept*.

    A message without a key is not a tombstone, whatever its value.
    """
    gone: set[int] = set()
    for row in rows:
        if is_tombstone(messages.columns, row):
            order = order_of(messages, row)
            if order < floor:
                gone.add(row)
            else:
                kept.add(order)
    return array("I", [row for row in rows if row not in gone]) if gone else rows


def is_tombstone(columns: Columns, row: int) -> bool:
    """Whether a message has a key and no value, which deletes the key."""
    keys, values = columns.keys, columns.values
    return keys is not None and _is_there(keys, row) and _is_empty(values, row)


def _is_empty(strings: Binary, row: int) -> bool:
    return strings.offsets[row] == strings.offsets[row + 1] or not _is_there(strings, row)


def _is_there(strings: Binary, row: int) -> bool:
    validity = strings.validity
    return validity is None or bool(memoryview(validity)[row // 8] >> row % 8 & 1)


class EntryTable:
    """The figures that pass 1 recorded for each entry of a lane, in the order of reading."""

    def __init__(self) -> None:
        self.counts = array("I")
        """messages of the entry"""
        self.orders = array("q")
        """the greatest order before the entry"""
        self.keyless = bytearray()
        """1 if messages might have no key"""
        self.last_order = 0
        """the greatest order of the lane"""

    @property
    def messages(self) -> int:
        """The number of messages in the lane."""
        return sum(self.counts)

    def extend(self, count: int) -> int:
        """Add rows for *count* entries; return the index of the first."""
        first = len(self.counts)
        self.counts.frombytes(bytes(4 * count))
        self.orders.frombytes(bytes(8 * count))
        self.keyless += bytes(count)
        return first

    def note(self, at: int, messages: EntryMessages, order: int) -> None:
        """Count messages of the entry at an index; *order* is the greatest before them."""
        if not self.counts[at]:
            self.orders[at] = order
        self.counts[at] += messages.columns.count
        self.keyless[at] |= may_lack_keys(messages.columns)

    def order_from(self, place: int, count: int) -> int:
        """Return the order before the first message of these entries."""
        places = range(place, place + count)
        return next((self.orders[at] for at in places if self.counts[at]), 0)


async def read_all(
    context: TopicContext, lane: LanePlan, table: EntryTable
) -> AsyncGenerator[EntryMessages]:
    """Yield all messages of a lane, and note its entries in *table*, which must be empty.

    Raises:
        MessagesLost: a ledger of survivors is gone.
        Gap: a raw ledger was removed since planning.
        MessagesLost, EntryLost, ReplicasUnavailable, MetadataUnavailable: as RangeReader.batches().
    """
    order, base = lane.order_key, 0
    ranges = (*lane.before, *lane.raw)
    places = {ledger_range.ledger_id: table.extend(ledger_range.entries) for ledger_range in ranges}
    async with aclosing(_brought(context, lane, ranges)) as entries:
        async for brought in entries:
            first = places[brought.range.ledger_id]
            for messages in _messages(brought, base, order):
                table.note(first + messages.entry, messages, order)
                base += messages.columns.count
                order = max(order, greatest_order(messages))
                yield messages
    table.last_order = order


async def read_left(
    context: TopicContext, lane: LanePlan, table: EntryTable, survivors: Survivors, *, keyless: bool
) -> AsyncGenerator[EntryMessages]:
    """Yield the messages of entries with survivors, and of some entries between them.

    With *keyless* also those of entries that might have messages without a key. Raises as
    read_all().
    """
    cuts = list(_cuts(lane, table, survivors, keyless=keyless))
    following = iter(cuts)
    cut: _Cut | None = None
    base = 0
    async with aclosing(_brought(context, lane, [each.ledger_range for each in cuts])) as entries:
        async for brought in entries:
            while (
                cut is None or brought.range is not cut.ledger_range
            ):  # one may have no entries left
                cut = next(following)
                base = cut.base
            place = cut.place + brought.entries.first_entry - cut.ledger_range.first_entry
            count = len(brought.entries)
            for messages in _messages(brought, base, table.order_from(place, count)):
                yield messages
            base += sum(table.counts[place : place + count])


def _messages(brought: RangeEntries, base: int, order: int) -> Iterator[EntryMessages]:
    if brought.range.base_version < 0:
        return compacted_messages(brought, base)
    return raw_messages(brought, base, order)


async def _brought(
    context: TopicContext, lane: LanePlan, ranges: Sequence[LedgerRange]
) -> AsyncGenerator[RangeEntries]:
    compacted = {ledger_range.ledger_id for ledger_range in lane.before}
    try:
        async with RangeReader(context).entries(ranges) as brought:
            async for each in brought:
                yield each
    except NoSuchLedger as gone:
        if gone.ledger_id not in compacted:
            raise
        raise _set_lost(lane, gone.ledger_id or 0) from gone
    except Gap as gap:
        if gap.position.ledger_id not in compacted:
            raise
        raise _set_lost(lane, gap.position.ledger_id) from gap


def _set_lost(lane: LanePlan, ledger_id: int) -> MessagesLost:
    topic = lane.before[0].topic
    return MessagesLost.compacted(
        topic,
        reason=f"ledger {ledger_id} of its compacted set is gone; what is retained can be compacted"
        f" anew: quire compact {topic} --drop, then quire compact {topic}",
        ledger_id=ledger_id,
    )


# --- skipping ---------------------------------------------------------------------


class _Cut(NamedTuple):
    """Entries read by pass 2, the first one's index in the table, and its first ordinal."""

    ledger_range: LedgerRange
    place: int
    base: int


def _cuts(
    lane: LanePlan, table: EntryTable, survivors: Survivors, *, keyless: bool
) -> Iterator[_Cut]:
    place = base = 0
    for ledger_range in (*lane.before, *lane.raw):
        passed = max(1, PASSED_SIZE * ledger_range.entries // max(ledger_range.size, 1))
        first = last = -1
        first_base = 0
        for at in range(place, place + ledger_range.entries):
            count = table.counts[at]
            if count and (_any_left(survivors, base, count) or (keyless and table.keyless[at])):
                if first >= 0 and at - last > passed:
                    yield _cut(ledger_range, place, first, last, first_base)
                    first = -1
                if first < 0:
                    first, first_base = at, base
                last = at
            base += count
        if first >= 0:
            yield _cut(ledger_range, place, first, last, first_base)
        place += ledger_range.entries


def _cut(ledger_range: LedgerRange, place: int, first: int, last: int, base: int) -> _Cut:
    entries = first - place, last - place
    part = msgspec.structs.replace(ledger_range, first_entry=entries[0], last_entry=entries[1])
    return _Cut(part, first, base)


def _any_left(survivors: Survivors, base: int, count: int) -> bool:
    """Whether one of these may survive; checks whole bytes, so neighbours count too."""
    start, stop = base // 8, (base + count + 7) // 8
    return survivors.bits.count(0, start, stop) < stop - start
