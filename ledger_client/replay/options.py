"""What a replay can be told, with units and edge values."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

import msgspec

from ledger_client.replay.range import Wanted
from ledger_client.replay.report import Progress
from ledger_client.topics.errors import BadTopic
from ledger_client.topics.reading.starting import Start
from metadata.replays import Order
from metadata.topics import TopicRecord

ORDERS: tuple[Order, ...] = ("event-time", "time", "arrival")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


class ReplaySettings(TypedDict, total=False):
    """What TopicClient.replay can be told."""

    start: Start | None
    inclusive: bool
    end: Start | None
    end_inclusive: bool
    partitions: Sequence[int] | None
    lanes: Sequence[int] | None
    on_gap: Literal["raise", "skip"]
    order: Order | None
    speed: float
    name: str
    restart: bool
    keep_ids: bool
    verify: bool
    asked: str
    on_progress: Callable[[Progress], None] | None


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to replay; see TopicClient.replay."""

    start: Start | None = None
    inclusive: bool = True
    end: Start | None = None
    end_inclusive: bool = True
    partitions: Sequence[int] | None = None
    lanes: Sequence[int] | None = None
    on_gap: Literal["raise", "skip"] = "raise"
    order: Order | None = None
    speed: float = 0.0
    name: str = ""
    restart: bool = False
    keep_ids: bool = False
    verify: bool = False
    asked: str = ""
    on_progress: Callable[[Progress], None] | None = None

    @property
    def wanted(self) -> Wanted:
        """The range."""
        return Wanted(
            start=self.start,
            inclusive=self.inclusive,
            end=self.end,
            end_inclusive=self.end_inclusive,
            partitions=self.partitions,
            lanes=self.lanes,
            on_gap=self.on_gap,
        )

    def order_of(self, topics: Sequence[TopicRecord]) -> Order:
        """Return the order: by event time where all topics are ordered by it, else by time."""
        if self.order is not None:
            return self.order
        ordered = all(topic.order == "event-time" for topic in topics)
        return "event-time" if ordered else "time"

    def describe(self) -> str:
        """Return what else decides which messages come and how, the same for the same."""
        return f"{self.asked or self.wanted}{'; ids kept' if self.keep_ids else ''}"

    def name_of(self, topics: Sequence[TopicRecord], target: str) -> str:
        """Return the replay's name; by default one of its own for these sources and target."""
        if self.name:
            return self.name
        told = "\n".join(
            [*(t.name for t in topics), self.order_of(topics), self.describe(), target]
        )
        readable = _NOT_IN_NAMES.sub(".", topics[0].name)[:100]
        return f"{readable}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"

    def check(self, topics: Sequence[TopicRecord]) -> None:
        """Raise BadTopic for what cannot be, at all or with these topics."""
        if self.order == "event-time":
            self._check_event_times(topics)
        names = [topic.name for topic in topics]
        wrong = {
            "a replay of no topic": not topics,
            "a topic is named twice": len(set(names)) < len(names),
            f"order {self.order!r} is none of {', '.join(ORDERS)}": (
                self.order not in {None, *ORDERS}
            ),
            f"speed {self.speed} is neither 0, for full speed, nor above": (
                not 0 <= self.speed < math.inf
            ),
        }
        for message, holds in wrong.items():
            if holds:
                raise BadTopic(message, topic=names[0] if names else "")

    @staticmethod
    def _check_event_times(topics: Sequence[TopicRecord]) -> None:
        for topic in topics:
            if topic.order != "event-time":
                raise BadTopic(
                    "it is not ordered by event time, so its lanes cannot be merged by it; "
                    "choose the order time or arrival",
                    topic=topic.name,
                )
