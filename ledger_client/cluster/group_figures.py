"""Groups of consumers, for the metrics of the leader: members, rebalances, and lag.

    coordinator's memory ──► members, partitions, rebalances   at each scrape
    progress, ends of lanes ──► lag of each topic              every LOOK_S

Looking at lag asks bookies for the ends of open ledgers, and reads the first entries that a group
has before it. A lane in which nothing moved is not looked at again. What it takes is
followed by a rest that is REST_RATIO times as long, so many groups are looked at more seldom.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import trio

from ledger_client.cluster.observer import GROUPS_MAX, GroupFigures, TopicLag
from ledger_client.errors import LedgerError, MetadataUnavailable
from ledger_client.groups.backlog import Backlog, Held, backlog, held_in
from ledger_client.groups.lanes import GroupLanes
from ledger_client.topics.context import TopicContext
from ledger_client.topics.positions import EARLIEST, Place, Places
from ledger_client.topics.reading.lane_ranges import KnownLane
from metadata.errors import MetadataError
from metadata.groups.assignment import Part
from metadata.groups.hosted import GroupCounts
from metadata.groups.shares import ShareRecord
from metadata.topics import TopicRecord

LOOK_S = 15.0
REST_RATIO = 100
"""A hundred partitions take some tenths of a second, so they are looked at every half minute."""
_log = logging.getLogger(__name__)
Spans = Sequence[tuple[KnownLane, Place]]
"""The lanes of a topic, each with its end."""


class _Known(NamedTuple):
    place: Place
    end: Place
    held: Held
    backlog: Backlog


class GroupObserver:
    """Looks at the lag of all groups while its bookie leads."""

    def __init__(
        self,
        context: TopicContext,
        figures: GroupFigures,
        counts: Callable[[], Sequence[GroupCounts]],
    ) -> None:
        self._context = context
        self._figures = figures
        self._counts = counts
        self._published: dict[str, None] = {}
        self._known: dict[tuple[str, int, int, int], _Known] = {}
        """by group, topic's uid, partition and lane"""
        self._ends: dict[int, Spans] = {}
        self._now_ms = 0

    async def lead(self) -> None:
        """Look now and then until cancelled, then clear all figures. Outages are waited out."""
        self._figures.counts = self._counts
        try:
            while True:
                began_at = trio.current_time()
                try:
                    await self.look()
                except (LedgerError, MetadataError) as failure:
                    _log.debug("cannot look at the lag of groups: %s", failure)
                took_s = trio.current_time() - began_at
                await trio.sleep(max(LOOK_S, took_s * REST_RATIO))
        finally:
            self._figures.clear()

    async def look(self) -> None:
        """Look at all groups that are published.

        A lane whose lag cannot be read, as with a lost entry, counts as it did, and not at all if
        it was never read. If none can, the topic keeps its figures.

        Raises:
            MetadataUnavailable: the store did not answer in time; all figures stay.
        """
        counts = {each.group: each for each in self._counts()}
        self._published = {name: None for name in self._published if name in counts}
        for name in counts:
            if len(self._published) < GROUPS_MAX:
                self._published.setdefault(name)
        self._figures.published = frozenset(self._published)
        before, self._known = self._known, {}
        self._ends = {}
        lags: dict[tuple[str, str], TopicLag] = {}
        if self._published:
            self._now_ms = await self._context.catalogue.now_ms()
            topics = {each.uid: each for each in await self._context.catalogue.list()}
            for name in self._published:
                await self._look_at(name, counts[name].topics, topics, before, lags)
        self._figures.lags = lags

    async def _look_at(
        self,
        group: str,
        consumed: frozenset[int],
        topics: Mapping[int, TopicRecord],
        before: Mapping[tuple[str, int, int, int], _Known],
        lags: dict[tuple[str, str], TopicLag],
    ) -> None:
        lanes = GroupLanes(self._context, group)
        stored = await lanes.committed(topics.values())
        held = await lanes.held()
        for uid in sorted((consumed | {part.topic for part in stored}) & topics.keys()):
            key = group, topics[uid].name
            try:
                with_ends = await self._spans(topics[uid])
                lags[key] = await self._lag(group, uid, stored, held, with_ends, before)
            except MetadataUnavailable:
                raise
            except LedgerError as failure:
                _log.debug("cannot look at the lag of group %s in %s: %s", *key, failure)
                if key in self._figures.lags:
                    lags[key] = self._figures.lags[key]
            await trio.lowlevel.checkpoint()  # lets the bookie serve clients in between

    async def _spans(self, topic: TopicRecord) -> Spans:
        """Return the lanes of a topic with their ends, which all groups share in one look."""
        if topic.uid not in self._ends:
            self._ends[topic.uid] = await GroupLanes(self._context, "").spans(topic)
        return self._ends[topic.uid]

    async def _lag(
        self,
        group: str,
        uid: int,
        places: Mapping[Part, Places],
        shares: Mapping[tuple[Part, int], Sequence[ShareRecord]],
        spans: Spans,
        before: Mapping[tuple[str, int, int, int], _Known],
    ) -> TopicLag:
        messages, counted, oldest_ms = 0, 0, list[int]()
        failure: LedgerError | None = None
        for lane, end in spans:
            at = lane.lane.partition, lane.lane.lane
            part = Part(uid, at[0])
            place = places.get(part, {}).get(at[1], EARLIEST)
            held = held_in(shares.get((part, at[1]), ()), place)
            known = before.get((group, uid, *at))
            if known is None or known[:3] != (place, end, held):
                try:
                    left = await backlog(lane, self._context.opener, place, end, held)
                    known = _Known(place, end, held, left)
                except MetadataUnavailable:
                    raise
                except LedgerError as error:
                    failure = error
            if known is None:
                continue
            self._known[group, uid, *at] = known
            counted += 1
            messages += known.backlog.messages
            if known.backlog.sent_ms is not None:
                oldest_ms.append(known.backlog.sent_ms)
        if failure is not None:
            if not counted:
                raise failure
            _log.debug("cannot look at all lag of group %s: %s", group, failure)
        lag_s = max(self._now_ms - min(oldest_ms), 0) / 1000 if oldest_ms else 0.0
        return TopicLag(messages, lag_s)
