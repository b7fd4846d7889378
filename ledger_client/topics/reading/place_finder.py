"""Where a start or an end lies in a lane: beginning, end, message, version, time or position."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ledger_client.errors import BadTopic, Gap, NoSuchLedger
from ledger_client.ledgers.opener import LedgerOpener
from ledger_client.ledgers.reader import settle
from ledger_client.message_id import NOT_BATCHED, MessageId
from ledger_client.topics.lanes.ledger_rows import Row
from ledger_client.topics.positions import (
    EARLIEST,
    FIRST,
    UNKNOWN,
    LanePlace,
    LaneRef,
    Place,
    Version,
    is_position,
)
from ledger_client.topics.reading.lane_ranges import KnownLane, LaneStart
from ledger_client.topics.reading.options import Start
from ledger_client.topics.reading.search import (
    FoundPlace,
    LedgerSearch,
    TimeSearch,
    find_compacted,
    find_time_compacted,
)
from ledger_client.topics.times import TIMES, Time

HEADERS_MAX = 4
"""Entries without messages before a place, before which no more headers are read."""


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
        if isinstance(start, MessageId):
            raw = await self._message(known, start, after)  # also says if it is this lane's
            return await self._compacted(known, start, after) or raw
        if (found := await self._compacted(known, start, after)) is not None:
            return found
        if isinstance(start, Version):
            return await self._version(known, start.number + after)
        if isinstance(start, TIMES):
            time = start.next() if after else start
            at = await self.find_time(known, time)
            return LaneStart(at.place, None if at.exact else time)
        return LaneStart(kept_place(known.lane, start))

    async def begin(
        self, known: KnownLane, start: Start, *, after: bool, whole: Collection[str] = ()
    ) -> LaneStart:
        """As find(), for a read forward, which takes all of a lane that a position is older than.

        *whole*: topics of which the position leaves out younger lanes alone.
        """
        found = await self.find(known, start, after=after)
        if is_position(start) and is_younger(known.lane, start, whole):
            return LaneStart(FIRST)
        return found

    async def _compacted(self, known: KnownLane, start: Start, after: bool) -> LaneStart | None:
        """Return the place of a message or version, `None` if it is not compacted."""
        if known.compacted is None:
            return None
        lane, compacted = known.lane, known.compacted
        place = await find_compacted(lane, compacted, self._opener, start, after=after)
        return None if place is None else LaneStart(place)

    async def check(self, known: KnownLane, place: Place) -> None:
        """Raise BadTopic for a place behind the end of its lane, its ledger or its entry.

        A place at an end is allowed, and one whose ledger was removed: readers get a Gap there.
        """
        row = await known.rows.at(place.number) if place.number >= 0 else None
        if row is not None and not row.readable:
            row = None  # nothing is written there yet
        ids = {UNKNOWN, place.ledger_id if row is None else row.ledger.ledger_id}
        if place.ledger_id not in ids or min(place.entry, place.skip) < 0:
            raise _no_place(known.lane, place, f"is no place in {known.lane}")
        if row is None:
            if place.number >= 0 and place.at > (await next_number(known), 0, 0):
                raise _no_place(known.lane, place, f"is behind the end of {known.lane}")
            return
        ledger_id = row.ledger.ledger_id
        try:
            reader = await self._opener.open(ledger_id)
        except NoSuchLedger:
            return
        try:
            last = reader.last_confirmed
            if place.entry > last:
                last = await settle(reader, known.rows.is_written)
            of, end = "", row.place(last + 1)
            if place.skip and place.entry < end.entry:
                header = await LedgerSearch(known.lane, row, reader).header(place.entry)
                of = f"entry {place.entry} of "
                end = row.place(place.entry)._replace(skip=header.count if header else 0)
        finally:
            reader.unwatch()
        if place.at > end.at:
            at = end.message_id(known.lane.partition)
            why = f"is behind the end of {of}ledger {ledger_id}, which ends at {at}"
            raise _no_place(known.lane, place, why)

    async def find_time(
        self, known: KnownLane, time: Time, start: Place = EARLIEST, *, confirmed: int = 0
    ) -> FoundPlace:
        """Return the place before the first message at *time* or later, from *start* on.

        The caller knows that entries before the version *confirmed* are confirmed.
        """
        compacted = known.compacted
        if compacted is not None and compacted.holds(start):
            place = await find_time_compacted(known.lane, compacted, self._opener, time, start)
            if place is not None:
                return FoundPlace(place, True)
            start = compacted.horizon
        search = TimeSearch(known.lane, known.rows, self._opener, confirmed=confirmed)
        return await search.find(time, start=start)

    async def _latest(self, known: KnownLane) -> Place:
        row = await known.rows.at(known.record.current) if known.record.current >= 0 else None
        if row is None:  # empty, by now or still: begin at its next ledger
            return Place(known.record.current + 1, version=known.record.next_version)
        if row.ledger.state == "closed":
            return row.place(row.ledger.entries)
        reader = await self._opener.open(row.ledger.ledger_id)
        try:
            return row.place(await settle(reader, known.rows.is_written) + 1)
        finally:
            reader.unwatch()

    async def timestamp_before(self, known: KnownLane, place: Place) -> int:
        """Return the timestamp of the last message before a place, 0 if it has none.

        It may be one of an earlier message, where others lie far before the place.
        """
        row = await known.rows.at(place.number) if place.number >= 0 else None
        if row is None:
            return 0
        if place.entry or place.skip:
            reader = await self._opener.open(row.ledger.ledger_id)
            try:
                search = LedgerSearch(known.lane, row, reader)
                if place.skip:
                    return (await search.batch(place.entry)).timestamps[place.skip - 1]
                for entry in range(place.entry - 1, max(place.entry - HEADERS_MAX, 0) - 1, -1):
                    if (header := await search.header(entry)) is not None:
                        return header.last_timestamp
            finally:
                reader.unwatch()
        former = await known.rows.at(place.number - 1) if place.number else None
        return 0 if former is None else former.ledger.last_timestamp

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
        """Return the place of a message, or with a gap the first one if the lane lost its ledger.

        A ledger that exists is another lane's. The rows of removed ledgers are gone, and nothing
        keeps their ids. So any other ledger counts as lost if some were removed at the lane's
        beginning and its id is lower than those left, though another lane may have lost it. Where
        nothing is left, any id counts, also one that never was.

        Raises:
            BadTopic: the lane neither has the ledger nor can have lost it.
        """
        if start.ledger_id < 0:
            reason = f"message {start} is a duplicate, and nothing says where the original is"
            raise BadTopic(reason, topic=known.lane.topic)
        row = await row_of_message(known, start)
        if row is not None:
            return LaneStart(_place_of_message(row, start, after))
        is_elsewhere = await known.rows.exists(start.ledger_id)
        for removed in () if is_elsewhere else await known.rows.removals():
            if removed.ledger_id <= start.ledger_id <= removed.last_ledger_id:
                return LaneStart(Place(removed.stop_number, version=removed.stop_version))
        first = await known.rows.first_from(0)
        if is_elsewhere or not await _may_have_lost(known, start.ledger_id, first):
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


async def _may_have_lost(known: KnownLane, ledger_id: int, first: Row | None) -> bool:
    """True if a ledger may have been removed from a lane of which *first* is left."""
    if first is None:
        return await _newest(known) >= 0
    return first.number > 0 and ledger_id < first.ledger.ledger_id


def _no_place(lane: LaneRef, place: Place, why: str) -> BadTopic:
    return BadTopic(f"{place.message_id(lane.partition)} {why}", topic=lane.topic)


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


async def row_of_message(known: KnownLane, message: MessageId) -> Row | None:
    """Return the row of a message's ledger; `None` if the lane has, or has kept, none of its id."""
    row = await known.rows.last_with(
        lambda row: row.readable and row.ledger.ledger_id <= message.ledger_id,
        await _newest(known),
    )
    return row if row is not None and row.ledger.ledger_id == message.ledger_id else None


def _place_of_message(row: Row, message: MessageId, after: bool) -> Place:
    place = row.place(message.entry_id)
    if message.batch_index != NOT_BATCHED:
        return place._replace(skip=message.batch_index + after)
    return row.place(message.entry_id + after)  # the whole entry


async def _newest(known: KnownLane) -> int:
    """Return the number of the lane's newest ledger. Ids and versions rise up to it."""
    record = await known.rows.record()
    return known.record.current if record is None else record.current


async def next_number(known: KnownLane) -> int:
    """Return the number of the ledger that has the lane's next message, as far as is known."""
    newest = await _newest(known)
    row = await known.rows.at(newest) if newest >= 0 else None
    is_written = row is not None and row.readable and row.ledger.state != "closed"
    return newest if is_written else newest + 1


def kept_place(lane: LaneRef, position: Sequence[LanePlace]) -> Place:
    """Return the place of a position in a lane; EARLIEST if it has none there.

    Raises:
        BadTopic: it is of another topic of this name.
    """
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
    return EARLIEST


def is_younger(lane: LaneRef, position: Sequence[LanePlace], whole: Collection[str] = ()) -> bool:
    """True if a lane began after the position was taken, which does not name it.

    A position also leaves out partitions that its reader or group did not read. So in topics that
    are not *whole*, a lane counts as younger only beside others of its partition that were read.
    """
    here = [kept for kept in position if kept.topic == lane.topic]
    if any((kept.partition, kept.lane) == (lane.partition, lane.lane) for kept in here):
        return False
    return lane.topic in whole or any(
        kept.partition == lane.partition and kept.place[0] != UNKNOWN for kept in here
    )
