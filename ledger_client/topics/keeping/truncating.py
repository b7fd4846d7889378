"""Messages deleted out of a topic: from a place on, or between two, in every lane.

Nothing is done before it is known of every lane that it can be. Each lane is cut by itself:
one that was reached is cut, and the others are when it is done again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from ledger_client.topics.errors import BadTopic, ProducerBusy, TopicBusy
from ledger_client.topics.jobs.job import read_pins
from ledger_client.topics.keeping.compacted_sets import HOLDER, read_set
from ledger_client.topics.keeping.cut_rows import Cut, LostRace
from ledger_client.topics.keeping.holdings import LaneHoldings, read_holdings
from ledger_client.topics.keeping.idle import close_lane
from ledger_client.topics.keeping.lane_truncation import LaneTruncation, limited
from ledger_client.topics.keeping.truncation import LaneTruncated, Truncated
from ledger_client.topics.lanes.lane_names import unnaming
from ledger_client.topics.reading.lane_set import LaneSet
from ledger_client.topics.reading.places import Place
from ledger_client.topics.reading.read_options import Reading
from ledger_client.topics.reading.starting import Begin, KnownLane, Start, Starts, narrow
from ledger_client.topics.reading.times import EventTime
from ledger_client.translation import translated
from metadata.topics import TopicRecord

if TYPE_CHECKING:
    from ledger_client.topics.client import TopicClient

ATTEMPTS = 5
"""At rows that others change at the same time, as retention does."""
OnRemoved = Callable[[int], None]


class Truncation:
    """Deletes messages of a topic; see TopicClient.truncate_topic."""

    def __init__(
        self,
        client: TopicClient,
        topic: TopicRecord,
        start: Start,
        stop: Start | None,
        *,
        partition: int | None,
        lane: int | None,
        force: bool,
    ) -> None:
        self._client = client
        self._topic = topic
        self._start = start
        self._stop = stop
        self._force = force
        self._opener = client.ledger_opener()
        self._starts = Starts(self._opener)
        self._reading = Reading(
            partitions=None if partition is None else [partition],
            lanes=None if lane is None else [lane],
        )
        self._reading.check([topic])
        if topic.order != "event-time" and any(isinstance(at, EventTime) for at in (start, stop)):
            raise BadTopic(
                "it is not ordered by event time: name a time of writing, a message or a position",
                topic=topic.name,
            )

    async def plan(self) -> Truncated:
        """Return what would go. Raises as TopicClient.truncate_topic, but TopicBusy."""
        lanes: list[LaneTruncated] = []
        for known in await self._lanes():
            found, _, _, cut = await self._look(known)
            if cut.messages:
                lanes.append(self._of(known).told(cut, found))
        return Truncated(topic=self._topic.name, lanes=lanes)

    async def run(self, on_removed: OnRemoved) -> Truncated:
        """Delete, lane by lane. Raises as TopicClient.truncate_topic."""
        done: list[LaneTruncated] = []
        await self._close_idle()
        lanes = await self._lanes()
        for known in lanes:
            found, _, stop, cut = await self._look(known)
            if cut.messages:
                await self._check(found, stop, cut)
        for known in lanes:
            went = await self._truncate(known, on_removed)
            done += [] if went is None else [went]
        return Truncated(topic=self._topic.name, lanes=done)

    async def check_there(self) -> None:
        """Raise BadTopic unless there is such a lane."""
        if not [each for each in await self._lanes() if not each.record.deleted]:
            raise BadTopic("there is no such lane", topic=self._topic.name)

    async def delete_lanes(self) -> None:
        """Let the lanes, which were cleared, be nobody's. Raises as TopicClient.delete_lane."""
        for known in await self._lanes():
            partition, lane = known.lane.partition, known.lane.lane
            async with self._of(known).hold(force=self._force) as rows:
                with translated(self._client.topics.timeout_s):
                    ops = await unnaming(self._client.store, self._topic, partition, lane)
                await rows.delete(ops)

    # --- lanes -------------------------------------------------------------------------

    async def _lanes(self) -> list[KnownLane]:
        lanes = LaneSet(
            catalogue=self._client.topics,
            opener=self._opener,
            topics=[self._topic],
            reading=self._reading,
            tell=lambda: None,
        )
        known = await lanes.lanes()
        chosen = narrow([each.lane for each in known], self._start, self._stop)
        return [each for each in known if each.lane in chosen]

    def _of(self, known: KnownLane) -> LaneTruncation:
        return LaneTruncation(self._client, self._topic, known.lane, self._opener)

    async def _look(self, known: KnownLane) -> tuple[LaneHoldings, Place, Place | None, Cut]:
        """Return a lane, where in it something goes, and what."""
        with translated(self._client.topics.timeout_s):
            found = await read_holdings(self._client.store, self._topic, known.lane.partition)
        held = next(each for each in found if each.lane == known.lane.lane)
        known = known._replace(record=held.record or known.record)
        begin = await self._begin(known, self._start, behind=False)
        stop: Place | None = None
        if self._stop is not None:
            end = await self._begin(known, self._stop, behind=True)
            stop = None if end.since is not None else end.place
        start = begin.place
        if begin.since is not None:  # nothing is so late
            start = stop = Place(known.record.current + 2)
        return held, start, stop, await self._of(known).plan(held, start, stop)

    async def _begin(self, known: KnownLane, at: Start, *, behind: bool) -> Begin:
        """Return a place. Raises Gap: it was removed; to name it may be a mistake."""
        begin = await self._starts.begin(known, at, behind=behind)
        if begin.gap is not None:
            raise begin.gap
        return begin

    async def _check(self, found: LaneHoldings, stop: Place | None, cut: Cut) -> None:
        """Raise TopicBusy if somebody needs what goes of a lane."""
        last = cut.parts[-1].held
        first = cut.parts[0].held.number
        owner = found.owner if found.owner is not None and not found.owner.closing else None
        if _takes_lane(stop, cut) and owner is not None and not self._force:
            who = f"{owner.producer or 'a producer'}, process {owner.process_id} on {owner.host}"
            raise self._busy(found, f"is written by {who}: close it, or end it by force")
        with translated(self._client.topics.timeout_s):
            pins = await read_pins(self._client.store, self._topic)
            compacted = await read_set(self._client.store, self._topic.uid)
        for pin in pins:
            is_here = (pin.partition, pin.lane) == (found.partition, found.lane)
            if is_here and pin.holder != HOLDER and pin.number <= last.number:
                raise self._busy(found, f"is needed by {pin.holder}: wait for its end")
        for horizon in compacted.set.horizons if compacted is not None else ():
            is_here = (horizon.partition, horizon.lane) == (found.partition, found.lane)
            if is_here and first <= horizon.number:
                raise self._busy(
                    found,
                    "is compacted up to a later place, and what is deleted would stay there: "
                    f"quire compact {self._topic.name} --drop",
                )

    def _busy(self, found: LaneHoldings, why: str) -> TopicBusy:
        return TopicBusy(self._topic.name, partition=found.partition, lane=found.lane, why=why)

    async def _close_idle(self) -> None:
        """Close lanes that nobody writes: then it is known what they hold."""
        with translated(self._client.topics.timeout_s):
            lanes = await read_holdings(self._client.store, self._topic)
        for each in lanes:
            is_open = any(held.row.state == "open" for held in each.ledgers)
            if each.owner is None and is_open:
                with suppress(ProducerBusy):  # it is written again
                    await close_lane(self._client, self._topic, each.partition, each.lane)

    # --- doing -------------------------------------------------------------------------

    async def _truncate(self, known: KnownLane, on_removed: OnRemoved) -> LaneTruncated | None:
        """Delete what goes of a lane; return what went, None for nothing."""
        told: LaneTruncated | None = None
        attempts = ATTEMPTS
        while True:
            found, start, stop, cut = await self._look(known)
            if not cut.messages:
                return told
            await self._check(found, stop, cut)
            lost, step = None, None
            try:
                step = await self._step(known, start, stop, cut)
            except LostRace as race:
                lost = race
            if step is not None:
                told = _both(told, step, is_end=stop is None)
                on_removed(step.ledgers)
                continue
            attempts -= 1
            if not attempts:
                raise LostRace(
                    f"{known.lane} is changed by others", topic=known.lane.topic
                ) from lost

    async def _step(
        self, known: KnownLane, start: Place, stop: Place | None, cut: Cut
    ) -> LaneTruncated | None:
        """Delete what one transaction takes; return what went. None: look again."""
        lane = self._of(known)
        if _takes_lane(stop, cut):
            async with lane.hold(force=self._force) as rows:
                found, start, stop, cut = await self._look(known)
                cut = await lane.plan(found, *limited(cut, start, stop))
                if stop is not None or not cut.parts:
                    return None  # it is closed now
                await self._check(found, stop, cut)  # recovery may have taken its time
                await lane.truncate(rows, cut)
                return lane.told(cut, found)
        found, start, stop, cut = await self._look(known)
        cut = await lane.plan(found, *limited(cut, start, stop))
        if not cut.parts or _takes_lane(stop, cut):
            return None  # others have changed it meanwhile
        await self._check(found, stop, cut)  # to read what is left may have taken its time
        return lane.told(cut, found) if await lane.punch(cut) else None


def _both(before: LaneTruncated | None, step: LaneTruncated, *, is_end: bool) -> LaneTruncated:
    """Return what two steps deleted: from the end they go back, within a lane ahead."""
    if before is None:
        return step
    return msgspec.structs.replace(
        step if is_end else before,
        ledgers=before.ledgers + step.ledgers,
        messages=before.messages + step.messages,
    )


def _takes_lane(stop: Place | None, cut: Cut) -> bool:
    """Whether the lane must be held: it is cut at its end, or in a ledger that is written."""
    return stop is None or any(part.held.row.state == "open" for part in cut.parts)
