"""What each lane holds, in the leader's memory: enough to know when retention has work there.

    lane ──► tally     sums of its ledgers, the age of the oldest, when it is due
    partition ──► size    bytes of its closed ledgers, all lanes together
    due ──► a heap of (time, lane)
    over ──► partitions with more bytes than their quota

Nothing is removed because of what is written here. It only says where to look; what goes is decided
by rows that are read then. A lane costs about 650 bytes of memory, however many ledgers it has.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

import msgspec

from ledger_client.cluster.observer import TopicSnapshot
from ledger_client.topics.retention.holdings import HeldLedger
from metadata.topics import NONE, Retention, TopicRecord

NEVER = 1 << 62
"""A due time that does not come by itself."""
Place = tuple[int, int]
"""A partition, and a lane of it."""
LaneKey = tuple[int, int, int]
"""A topic's uid, a partition, and a lane of it."""


class LaneTally(msgspec.Struct, gc=False, kw_only=True):
    """One lane. Sizes and messages count closed ledgers only; times are the store's, in ms."""

    first: int = 0
    """number of the oldest ledger; those below are gone"""
    end: int = NONE
    """number of the last of the closed ledgers at the lane's start; NONE: count it anew"""
    closed: int = 0
    open: int = 0
    prepared: int = 0
    size: int = 0
    messages: int = 0
    oldest_ms: int | None = None
    """when the oldest ledger was created"""
    closed_ms: int | None = None
    """when the oldest closed one was closed"""
    due_ms: int = NEVER
    """when retention looks at it next"""


def tallied(base: LaneTally | None, held: Sequence[HeldLedger]) -> LaneTally:
    """Return the tally of a lane with *held*: all its ledgers, or those after the end of *base*."""
    tally = LaneTally() if base is None else msgspec.structs.replace(base, open=0, prepared=0)
    if base is None and held:
        tally.first = held[0].number
    if tally.closed == 0:
        tally.oldest_ms = tally.closed_ms = None
    is_in_order = True
    for number, row, _ in held:
        tally.oldest_ms = _earlier(tally.oldest_ms, row.created_ms)
        if row.state == "open":
            tally.open += 1
        elif row.state == "prepared":
            tally.prepared += 1
        else:
            is_in_order = is_in_order and not (tally.open or tally.prepared)
            tally.end = number
            tally.closed += 1
            tally.size += row.size
            tally.messages += row.messages
            tally.closed_ms = _earlier(tally.closed_ms, row.closed_ms or row.created_ms)
    if not is_in_order:
        tally.end = NONE
    return tally


class TopicEntry:
    """A topic with its lanes."""

    def __init__(self, record: TopicRecord) -> None:
        self.name = record.name
        self.uid = record.uid
        self.retention = record.retention
        self.lanes: dict[Place, LaneTally] = {}
        self.sizes: dict[int, int] = {}
        """bytes of closed ledgers, by partition"""
        self.owned: set[Place] = set()
        """lanes with a writer"""
        self.hidden: set[Place] = set()
        """lanes with rows that wait for a pointer"""
        self.blocked: set[Place] = set()
        """lanes that keep due ledgers until a pin or a row changes"""
        self.held: dict[Place, int] = {}
        """lanes that are not due before a time"""

    def is_over(self, partition: int) -> bool:
        """Return True if a partition has more bytes than its quota."""
        return 0 <= self.retention.size < self.sizes.get(partition, 0)

    def due_ms(self, place: Place, tally: LaneTally) -> int:
        """Return when a lane is due."""
        age_s = self.retention.age_s
        if place in self.blocked or tally.closed_ms is None:
            return NEVER
        held_ms = self.held.get(place)
        if held_ms is not None and (age_s < 0 or self.is_over(place[0])):
            return held_ms
        if age_s < 0:
            return NEVER
        return max(tally.closed_ms + math.ceil(age_s * 1000), held_ms or 0)

    def snapshot(self) -> TopicSnapshot:
        """Return the topic's figures."""
        lanes = self.lanes.values()
        return TopicSnapshot(
            topics=1,
            ledgers={
                "prepared": sum(lane.prepared for lane in lanes),
                "open": sum(lane.open for lane in lanes),
                "closed": sum(lane.closed for lane in lanes),
            },
            lanes=len(lanes),
            writers=len(self.owned),
            size=sum(lane.size for lane in lanes),
            messages=sum(lane.messages for lane in lanes),
            oldest_ms=_earliest(lane.oldest_ms for lane in lanes),
            closed_ms=_earliest(lane.closed_ms for lane in lanes),
            keep_s=self.retention.age_s if self.retention.age_s >= 0 else None,
        )


class LaneIndex:
    """All lanes of all topics.

    Attributes:
        topics: by uid.
        over: partitions, as (uid, partition), to be looked at for their quota.
        idle: lanes with an open ledger and without a writer.
        changed: topics, by uid, whose figures may have changed.
    """

    def __init__(self) -> None:
        self.topics: dict[int, TopicEntry] = {}
        self.over: dict[tuple[int, int], None] = {}
        self.idle: set[LaneKey] = set()
        self.changed: set[int] = set()
        self._uids: dict[str, int] = {}
        self._due: list[tuple[int, LaneKey]] = []
        self._lanes = 0

    def uid_of(self, name: str) -> int | None:
        """Return the uid of a topic by its name, or `None`."""
        return self._uids.get(name)

    def set_topic(self, record: TopicRecord) -> None:
        """Add a topic, or note its new limits. A former topic of its name is dropped."""
        former = self._uids.get(record.name)
        if former is not None and former != record.uid:
            self.drop_topic(former)
        topic = self.topics.get(record.uid)
        if topic is None:
            self.topics[record.uid] = TopicEntry(record)
            self._uids[record.name] = record.uid
            self.changed.add(record.uid)
        elif topic.retention != record.retention:
            self._set_limits(topic, record.retention)

    def _set_limits(self, topic: TopicEntry, retention: Retention) -> None:
        topic.retention = retention
        topic.held.clear()
        self.changed.add(topic.uid)
        for place, tally in topic.lanes.items():
            self._schedule(topic, place, tally)
        self.over |= {(topic.uid, each): None for each in topic.sizes if topic.is_over(each)}

    def drop_topic(self, uid: int) -> None:
        """Forget a topic with its lanes."""
        topic = self.topics.pop(uid, None)
        if topic is None:
            return
        self._uids.pop(topic.name, None)
        self.changed.add(uid)
        self._lanes -= len(topic.lanes)
        for partition in topic.sizes:
            self.over.pop((uid, partition), None)
        for place in topic.lanes:
            self.idle.discard((uid, *place))

    def put(self, topic: TopicEntry, place: Place, tally: LaneTally) -> None:
        """Replace the tally of a lane."""
        former, partition = topic.lanes.get(place), place[0]
        grown = tally.size - (0 if former is None else former.size)
        self._lanes += former is None
        topic.lanes[place] = tally
        if grown or partition not in topic.sizes:
            topic.sizes[partition] = topic.sizes.get(partition, 0) + grown
        if grown > 0 and topic.is_over(partition):
            self.over[topic.uid, partition] = None
        tally.due_ms = NEVER if former is None else former.due_ms
        self._schedule(topic, place, tally)
        self._check_idle(topic, place)
        self.changed.add(topic.uid)

    def set_owned(self, topic: TopicEntry, place: Place, *, owned: bool) -> None:
        """Note whether a lane has a writer."""
        if owned == (place in topic.owned):
            return
        if owned:
            topic.owned.add(place)
        else:
            topic.owned.discard(place)
        self._check_idle(topic, place)
        self.changed.add(topic.uid)

    def block(self, topic: TopicEntry, place: Place) -> None:
        """Have a lane not become due by itself: what it keeps is pinned, or cannot be read."""
        topic.blocked.add(place)
        self._schedule(topic, place, topic.lanes[place])

    def unblock(self, topic: TopicEntry, only: Iterable[Place] | None = None) -> None:
        """Have all blocked lanes of a topic looked at, or *only* some of them."""
        places = topic.blocked if only is None else topic.blocked & set(only)
        topic.blocked = topic.blocked - places
        for place in places:
            self._schedule(topic, place, topic.lanes[place])
            if topic.is_over(place[0]):
                self.over[topic.uid, place[0]] = None

    def hold(self, topic: TopicEntry, place: Place, until_ms: int) -> None:
        """Have a lane looked at from *until_ms* on, not before."""
        topic.held[place] = until_ms
        self._schedule(topic, place, topic.lanes[place])

    def release(self, topic: TopicEntry, place: Place, *, blocked: bool) -> None:
        """Undo hold(), and with *blocked* block(), as a row changed."""
        topic.held.pop(place, None)
        if blocked:
            topic.blocked.discard(place)
        self._schedule(topic, place, topic.lanes[place])

    def take_due(self, now_ms: int, count: int) -> list[LaneKey]:
        """Return up to *count* lanes that are due, the longest due first, and forget that."""
        found: list[LaneKey] = []
        while self._due and self._due[0][0] <= now_ms and len(found) < count:
            due_ms, lane = heapq.heappop(self._due)
            topic = self.topics.get(lane[0])
            tally = None if topic is None else topic.lanes.get(lane[1:])
            if topic is not None and tally is not None and tally.due_ms == due_ms:
                tally.due_ms = NEVER
                topic.held.pop(lane[1:], None)
                found.append(lane)
        return found

    def _schedule(self, topic: TopicEntry, place: Place, tally: LaneTally) -> None:
        due_ms = topic.due_ms(place, tally)
        if due_ms == tally.due_ms:
            return
        tally.due_ms = due_ms
        if due_ms != NEVER:
            heapq.heappush(self._due, (due_ms, (topic.uid, *place)))
        if len(self._due) > 2 * self._lanes + 1000:  # most of them are out of date
            self._due = [each for each in self._due if self._is_current(*each)]
            heapq.heapify(self._due)

    def _is_current(self, due_ms: int, lane: LaneKey) -> bool:
        topic = self.topics.get(lane[0])
        tally = None if topic is None else topic.lanes.get(lane[1:])
        return tally is not None and tally.due_ms == due_ms

    def _check_idle(self, topic: TopicEntry, place: Place) -> None:
        tally, lane = topic.lanes.get(place), (topic.uid, *place)
        if tally is not None and tally.open and place not in topic.owned:
            self.idle.add(lane)
        else:
            self.idle.discard(lane)


def _earlier(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


def _earliest(times_ms: Iterable[int | None]) -> int | None:
    return min((each for each in times_ms if each is not None), default=None)
