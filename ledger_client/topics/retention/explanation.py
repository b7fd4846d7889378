"""Contents of topics and ledgers, with the reason why a ledger is kept, and until when."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ledger_client.errors import BadTopic
from ledger_client.ledgers.catalogue import LedgerInfo, translated
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.lanes.lane_names import read_lane_names
from ledger_client.topics.lanes.ledger_rows import LedgerRows, Row
from ledger_client.topics.positions import LaneRef
from ledger_client.topics.retention.holdings import LaneHoldings, read_holdings, read_set
from ledger_client.topics.retention.job_rows import read_holds
from ledger_client.topics.retention.open_ledgers import Confirmed, count_confirmed
from ledger_client.topics.retention.retention import Fate, plan_retention
from metadata.compaction import CompactedSet
from metadata.cuts import read_kept
from metadata.topics import LaneLedger, LaneOwner, TopicRecord


class LedgerTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The sums and times of ledgers: all of closed ones, and what is confirmed of open ones.

    A time is None if no message has one. First times include those of open ledgers, last times
    do not.
    """

    ledgers: int = 0
    """closed or not"""
    entries: int = 0
    messages: int = 0
    size: int = 0
    """payload bytes of one copy"""
    open_ledgers: int = 0
    """how many of *ledgers* are open"""
    open_messages: int = 0
    """how many of *messages* are in open ledgers"""
    is_estimate: bool = False
    """*open_messages* is an estimate, and so is *messages*"""
    uncounted: int = 0
    """open ledgers with nothing counted: their bookies did not answer, or were not asked"""
    first_event_time: int | None = None
    last_event_time: int | None = None
    first_timestamp: int | None = None
    last_timestamp: int | None = None

    @classmethod
    def of(
        cls, rows: Iterable[LaneLedger], confirmed: Mapping[int, Confirmed] | None = None
    ) -> LedgerTotals:
        """Return the totals of *rows*; times are the lowest and the greatest of any row.

        *confirmed*: what is confirmed in open ledgers, by ledger id.
        """
        rows = list(rows)
        is_open = [row.ledger_id for row in rows if row.state == "open"]
        counted = [confirmed[each] for each in is_open if confirmed and each in confirmed]
        open_messages = sum(each.messages for each in counted)
        first = [row.first_event_time for row in rows if row.first_event_time is not None]
        last = [row.last_event_time for row in rows if row.last_event_time is not None]
        return cls(
            ledgers=len(rows),
            entries=sum(row.entries for row in rows) + sum(each.entries for each in counted),
            messages=sum(row.messages for row in rows) + open_messages,
            size=sum(row.size for row in rows) + sum(each.size for each in counted),
            open_ledgers=len(is_open),
            open_messages=open_messages,
            is_estimate=any(each.is_estimate for each in counted),
            uncounted=len(is_open) - len(counted),
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
    """"" if it has none"""
    producer: str
    """the named producer that owns the lane; "" if any may write it"""
    epoch: int
    """incremented by each takeover"""
    owner: LaneOwner | None
    """the present writer"""
    extent: LedgerTotals
    ledgers: list[Fate]
    confirmed: Confirmed | None = None
    """what readers get of its open ledger; `None` if it has none, or that is not known"""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with its lanes and ledgers, according to the metadata at *at_ms*."""

    topic: TopicRecord
    at_ms: int
    extent: LedgerTotals
    lanes: list[LaneExplained]
    compacted: CompactedSet | None = None
    """its compacted set"""
    cuts: list[str] = []
    """the names of the cuts that keep it"""


async def explain(
    catalogue: TopicCatalogue, name: str, ledgers: Ledgers | None = None
) -> Explanation:
    """Return the contents of a topic.

    The bookies of open ledgers are asked through *ledgers*; with `None` these are not counted.

    Raises:
        NoSuchTopic: there is no such topic.
        MetadataUnavailable, MetadataBroken: the store did not answer, or a row is damaged.
    """
    topic, _ = await catalogue.get(name)
    with translated(catalogue.timeout_s):
        lanes = await read_holdings(catalogue.store, topic)
        places = [(lane.partition, lane.lane) for lane in lanes]
        holds = await read_holds(catalogue.store, topic, places)
        names = await read_lane_names(catalogue.store, topic)
        compacted = await read_set(catalogue.store, topic.uid)
        cuts = (await read_kept(catalogue.store, topic.uid)).cuts
    lanes = [each for each in lanes if each.record is None or not each.record.deleted]
    now_ms = await catalogue.now_ms()
    fates = plan_retention(lanes, topic.retention, now_ms=now_ms, pins=holds.pins)
    rows = [fate.ledger for fate in fates]
    is_open = [row.ledger_id for row in rows if row.state == "open"]
    confirmed = {} if ledgers is None else await count_confirmed(ledgers, is_open)
    return Explanation(
        topic=topic,
        at_ms=now_ms,
        extent=LedgerTotals.of(rows, confirmed),
        lanes=[_explained(lane, names, fates, confirmed) for lane in lanes],
        compacted=None if compacted is None else compacted.set,
        cuts=[cut.name for cut in cuts],
    )


def listed_lanes(found: Explanation) -> list[LaneExplained]:
    """Return the lanes of a topic in order; a partition without lanes gets an unwritten one.

    It is lane 0, without a name: epoch 0, no ledgers, no times.
    """
    there = {lane.partition for lane in found.lanes}
    unwritten = [
        _explained(LaneHoldings(partition, 0, None, None, ()), {}, (), {})
        for partition in found.topic.partition_indexes
        if partition not in there
    ]
    return sorted([*found.lanes, *unwritten], key=lambda lane: (lane.partition, lane.lane))


def _explained(
    lane: LaneHoldings,
    names: Mapping[tuple[int, int], str],
    fates: Sequence[Fate],
    confirmed: Mapping[int, Confirmed],
) -> LaneExplained:
    place = (lane.partition, lane.lane)
    rows = [held.row for held in lane.ledgers]
    return LaneExplained(
        partition=lane.partition,
        lane=lane.lane,
        name=names.get(place, ""),
        producer="" if lane.record is None else lane.record.producer,
        epoch=0 if lane.record is None else lane.record.epoch,
        owner=lane.owner,
        extent=LedgerTotals.of(rows, confirmed),
        ledgers=[fate for fate in fates if (fate.partition, fate.lane) == place],
        confirmed=next((confirmed[r.ledger_id] for r in rows if r.ledger_id in confirmed), None),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerDescription(LedgerInfo):
    """A ledger with the ends of its list of bookies, and its place and times in a topic.

    Times and *messages* come from the ledger's row in its lane; of an open ledger only the first
    times are known. Event times are nanoseconds or `None`; a timestamp of 0 means none.
    """

    head: str
    """first bookie of the newest fragment"""
    tail: str
    """its last bookie, which readers ask first"""
    topic: str = ""
    """empty if the ledger belongs to no topic; then the fields below have no meaning"""
    partition: int = -1
    lane: int = -1
    number: int = -1
    """number of the ledger in its lane"""
    messages: int = 0
    first_event_time: int | None = None
    last_event_time: int | None = None
    first_timestamp: int = 0
    last_timestamp: int = 0


async def describe_ledger(catalogue: TopicCatalogue, info: LedgerInfo) -> LedgerDescription:
    """Return the description of a ledger. Raises MetadataUnavailable, MetadataBroken."""
    _, bookies = info.bookies[-1]
    known = {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}
    found = await _row_of(catalogue, info)
    if found is None:
        return LedgerDescription(**known, head=bookies[0], tail=bookies[-1])
    lane, row = found
    return LedgerDescription(
        **known,
        head=bookies[0],
        tail=bookies[-1],
        topic=lane.topic,
        partition=lane.partition,
        lane=lane.lane,
        number=row.number,
        messages=row.ledger.messages,
        first_event_time=row.ledger.first_event_time,
        last_event_time=row.ledger.last_event_time,
        first_timestamp=row.ledger.first_timestamp,
        last_timestamp=row.ledger.last_timestamp,
    )


async def _row_of(catalogue: TopicCatalogue, info: LedgerInfo) -> tuple[LaneRef, Row] | None:
    """Return the lane of a ledger and its row there, `None` if it belongs to no topic.

    The ledger's record names its lane, but anyone may write that into a record of their own. So it
    counts only if the lane has a row for the ledger.
    """
    named = info.custom
    try:
        found = await catalogue.find(named.get("topic", ""))
        partition, number = int(named["partition"]), int(named["lane"])
    except (BadTopic, KeyError, ValueError):
        return None
    if found is None or partition not in found[0].partition_indexes or number < 0:
        return None
    topic = found[0]
    lane = LaneRef(0, partition, number, topic.name, topic.uid, topic.order == "event-time")
    rows = LedgerRows(catalogue.store, lane, timeout_s=catalogue.timeout_s)
    record = await rows.record()
    if record is None:
        return None
    # Ledger ids rise along a lane. The ledger after the current one may be prepared.
    row = await rows.last_with(
        lambda row: row.ledger.ledger_id <= info.ledger_id, record.current + 1
    )
    is_it = row is not None and row.ledger.ledger_id == info.ledger_id
    return (lane, row) if row is not None and is_it else None
