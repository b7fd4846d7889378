"""Lanes and places in them, as readers keep them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeGuard

from ledger_client.errors import lane_text
from ledger_client.message_id import MessageId

UNKNOWN = -1


class LaneRef(NamedTuple):
    """A lane of a topic. Lanes sort by topic, partition and number."""

    topic_index: int
    """index of the topic among the reader's topics"""
    partition: int
    lane: int
    topic: str
    uid: int
    ordered: bool
    """the topic is ordered by event time, so event times never decrease in the lane"""

    def __str__(self) -> str:
        return lane_text(self.partition, self.lane)


class Place(NamedTuple):
    """A place between two messages of a lane: in an entry, after its first *skip* messages.

    A reader goes on with the message after it, in reverse with the one before it. *skip* may
    equal the number of messages in the entry, and *entry* the number of entries in the ledger.
    """

    number: int
    """number of the ledger in its lane; UNKNOWN means before the lane's first message"""
    entry: int = 0
    skip: int = 0
    ledger_id: int = UNKNOWN
    version: int = UNKNOWN
    """version of the entry; versions of a lane have no gaps, not even between ledgers"""

    @property
    def at(self) -> tuple[int, int, int]:
        """Sort key among the places of one lane."""
        return self[:3]

    def message_id(self, partition: int) -> MessageId:
        """Return the id of the message at this place, if there is one."""
        return MessageId(max(self.ledger_id, 0), self.entry, partition, self.skip)


EARLIEST = Place(UNKNOWN)

Places = Mapping[int, Place]
"""The place at which each lane of a partition begins; others begin at their first message."""


class Version(NamedTuple):
    """The entry of this version in each lane. Versions rise by one from entry to entry."""

    number: int


class LanePlace(NamedTuple):
    """A place and its lane, as TopicReader.position() returns them: plain values to store."""

    topic: str
    uid: int
    partition: int
    lane: int
    place: Place


Position = tuple[LanePlace, ...]
"""A place in each lane of a reader."""


def is_position(named: object) -> TypeGuard[Sequence[LanePlace]]:
    """True if *named* is a place in each lane, as position() returned it."""
    return (
        isinstance(named, Sequence)
        and not isinstance(named, str)
        and all(isinstance(each, LanePlace) for each in named)
    )


def as_position(places: Mapping[LaneRef, Place]) -> Position:
    """Return the places of lanes as plain values, sorted by lane."""
    return tuple(
        LanePlace(lane.topic, lane.uid, lane.partition, lane.lane, places[lane])
        for lane in sorted(places)
    )
