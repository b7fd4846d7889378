"""Removes the ledgers that exceed their topic's limits: those of lanes and partitions that are due.

    due by age ──► the lane's first rows ─────────────┐
    over its quota ──► all rows of the partition ─────┼──► plan ──► removed, in transactions
    the topic's record, and its pins: read after rows ┘

The index says where to look, and may be wrong. What goes is decided by the rows, the limits and the
pins as they are read here, and each removal expects the versions of these rows. So a round costs as
much as there is to remove.

What a group keeps is looked at again when its place has moved, which is read once a minute.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import groupby, islice

import msgspec
import trio

from ledger_client.cluster.lane_index import LaneKey, Place, TopicEntry, tallied
from ledger_client.cluster.lane_survey import LaneSurvey
from ledger_client.cluster.observer import TopicFigures
from ledger_client.topics.context import TopicContext
from ledger_client.topics.retention.holdings import (
    LaneHoldings,
    Pin,
    held_ledger,
    read_holdings,
)
from ledger_client.topics.retention.job_rows import Holds, read_group_pins, read_holds
from ledger_client.topics.retention.removal import removable, remove_ledgers
from ledger_client.topics.retention.retention import Fate, plan_retention
from metadata.errors import BadRecord
from metadata.leadership import Term
from metadata.pointers import read_lane_rows
from metadata.store import Check, CheckLease
from metadata.topics import INFINITE, Retention, TopicRecord, lane_ledgers_prefix

LANES_COUNT = 100
"""Lanes that one call looks at."""
PARTITIONS_COUNT = 10
HEAD_COUNT = 40
"""Rows that are read at the beginning of a lane that is due."""
RETRY_MS = 60_000
"""A lane whose due ledgers could not be removed is looked at again after this."""
GROUPS_MS = 60_000
"""Between two looks at the places of groups that keep due ledgers."""
TOPICS_COUNT = 100
"""Topics whose groups one call looks at."""
_log = logging.getLogger(__name__)


class Expiry:
    """Removes ledgers of the topics that *survey* follows."""

    def __init__(self, context: TopicContext, survey: LaneSurvey, figures: TopicFigures) -> None:
        self._context = context
        self._store = context.store
        self._survey = survey
        self._index = survey.index
        self._figures = figures
        self._now_ms = 0
        self._kept: dict[int, KeptLanes] = {}
        """by the topic's uid"""

    async def step(self, term: Term) -> bool:
        """Look at some lanes and partitions that are due; return False if there are none.

        Raises:
            MetadataError, LedgerError: what is left is looked at by a later call.
            LeaseLost: the term is over.
        """
        self._now_ms = await self._store.now_ms()
        await self._look_at_groups()
        due = sorted(self._index.take_due(self._now_ms, LANES_COUNT))
        try:
            for uid, lanes in groupby(due, key=lambda lane: lane[0]):
                await self._expire(uid, [lane[1:] for lane in lanes], term)
        except BaseException:
            self._put_back(due)
            raise
        over = list(islice(self._index.over, PARTITIONS_COUNT))
        for uid, partition in over:
            await self._fit(uid, partition, term)
            self._index.over.pop((uid, partition), None)
        return bool(due or over)

    def _put_back(self, lanes: Sequence[LaneKey]) -> None:
        for lane in lanes:
            topic = self._index.topics.get(lane[0])
            if topic is not None and lane[1:] in topic.lanes:
                self._index.hold(topic, lane[1:], self._now_ms)

    # --- by age -----------------------------------------------------------------------------

    async def _expire(self, uid: int, places: Sequence[Place], term: Term) -> None:
        """Remove what is too old in lanes of a topic."""
        topic = self._index.topics.get(uid)
        if topic is None:
            return
        heads = {}
        for place in places:
            if topic.is_over(place[0]):
                self._index.over[uid, place[0]] = None
            elif (head := await self._head(topic, place)) is not None:
                heads[place] = head
        plans, holds = await self._plan(topic, list(heads.values()), by_size=False)
        going = await self._remove(topic, removable(plans), term, holds)
        for place, fates in _by_lane(plans):
            more = len(heads[place].ledgers) == HEAD_COUNT
            self._settle(topic, place, fates, going, more=more)

    async def _head(self, topic: TopicEntry, place: Place) -> LaneHoldings | None:
        """Return the first ledgers of a lane; `None` if they cannot be read."""
        prefix = lane_ledgers_prefix(topic.uid, *place)
        try:
            rows = await read_lane_rows(self._store, prefix, limit=HEAD_COUNT)
        except BadRecord as wrong:
            self._survey.pass_over(topic.name, wrong)
            self._index.block(topic, place)
            return None
        held = tuple(held_ledger(row) for row in rows if not row.is_hidden)
        if not held:
            self._survey.count_anew((topic.uid, *place))
        return LaneHoldings(*place, None, None, held) if held else None

    # --- by size ----------------------------------------------------------------------------

    async def _fit(self, uid: int, partition: int, term: Term) -> None:
        """Remove what a partition has too much."""
        topic = self._index.topics.get(uid)
        record = None if topic is None else await self._survey.record(uid)
        if topic is None or record is None:
            return
        try:
            lanes = await read_holdings(self._store, record, partition)
        except BadRecord as wrong:
            self._survey.pass_over(topic.name, wrong)
            return
        plans, holds = await self._plan(topic, lanes, by_size=True)
        gone = await self._remove(topic, removable(plans), term, holds)
        if not plans:
            return
        for lane in lanes:
            place = lane.partition, lane.lane
            kept = [each for each in lane.ledgers if (place, each.number) not in gone]
            self._index.put(topic, place, tallied(None, kept))
        for place, fates in _by_lane(plans):
            self._schedule(topic, place, fates, gone)

    # --- both -------------------------------------------------------------------------------

    async def _plan(
        self, topic: TopicEntry, lanes: Sequence[LaneHoldings], *, by_size: bool
    ) -> tuple[list[Fate], Holds | None]:
        """Return the fates of ledgers, by the limits and holds as they are now, and these holds."""
        await trio.lowlevel.checkpoint()  # lets the bookie serve clients in between
        record = await self._survey.record(topic.uid) if lanes else None
        if record is None:
            self._hold(topic, lanes)
            return [], None
        try:
            places = [(lane.partition, lane.lane) for lane in lanes]
            holds = await read_holds(self._store, record, places)
        except BadRecord as wrong:
            self._survey.pass_over(topic.name, wrong)
            self._hold(topic, lanes)
            return [], None
        limits = _limits(record, by_size=by_size)
        plans = plan_retention(lanes, limits, now_ms=self._now_ms, pins=holds.pins)
        self._note_kept(topic.uid, plans, holds)
        return plans, holds

    def _hold(self, topic: TopicEntry, lanes: Sequence[LaneHoldings]) -> None:
        """Have lanes looked at again later, unless the topic is gone."""
        for lane in lanes:
            place = lane.partition, lane.lane
            if self._index.topics.get(topic.uid) is topic and place in topic.lanes:
                self._index.hold(topic, place, self._now_ms + RETRY_MS)

    async def _remove(
        self, topic: TopicEntry, fates: Sequence[Fate], term: Term, holds: Holds | None
    ) -> set[tuple[Place, int]]:
        """Remove ledgers; return lane and number of those that this call removed."""
        for place, going in _by_lane(fates):
            if place in topic.lanes:  # hints about them are no news
                topic.lanes[place].first = going[-1].number + 1
        checks: list[CheckLease | Check] = [term.check]
        if holds is not None:
            checks += holds.checks
        gone = await remove_ledgers(self._context.catalogue, topic.uid, fates, checks=checks)
        if gone:
            self._figures.note_removed(topic.name, gone)
            _log.info("removed %d ledgers of topic %s", len(gone), topic.name)
        return {((fate.partition, fate.lane), fate.number) for fate in gone}

    def _settle(
        self,
        topic: TopicEntry,
        place: Place,
        fates: Sequence[Fate],
        gone: set[tuple[Place, int]],
        *,
        more: bool,
    ) -> None:
        """Note what is left of a lane whose first ledgers had these *fates*."""
        going = [fate for fate in fates if fate.goes]
        stays = next((fate for fate in fates if not fate.goes), None)
        tally = topic.lanes[place]
        left = tally.closed - len(going)
        failed = any((place, fate.number) not in gone for fate in going)
        if failed or left < 0 or (stays is None and not more):
            self._survey.count_anew((topic.uid, *place))
        else:
            tally = msgspec.structs.replace(
                tally,
                closed=left,
                size=tally.size - sum(fate.ledger.size for fate in going),
                messages=tally.messages - sum(fate.ledger.messages for fate in going),
            )
            if stays is not None:
                tally.oldest_ms = stays.ledger.created_ms
                tally.closed_ms = (stays.ledger.closed_ms or tally.oldest_ms) if left else None
            self._index.put(topic, place, tally)
        if failed or not (more and going):  # otherwise the next ones may be due, too
            self._schedule(topic, place, fates, gone)

    def _schedule(
        self,
        topic: TopicEntry,
        place: Place,
        fates: Sequence[Fate],
        gone: set[tuple[Place, int]],
    ) -> None:
        """Note when a lane that was looked at is to be looked at again."""
        if any(fate.goes and (place, fate.number) not in gone for fate in fates):
            self._survey.count_anew((topic.uid, *place))
            self._index.hold(topic, place, self._now_ms + RETRY_MS)
            return
        stays = next((fate for fate in fates if not fate.goes), None)
        if stays is None:
            return
        if stays.reason in ("pinned", "kept"):
            self._index.block(topic, place)
        elif stays.reason == "resend":
            self._index.hold(topic, place, stays.due_ms or self._now_ms + RETRY_MS)
        elif topic.lanes[place].due_ms <= self._now_ms:
            self._index.hold(topic, place, self._now_ms + RETRY_MS)

    # --- what groups keep -------------------------------------------------------------------

    def _note_kept(self, uid: int, fates: Sequence[Fate], holds: Holds) -> None:
        """Note what groups needed in lanes whose first ledger that stays is kept by one."""
        firsts = {
            place: next((fate for fate in each if not fate.goes), None)
            for place, each in _by_lane(fates)
        }
        of_groups = _by_place(pin for pin in holds.pins if pin.is_group)
        kept = self._kept.setdefault(uid, KeptLanes(self._now_ms + GROUPS_MS))
        for place, first in firsts.items():
            if first is not None and first.reason == "kept":
                kept.needed[place] = of_groups[place]
            else:
                kept.needed.pop(place, None)
        if not kept.needed:
            del self._kept[uid]

    async def _look_at_groups(self) -> None:
        """Have lanes looked at again in which groups need other ledgers than before."""
        due = (uid for uid, kept in self._kept.items() if kept.due_ms <= self._now_ms)
        for uid in list(islice(due, TOPICS_COUNT)):
            kept, topic = self._kept[uid], self._index.topics.get(uid)
            if topic is None:
                del self._kept[uid]
                continue
            kept.due_ms = self._now_ms + GROUPS_MS
            try:
                holds = await read_group_pins(self._store, uid, list(kept.needed))
            except BadRecord as wrong:
                self._survey.pass_over(topic.name, wrong)
                continue
            now = _by_place(holds.pins)
            for place in [each for each, pins in kept.needed.items() if now.get(each) != pins]:
                del kept.needed[place]
                self._index.unblock(topic, [place])


class KeptLanes:
    """Lanes of a topic whose due ledgers groups keep.

    Attributes:
        due_ms: the store's time at which the places of these groups are read again.
        needed: what they needed when the lane was looked at.
    """

    def __init__(self, due_ms: int) -> None:
        self.due_ms = due_ms
        self.needed: dict[Place, list[Pin]] = {}


def _by_place(pins: Iterable[Pin]) -> dict[Place, list[Pin]]:
    found: dict[Place, list[Pin]] = {}
    for pin in pins:
        found.setdefault((pin.partition, pin.lane), []).append(pin)
    return found


def _limits(record: TopicRecord, *, by_size: bool) -> Retention:
    """Return the limits of a topic; without its quota, each lane stands for itself."""
    limits = record.retention
    return limits if by_size else msgspec.structs.replace(limits, size=INFINITE)


def _by_lane(fates: Sequence[Fate]) -> list[tuple[Place, list[Fate]]]:
    """Return fates that are in order, lane by lane."""
    groups = groupby(fates, key=lambda fate: (fate.partition, fate.lane))
    return [(place, list(group)) for place, group in groups]
