"""Named cuts: several topics as they were at one moment, kept for as long as one likes.

    a timestamp T ──► stake ──► in each topic: a tick from T on ──► lanes ──► place of T ──► shown

A tick names the lanes that have messages up to T, and a place in each one before which they all
lie. What is later than T may lie before it too, so the exact place is searched for in the lane. The
stake keeps retention and deletions away meanwhile; what is stored is in metadata/cuts.py.

A topic without timesync has no such place. Taken along loosely, it is in the cut up to what was
confirmed in each lane while the cut was made, lane by lane.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial

import trio

from ledger_client.errors import BadCut, LedgerError, MetadataUnavailable
from ledger_client.ledgers.catalogue import translated
from ledger_client.topics.context import TopicContext
from ledger_client.topics.positions import EARLIEST, LanePlace, Place, Position
from ledger_client.topics.reading.lane_ranges import KnownLane
from ledger_client.topics.reading.lane_set import LaneSet
from ledger_client.topics.reading.options import ReadOptions
from ledger_client.topics.reading.place_finder import PlaceFinder
from ledger_client.topics.tick_follower import TickFollower, was_opened
from ledger_client.topics.times import Timestamp
from metadata.cuts import (
    TOPICS_MAX,
    CutLane,
    CutRecord,
    CutTopic,
    Stake,
    check_cut,
    delete_cut,
    put_stake,
    read_cut,
    read_cuts,
    remove_stake,
    show_cut,
)
from metadata.errors import VersionConflict
from metadata.store import Check
from metadata.time.timestamps import first_at
from metadata.topics import TopicRecord, topic_key
from native.tick import Covers

CutInfo = CutRecord
TIMEOUT_S = 30.0
GRACE_S = 60.0
"""A stake outlasts the time limit of its cut by this, and is then removed."""
SHOW_S = 60.0
"""Time limit for storing a cut: some transactions."""
RELEASE_S = 5.0
LANES_AT_ONCE = 16
AGAIN_S = 0.1
ATTEMPTS_MAX = 5


class Cuts:
    """The named cuts of one cluster. Any task may use it.

    Every call may raise MetadataUnavailable and MetadataBroken; other errors are named where they
    can happen.
    """

    def __init__(self, context: TopicContext) -> None:
        self._context = context

    async def create(
        self,
        name: str,
        topics: str | Sequence[str],
        *,
        at: Timestamp | datetime | None = None,
        loose: bool = False,
        timeout_s: float = TIMEOUT_S,
        on_progress: Callable[[int], None] = lambda _count: None,
    ) -> CutInfo:
        """Record topics as they are at one moment, and keep their messages up to it.

        Until the cut is deleted, retention, purges and truncation remove nothing that these topics
        have up to it now, and the topics cannot be deleted. If a message is in the cut, so is
        each one that was acknowledged to anybody before it was sent, in all of the topics.

        Args:
            name: 1 to 64 letters, digits, "_", "-" or ".".
            topics: namespace/name, one or up to 50, with timesync.
            at: a moment in the past, whose messages must still be there. Default: now, with
                everything that was acknowledged before the call.
            loose: take topics without timesync along, up to what is confirmed in each lane while
                the cut is made. These places are not of one moment.
            timeout_s: time limit.
            on_progress: called with the number of topics that are done by then.

        Raises:
            BadCut: the name is taken, a topic has no timestamps, or the moment is in the future
                or too far back.
            NoSuchTopic: a topic does not exist.
            MetadataUnavailable: it was not made in time; the message names the lane that holds
                back ticks. After this error alone the cut may exist.
            ReplicasUnavailable: bookies are away that alone have some of the messages.
        """
        listed = [topics] if isinstance(topics, str) else list(topics)
        await self._check(name, listed)
        making = _Making(self._context, name, trio.current_time() + timeout_s, timeout_s)
        check = partial(_check_timed, name, at=at, loose=loose)
        async with self._staked(making, listed, check) as (stake, records):
            moment = await making.moment(at)
            lanes: list[CutTopic] = []
            for record in records:
                lanes.append(await making.topic(record, moment, is_past=at is not None))
                on_progress(len(lanes))
            is_timed = any(topic.timed for topic in lanes)
            cut = CutRecord(
                name=name,
                timestamp=moment if is_timed else 0,
                created_ms=await self._context.catalogue.now_ms(),
                topics=lanes,
            )
            await self._show(cut, stake)
        return cut

    async def get(self, name: str) -> CutInfo:
        """Return a cut. Raises BadCut if there is none of this name."""
        _check_name(name)
        with translated(self._context.options.metadata_timeout_s):
            found = await read_cut(self._context.store, name)
        if found is None:
            raise BadCut.unknown(name)
        return found.record

    async def list(self) -> list[CutInfo]:
        """Return all cuts, by name."""
        with translated(self._context.options.metadata_timeout_s):
            return await read_cuts(self._context.store)

    async def delete(self, name: str) -> None:
        """Delete a cut; its topics keep nothing for it any more.

        Raises:
            BadCut: there is none of this name.
        """
        _check_name(name)
        with translated(self._context.options.metadata_timeout_s):
            is_there = await delete_cut(self._context.store, name)
        if not is_there:
            raise BadCut.unknown(name)

    # --- making one --------------------------------------------------------------------------

    async def _check(self, name: str, topics: Sequence[str]) -> None:
        """Raise BadCut if a cut cannot be made so."""
        _check_name(name)
        wrong = {
            "a cut of no topic": not topics,
            "a topic is named twice": len(set(topics)) < len(topics),
            f"a cut has {TOPICS_MAX} topics at most": len(topics) > TOPICS_MAX,
        }
        for message, holds in wrong.items():
            if holds:
                raise BadCut(message, cut=name)
        with translated(self._context.options.metadata_timeout_s):
            if await read_cut(self._context.store, name) is not None:
                raise _taken(name)

    @asynccontextmanager
    async def _staked(
        self,
        making: _Making,
        topics: Sequence[str],
        check: Callable[[Sequence[TopicRecord]], None],
    ) -> AsyncIterator[tuple[Stake, Sequence[TopicRecord]]]:
        """Hold all of these topics for the block; after it, only what was shown."""
        context = self._context
        now_ms = await context.catalogue.now_ms()
        until_ms = now_ms + round((making.timeout_s + GRACE_S) * 1000)
        stake = Stake(secrets.token_hex(16), until_ms)
        records: Sequence[TopicRecord] = ()
        try:
            for attempt in range(1, ATTEMPTS_MAX + 1):
                found = [await context.catalogue.get(topic) for topic in topics]
                records = [record for record, _ in found]
                check(records)
                checks = [Check(topic_key(record.name), version) for record, version in found]
                try:
                    with translated(context.options.metadata_timeout_s):
                        await put_stake(context.store, stake, _uids(records), checks)
                    break
                except VersionConflict as conflict:
                    if attempt == ATTEMPTS_MAX:
                        text = f"its topics keep changing: {conflict}"
                        raise BadCut(text, cut=making.name) from conflict
            yield stake, records
        except BaseException:
            # Otherwise the leader removes it when its time is over.
            with (
                trio.CancelScope(shield=True),
                suppress(LedgerError, VersionConflict),
                translated(RELEASE_S),
            ):
                await remove_stake(context.store, stake.id, _uids(records))
            raise

    async def _show(self, cut: CutRecord, stake: Stake) -> None:
        try:
            with translated(SHOW_S):
                is_shown = await show_cut(self._context.store, cut, stake.id)
        except VersionConflict as conflict:
            raise _taken(cut.name) from conflict
        if not is_shown:
            text = "it took too long, and what it was to keep may be gone; try again"
            raise BadCut(text, cut=cut.name)


async def places_at(
    context: TopicContext,
    topics: Sequence[TopicRecord],
    at: Timestamp | datetime,
    *,
    partitions: Collection[int] | None = None,
    is_past: bool = True,
    timeout_s: float = TIMEOUT_S,
) -> Position:
    """Return the place in each lane after its last message up to a moment, as a cut would have it.

    Nothing is kept for it. *partitions*: look only at their lanes.

    Raises:
        BadCut: a topic has no timestamps, the moment is in the future, or, with *is_past*, all
            that was there up to it may have been removed.
        MetadataUnavailable: ticks did not reach the moment in time.
        LedgerError: a place could not be searched for.
    """
    name = "as of a moment"
    _check_timed(name, topics, at=at, loose=False)
    making = _Making(context, name, trio.current_time() + timeout_s, timeout_s, partitions)
    moment = await making.moment(at)
    found = [await making.topic(topic, moment, is_past=is_past) for topic in topics]
    return Position(
        LanePlace(
            topic.name,
            topic.uid,
            at.partition,
            at.lane,
            Place(at.number, at.entry, at.skip, at.ledger_id, at.version),
        )
        for topic in found
        for at in topic.lanes
    )


class _Making:
    """The places of one cut."""

    def __init__(
        self,
        context: TopicContext,
        name: str,
        ends_at: float,
        timeout_s: float,
        partitions: Collection[int] | None = None,
    ) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self._context = context
        self._ends_at = ends_at
        self._partitions = partitions
        self._places = PlaceFinder(context.opener)

    async def moment(self, at: Timestamp | datetime | None) -> int:
        """Return the cut's timestamp. Raises BadCut."""
        now = (await self._context.timestamps.allocate()).first
        if at is None:
            return now
        try:
            moment = first_at(at) if isinstance(at, datetime) else at.value
        except ValueError as wrong:
            raise BadCut(str(wrong), cut=self.name) from None
        if not 0 < moment < now:
            raise BadCut(
                f"timestamp {moment} is in the future, or none; name a moment of the past",
                cut=self.name,
            )
        return moment

    async def topic(self, topic: TopicRecord, moment: int, *, is_past: bool) -> CutTopic:
        """Return a topic at the moment. Raises as Cuts.create()."""
        covers = await self._covers(topic, moment) if topic.timesync else None
        with trio.move_on_at(self._ends_at):
            lanes = await self._lanes(topic, covers)
            found = await self._find(lanes, moment, covers, is_past=is_past)
            return CutTopic(name=topic.name, uid=topic.uid, timed=topic.timesync, lanes=found)
        raise MetadataUnavailable(
            f"cut {self.name} was not made in {self.timeout_s:g} s: places in topic {topic.name} "
            "that its ticks name are not confirmed yet"
        )

    async def _covers(self, topic: TopicRecord, moment: int) -> Covers:
        """Return the lanes with messages up to the moment, and places after these messages."""
        if not await was_opened(self._context, topic):
            return {}  # a lane that opens from now on has greater timestamps
        left_s = max(self._ends_at - trio.current_time(), 0.0)
        ticks = TickFollower(self._context, topic)
        covers = (await ticks.newest(moment - 1, limit_s=left_s)).covers
        if self._partitions is None:
            return covers
        return {lane: cover for lane, cover in covers.items() if lane[0] in self._partitions}

    async def _lanes(self, topic: TopicRecord, covers: Covers | None) -> list[KnownLane]:
        """Return the lanes of a topic, of one with timesync those that are covered."""
        context = self._context
        lanes = LaneSet(
            catalogue=context.catalogue,
            opener=context.opener,
            topics=[topic],
            options=ReadOptions(),
        )
        while True:
            known = {(each.lane.partition, each.lane.lane): each for each in await lanes.lanes()}
            if covers is None:
                return list(known.values())
            if covers.keys() <= known.keys():
                return [known[lane] for lane in sorted(covers)]
            await trio.sleep(AGAIN_S)

    async def _find(
        self, lanes: Sequence[KnownLane], moment: int, covers: Covers | None, *, is_past: bool
    ) -> list[CutLane]:
        """Return the places in the lanes, LANES_AT_ONCE at a time."""
        found: dict[tuple[int, int], Place] = {}
        failures: list[LedgerError] = []
        limit = trio.CapacityLimiter(LANES_AT_ONCE)

        async def look(known: KnownLane) -> None:
            index = known.lane.partition, known.lane.lane
            async with limit:
                try:
                    if covers is None:
                        start = await self._places.find(known, "latest", after=False)
                        found[index] = start.place
                    else:
                        found[index] = await self._place(known, moment, covers[index])
                        if is_past:
                            await self._check_kept(known, found[index])
                except LedgerError as failure:
                    failures.append(failure)

        async with trio.open_nursery() as nursery:
            for known in lanes:
                nursery.start_soon(look, known)
        if failures:
            raise failures[0]
        return [CutLane(*index, *found[index]) for index in sorted(found)]

    async def _place(self, known: KnownLane, moment: int, cover: int) -> Place:
        """Return the place after the last message of a lane up to the moment.

        Those messages lie before the version *cover*, and are durable, whatever the bookies that
        answer know to be confirmed.
        """
        while True:
            time = Timestamp(moment).next()
            found = await self._places.find_time(known, time, confirmed=cover)
            if found.exact or found.place.version >= cover:
                return found.place
            record, first = await known.rows.record(), await known.rows.first_from(0)
            if first is None and record is not None:  # all was removed
                return Place(record.current + 1, version=record.next_version)
            await trio.sleep(AGAIN_S)

    async def _check_kept(self, known: KnownLane, place: Place) -> None:
        """Raise BadCut if all that a lane had before the place may have been removed."""
        first = await known.rows.first_from(0)
        if first is None or first.number == 0:
            return
        begins = first.place(1)  # after the lane's state
        if EARLIEST.at < place.at <= begins.at:
            text = f"what {known.lane} of topic {known.lane.topic} had at that moment was removed"
            raise BadCut(text, cut=self.name)


def _check_name(name: str) -> None:
    try:
        check_cut(name)
    except ValueError as wrong:
        raise BadCut(str(wrong), cut=repr(name)) from None


def _check_timed(
    name: str, topics: Sequence[TopicRecord], *, at: Timestamp | datetime | None, loose: bool
) -> None:
    """Raise BadCut if a topic has no timestamps and the options need them."""
    untimed = [topic.name for topic in topics if not topic.timesync]
    if untimed and at is not None:
        text = f"topic {untimed[0]} is without timesync: what it had in the past is not known"
        raise BadCut(text, cut=name)
    if untimed and not loose:
        text = f"topic {untimed[0]} is without timesync, and has no place of one moment"
        raise BadCut(f"{text}; a loose cut takes it as it is", cut=name)


def _uids(topics: Sequence[TopicRecord]) -> Sequence[int]:
    return [topic.uid for topic in topics]


def _taken(name: str) -> BadCut:
    return BadCut("there is one of this name already", cut=name)
