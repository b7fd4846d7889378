"""The plan of a compaction, fixed before it begins. Plain values, pickled for any process.

Of each lane it reads the ledgers of survivors from the generation before, and the closed ledgers
after that generation's horizon. A partition without new ledgers is left as it is, unless its keys
may have moved to other partitions, messages without keys are no longer kept, or its tombstones can
go.

An older message of a key may yet come from any lane that is written, also in another partition: a
message can name its partition, and the topic may have had fewer. The lane's messages to come are no
older than its greatest order so far. The least of these orders over all lanes but one is the floor
of that one: its tombstones below the floor can go.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from heapq import nsmallest
from itertools import groupby
from typing import Literal

import msgspec

from ledger_client.errors import TopicError
from ledger_client.topics.reading.ranges import LedgerRange
from ledger_client.topics.retention.holdings import HeldLedger, LaneHoldings, read_holdings
from metadata.compaction import (
    HORIZONS_MAX,
    ORDER_MIN,
    CompactedLedger,
    CompactedSet,
    Horizon,
    SetAt,
)
from metadata.store import MetadataStore
from metadata.topics import TopicRecord

LEDGER_SIZE = 100_000_000
"""Payload bytes of a ledger of survivors; larger if a set would list too many ledgers."""
LEDGERS_WANTED = 8000
NEVER = 1 << 63
"""Greater than every order."""
NullKeys = Literal["keep", "drop"]
OnProgress = Callable[[float], None]
"""Called with the fraction of the work that is done, from 0 to 1."""


class LanePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The ledgers to be read of one lane."""

    partition: int
    lane: int
    before: tuple[LedgerRange, ...]
    """ledgers of survivors"""
    raw: tuple[LedgerRange, ...]
    """closed ledgers after the horizon"""
    horizon: Horizon | None
    """the end of *raw*, with the order of the generation before; `None` if nothing is read"""
    goes_on: bool
    """the lane is still written, so it may yet get messages older than those read"""
    is_cleared: bool = False
    """the lane was deleted, so its survivors go"""

    @property
    def order_key(self) -> int:
        """The greatest order in the generation before."""
        return ORDER_MIN if self.horizon is None else self.horizon.order_key

    @property
    def lowest_order(self) -> int:
        """No message to come is older than this; NEVER if none comes."""
        return self.order_key if self.goes_on else NEVER

    @property
    def tombstone_order(self) -> int:
        """The greatest order of the tombstones in the generation before; NEVER if it has none."""
        kept = None if self.horizon is None else self.horizon.tombstone_order
        return NEVER if kept is None else kept

    @property
    def size(self) -> int:
        """Payload bytes to be read: survivors and new closed ledgers."""
        return sum(ledger_range.size for ledger_range in (*self.before, *self.raw))


class PartitionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The lanes of one partition, those without new ledgers included."""

    partition: int
    lanes: tuple[LanePlan, ...]
    floor: int
    """no message to come in another partition is older than this; NEVER if none comes"""
    has_news: bool

    @property
    def size(self) -> int:
        """Payload bytes to be read from all of its lanes."""
        return sum(lane.size for lane in self.lanes)


class CompactionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions of a topic to be compacted, and how."""

    topic: TopicRecord
    null_keys: NullKeys
    partitions: tuple[PartitionPlan, ...]
    """the partitions with new ledgers; all if a key may be in any of them"""
    pins: tuple[tuple[int, int, int], ...]
    """partition, lane and first ledger number of what must stay meanwhile"""
    others: tuple[LanePlan, ...] = ()
    """lanes of the partitions left as they are"""
    is_foreign: bool = False
    """an earlier run found a key outside its partition; keys are then compared across all"""
    is_first: bool = False
    """the topic has no set yet"""

    @property
    def pinned(self) -> frozenset[tuple[int, int]]:
        """Partition and lane of all that must stay meanwhile."""
        return frozenset((partition, lane) for partition, lane, _ in self.pins)

    @property
    def has_news(self) -> bool:
        """Whether any partition has something to compact."""
        return any(each.has_news for each in self.partitions)

    @property
    def size(self) -> int:
        """Payload bytes to be read from all partitions, the measure of progress."""
        return sum(each.size for each in self.partitions)

    @property
    def ledger_size(self) -> int:
        """Payload bytes at which a ledger of survivors ends; it grows with the topic."""
        return max(LEDGER_SIZE, self.size // LEDGERS_WANTED)


class PartitionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one partition. Plain values."""

    partition: int
    horizons: tuple[Horizon, ...] = ()
    ledgers: tuple[CompactedLedger, ...] = ()
    keys: int = 0
    messages_in: int = 0
    bytes_in: int = 0
    ranges: int = 0
    tombstones: int = 0
    foreign: int = 0
    """keys of other partitions; if there are any, compact_partition() wrote nothing"""


async def plan_compaction(
    store: MetadataStore,
    topic: TopicRecord,
    found: SetAt | None,
    *,
    null_keys: NullKeys | None = None,
    everything: bool = False,
    pinned: Container[tuple[int, int]] | None = None,
) -> CompactionPlan:
    """Return the plan for compacting a topic.

    Args:
        store: the metadata store.
        topic: the topic.
        found: its compacted set, or `None`.
        null_keys: "keep" or "drop" messages without a key; by default as before, at first "drop".
        everything: include partitions without new ledgers.
        pinned: take new ledgers only from these lanes; by default from all.

    Raises:
        TopicError: more lanes than a set can list.
        MetadataError: as every call to the store.
    """
    # Partitions added since the topic was read are left to the next run.
    holdings = [each for each in await read_holdings(store, topic) if _is_known(topic, each)]
    ours = [each for each in holdings if pinned is None or each[:2] in pinned]
    late = [each for each in holdings if pinned is not None and each[:2] not in pinned]
    before = found.set if found is not None else None
    keys = null_keys or (before.null_keys if before is not None else "drop")
    known = {(each.partition, each.lane) for each in holdings}
    horizons = [each for each in (before.horizons if before else ()) if _is_known(topic, each)]
    gone = [each for each in horizons if _at(each) not in known]
    lanes = [_lane(topic, before, each) for each in ours]
    lanes += [_late_lane(topic, before, each) for each in late]
    lanes += [_gone_lane(topic, before, each) for each in gone if before is not None]
    if len(lanes) > HORIZONS_MAX:
        raise TopicError.too_many(
            topic.name,
            count=len(lanes),
            count_max=HORIZONS_MAX,
            what="lanes to compact",
            advice="delete lanes that are not written any more",
        )
    changed = before is not None and (
        before.null_keys != keys or before.partitions != topic.partitions
    )
    is_foreign = before is not None and before.report.shuffled
    lanes.sort(key=lambda lane: (lane.partition, lane.lane))
    partitions = _partitions(lanes, forced=changed)
    all_of_them = everything or (is_foreign and any(each.has_news for each in partitions))
    chosen = [each for each in partitions if each.has_news or all_of_them]
    left = [each for each in partitions if each not in chosen]
    return CompactionPlan(
        topic=topic,
        null_keys=keys,
        partitions=tuple(chosen),
        pins=tuple(_pins(ours, before)),
        others=tuple(lane for each in left for lane in each.lanes),
        is_foreign=is_foreign,
        is_first=before is None,
    )


def least_of_others(orders: Mapping[int, int]) -> dict[int, int]:
    """Return for each number the least order of the others; NEVER if there are none."""
    least, second = nsmallest(2, [*orders.values(), NEVER, NEVER])
    return {number: second if each == least else least for number, each in orders.items()}


def _partitions(lanes: list[LanePlan], *, forced: bool) -> list[PartitionPlan]:
    groups = groupby(lanes, key=lambda lane: lane.partition)
    grouped = {number: tuple(group) for number, group in groups}
    floors = least_of_others(
        {number: min(lane.lowest_order for lane in group) for number, group in grouped.items()}
    )
    return [
        PartitionPlan(
            partition=number,
            lanes=group,
            floor=floors[number],
            has_news=forced or _has_news(group, floors[number]),
        )
        for number, group in grouped.items()
    ]


def _has_news(lanes: tuple[LanePlan, ...], floor: int) -> bool:
    """Whether lanes have new ledgers, or a lane's tombstones can all go.

    Some of them alone are no reason to write the lanes again.
    """
    if any(lane.raw or lane.is_cleared for lane in lanes):
        return True
    floors = least_of_others({lane.lane: lane.lowest_order for lane in lanes})
    return any(lane.tombstone_order < min(floors[lane.lane], floor) for lane in lanes)


def _lane(topic: TopicRecord, before: CompactedSet | None, held: LaneHoldings) -> LanePlan:
    old = before.horizon(held.partition, held.lane) if before is not None else None
    number = -1 if old is None else old.number
    raw = []
    for each in held.ledgers:
        if each.number > number:
            if each.row.state != "closed":
                break
            raw.append(each)
    ledgers = [] if before is None else before.lane_ledgers(held.partition, held.lane)
    is_deleted = held.record is not None and held.record.deleted
    return LanePlan(
        partition=held.partition,
        lane=held.lane,
        before=() if is_deleted else tuple(_compacted_range(topic, each) for each in ledgers),
        raw=tuple(_raw_range(topic, held, each) for each in raw if each.row.entries),
        horizon=_horizon(held, raw[-1], old) if raw else old,
        goes_on=topic.order == "event-time" or any(e.row.state == "open" for e in held.ledgers),
        is_cleared=is_deleted and bool(ledgers),
    )


def _late_lane(topic: TopicRecord, before: CompactedSet | None, held: LaneHoldings) -> LanePlan:
    """Return the plan of a lane that began since lanes were pinned: the next run reads it.

    Its messages may be deleted meanwhile.
    """
    unread = _lane(topic, before, held._replace(ledgers=()))
    return msgspec.structs.replace(unread, goes_on=True)


def _gone_lane(topic: TopicRecord, before: CompactedSet, old: Horizon) -> LanePlan:
    """Return the plan of a lane whose rows are gone: its survivors stay."""
    ledgers = before.lane_ledgers(old.partition, old.lane)
    return LanePlan(
        partition=old.partition,
        lane=old.lane,
        before=tuple(_compacted_range(topic, each) for each in ledgers),
        raw=(),
        horizon=old,
        goes_on=False,
    )


def _horizon(held: LaneHoldings, last: HeldLedger, old: Horizon | None) -> Horizon:
    return Horizon(
        partition=held.partition,
        lane=held.lane,
        number=last.number,
        ledger_id=last.row.ledger_id,
        version=max(last.row.base_version, 0) + last.row.entries,
        order_key=ORDER_MIN if old is None else old.order_key,
    )


def _pins(holdings: list[LaneHoldings], before: CompactedSet | None) -> list[tuple[int, int, int]]:
    pins = []
    for held in holdings:
        old = before.horizon(held.partition, held.lane) if before is not None else None
        pins.append((held.partition, held.lane, 0 if old is None else old.number + 1))
    return pins


def _raw_range(topic: TopicRecord, held: LaneHoldings, each: HeldLedger) -> LedgerRange:
    return LedgerRange(
        topic=topic.name,
        uid=topic.uid,
        topic_index=0,
        ordered=topic.order == "event-time",
        timed=topic.timesync,
        partition=held.partition,
        lane=held.lane,
        number=each.number,
        ledger_id=each.row.ledger_id,
        base_version=each.row.base_version,
        first_entry=0,
        last_entry=each.row.entries - 1,
        size=each.row.size,
        messages=each.row.messages,
        removed=tuple(each.row.removed),
        stamp=each.row.stamp,
    )


def _compacted_range(topic: TopicRecord, ledger: CompactedLedger) -> LedgerRange:
    return LedgerRange(
        topic=topic.name,
        uid=topic.uid,
        topic_index=0,
        ordered=topic.order == "event-time",
        timed=topic.timesync,
        partition=ledger.partition,
        lane=ledger.lane,
        number=ledger.first.number,
        ledger_id=ledger.ledger_id,
        base_version=-1,
        first_entry=0,
        last_entry=ledger.entries - 1,
        size=ledger.size,
        messages=ledger.messages,
    )


def _is_known(topic: TopicRecord, lane: LaneHoldings | Horizon) -> bool:
    return lane.partition in topic.partition_indexes


def _at(horizon: Horizon) -> tuple[int, int]:
    return horizon.partition, horizon.lane
