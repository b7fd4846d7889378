"""What a reader of topics can be told, with units and edge values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

import msgspec

from ledger_client.topics.errors import BadTopic
from ledger_client.topics.reading.starting import Start, Version
from metadata.topics import TopicRecord

READ_AHEAD_SIZE = 32 << 20


class ReadSettings(TypedDict, total=False):
    """What TopicClient.topic_reader can be told."""

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


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What to read and how; see TopicClient.topic_reader."""

    start: Start | None = None
    inclusive: bool = True
    end: Start | None = None
    end_inclusive: bool = True
    partitions: Sequence[int] | None = None
    lanes: Sequence[int | str] | None = None
    follow: bool = False
    reverse: bool = False
    order: Literal["arrival", "event-time"] = "arrival"
    on_gap: Literal["raise", "skip"] = "raise"
    idle_s: float = 1.0
    read_ahead_size: int = READ_AHEAD_SIZE
    on_caught_up: Callable[[], None] | None = None
    compacted: bool = False

    @property
    def begin(self) -> Start:
        """Where to begin: where nothing is said, at the end that lets all be read."""
        if self.start is not None:
            return self.start
        return "latest" if self.reverse else "earliest"

    def check(self, topics: Sequence[TopicRecord]) -> None:
        """Raise BadTopic for what cannot be, at all or with these topics."""
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
            "a version cannot be followed: lanes that are new have other ones": (
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
