"""What groups, their members and their coordinator did: events of a history (history.py).

    metadata  ─► MemberStored, MemberRemoved, ProgressStored ────────────────────┐
    consumer  ─► Opened, Assigned, Revoked, Delivered, Done, Acked, WentBack ────┤
                 LetGo, PutOff ──────────────────────────────────────────────────┼─► History
    member    ─► BeatAnswered, MemberLeft, Burying, Buried ──────────────────────┤
    harness   ─► LagSeen, Calm, Struck, DeadLetter, LetterRead, LettersRead, ────┤
                 GroupSettled ───────────────────────────────────────────────────┘

A session is one consumer from its opening to its end; a member may outlive its sessions. Versions
are those of rows: they rise over all rows of a store, so they order changes that different
processes saw.

A key-shared group assigns slots of partitions: the parts of its rows are slots, partition by
partition.
"""

from __future__ import annotations

import msgspec
from event import Event

from ledger_client.groups.options import TopicPartition
from ledger_client.message_id import MessageId

Spot = tuple[int, int, int]
"""A place in a lane: number of the ledger, entry, and messages of it that are done."""


class GroupHappening(Event):
    """Something that happened to a group."""

    group: str


class MemberStored(GroupHappening):
    """A member's row as it stands.

    *seen_at*: rows with the same time were changed, or read, together.
    """

    member: str
    run: str
    epoch: int
    version: int
    parts: list[TopicPartition]
    revoked: list[TopicPartition]
    session_s: float
    seen_at: float


class MemberRemoved(GroupHappening):
    """A member's row is gone. *version*: of the newest row before that; 0 if not known."""

    member: str
    version: int
    seen_at: float


class ProgressStored(GroupHappening):
    """Progress of a partition as it stands; *member* is "" if none committed it."""

    part: TopicPartition
    member: str
    epoch: int
    version: int
    places: dict[int, Spot]


class WentBack(GroupHappening):
    """A member is about to commit these places, which may lie before what is committed."""

    member: str
    part: TopicPartition
    places: dict[int, Spot]


class Opened(GroupHappening):
    """A session is about to be opened. *shared*: it acknowledges message by message.

    *deliveries_max*: how often a message may be delivered; 0: no limit. *by_key*: one member has
    all messages of a key. *ack_s*: how long a member may have a message without acknowledging it.
    *revoke_s*: how long it may keep what is revoked; 0: events of several processes are not in one
    order, so what depends on that is not checked.
    """

    session: str
    shared: bool = False
    deliveries_max: int = 0
    by_key: bool = False
    ack_s: float = 0.0
    revoke_s: float = 0.0


class Assigned(GroupHappening):
    """The application is told that it gets messages of these partitions."""

    session: str
    parts: list[TopicPartition]


class Revoked(GroupHappening):
    """The application is told that it gets no more messages of these partitions."""

    session: str
    parts: list[TopicPartition]


class Delivered(GroupHappening):
    """The application has got these messages, in this order.

    *epoch*: of the row that the member said it had applied; 0 if it is no member now.
    """

    session: str
    member: str
    epoch: int
    topic: str
    lanes: list[int]
    ids: list[MessageId]
    counts: list[int] = msgspec.field(default_factory=list)
    """how often each was delivered, as the consumer says; of a shared group"""
    keys: list[int] = msgspec.field(default_factory=list)
    """marks of their keys, if these go to one member; of a key-shared group"""
    slots: list[int] = msgspec.field(default_factory=list)
    """the slots of its partition to which they belong; of a key-shared group"""


class Done(GroupHappening):
    """The application is done with these messages: they need not come again."""

    session: str
    topic: str
    ids: list[MessageId]


class LetGo(GroupHappening):
    """The application is about to acknowledge these messages."""

    session: str
    topic: str
    ids: list[MessageId]


class Acked(GroupHappening):
    """The application was told that its acknowledgement of these messages is durable."""

    session: str
    topic: str
    ids: list[MessageId]


class PutOff(GroupHappening):
    """The application works on these messages no longer, and wants them to come again.

    *always*: it does so each time.
    """

    session: str
    topic: str
    ids: list[MessageId]
    always: bool = False


class Struck(GroupHappening):
    """The process *name* of a session was killed, paused or resumed."""

    name: str


class DeadLetter(GroupHappening):
    """A dead letter of a message is there, in the end."""

    topic: str
    id: MessageId
    deliveries: int


class Burying(GroupHappening):
    """A member is about to send the dead letter of a message."""

    member: str
    topic: str
    id: MessageId
    deliveries: int


class Buried(GroupHappening):
    """A member was told that the dead letter of a message is durable."""

    member: str
    topic: str
    id: MessageId


class LetterRead(GroupHappening):
    """A dead letter as it lies in its topic: what its headers say, and marks of its content."""

    member: str
    topic: str
    id: str
    partition: int
    of_group: str
    deliveries: int
    reason: str
    mark: int
    key: int | None


class LettersRead(GroupHappening):
    """All dead letters of the group were read."""


class BeatAnswered(GroupHappening):
    """The coordinator took the report of *asked_at* for one of a member."""

    member: str
    run: str
    asked_at: float


class MemberLeft(GroupHappening):
    """A member is about to ask to leave."""

    member: str
    run: str


class LagSeen(GroupHappening):
    """The ready *member* has a partition with messages that it was not given: *count* of them.

    Looked at while nothing keeps a member from reading. "": ready members have all its slots.
    """

    part: TopicPartition
    member: str
    count: int


class Calm(GroupHappening):
    """Nobody is hit from now on; or somebody may be, so what is seen of lags says nothing."""

    is_calm: bool


class GroupSettled(GroupHappening):
    """Nothing is wrong any more, and time enough went by: these are the topic's partitions."""

    parts: list[TopicPartition]


GroupEvent = (
    MemberStored
    | MemberRemoved
    | ProgressStored
    | WentBack
    | Opened
    | Assigned
    | Revoked
    | Delivered
    | Done
    | LetGo
    | Acked
    | Burying
    | Buried
    | LetterRead
    | LettersRead
    | PutOff
    | Struck
    | DeadLetter
    | BeatAnswered
    | MemberLeft
    | LagSeen
    | Calm
    | GroupSettled
)
