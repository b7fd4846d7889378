"""What deletes messages out of a lane, as changes of its rows; one transaction makes them."""

from __future__ import annotations

import msgspec

from ledger_client.catalogue import Catalogue
from ledger_client.topics.errors import TopicError
from ledger_client.topics.keeping.holdings import Held
from ledger_client.topics.keeping.truncation import Part, with_removed
from ledger_client.topics.lanes.lane_state import LaneState
from ledger_client.topics.reading.places import LaneRef
from metadata.records import ledger_key
from metadata.store import ABSENT, Check, Delete, Op, Put
from metadata.topics import (
    REMOVALS_MAX,
    LaneRemovals,
    decode_lane_removals,
    encode_row,
    lane_ledger_key,
    lane_removals_key,
)


class LostRace(TopicError):
    """Somebody else changes the same rows, again and again; nothing was deleted."""


class Cut(msgspec.Struct):
    """What goes of a lane, and what is left of its ledgers."""

    parts: list[Part]
    whole: list[Held]
    changed: list[Held]
    """those of which something is left, as they are to be; versions are those there are"""
    messages: int
    state: LaneState | None = None
    """of the lane before the first part"""


async def cut_ops(
    catalogue: Catalogue, lane: LaneRef, cut: Cut, stop_number: int, stop_version: int
) -> list[Op]:
    """Return what makes *cut*; the lane goes on at *stop_number* and *stop_version*.

    Raises:
        LostRace: a row is not as it was when the cut was planned.
        MetadataUnavailable, MetadataBroken: as Catalogue.read().
    """
    ops: list[Op] = []
    for held in cut.whole:
        ops += await _removal(catalogue, lane, held)
    for held in cut.changed:
        key = lane_ledger_key(lane.uid, lane.partition, lane.lane, held.number)
        row = await catalogue.read(key)
        if row is None or row.version != held.version:
            raise _lost_race(lane, held)
        ops.append(Put(key, encode_row(held.row), held.version))
    return ops + await _removals(catalogue, lane, cut, stop_number, stop_version)


async def _removals(
    catalogue: Catalogue, lane: LaneRef, cut: Cut, stop_number: int, stop_version: int
) -> list[Op]:
    """Return what says that the ledgers are gone on purpose."""
    key = lane_removals_key(lane.uid, lane.partition, lane.lane)
    found = await catalogue.read(key)
    known = [] if found is None else decode_lane_removals(key, found.value).ranges
    ranges = with_removed(known, cut.whole, stop_number, stop_version)
    if len(ranges) > REMOVALS_MAX:
        raise TopicError(
            f"more than {REMOVALS_MAX} ranges of ledgers are deleted out of {lane}",
            topic=lane.topic,
        )
    if ranges == known:
        return []
    return [Put(key, encode_row(LaneRemovals(ranges)), ABSENT if found is None else found.version)]


async def _removal(catalogue: Catalogue, lane: LaneRef, held: Held) -> list[Op]:
    """Return what removes a ledger and its row; nothing when retention was faster."""
    key = lane_ledger_key(lane.uid, lane.partition, lane.lane, held.number)
    found = await catalogue.read(key)
    if found is None:
        return []
    if found.version != held.version:
        raise _lost_race(lane, held)
    record_key = ledger_key(held.row.ledger_id)
    record = await catalogue.read(record_key)
    gone = Check(record_key, ABSENT) if record is None else Delete(record_key, record.version)
    return [Delete(key, found.version), gone]


def _lost_race(lane: LaneRef, held: Held) -> LostRace:
    return LostRace(f"{lane}: ledger {held.row.ledger_id} is changed", topic=lane.topic)
