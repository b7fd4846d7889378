"""What a topic holds and why: for every ledger of every lane, why it is there and until when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.jobs.job import read_pins
from ledger_client.topics.keeping.compacted_sets import read_set
from ledger_client.topics.keeping.holdings import LaneHoldings, read_holdings
from ledger_client.topics.keeping.retention import Fate, plan_retention
from ledger_client.topics.lanes.lane_names import read_lane_names
from ledger_client.translation import translated
from metadata.compaction import CompactedSet
from metadata.topics import LaneLedger, LaneOwner, TopicRecord


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """What closed ledgers hold together. Times are None where nothing has one.

    The first times are known of open ledgers too: those of their first messages.
    """

    ledgers: int = 0
    """closed or not"""
    entries: int = 0
    messages: int = 0
    size: int = 0
    """payload bytes, of one copy"""
    first_event_time: int | None = None
    last_event_time: int | None = None
    first_timestamp: int | None = None
    last_timestamp: int | None = None

    @classmethod
    def of(cls, rows: Iterable[LaneLedger]) -> Extent:
        """Return the extent of *rows*."""
        rows = list(rows)
        first = [row.first_event_time for row in rows if row.first_event_time is not None]
        last = [row.last_event_time for row in rows if row.last_event_time is not None]
        return cls(
            ledgers=len(rows),
            entries=sum(row.entries for row in rows),
            messages=sum(row.messages for row in rows),
            size=sum(row.size for row in rows),
            first_event_time=min(first, default=None),
            last_event_time=max(last, default=None),
            first_timestamp=min(
                (r.first_timestamp for r in rows if r.first_timestamp), default=None
            ),
            last_timestamp=max((r.last_timestamp for r in rows if r.last_timestamp), default=None),
        )


class LaneExplained(msgspec.Struct, frozen=True, kw_only=True):
    """A lane, its writer, and the fate of each of its ledgers."""

    partition: int
    lane: int
    name: str
    """"" for none"""
    producer: str
    """the named producer whose lane it is; "" for any"""
    epoch: int
    """how often it was taken over"""
    owner: LaneOwner | None
    """who writes it now"""
    extent: Extent
    ledgers: list[Fate]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with all that it holds, as metadata said it at *at_ms*."""

    topic: TopicRecord
    at_ms: int
    extent: Extent
    lanes: list[LaneExplained]
    compacted: CompactedSet | None = None
    """what compaction left of it"""


async def explain(catalogue: TopicCatalogue, name: str) -> Explanation:
    """Return what the topic holds. No bookie is asked: of an open ledger nothing is counted.

    Raises:
        NoSuchTopic: there is none.
        MetadataUnavailable, MetadataBroken: as they say.
    """
    topic, _ = await catalogue.get(name)
    with translated(catalogue.timeout_s):
        lanes = await read_holdings(catalogue.store, topic)
        pins = await read_pins(catalogue.store, topic)
        names = await read_lane_names(catalogue.store, topic)
        compacted = await read_set(catalogue.store, topic.uid)
    lanes = [each for each in lanes if each.record is None or not each.record.deleted]
    now_ms = await catalogue.now_ms()
    fates = plan_retention(lanes, topic.retention, now_ms=now_ms, pins=pins)
    return Explanation(
        topic=topic,
        at_ms=now_ms,
        extent=Extent.of(fate.ledger for fate in fates),
        lanes=[_explained(lane, names, fates) for lane in lanes],
        compacted=None if compacted is None else compacted.set,
    )


def listed_lanes(found: Explanation) -> list[LaneExplained]:
    """Return the lanes of a topic in order; a partition without any has one nobody wrote to yet.

    That is lane 0, without a name: epoch 0, no ledgers, no times.
    """
    there = {lane.partition for lane in found.lanes}
    unwritten = [
        _explained(LaneHoldings(partition, 0, None, None, ()), {}, ())
        for partition in found.topic.partition_indexes
        if partition not in there
    ]
    return sorted([*found.lanes, *unwritten], key=lambda lane: (lane.partition, lane.lane))


def _explained(
    lane: LaneHoldings, names: Mapping[tuple[int, int], str], fates: Sequence[Fate]
) -> LaneExplained:
    place = (lane.partition, lane.lane)
    return LaneExplained(
        partition=lane.partition,
        lane=lane.lane,
        name=names.get(place, ""),
        producer="" if lane.record is None else lane.record.producer,
        epoch=0 if lane.record is None else lane.record.epoch,
        owner=lane.owner,
        extent=Extent.of(held.row for held in lane.ledgers),
        ledgers=[fate for fate in fates if (fate.partition, fate.lane) == place],
    )
