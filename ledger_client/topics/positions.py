"""Lanes and places in them, as readers keep them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeGuard

import msgspec

from ledger_client.errors import lane_text
from ledger_client.message_id import MessageId
from metadata.topics import Count, Number

UNKNOWN = -1
POSITION_VERSION = 1
"""Version of the JSON of positions."""


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
"""Before the first message that is left, whatever was removed before it."""
FIRST = Place(0, version=0)
"""Before the first message that the lane ever had: if it was removed, that is a Gap."""

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


class Position(tuple[LanePlace, ...]):
    """A place in each lane of a reader, to store and to go on from.

    As JSON (version 1), with numbers as in LanePlace and Place, any order of lanes:

        {"quire": "position", "version": 1, "lanes": [
            {"topic": "shop/orders", "uid": 7, "partition": 0, "lane": 0,
             "number": 3, "entry": 12, "skip": 0, "ledger_id": 41, "entry_version": 915}]}
    """

    __slots__ = ()

    def to_json(self) -> str:
        """Return the position as JSON, for from_json() of this or a later version."""
        lanes = [
            _StoredPlace(
                topic=each.topic,
                uid=each.uid,
                partition=each.partition,
                lane=each.lane,
                number=each.place[0],
                entry=each.place[1],
                skip=each.place[2],
                ledger_id=each.place[3],
                entry_version=each.place[4],
            )
            for each in self
        ]
        return msgspec.json.encode(_StoredPosition(lanes=lanes)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Position:
        """Return the position that to_json() made JSON of.

        Raises:
            ValueError: it is no position, or one of a newer version.
        """
        try:
            found = msgspec.json.decode(text, type=_StoredPosition)
        except (msgspec.MsgspecError, RecursionError) as wrong:
            raise ValueError(f"it is no position: {wrong}") from wrong
        if found.version != POSITION_VERSION:
            raise ValueError(
                f"it is a position of version {found.version}; this quire reads {POSITION_VERSION}"
            )
        return cls(
            LanePlace(
                *(each.topic, each.uid, each.partition, each.lane),
                Place(each.number, each.entry, each.skip, each.ledger_id, each.entry_version),
            )
            for each in found.lanes
        )


class _StoredPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A LanePlace as JSON."""

    topic: str
    uid: Count
    partition: Number
    lane: Count
    number: Number
    entry: Count
    skip: Count
    ledger_id: Number = UNKNOWN
    entry_version: Number = UNKNOWN


class _StoredPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A Position as JSON."""

    quire: Literal["position"] = "position"
    version: Count = 1
    lanes: list[_StoredPlace]


def is_position(named: object) -> TypeGuard[Sequence[LanePlace]]:
    """True if *named* is a place in each lane, as position() returned it."""
    return (
        isinstance(named, Sequence)
        and not isinstance(named, str)
        and all(isinstance(each, LanePlace) for each in named)
    )


def as_position(places: Mapping[LaneRef, Place]) -> Position:
    """Return the places of lanes as plain values, sorted by lane."""
    return Position(
        LanePlace(lane.topic, lane.uid, lane.partition, lane.lane, places[lane])
        for lane in sorted(places)
    )
