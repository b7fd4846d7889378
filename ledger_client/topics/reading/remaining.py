"""What a reader has before it: the end of each of its lanes, and how far away that is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import trio

from ledger_client.errors import LedgerError
from ledger_client.topics.positions import LanePlace, Position, as_position
from ledger_client.topics.reading.lag import Behind, behind
from ledger_client.topics.reading.lane_ranges import KnownLane
from ledger_client.topics.reading.lane_set import LaneSet

LANES_AT_ONCE = 16


class LaneLag(msgspec.Struct, frozen=True, kw_only=True):
    """What lies before a reader in one lane."""

    topic: str
    partition: int
    lane: int
    messages: int
    """between the reader's position and the end of the lane"""
    is_exact: bool
    """False: some of *messages* are estimated"""
    sent_ms: int | None
    """Unix time at which the oldest of them was sent, by the cluster's clock; `None` for none"""


async def ends_of(lanes: LaneSet) -> Position:
    """Return the place behind the last message of each lane. Raises as LaneSet.find()."""
    known = await lanes.lanes()
    ends = await lanes.find(known, "latest")
    return as_position({each.lane: end.place for each, end in zip(known, ends, strict=True)})


async def lag_behind(lanes: LaneSet, position: Sequence[LanePlace]) -> list[LaneLag]:
    """Return what lies between *position* and the end of each of its lanes.

    Raises:
        NoSuchTopic: a topic is gone.
        LedgerError: as reading does.
    """
    places = {(each.uid, each.partition, each.lane): each.place for each in position}
    known = [each for each in await lanes.lanes() if _index(each) in places]
    ends = await lanes.find(known, "latest")
    found: dict[int, Behind] = {}
    failures: list[LedgerError] = []
    limiter = trio.CapacityLimiter(LANES_AT_ONCE)

    async def look(number: int) -> None:
        lane, end = known[number], ends[number].place
        async with limiter:
            try:
                found[number] = await behind(lane.rows, lanes.opener, places[_index(lane)], end)
            except LedgerError as failure:
                failures.append(failure)

    async with trio.open_nursery() as nursery:
        for number in range(len(known)):
            nursery.start_soon(look, number)
    if failures:
        raise failures[0]
    return [
        LaneLag(
            topic=each.lane.topic,
            partition=each.lane.partition,
            lane=each.lane.lane,
            messages=found[number].messages,
            is_exact=found[number].is_exact,
            sent_ms=found[number].sent_ms,
        )
        for number, each in enumerate(known)
    ]


def _index(known: KnownLane) -> tuple[int, int, int]:
    return known.lane.uid, known.lane.partition, known.lane.lane
