"""The place in each lane at which a read begins or ends, from the caller's Start.

A MessageId is a place in one lane, so only that lane of its partition is read. A position, as
TopicReader.position() returned it, has a place in each lane. A time stands for the place before
the lane's first message at that time or later (search.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ledger_client.errors import BadTopic, Gap
from ledger_client.ledgers.reader import LedgerOpener, settle
from ledger_client.message_id import NOT_BATCHED, MessageId
from ledger_client.topics.lanes.ledger_rows import LedgerRows, Row
from ledger_client.topics.positions import (
    EARLIEST,
    UNKNOWN,
    LanePlace,
    LaneRef,
    Place,
    Version,
    is_position,
)
from ledger_client.topics.reading.compacted import CompactedRange
from ledger_client.topics.reading.options import Start
from ledger_client.topics.reading.search import (
    FoundPlace,
    TimeSearch,
    find_compacted,
    find_time_compacted,
)
from ledger_client.topics.times import TIMES, Time
from metadata.topics import LaneRecord

_NUMBER_MAX = (1 << 63) - 1


class KnownLane(NamedTuple):
    """A lane that exists, with its record when it was looked up."""

    lane: LaneRef
    rows: LedgerRows
    record: LaneRecord
    compacted: CompactedRange | None = None
    """its compacted beginning, if that is read"""
    name: str = ""
    """set only if lanes are chosen or ordered by it"""


class LaneStart(NamedTuple):
    """The place at which to begin in a lane."""

    place: Place
    since: Time | None = None
    """leave out messages before this time: none had reached it when the place was looked up"""
    gap: Gap | None = None
    """set if the requested place is gone"""


class LaneRange(NamedTuple):
    """A lane, and the range of it to be read."""

    known: KnownLane
    begin: LaneStart
    end: Place | None = None
    end_was_confirmed: bool = False
    """entries before *end* were confirmed once, as when it comes from a kept position"""


def new_lane(known: KnownLane, start: Start) -> LaneRange:
    """Return the range to read of a lane that appeared after reading had begun at *start*."""
    return LaneRange(known, LaneStart(EARLIEST, start if isinstance(start, TIMES) else None))


class PlaceFinder:
    """Looks up places in lanes. Every call may raise the errors of reading a ledger."""

    def __init__(self, opener: LedgerOpener) -> None:
        self._opener = opener

    async def find(self, known: KnownLane, start: Start, *, after: bool) -> LaneStart:
        """Return the place of *start* in a lane, or *after* the message or time that it names.

        Raises:
            BadTopic: the message is not in this lane, or the position not of this topic.
        """
        if start == "earliest":
            return LaneStart(EARLIEST)
        if start == "latest":
            return LaneStart(await self._latest(known))
        compacted = known.compacted
        if compacted is not None:
            place = await find_compacted(known.lane, compacted, self._opener, start, after=after)
            if place is not None:
                return LaneStart(place)
        if isinstance(start, MessageId):
            return await self._message(known, start, after)
        if isinstance(start, Version):
            return await self._version(known, start.number + after)
        if isinstance(start, TIMES):
            time = start.next() if after else start
            found = await self.find_time(known, time)
            return LaneStart(found.place, None if found.exact else time)
        return LaneStart(_kept_place(known.lane, start))

    async def find_time(self, known: KnownLane, time: Time, start: Place = EARLIEST) -> FoundPlace:
        """Return the place before the first message at *time* or later, from *start* on."""
        compacted = known.compacted
        if compacted is not None and compacted.holds(start):
            place = await find_time_compacted(known.lane, compacted, self._opener, time, start)
            if place is not None:
                return FoundPlace(place, True)
            start = compacted.horizon
        return await TimeSearch(known.lane, known.rows, self._opener).find(time, start=start)

    async def _latest(self, known: KnownLane) -> Place:
        row = await known.rows.at(known.record.current) if known.record.current >= 0 else None
        if row is None:  # empty, by now or still: begin at its next ledger
            return Place(known.record.current + 1, version=known.record.next_version)
        if row.ledger.state == "closed":
            return row.place(row.ledger.entries)
        reader = await self._opener.open(row.ledger.ledger_id)
        try:
            return row.place(await settle(reader) + 1)
        finally:
            reader.close()

    async def _version(self, known: KnownLane, version: int) -> LaneStart:
        """Return the place before the first entry of this version or a later one."""
        last = await _newest(known)
        row = await known.rows.last_with(
            lambda row: row.readable and row.ledger.base_version <= version, last
        )
        if row is None:
            first = await known.rows.first_from(0)
            if first is not None and 0 <= version < first.ledger.base_version:
                return LaneStart(EARLIEST, gap=_gap_before(known.lane, first, version))
            return LaneStart(await self._latest(known))
        entry = version - row.ledger.base_version
        if row.ledger.state != "closed" or entry < row.ledger.entries:
            return LaneStart(row.place(entry))
        following = await known.rows.first_from(row.number + 1)  # versions in between are unused
        if following is not None and following.readable:
            return LaneStart(following.place(0))
        return LaneStart(await self._latest(known))

    async def _message(self, known: KnownLane, start: MessageId, after: bool) -> LaneStart:
        if start.ledger_id < 0:
            reason = f"message {start} is a duplicate, and nothing says where the original is"
            raise BadTopic(reason, topic=known.lane.topic)
        row = await known.rows.last_with(
            lambda row: row.readable and row.ledger.ledger_id <= start.ledger_id,
            await _newest(known),
        )
        if row is not None and row.ledger.ledger_id == start.ledger_id:
            return LaneStart(_place_of_message(row, start, after))
        for removed in await known.rows.removals():
            if removed.ledger_id <= start.ledger_id <= removed.last_ledger_id:
                return LaneStart(Place(removed.stop_number, version=removed.stop_version))
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
        return LaneStart(EARLIEST, gap=gap)


def _gap_before(lane: LaneRef, row: Row, version: int) -> Gap:
    """Return the gap from *version* to the lane's first row."""
    missing = row.ledger.base_version - version
    return Gap(
        lane.topic,
        partition=lane.partition,
        lane=lane.lane,
        position=Place(UNKNOWN, version=version).message_id(lane.partition),
        first=MessageId(row.ledger.ledger_id, 0, lane.partition),
        missing=missing,
    )


def _place_of_message(row: Row, message: MessageId, after: bool) -> Place:
    place = row.place(message.entry_id)
    if message.batch_index != NOT_BATCHED:
        return place._replace(skip=message.batch_index + after)
    return row.place(message.entry_id + after)  # the whole entry


async def _newest(known: KnownLane) -> int:
    """Return the number of the lane's newest ledger. Ids and versions rise up to it."""
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
    """Return those of *lanes* in which the starts and ends *named* can lie.

    Raises:
        BadTopic: one of them is a message that can be in several lanes, or in none; or it is
            no place.
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
        listed = " and ".join(map(str, messages))
        raise BadTopic(f"{listed}: not in one partition that is read and has messages", topic=topic)
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
    for kept in named if is_position(named) else ():
        if not all(UNKNOWN <= number <= _NUMBER_MAX for number in kept.place):
            raise BadTopic(f"{kept!r} is no place of a lane", topic=topic)
