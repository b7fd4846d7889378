"""The options of a topic reader, with units and defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

import msgspec

from ledger_client.errors import BadTopic
from ledger_client.message_id import MessageId
from ledger_client.topics.positions import LanePlace, Version
from ledger_client.topics.times import Time
from metadata.topics import TopicRecord

READ_AHEAD_SIZE = 32 << 20

Start = Literal["earliest", "latest"] | MessageId | Time | Version | Sequence[LanePlace]
"""A place in each lane that is read: an end, a time, a version, or a kept position. A MessageId
is a place in one lane, so with it only that lane is read."""


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The range of some topics to read, and the order of its messages."""

    start: Start | None = None
    """where to begin; `None` for the earliest message, in reverse for the latest"""
    inclusive: bool = True
    """True to read the message or time that *start* names"""
    end: Start | None = None
    """where to end; `None` for the messages there are when reading begins"""
    end_inclusive: bool = True
    """True to read the message or time that *end* names"""
    partitions: Sequence[int] | None = None
    """read only these partitions"""
    lanes: Sequence[int | str] | None = None
    """read only lanes with these numbers or names; "" selects those without a name"""
    follow: bool = False
    """wait for new messages and new lanes; stop at *end* if it is given"""
    reverse: bool = False
    """read backward, from *start* or the latest message"""
    order: Literal["arrival", "event-time"] = "arrival"
    """"arrival": each lane in its order, several lanes as they come. "event-time": all lanes merged
    by event time, equal times by topic, lane name, partition and lane; the topics must be ordered
    by event time."""
    on_gap: Literal["raise", "skip"] = "raise"
    """"skip": removed messages are skipped and noted in the reader's *gaps*"""
    idle_s: float = 1.0
    """A lane silent for this many seconds stops holding back the merge by event time; its
    later messages arrive out of order."""
    read_ahead_size: int = READ_AHEAD_SIZE
    """bytes that all lanes together may hold in memory"""
    on_caught_up: Callable[[], None] | None = None
    """called once, between the last message that was there when reading began and the next one"""
    compacted: bool = False
    """Read only the latest message per key from the compacted beginning of each lane (quire
    compact), with its original id, then everything that came later."""

    @property
    def begin(self) -> Start:
        """Where to begin: *start*, or the end of the lanes from which everything is read."""
        if self.start is not None:
            return self.start
        return "latest" if self.reverse else "earliest"

    def check(self, topics: Sequence[TopicRecord]) -> None:
        """Raise BadTopic for options that contradict each other or do not suit the topics."""
        for topic in topics:
            for partition in self.partitions or ():
                if partition not in topic.partition_indexes:
                    raise BadTopic(f"there is no partition {partition}", topic=topic.name)
            if self.order == "event-time" and topic.order != "event-time":
                raise BadTopic(
                    "it is not ordered by event time, so its lanes cannot be merged by it; "
                    'read with order="arrival"',
                    topic=topic.name,
                )
        wrong = {
            "a reader of no topic": not topics,
            "nothing can be followed in reverse": self.reverse and self.follow,
            "a version cannot be followed: versions of new lanes are unrelated to it": (
                self.follow and isinstance(self.start, Version)
            ),
            f"idle_s {self.idle_s} is negative": self.idle_s < 0,
            f"order {self.order!r} is neither arrival nor event-time": (
                self.order not in {"arrival", "event-time"}
            ),
            f"on_gap {self.on_gap!r} is neither raise nor skip": (
                self.on_gap not in {"raise", "skip"}
            ),
        }
        for message, holds in wrong.items():
            if holds:
                raise BadTopic(message, topic=topics[0].name if topics else "")


class ReadSettings(TypedDict, total=False):
    """ReadOptions as keyword arguments; a test keeps both equal."""

    start: Start | None
    inclusive: bool
    end: Start | None
    end_inclusive: bool
    partitions: Sequence[int] | None
    lanes: Sequence[int | str] | None
    follow: bool
    reverse: bool
    order: Literal["arrival", "event-time"]
    on_gap: Literal["raise", "skip"]
    idle_s: float
    read_ahead_size: int
    on_caught_up: Callable[[], None] | None
    compacted: bool
