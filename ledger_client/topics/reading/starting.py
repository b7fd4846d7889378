"""Where reading begins and where it ends, in every lane, as the caller said it.

A MessageId is a place in one lane, so who gives one reads one lane of its partition. A
position, as TopicReader.position() returned it, names a place in each. A time stands for
its place in each lane (times.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from ledger_client.topics.errors import BadTopic, Gap
from ledger_client.topics.lanes.ledger_rows import LedgerRows, Row
from ledger_client.topics.message_id import NOT_BATCHED, MessageId
from ledger_client.topics.reading.compacted_part import CompactedPart
from ledger_client.topics.reading.opening import LedgerOpener, settle
from ledger_client.topics.reading.part_search import find_in_part, find_time_in_part
from ledger_client.topics.reading.places import (
    EARLIEST,
    UNKNOWN,
    LanePlace,
    LaneRef,
    Place,
    Version as Version,
)
from ledger_client.topics.reading.times import TIMES, Found, Time, TimeSearch, place_of
from metadata.topics import LaneRecord

_NUMBER_MAX = (1 << 63) - 1
Position = tuple[LanePlace, ...]
Start = Literal["earliest", "latest"] | MessageId | Time | Version | Sequence[LanePlace]
"""A place in each lane that is read."""


class KnownLane(NamedTuple):
    """A lane that exists, and how far it is."""

    lane: LaneRef
    rows: LedgerRows
    record: LaneRecord
    part: CompactedPart | None = None
    """what compaction left of it, where that is read"""
    name: str = ""
    """of the lane, where lanes are chosen or ordered by it"""


class Begin(NamedTuple):
    """Where a lane begins; with *since* what is before that time is left out."""

    place: Place
    since: Time | None = None
    gap: Gap | None = None
    """the place that was asked for is gone"""


class Starts:
    """Finds places in lanes. Raises as reading does; BadTopic for what cannot be."""

    def __init__(self, opener: LedgerOpener) -> None:
        self._opener = opener

    async def begin(self, known: KnownLane, start: Start, *, behind: bool) -> Begin:
        """Return the place of *start* in a lane, *behind* the message or time that it names.

        Raises:
            BadTopic: the message is none of this lane, or the position none of this topic.
        """
        if start == "earliest":
            return Begin(EARLIEST)
        if start == "latest":
            return Begin(await self._latest(known))
        part = known.part
        if part is not None:
            place = await find_in_part(known.lane, part, self._opener, start, behind=behind)
            if place is not None:
                return Begin(place)
        if isinstance(start, MessageId):
            return await self._message(known, start, behind)
        if isinstance(start, Version):
            return await self._version(known, start.number + behind)
        if isinstance(start, TIMES):
            time = start.next() if behind else start
            found = await self.find_time(known, time)
            return Begin(found.place, None if found.exact else time)
        return Begin(_kept_place(known.lane, start))

    async def find_time(self, known: KnownLane, time: Time, start: Place = EARLIEST) -> Found:
        """Return the place before the first message at *time* or later, from *start* on."""
        part = known.part
        if part is not None and part.holds(start):
            place = await find_time_in_part(known.lane, part, self._opener, time, start)
            if place is not None:
                return Found(place, True)
            start = part.horizon
        return await TimeSearch(known.lane, known.rows, self._opener).find(time, start=start)

    async def _latest(self, known: KnownLane) -> Place:
        row = await known.rows.at(known.record.current) if known.record.current >= 0 else None
        if row is None:  # nothing yet, or nothing left: what comes next is all there is
            return Place(known.record.current + 1, version=known.record.next_version)
        if row.ledger.state == "closed":
            return place_of(row, row.ledger.entries)
        reader = await self._opener.open(row.ledger.ledger_id)
        try:
            return place_of(row, await settle(reader) + 1)
        finally:
            reader.close()

    async def _version(self, known: KnownLane, version: int) -> Begin:
        """Return the place before the first entry of this version or a later one."""
        last = await _newest(known)
        row = await known.rows.last_with(
            lambda row: row.readable and row.ledger.base_version <= version, last
        )
        if row is None:
            first = await known.rows.first_from(0)
            if first is not None and 0 <= version < first.ledger.base_version:
                return Begin(EARLIEST, gap=_before(known.lane, first, version))
            return Begin(await self._latest(known))
        entry = version - row.ledger.base_version
        if row.ledger.state != "closed" or entry < row.ledger.entries:
            return Begin(place_of(row, entry))
        behind = await known.rows.first_from(row.number + 1)  # where versions were left out
        if behind is not None and behind.readable:
            return Begin(place_of(behind, 0))
        return Begin(await self._latest(known))

    async def _message(self, known: KnownLane, start: MessageId, behind: bool) -> Begin:
        if start.ledger_id < 0:
            told = f"message {start} is a duplicate, and it is not known where the first is"
            raise BadTopic(told, topic=known.lane.topic)
        row = await known.rows.last_with(
            lambda row: row.readable and row.ledger.ledger_id <= start.ledger_id,
            await _newest(known),
        )
        if row is not None and row.ledger.ledger_id == start.ledger_id:
            return Begin(_place_of_message(row, start, behind))
        for removed in await known.rows.removals():
            if removed.ledger_id <= start.ledger_id <= removed.last_ledger_id:
                return Begin(Place(removed.stop_number, version=removed.stop_version))
        first = await known.rows.first_from(0)
        if first is not None and start.ledger_id > first.ledger.ledger_id:
            raise BadTopic(
                f"message {start} is not in {known.lane}: no ledger {start.ledger_id} there",
                topic=known.lane.topic,
            )
        gap = Gap(
            known.lane.topic,
            partition=known.lane.partition,
            lane=known.lane.lane,
            position=start,
            first=first and MessageId(first.ledger.ledger_id, 0, known.lane.partition),
            missing=None,
        )
        return Begin(EARLIEST, gap=gap)


def _before(lane: LaneRef, row: Row, version: int) -> Gap:
    """Return what is missing where the lane begins with *row*, behind *version*."""
    missing = row.ledger.base_version - version
    return Gap(
        lane.topic,
        partition=lane.partition,
        lane=lane.lane,
        position=Place(UNKNOWN, version=version).message_id(lane.partition),
        first=MessageId(row.ledger.ledger_id, 0, lane.partition),
        missing=missing,
    )


def _place_of_message(row: Row, message: MessageId, behind: bool) -> Place:
    place = place_of(row, message.entry_id)
    if message.batch_index != NOT_BATCHED:
        return place._replace(skip=message.batch_index + behind)
    return place_of(row, message.entry_id + behind)  # the whole entry


async def _newest(known: KnownLane) -> int:
    """Return the number of the newest ledger; ids and versions of a lane rise up to it."""
    record = await known.rows.record()
    return known.record.current if record is None else record.current


def _kept_place(lane: LaneRef, position: Sequence[LanePlace]) -> Place:
    for kept in position:
        if kept.topic != lane.topic:
            continue
        if kept.uid != lane.uid:
            raise BadTopic(
                "the position is of another topic of this name, which was deleted",
                topic=lane.topic,
            )
        if (kept.partition, kept.lane) == (lane.partition, lane.lane):
            return Place(*kept.place)
    return EARLIEST  # the lane is younger than the position


def narrow(lanes: Sequence[LaneRef], *named: object) -> list[LaneRef]:
    """Return the lanes to read when *named* says where to begin or end.

    Raises:
        BadTopic: it names a message, and there are several lanes that it can be in, or none;
            or it is no place.
    """
    for each in named:
        _check_place(each, lanes[0].topic if lanes else "")
    messages = [each for each in named if isinstance(each, MessageId)]
    if not messages:
        return list(lanes)
    partition = messages[0].partition
    found = [lane for lane in lanes if lane.partition == partition]
    topic = lanes[0].topic if lanes else ""
    if any(message.partition != partition for message in messages) or not found:
        told = " and ".join(map(str, messages))
        raise BadTopic(f"{told}: not in one partition that is read and has messages", topic=topic)
    if len(found) > 1:
        raise BadTopic(
            f"message {messages[0]} is a place in one lane, and {len(found)} lanes of partition "
            f"{partition} are read: name the lane, or give a position, which has them all",
            topic=topic,
        )
    return found


def _check_place(named: object, topic: str) -> None:
    is_known = named in (None, "earliest", "latest") or isinstance(
        named, (MessageId, Version, *TIMES)
    )
    if not (is_known or is_position(named)):
        raise BadTopic(
            f'{named!r} is no place: "earliest", "latest", a MessageId, an EventTime, a Timestamp, '
            "a PublishTime, a Version, or what position() returned",
            topic=topic,
        )
    for kept in named if is_position(named) else ():  # type: ignore[attr-defined]
        if not all(UNKNOWN <= number <= _NUMBER_MAX for number in kept.place):
            raise BadTopic(f"{kept!r} is no place of a lane", topic=topic)


def is_position(named: object) -> bool:
    """Whether it is a place in each lane, as position() returned it."""
    is_many = isinstance(named, Sequence) and not isinstance(named, str)
    return is_many and all(isinstance(each, LanePlace) for each in named)  # type: ignore[attr-defined]


def as_position(places: Mapping[LaneRef, Place]) -> Position:
    """Return places of lanes as the caller keeps them."""
    return tuple(
        LanePlace(lane.topic, lane.uid, lane.partition, lane.lane, places[lane])
        for lane in sorted(places)
    )
