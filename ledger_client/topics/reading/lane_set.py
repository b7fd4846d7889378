"""The lanes that a reader reads: which they are, where each begins, the task that reads it.

topics ──► lanes that are there ──► where each begins and ends ──► a task and a stream
                  ▲
                  └─ while following: looked for again and again (topic_watch.py)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from ledger_client.errors import LedgerError
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.errors import NoSuchTopic
from ledger_client.topics.lanes.lane_names import read_lane_names
from ledger_client.topics.lanes.ledger_rows import LedgerRows, lanes_of
from ledger_client.topics.message_id import MessageId
from ledger_client.topics.reading.backward import BackwardReader
from ledger_client.topics.reading.compacted_lane import CompactedLane
from ledger_client.topics.reading.compacted_part import CompactedParts, part_of
from ledger_client.topics.reading.intake import Failed, Intake
from ledger_client.topics.reading.lane_reader import LaneReader, News
from ledger_client.topics.reading.lane_stream import LaneStream
from ledger_client.topics.reading.opening import LedgerOpener
from ledger_client.topics.reading.places import EARLIEST, LaneRef, Place
from ledger_client.topics.reading.read_options import Reading
from ledger_client.topics.reading.starting import (
    Begin,
    KnownLane,
    Start,
    Starts,
    is_position,
    narrow,
)
from ledger_client.topics.reading.times import TIMES, Time
from ledger_client.topics.reading.topic_watch import TopicWatch
from ledger_client.translation import translated
from metadata.topics import TopicRecord


class Opening(NamedTuple):
    """A lane, and what of it is to be read."""

    known: KnownLane
    begin: Begin
    end: Place | None = None
    end_was_confirmed: bool = False
    """what lies before *end* was confirmed once, as where a position was kept"""


class LaneSet:
    """The lanes of some topics, and how to read them.

    Args:
        catalogue: finds the topics.
        opener: opens their ledgers.
        topics: their records.
        reading: what was asked for.
        tell: called when a lane has something to take.
    """

    def __init__(
        self,
        *,
        catalogue: TopicCatalogue,
        opener: LedgerOpener,
        topics: Sequence[TopicRecord],
        reading: Reading,
        tell: Callable[[], None],
    ) -> None:
        self.store = catalogue.store
        self._catalogue = catalogue
        self._opener = opener
        self._topics = topics
        self._reading = reading
        self._tell = tell
        self._starts = Starts(opener)
        self._parts = CompactedParts(catalogue.store, timeout_s=catalogue.timeout_s)
        self.watches: list[TopicWatch] = []
        """of each topic, when it is followed"""

    async def openings(self, start: Start, *, behind: bool) -> list[Opening]:
        """Return all lanes there are, and where reading begins and ends in each.

        Raises:
            NoSuchTopic: one of the topics is gone.
            BadTopic: there is no such place; the message says why.
            LedgerError: as reading does.
        """
        reading = self._reading
        lanes = await self.lanes()
        chosen = narrow([each.lane for each in lanes], start, reading.end)
        lanes = [each for each in lanes if each.lane in chosen]
        self._opener.share(reading.read_ahead_size, len(lanes))
        begins = await self._places(lanes, start, behind=behind)
        if reading.end is None or self.until is not None:
            return [Opening(*pair) for pair in zip(lanes, begins, strict=True)]
        behind = reading.end_inclusive != reading.reverse
        ends = await self._places(lanes, reading.end, behind=behind)
        for end in ends:
            if end.gap is not None:
                raise end.gap
        places = [end.place for end in ends]
        is_kept = is_position(reading.end)
        return [Opening(*each, is_kept) for each in zip(lanes, begins, places, strict=True)]

    async def lanes(self) -> list[KnownLane]:
        """Return the lanes that exist, as far as they were asked for.

        Raises:
            NoSuchTopic: one of the topics is gone.
        """
        found: list[KnownLane] = []
        for index in range(len(self._topics)):
            found += await self.lanes_of(index)
        return found

    async def lanes_of(self, index: int) -> list[KnownLane]:
        """Return the lanes of one topic that exist, as far as they were asked for.

        Raises:
            NoSuchTopic: it is gone, or another one by now.
        """
        topic = self._topics[index]
        found, _ = await self._catalogue.get(topic.name)
        if found.uid != topic.uid:
            raise NoSuchTopic(topic.name)
        store, timeout_s = self.store, self._catalogue.timeout_s
        compacted = await self._parts.set_of(topic.uid) if self._reading.compacted else None
        known: list[KnownLane] = []
        wanted = self._reading.lanes
        there = await lanes_of(store, topic.uid, timeout_s=timeout_s)
        names = await self._names(topic)  # afterwards: a lane is made together with its name
        for partition, lane, record in there:
            if not _is_among(partition, self._reading.partitions):
                continue
            name = names.get((partition, lane), "")
            if not (_is_among(lane, wanted) or _is_among(name, wanted)):
                continue
            ordered = topic.order == "event-time"
            ref = LaneRef(index, partition, lane, topic.name, topic.uid, ordered)
            rows = LedgerRows(store, ref, timeout_s=timeout_s)
            part = None if compacted is None else part_of(compacted, ref)
            known.append(KnownLane(ref, rows, record, part, name))
        return known

    async def _names(self, topic: TopicRecord) -> dict[tuple[int, int], str]:
        """Return the names of lanes by partition and lane, if anything depends on them."""
        chosen = any(isinstance(each, str) for each in self._reading.lanes or ())
        if not chosen and self._reading.order != "event-time":
            return {}
        with translated(self._catalogue.timeout_s):
            return await read_lane_names(self.store, topic)

    async def _places(
        self, lanes: Sequence[KnownLane], start: Start, *, behind: bool
    ) -> list[Begin]:
        """Return the place in each lane; all are looked for at once."""
        found: dict[int, Begin] = {}
        failures: list[LedgerError] = []

        async def look(index: int) -> None:
            try:
                found[index] = await self._starts.begin(lanes[index], start, behind=behind)
            except LedgerError as failure:
                failures.append(failure)

        async with trio.open_nursery() as nursery:
            for index in range(len(lanes)):
                nursery.start_soon(look, index)
        if failures:
            raise failures[0]
        return [found[index] for index in range(len(lanes))]

    def takes(self, lane: LaneRef, start: Start) -> bool:
        """Whether a lane that appeared after reading had begun at *start* is read too."""
        if isinstance(self._reading.end, MessageId):
            return False  # it ends with a message of another lane
        return not isinstance(start, MessageId) or lane.partition == start.partition

    @property
    def until(self) -> Time | None:
        """The time at which every lane ends, when it is read forward."""
        end = self._reading.end
        if self._reading.reverse or not isinstance(end, TIMES):
            return None
        return end.next() if self._reading.end_inclusive else end

    def stream(self, opening: Opening) -> LaneStream:
        """Return the stream of a lane that nobody reads yet; run() does."""
        intake = Intake(self._tell)
        if opening.begin.gap is not None:
            intake.items.append(Failed(opening.begin.gap))
        return LaneStream(
            opening.known.lane,
            opening.begin.place,
            intake,
            name=opening.known.name,
            since=opening.begin.since,
            until=self.until,
            end=self._end(opening),
            backward=self._reading.reverse,
        )

    async def run(self, opening: Opening, stream: LaneStream) -> None:
        """Read a lane into its stream, until its end, a failure, or the end of its scope."""
        with stream.scope:
            if self._reading.compacted:
                await self._run_compacted(opening, stream)
            elif self._reading.reverse:
                await BackwardReader(
                    opening.known.lane,
                    rows=opening.known.rows,
                    opener=self._opener,
                    intake=stream.intake,
                    start=stream.place,
                    end=stream.end,
                ).run()
            else:
                await LaneReader(
                    opening.known.lane,
                    rows=opening.known.rows,
                    opener=self._opener,
                    intake=stream.intake,
                    start=stream.place,
                    end=stream.end,
                    end_was_confirmed=opening.end_was_confirmed,
                    last_number=self._last_number(opening.known),
                    news=self._news(opening.known),
                ).run()

    async def _run_compacted(self, opening: Opening, stream: LaneStream) -> None:
        known = opening.known
        lane = CompactedLane(
            known.lane,
            rows=known.rows,
            opener=self._opener,
            intake=stream.intake,
            parts=self._parts,
            part=known.part,
            start=stream.place,
            end=stream.end,
            end_was_confirmed=opening.end_was_confirmed,
        )
        if self._reading.reverse:
            await lane.run_back()
        else:
            await lane.run(last_number=self._last_number(known), news=self._news(known))

    def _last_number(self, known: KnownLane) -> int | None:
        return None if self._reading.follow else known.record.current

    def _news(self, known: KnownLane) -> News | None:
        return self.watches[known.lane.topic_index].news if self._reading.follow else None

    def _end(self, opening: Opening) -> Place | None:
        """Return where a lane ends; what is compacted later must not bring more of it."""
        bounded = not (self._reading.follow or self._reading.reverse)
        if opening.end is None and self._reading.compacted and bounded:
            return Place(opening.known.record.current + 1)
        return opening.end


def newborn(known: KnownLane, start: Start) -> Opening:
    """Return how to read a lane that appeared after reading had begun at *start*."""
    return Opening(known, Begin(EARLIEST, start if isinstance(start, TIMES) else None))


def _is_among(asked: int | str, wanted: Sequence[int | str] | None) -> bool:
    return wanted is None or asked in wanted
