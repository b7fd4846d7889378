"""Timestamps, ticks and what is read in their order: events of a history (history.py).

    whoever takes timestamps ─► TimeAsked, TimeTaken ───────────────────────┐
    follower of ticks        ─► TickSeen ───────────────────────────────────┤
    reader by timestamp      ─► TimedBegun, TimedRead, TimedLost, TimedEnded ┼─► History
    metadata                 ─► TopicChanged ───────────────────────────────┤
    audit                    ─► TimeHeld ───────────────────────────────────┘

A reader by timestamp keeps its name as long as it goes on where it was, in whatever process.
"""

from __future__ import annotations

import msgspec
from event import Event

from ledger_client.message_id import MessageId

Lane = tuple[int, int]
"""partition and lane"""


class TimeAsked(Event):
    """*who* is about to ask for timestamps. It asks for them one after the other."""

    who: str


class TimeTaken(Event):
    """*who* owns so many timestamps, from *first* on."""

    who: str
    first: int
    count: int


class TimedHappening(Event):
    """Something that happened to a topic with timestamps."""

    topic: str


class TickSeen(TimedHappening):
    """*who* was given a tick. *stored*: the last stored one, which may be this one."""

    who: str
    timestamp: int
    stored: int
    covers: list[tuple[int, int, int]]
    """partition, lane and version"""


class TimedBegun(TimedHappening):
    """A reader is about to be opened that reads from the timestamp *start* on."""

    reader: str
    start: int
    follows: bool


class TimedRead(TimedHappening):
    """A reader got messages, in this order, as one batch; it is complete up to *tick*."""

    reader: str
    ids: list[MessageId]
    timestamps: list[int]
    tick: int


class TimedLost(TimedHappening):
    """A reader was told that messages are lost."""

    reader: str
    reason: str


class TimedEnded(TimedHappening):
    """A reader that does not follow was told that this was all."""

    reader: str


class TopicChanged(TimedHappening):
    """The topic was created, altered or deleted, at *timestamp*; now that shows."""

    kind: str
    timestamp: int


class HeldMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message as it is in its lane."""

    id: MessageId
    lane: int
    version: int
    timestamp: int
    mark: int

    @property
    def index(self) -> Lane:
        """Its partition and lane."""
        return self.id.partition, self.lane


class TimeHeld(TimedHappening):
    """All messages of the topic, lane by lane, and all its stored ticks, once all was healed."""

    messages: list[HeldMessage]
    ticks: list[int]


TimeEvent = (
    TimeAsked
    | TimeTaken
    | TickSeen
    | TimedBegun
    | TimedRead
    | TimedLost
    | TimedEnded
    | TopicChanged
    | TimeHeld
)
