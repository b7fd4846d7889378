"""The requests to a topic and its answers: events of a history (history.py).

    producer ─► LaneTaken, MessagesSent, MessagesAcknowledged, MessagesRefused ─┐
    reader   ─► ReadBegun, MessagesRead, GapTold, LossTold, ReadEnded ──────────┼─► History
    metadata ─► TopicMade, RowListed, RowRemoved ───────────────────────────────┤
    operator ─► TopicCut ───────────────────────────────────────────────────────┤
    audit    ─► LedgerHeld ─────────────────────────────────────────────────────┘

A message is known by its mark: whoever sends takes care that no two messages of a topic have
the same value. One that is sent again keeps its mark.

A session is one producer from its opening to its end; the name of a named producer is that
of all its sessions. A reader's name stands for one run through its lanes: whoever seeks goes
on under another.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from event import Event

from ledger_client.message_id import MessageId
from metadata.topics import LaneLedger

NOWHERE = MessageId(-1, -1)


def is_nowhere(message_id: MessageId) -> bool:
    """True for the id of a message that was stored before, at an unknown place."""
    return message_id.ledger_id < 0


class Place(NamedTuple):
    """A lane of a partition."""

    partition: int
    lane: int


class Message(msgspec.Struct, frozen=True, array_like=True):
    """The known facts of a message. *mark* and *key* are marks (event.py)."""

    mark: int
    sequence: int = -1
    event_time: int | None = None
    key: int | None = None


class TopicHappening(Event):
    """Something that happened to a topic."""

    topic: str


class TopicMade(TopicHappening):
    """The topic is there; *ordered* by event time or not."""

    ordered: bool = False


class LaneTaken(TopicHappening):
    """A session has the lane: its taking over is complete."""

    session: str
    producer: str
    """its name; "" for none"""
    partition: int
    lane: int
    epoch: int
    last_sequence: int
    """the producer's last that is kept, as the session was told"""


class MessagesSent(TopicHappening):
    """A session is about to send, in this order.

    *writer*: what one writer of a session sends, it sends one after the other.
    """

    session: str
    writer: str
    producer: str
    messages: list[Message]


class MessagesAcknowledged(TopicHappening):
    """A session was told that messages are durable, and where."""

    session: str
    writer: str
    marks: list[int]
    ids: list[MessageId]


class MessagesRefused(TopicHappening):
    """A session was told that messages are not kept; *unknown*: they may be."""

    session: str
    writer: str
    marks: list[int]
    reason: str
    unknown: bool
    event_time: int | None = None
    """that is refused since the lane is further"""
    last_event_time: int | None = None
    """the one that the refusal names"""


class ReadBegun(TopicHappening):
    """A reader is about to be opened.

    *first*: the id from which on it reads, None for the earliest; *inclusive*: with that.
    With *latest* it reads what comes next. *partitions*: None for all. *whole*: all that was
    acknowledged before is due, also in ledgers that are still being written.
    """

    reader: str
    first: MessageId | None = None
    inclusive: bool = True
    latest: bool = False
    reverse: bool = False
    partitions: list[int] | None = None
    whole: bool = False


class MessagesRead(TopicHappening):
    """A reader got messages, in this order."""

    reader: str
    ids: list[MessageId]
    messages: list[Message]


class GapTold(TopicHappening):
    """A reader was told that what is at *position* was removed, and what there is first."""

    reader: str
    partition: int
    lane: int
    position: MessageId
    first: MessageId | None


class LossTold(TopicHappening):
    """A reader was told that an entry, -1 for all, of one of the topic's ledgers is lost."""

    reader: str
    ledger_id: int
    entry: int


class ReadEnded(TopicHappening):
    """A reader that follows nothing was told that this was all."""

    reader: str


class RowListed(TopicHappening):
    """The row of a lane's ledger as it stood in metadata at *version*."""

    partition: int
    lane: int
    number: int
    version: int
    row: LaneLedger


class RowRemoved(TopicHappening):
    """The row was removed, and its ledger with it."""

    partition: int
    lane: int
    number: int


class TopicCut(TopicHappening):
    """A deletion in the lane of *start*, from there on: about to begin, or *done*."""

    start: MessageId
    done: bool = False


class HeldEntry(msgspec.Struct, frozen=True):
    """An entry that is there. *size*: of its payload."""

    entry: int
    size: int
    epoch: int
    producer: str
    messages: list[Message]
    batched: bool = True
    state: dict[str, int] | None = None
    """of a control entry: the last sequence of each producer, as it says"""


class LedgerHeld(TopicHappening):
    """All entries of a closed ledger of the topic, once everything was healed."""

    ledger: int
    entries: list[HeldEntry]


MessageEvent = (
    TopicMade
    | LaneTaken
    | MessagesSent
    | MessagesAcknowledged
    | MessagesRefused
    | ReadBegun
    | MessagesRead
    | GapTold
    | LossTold
    | ReadEnded
    | RowListed
    | RowRemoved
    | TopicCut
    | LedgerHeld
)
