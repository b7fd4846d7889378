"""One ledger described whole: where its copies are, and what of which topic it holds.

A ledger's record names its bookies, and the row of its lane its times; whoever looks at a ledger
wants both. The record says to which lane it belongs, but anybody may write that into a record of
their own: it counts only if the lane has a row for the ledger.
"""

from __future__ import annotations

import dataclasses

from ledger_client.listing import LedgerInfo
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.errors import BadTopic
from ledger_client.topics.lanes.ledger_rows import LedgerRows, Row
from ledger_client.topics.reading.places import LaneRef


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerDescription(LedgerInfo):
    """A ledger with the ends of its list of bookies, and its place and times in a topic.

    Times and *messages* are those of the ledger's row: of an open ledger the first times alone
    are known. Event times are nanoseconds, None for none; timestamps are 0 for none.
    """

    head: str
    """the first bookie of the newest fragment"""
    tail: str
    """the last one, which readers prefer"""
    topic: str = ""
    """"" for a ledger of no topic; then nothing below holds"""
    partition: int = -1
    lane: int = -1
    number: int = -1
    """of the ledger in its lane"""
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
    """Return the lane of a ledger and its row there; None: it is no topic's."""
    told = info.custom
    try:
        found = await catalogue.find(told.get("topic", ""))
        partition, number = int(told["partition"]), int(told["lane"])
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
    # Ledger ids rise along a lane. The one behind the current may be prepared.
    row = await rows.last_with(
        lambda row: row.ledger.ledger_id <= info.ledger_id, record.current + 1
    )
    is_it = row is not None and row.ledger.ledger_id == info.ledger_id
    return (lane, row) if row is not None and is_it else None
