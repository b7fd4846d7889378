"""What a compaction reads, frozen before it begins. Plain values, to be sent to any process.

Of each lane: the ledgers that the generation before left, and the closed ledgers behind its
horizon. A partition without news is left as it is, unless keys may have come to other
partitions, or messages without keys are to be kept no more.
"""

from __future__ import annotations

from itertools import groupby
from typing import Literal

import msgspec

from ledger_client.compaction.errors import TooManyLanes
from ledger_client.topics.keeping.holdings import Held, LaneHoldings, read_holdings
from ledger_client.topics.reading.spans import Span
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
"""Payload bytes of a ledger of survivors; more where a set would list too many."""
LEDGERS_WANTED = 400
NullKeys = Literal["keep", "drop"]


class LanePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of one lane."""

    partition: int
    lane: int
    before: tuple[Span, ...]
    """ledgers of survivors"""
    raw: tuple[Span, ...]
    """closed ledgers that are not in the set yet"""
    horizon: Horizon | None
    """behind *raw*; its order is that of the generation before. None: nothing is read"""
    goes_on: bool
    """something of the lane may be older than what is read of others: it is being written"""
    is_cleared: bool = False
    """the lane was deleted: its survivors go"""

    @property
    def order_key(self) -> int:
        """The greatest order of the generation before."""
        return ORDER_MIN if self.horizon is None else self.horizon.order_key

    @property
    def size(self) -> int:
        """Payload bytes to be read."""
        return sum(span.size for span in (*self.before, *self.raw))


class PartitionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of one partition: all of its lanes."""

    partition: int
    lanes: tuple[LanePlan, ...]
    has_news: bool

    @property
    def size(self) -> int:
        """Payload bytes to be read."""
        return sum(lane.size for lane in self.lanes)


class CompactionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a topic, and how it is taken."""

    topic: TopicRecord
    null_keys: NullKeys
    partitions: tuple[PartitionPlan, ...]
    """with news; all of them when keys may be anywhere"""
    pins: tuple[tuple[int, int, int], ...]
    """what must stay meanwhile: partition, lane and number of its first ledger"""
    others: tuple[LanePlan, ...] = ()
    """lanes of the partitions that are left as they are"""
    is_foreign: bool = False
    """a key was found outside its partition before: keys are compared across all"""
    is_first: bool = False
    """the topic has no set yet"""

    @property
    def has_news(self) -> bool:
        """Whether there is anything to do."""
        return any(each.has_news for each in self.partitions)

    @property
    def size(self) -> int:
        """Payload bytes to be read."""
        return sum(each.size for each in self.partitions)

    @property
    def ledger_size(self) -> int:
        """Payload bytes of a ledger of survivors."""
        return max(LEDGER_SIZE, self.size // LEDGERS_WANTED)


async def plan_compaction(
    store: MetadataStore,
    topic: TopicRecord,
    found: SetAt | None,
    *,
    null_keys: NullKeys | None = None,
    everything: bool = False,
) -> CompactionPlan:
    """Return what is to be read to compact a topic.

    Args:
        store: where rows are.
        topic: which.
        found: its set, None for none.
        null_keys: what becomes of messages without a key; None: as before, at first "drop".
        everything: also partitions without news.

    Raises:
        TooManyLanes: more than a set lists.
        MetadataError: as every call to the store.
    """
    # Partitions that were added since the topic was looked up are for the next run.
    holdings = [each for each in await read_holdings(store, topic) if _is_known(topic, each)]
    before = found.set if found is not None else None
    keys = null_keys or (before.null_keys if before is not None else "drop")
    known = {(each.partition, each.lane) for each in holdings}
    horizons = [each for each in (before.horizons if before else ()) if _is_known(topic, each)]
    gone = [each for each in horizons if _at(each) not in known]
    lanes = [_lane(topic, before, each) for each in holdings]
    lanes += [_gone_lane(topic, before, each) for each in gone if before is not None]
    if len(lanes) > HORIZONS_MAX:
        reason = f"has {len(lanes)} lanes; at most {HORIZONS_MAX} can be compacted"
        raise TooManyLanes(reason, topic=topic.name)
    changed = before is not None and (
        before.null_keys != keys or before.partitions != topic.partitions
    )
    is_foreign = before is not None and before.report.shuffled
    lanes.sort(key=lambda lane: (lane.partition, lane.lane))
    partitions = [
        _partition(number, tuple(group), forced=changed)
        for number, group in groupby(lanes, key=lambda lane: lane.partition)
    ]
    all_of_them = everything or (is_foreign and any(each.has_news for each in partitions))
    chosen = [each for each in partitions if each.has_news or all_of_them]
    left = [each for each in partitions if each not in chosen]
    return CompactionPlan(
        topic=topic,
        null_keys=keys,
        partitions=tuple(chosen),
        pins=tuple(_pins(holdings, before)),
        others=tuple(lane for each in left for lane in each.lanes),
        is_foreign=is_foreign,
        is_first=before is None,
    )


def _partition(number: int, lanes: tuple[LanePlan, ...], *, forced: bool) -> PartitionPlan:
    has_news = forced or any(lane.raw or lane.is_cleared for lane in lanes)
    return PartitionPlan(partition=number, lanes=lanes, has_news=has_news)


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
        before=() if is_deleted else tuple(_compacted_span(topic, each) for each in ledgers),
        raw=tuple(_raw_span(topic, held, each) for each in raw if each.row.entries),
        horizon=_horizon(held, raw[-1], old) if raw else old,
        goes_on=topic.order == "event-time" or any(e.row.state == "open" for e in held.ledgers),
        is_cleared=is_deleted and bool(ledgers),
    )


def _gone_lane(topic: TopicRecord, before: CompactedSet, old: Horizon) -> LanePlan:
    """Return what is left of a lane that is no more: its survivors stay."""
    ledgers = before.lane_ledgers(old.partition, old.lane)
    return LanePlan(
        partition=old.partition,
        lane=old.lane,
        before=tuple(_compacted_span(topic, each) for each in ledgers),
        raw=(),
        horizon=old,
        goes_on=False,
    )


def _horizon(held: LaneHoldings, last: Held, old: Horizon | None) -> Horizon:
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


def _raw_span(topic: TopicRecord, held: LaneHoldings, each: Held) -> Span:
    return Span(
        topic=topic.name,
        uid=topic.uid,
        topic_index=0,
        ordered=topic.order == "event-time",
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
    )


def _compacted_span(topic: TopicRecord, ledger: CompactedLedger) -> Span:
    return Span(
        topic=topic.name,
        uid=topic.uid,
        topic_index=0,
        ordered=topic.order == "event-time",
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
