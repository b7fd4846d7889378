"""Which lane, and where in it: what a reader keeps of the way it has come."""

from __future__ import annotations

from typing import NamedTuple

from ledger_client.topics.message_id import MessageId

UNKNOWN = -1


class LaneRef(NamedTuple):
    """A lane that is read. Lanes order by topic, partition and number."""

    topic_index: int
    """of the topic among those that the reader was given"""
    partition: int
    lane: int
    topic: str
    uid: int
    ordered: bool
    """event times never go back in it"""

    def __str__(self) -> str:
        return f"lane {self.lane} of partition {self.partition}"


class Place(NamedTuple):
    """Between two messages of a lane: in an entry, behind its first *skip* messages.

    Reading forward goes on with the message behind it, reading in reverse with that before it.
    *skip* may be the number of messages in the entry, and *entry* the number of entries
    in the ledger.
    """

    number: int
    """of the ledger in its lane; UNKNOWN: before whatever is there first"""
    entry: int = 0
    skip: int = 0
    ledger_id: int = UNKNOWN
    version: int = UNKNOWN
    """of the entry; versions of a lane have no gaps, also from ledger to ledger"""

    @property
    def at(self) -> tuple[int, int, int]:
        """What orders places of one lane."""
        return self[:3]

    def message_id(self, partition: int) -> MessageId:
        """Return the id that the message there has, if there is one."""
        return MessageId(max(self.ledger_id, 0), self.entry, partition, self.skip)


EARLIEST = Place(UNKNOWN)


class Version(NamedTuple):
    """An entry of each lane: versions of a lane rise by one from entry to entry."""

    number: int


class LanePlace(NamedTuple):
    """A place and its lane, as TopicReader.position() tells them; plain values, to be kept."""

    topic: str
    uid: int
    partition: int
    lane: int
    place: Place
