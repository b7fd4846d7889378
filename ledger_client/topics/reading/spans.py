"""What is to be read of topics, cut into pieces that can be sent to other processes.

A span is what is to be read of one ledger of a lane. Spans are planned once (span_plan.py),
split into as many groups as there are tasks, and read by whoever gets them (span_reader.py):
all tasks together read exactly what the plan says, however the topic goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ledger_client.topics.errors import Gap
from ledger_client.topics.reading.places import UNKNOWN, LaneRef, Place
from ledger_client.topics.reading.starting import Position
from metadata.topics import Removed, TopicRecord


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Some consecutive messages of one ledger; plain values."""

    topic: str
    uid: int
    topic_index: int
    """of the topic among those that were asked for"""
    ordered: bool
    """event times never go back in the lane"""
    partition: int
    lane: int
    number: int
    """of the ledger in its lane"""
    ledger_id: int
    base_version: int
    """of the ledger's first entry; -1: not known"""
    first_entry: int
    last_entry: int
    """the last one that is read"""
    skip: int = 0
    """messages of the first entry that are left out"""
    stop: int = -1
    """messages of the last entry that belong to it; -1: all"""
    size: int = 0
    """payload bytes, nearly"""
    messages: int = -1
    """how many, nearly; -1: nobody knows"""
    removed: tuple[Removed, ...] = ()
    """what was deleted out of the ledger, and is passed over"""
    compacted: bool = False
    """the ledger is one of what compaction left; *number* is that of its first message's"""

    @property
    def entries(self) -> int:
        """How many entries there are."""
        return self.last_entry - self.first_entry + 1

    @property
    def lane_ref(self) -> LaneRef:
        """The lane, as those who read name it."""
        return LaneRef(
            self.topic_index, self.partition, self.lane, self.topic, self.uid, self.ordered
        )

    def place(self, entry: int) -> Place:
        """Return the place before an entry."""
        version = self.base_version if self.base_version < 0 else self.base_version + entry
        return Place(self.number, entry, 0, self.ledger_id, version)

    @property
    def begin(self) -> Place:
        """The place before the first message."""
        return self.place(self.first_entry)._replace(skip=self.skip)

    def cut(self, entry: int) -> tuple[Span, Span]:
        """Return the span before an entry, and that from it on; neither is empty."""
        before = entry - self.first_entry
        size, messages = _part(self.size, before, self), _part(self.messages, before, self)
        left = msgspec.structs.replace(
            self, last_entry=entry - 1, stop=-1, size=size, messages=messages
        )
        right = msgspec.structs.replace(
            self,
            first_entry=entry,
            skip=0,
            size=self.size - size,
            messages=self.messages if messages < 0 else self.messages - messages,
        )
        return left, right


class SpanPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be read of some topics: from *begin* to before *end* in every lane."""

    topics: tuple[TopicRecord, ...]
    spans: tuple[Span, ...]
    """lane by lane, each in its order"""
    begin: Position
    end: Position
    gaps: tuple[Gap, ...] = ()
    """what is missing, where that is passed over"""

    @property
    def size(self) -> int:
        """Payload bytes, nearly."""
        return sum(span.size for span in self.spans)


def split(spans: Sequence[Span], size_target: int, *, groups_min: int = 1) -> list[list[Span]]:
    """Return the spans in groups of *size_target* bytes or so, and *groups_min* at least.

    Large spans are cut between entries, small ones share a group; one group after the other
    they are what was given, in order. There are fewer groups if there are fewer entries.
    """
    total = sum(_weight(span) for span in spans)
    count = max(groups_min, -(-sum(span.size for span in spans) // max(size_target, 1)), 1)
    groups: list[list[Span]] = [[] for _ in range(count)]
    group, passed = 0, 0
    for span in spans:
        left: Span | None = span
        while left is not None:
            room = total * (group + 1) // count - passed
            head, left = _take(left, room) if group + 1 < count else (left, None)
            if head is not None:
                groups[group].append(head)
                passed += _weight(head)
            if left is not None:
                group += 1
    return [each for each in groups if each]


def _take(span: Span, room: int) -> tuple[Span | None, Span | None]:
    """Return as many entries of a span as fill *room* best, and the others."""
    count = round(span.entries * room / _weight(span))
    if count >= span.entries:
        return span, None
    return (None, span) if count <= 0 else span.cut(span.first_entry + count)


def _weight(span: Span) -> int:
    """Return what a span costs, so that none is free."""
    return max(span.size, span.entries)


def _part(amount: int, entries: int, span: Span) -> int:
    return amount if amount == UNKNOWN else amount * entries // span.entries
