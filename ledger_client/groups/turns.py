"""Whose messages are next: topics in turn, and events of topics before what they are about.

The events of a namespace are messages of its topic ``__events``, in the order of the changes. With
with_meta a consumer has them in its stream, as TopicEvent:

    created ──► messages of the topic, "altered" as soon as it is known ──► deleted
                         altered with more partitions ──► messages of these

There is no broker that puts both in one order. So a member holds the messages of a topic back until
all events that there were when it began to read the topic were handed out: by itself, or, if
another member has the events, until that one committed them. It does so again when it gets a
partition that was added since. When a member comes to the deletion of a topic, it first hands out
what it has at hand of it, and nothing more afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Set as AbstractSet
from functools import cached_property
from typing import Literal, NamedTuple

import trio

from ledger_client.errors import LedgerError, NoSuchTopic
from ledger_client.groups.feed import TopicFeed
from ledger_client.groups.lanes import GroupLanes
from ledger_client.groups.progress import read_progress
from ledger_client.ledgers.catalogue import translated
from ledger_client.topics.context import TopicContext
from ledger_client.topics.events import events_topic, is_own, pending_events
from ledger_client.topics.messages import MergedBatch, Message
from ledger_client.topics.positions import EARLIEST, Places
from metadata.errors import BadRecord, MetadataError
from metadata.groups.assignment import Part
from metadata.topics import (
    EVENTS_NAME,
    TopicEvent as StoredEvent,
    TopicRecord,
    decode_event,
    decode_last_event,
    last_event_key,
    split_topic,
)

EVENTS = f"/{EVENTS_NAME}"
"""What the names of topics with events end with."""
LOOK_S = 0.5
"""Between two looks at events that another member has, or that are not published yet."""
_log = logging.getLogger(__name__)
Reached = Callable[[Part], Places]


class TopicEvent(Message):
    """A change of a topic: a message of its namespace's events, which with_meta=True brings.

    Reading its attributes raises BadRecord if the event is damaged.
    """

    @cached_property
    def _stored(self) -> StoredEvent:
        return decode_event(str(self.id), self.value or b"")

    @property
    def kind(self) -> Literal["created", "altered", "deleted"]:
        """What was done to the topic."""
        return self._stored.kind

    @property
    def record(self) -> TopicRecord:
        """The topic with its settings after the change; a deleted one as it was."""
        return self._stored.record

    @property
    def at_ms(self) -> int:
        """When it was changed, in Unix milliseconds of the clock of who did it."""
        return self._stored.at_ms

    @property
    def changed_at(self) -> int:
        """The timestamp of the change in the cluster's time; 0 if the topic has no timesync.

        Whoever has read a tick of the topic that is not below it sees the change.
        """
        return self._stored.timestamp


def as_events(messages: Iterable[Message]) -> list[Message]:
    """Return messages of a namespace's events as what they are."""
    return [TopicEvent(*each) for each in messages]


class Barrier(NamedTuple):
    """Events that come before the messages of a topic."""

    part: Part
    """where the events are"""
    ends: Places
    """the places behind them"""
    newest: int
    """the last partition that the topic is known to have had before they were looked up"""

    def is_passed(self, places: Places) -> bool:
        """Return True if all of them lie before *places*."""
        return all(places.get(lane, EARLIEST).at >= end.at for lane, end in self.ends.items())


class _Hold:
    """The messages of a topic that wait, from one feed of it."""

    def __init__(self, feed: TopicFeed) -> None:
        self.feed = feed
        self.barrier: Barrier | None = None
        """`None` until it was looked up"""


class Turns:
    """Takes the next messages of a member's topics.

    Args:
        context: the client's.
        group: its name.
        feeds: the member's topics, by uid.
        active: its partitions.
        nursery: for tasks that look up events.
        with_meta: events come before what they are about.
        on_arrival: called when there may be something to take.
        on_deleted: called with a topic of which nothing more is to come, as it was deleted.
    """

    def __init__(
        self,
        context: TopicContext,
        group: str,
        feeds: Mapping[int, TopicFeed],
        active: AbstractSet[Part],
        nursery: trio.Nursery,
        *,
        with_meta: bool,
        on_arrival: Callable[[], None],
        on_deleted: Callable[[TopicRecord], None],
    ) -> None:
        self.count = 0
        """rises with everything that is taken"""
        self._context = context
        self._group = group
        self._feeds = feeds
        self._active = active
        self._nursery = nursery
        self._with_meta = with_meta
        self._on_arrival = on_arrival
        self._on_deleted = on_deleted
        self._held: dict[int, _Hold] = {}
        """by uid, topics whose messages wait"""
        self._free: dict[int, int] = {}
        """by uid, the last partition of a topic before which all events were handed out"""

    def take(self, reached: Reached) -> MergedBatch | None:
        """Return the next messages if they have arrived.

        *reached* returns the places in a partition after what was handed out. Raises as
        TopicFeed.take(), but not for topics that were deleted.
        """
        feeds = list(self._feeds.values())
        if self._with_meta:
            for feed in [each for each in feeds if each.topic.name.endswith(EVENTS)]:
                if (events := self._take(feed)) is not None:
                    return self._unless_deleted(feed, events)
            feeds = [each for each in feeds if self._is_free(each, reached)]
        for _ in feeds:
            self.count += 1
            if (batch := self._take(feeds[self.count % len(feeds)])) is not None:
                return batch
        return None

    def _take(self, feed: TopicFeed) -> MergedBatch | None:
        try:
            return feed.take()
        except NoSuchTopic:
            self._on_deleted(feed.topic)
            return None

    # --- events --------------------------------------------------------------------------

    def _unless_deleted(self, feed: TopicFeed, events: MergedBatch) -> MergedBatch:
        """Return *events*, or first what has arrived of a topic that they delete.

        Before what waits for events come those before its deletion.
        """
        self.count += 1
        for index, uid in _deletions(events):
            other = self._feeds.get(uid)
            if other is None:
                continue
            if index and not self._has_passed(other):
                left = events.rows - index
                feed.give_back(events, left)
                first = events.unused(events.rows, kept=left, backward=False)
                return events._replace(ranges=tuple(first))
            try:
                messages = self._take(other)
            except LedgerError:
                feed.give_back(events, events.rows)
                raise
            if messages is not None:
                feed.give_back(events, events.rows)
                return messages
            self._on_deleted(other.topic)  # nothing of it comes after its deletion
        return events

    def _is_free(self, feed: TopicFeed, reached: Reached) -> bool:
        """Return True if the events before the messages of a topic were handed out."""
        uid = feed.topic.uid
        if is_own(feed.topic.name) or self._has_passed(feed):
            return True
        hold = self._held.get(uid)
        if hold is None or hold.feed is not feed:
            hold = self._held[uid] = _Hold(feed)
            self._nursery.start_soon(self._keep, hold)
        barrier = hold.barrier
        if barrier is None or barrier.part not in self._active:
            return False
        if barrier.is_passed(reached(barrier.part)):
            self._release(uid, barrier)
        return self._has_passed(feed)

    def _has_passed(self, feed: TopicFeed) -> bool:
        newest = self._free.get(feed.topic.uid)
        return newest is not None and feed.newest <= newest

    def _release(self, uid: int, barrier: Barrier) -> None:
        self._held.pop(uid, None)
        self._free = {each: self._free[each] for each in self._free if each in self._feeds}
        self._free[uid] = barrier.newest
        self._on_arrival()

    async def _keep(self, hold: _Hold) -> None:
        """Find the events before the messages of a topic; wait for another member to commit them.

        If this member has them, take() sees when they were handed out. Another hold may come after
        this one, for another feed or for partitions that were added.
        """
        uid = hold.feed.topic.uid
        while self._held.get(uid) is hold and self._feeds.get(uid) is hold.feed:
            try:
                await self._look(hold)
            except (LedgerError, MetadataError) as failure:
                _log.warning("group %s: events not known yet: %s", self._group, failure)
            await trio.sleep(LOOK_S)
        if self._held.get(uid) is hold:
            del self._held[uid]

    async def _look(self, hold: _Hold) -> None:
        barrier = hold.barrier or await self._barrier(hold.feed)
        if barrier is None:
            return  # events are not published yet
        hold.barrier = barrier
        self._on_arrival()
        is_passed = not barrier.ends
        if not is_passed and barrier.part not in self._active:
            timeout_s = self._context.options.metadata_timeout_s
            progress = read_progress(self._context.store, self._group, barrier.part, timeout_s)
            is_passed = barrier.is_passed((await progress)[0] or {})
        uid = hold.feed.topic.uid
        if is_passed and self._held.get(uid) is hold:
            self._release(uid, barrier)

    async def _barrier(self, feed: TopicFeed) -> Barrier | None:
        """Return the end of the namespace's events, `None` while some are not published."""
        topic = feed.topic
        newest = max(feed.newest, topic.partition_indexes[-1])
        store, (namespace, _) = self._context.store, split_topic(topic.name)
        key = last_event_key(namespace)
        with translated(self._context.options.metadata_timeout_s):
            last = await store.get(key)
            pending = await pending_events(store, namespace)
        number = 0 if last is None else decode_last_event(key, last.value).number
        if any(event.number <= number for event in pending):
            return None
        found = await self._context.catalogue.find(events_topic(namespace))
        if found is None:
            return Barrier(Part(topic.uid, -1), {}, newest)
        events = found[0]
        ends = await GroupLanes(self._context, self._group).ends(events)
        (partition,) = events.partition_indexes
        return Barrier(Part(events.uid, partition), ends, newest)


def _deletions(events: MergedBatch) -> list[tuple[int, int]]:
    """Return the indexes of events that delete topics, with the uids of these."""
    found: list[tuple[int, int]] = []
    for index, message in enumerate(events.messages()):
        try:
            event = decode_event(str(message.id), message.value or b"")
        except BadRecord:
            continue
        if event.kind == "deleted":
            found.append((index, event.record.uid))
    return found
