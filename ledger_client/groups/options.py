"""The options of a consumer, with units and defaults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple, TypedDict, get_args

import msgspec

from ledger_client.errors import BadGroup
from ledger_client.options import check_function, wrong_type
from ledger_client.topics.messages import ValueDecoder
from ledger_client.topics.reading.options import READ_AHEAD_SIZE
from ledger_client.topics.times import TIMES, Time
from metadata.groups.rows import (
    PARAMETERS_SIZE_MAX,
    SESSION_S_MAX,
    SESSION_S_MIN,
    Mode,
    check_group,
)
from metadata.topics import split_topic

FirstStart = Literal["earliest", "latest", "none"] | Time
GroupOrder = Literal["arrival", "timestamp"]
Missing = Literal["fail", "wait"]
OnGap = Literal["raise", "skip"]


class TopicPartition(NamedTuple):
    """A partition of a topic by its name; -1 is the only one of a topic without partitions."""

    topic: str
    partition: int


class ConsumedLane(NamedTuple):
    """A lane of a partition that a consumer reads, with versions: they count its entries.

    An entry is a batch of messages.
    """

    topic: str
    partition: int
    lane: int
    position: int
    """version of the next entry that is handed out"""
    committed: int
    """version of the next entry that the group reads elsewhere; -1: its first one"""
    begin: int
    """version of the first entry that is left"""
    end: int
    """version after the last entry"""

    @property
    def entries_left(self) -> int:
        """Entries that were not handed out yet; one at the end may have no messages."""
        return max(self.end - max(self.position, self.begin), 0)


OnParts = Callable[[Sequence[TopicPartition]], Awaitable[None] | None]


NAMES = {"group", "namespace", "member", "client_id"}
"""Options that are shown beside parameters."""
CHOICES = {
    "mode": get_args(Mode),
    "order": get_args(GroupOrder),
    "missing": get_args(Missing),
    "on_gap": get_args(OnGap),
}
"""The values of options that have few."""
DEAD_PREFIX = "quire-dead-"
"""Begins the names of the headers that are added to dead letters."""


def dead_topic(topic: str, group: str) -> str:
    """Return the name of a group's own topic for the dead letters of *topic*."""
    return f"{topic.partition('/')[0]}/{group}.dead"


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's part in its group. Times are seconds, sizes are bytes."""

    group: str
    """name of the group: up to 192 letters, digits, '_', '-' or '.'"""
    namespace: str = ""
    """all topics of this namespace, with those that are created later, as the pattern name/*"""
    with_meta: bool = False
    """bring TopicEvents, too: creation, alteration and deletion of topics in the namespaces of
    those that are consumed, a creation before the first message"""
    mode: Mode = "exclusive"
    """"exclusive": each partition is read by one member, in order, and committed. "shared": any
    number of members read a partition, and acknowledge message by message. "key-shared": so, and
    one member has all messages of a key, in order"""
    order: GroupOrder = "arrival"
    """"arrival": each lane in its order, several lanes as they come. "timestamp": the messages of
    each topic in one order, of all partitions that this member has, from one assignment to the
    next, about 0.3 s after they were sent; for topics with timesync, in mode exclusive. No call
    returns messages of both sides of a tick"""
    start: FirstStart = "latest"
    """where the group begins in a partition in which it has committed nothing: at the earliest
    message, at the latest, or at a time; "none" raises BadGroup then. Where a lane has nothing so
    late, the group begins at its end: what comes there later counts, also with an earlier time"""
    auto_commit_s: float | None = 5.0
    """commit what was consumed so often, and at the end; `None`: only commit() does"""
    member: str = ""
    """a name that the consumer keeps over restarts: if it is back within *session_s*, no partition
    moves. By default each consumer is a member of its own"""
    session_s: float = 12.0
    """a member that is silent for longer is removed"""
    beat_s: float = 3.0
    """between two reports of a member"""
    poll_s_max: float = 300.0
    """a member that asks for no message for longer is removed, until it asks again"""
    revoke_s: float = 10.0
    """how long the application may go on with what it has of a partition that moves elsewhere"""
    on_assigned: OnParts | None = None
    """called before the first message of new partitions, for each topic, and none of another topic
    comes before it is done: a function, or an async one. In asyncio it runs in the loop, in
    `blocking` in a worker thread. A CommitRefused or MemberRemoved that it raises is logged;
    another error ends the consumer's block, in an exception group"""
    on_revoked: OnParts | None = None
    """called when partitions move elsewhere, while their progress can still be committed; or when
    they are lost, and it cannot: the consumer was not heard of, or was not done with its messages
    within 0.8 of *revoke_s*. A CommitRefused or MemberRemoved that it raises is logged"""
    missing: Missing = "fail"
    """a named topic that does not exist, or a pattern that matches none: raise NoSuchTopic, or
    wait until one is created"""
    on_gap: OnGap = "raise"
    """"skip": removed messages are skipped and counted"""
    keep: bool | None = None
    """hold back retention: neither it nor a purge removes what the group has not committed; `False`
    ends that, `None` leaves it as it is. It is the group's, and outlives this consumer"""
    read_ahead_size: int = READ_AHEAD_SIZE
    """bytes that all lanes together may hold in memory"""
    ack_timeout_s: float = 30.0
    """a message of a shared group that is not acknowledged for so long is delivered again"""
    deliveries_max: int = 10
    """deliveries of a message of a shared group, then it becomes a dead letter; 0: no limit"""
    dead_topic: str = ""
    """topic of dead letters; by default group.dead in the namespace of each topic"""
    unacked_max: int = 10_000
    """messages of a shared group that one member may have, not acknowledged"""
    client_id: str = ""
    """names this consumer to people, up to 255 characters"""
    value_decoder: ValueDecoder | None = None
    """called with the bytes of a value when `Message.decoded` is read, which returns the result;
    `Message.value` stays bytes, and so do the columns of poll_batches(). `ledger_client.values` has
    decoders. TopicEvents are not decoded"""

    @property
    def parameters(self) -> str:
        """The options that decide how messages are consumed, for people."""
        given = {
            field: value
            for field, value in msgspec.structs.asdict(self).items()
            if field not in NAMES and not callable(value)
        }
        text = ", ".join(f"{field}={value}" for field, value in given.items())
        return text[:PARAMETERS_SIZE_MAX]

    def check(self) -> None:
        """Raise BadGroup for options that are not possible, TypeError for what is no function."""
        reason = wrong_type(self)
        if reason is not None:
            raise BadGroup(reason)
        for name in ("on_assigned", "on_revoked", "value_decoder"):
            check_function(getattr(self, name), name)
        try:
            check_group(self.group)
            check_group(self.member or "m")
            split_topic(self.dead_topic or "a/b")
        except ValueError as wrong:
            raise BadGroup(str(wrong)) from wrong
        wrong_ones = {
            **{
                f"{name} {getattr(self, name)!r} is none of {', '.join(choices)}": (
                    getattr(self, name) not in choices
                )
                for name, choices in CHOICES.items()
            },
            f"start {self.start!r} is neither earliest, latest, none nor an EventTime, a Timestamp "
            "or a PublishTime": not (
                self.start in ("earliest", "latest", "none") or isinstance(self.start, TIMES)
            ),
            f"session_s {self.session_s} is not {SESSION_S_MIN:g} to {SESSION_S_MAX:g}": not (
                SESSION_S_MIN <= self.session_s <= SESSION_S_MAX
            ),
            f"beat_s {self.beat_s} is not 1 or more, and less than session_s": not (
                1 <= self.beat_s < self.session_s
            ),
            f"poll_s_max {self.poll_s_max} is not 1 to 2147483": not (
                1 <= self.poll_s_max <= 2_147_483
            ),
            f"revoke_s {self.revoke_s} is not 0 to 600": not 0 <= self.revoke_s <= 600,
            f"auto_commit_s {self.auto_commit_s} is negative": (self.auto_commit_s or 0) < 0,
            f"with_meta needs mode exclusive, not {self.mode}": (
                self.with_meta and self.mode != "exclusive"
            ),
            f"order timestamp needs mode exclusive, not {self.mode}": (
                self.order == "timestamp" and self.mode != "exclusive"
            ),
            "order timestamp and with_meta exclude each other: events have no timestamps": (
                self.order == "timestamp" and self.with_meta
            ),
            f"ack_timeout_s {self.ack_timeout_s} is not 0.1 or more": self.ack_timeout_s < 0.1,
            f"deliveries_max {self.deliveries_max} is negative": self.deliveries_max < 0,
            f"unacked_max {self.unacked_max} is not 1 or more": self.unacked_max < 1,
            f"read_ahead_size {self.read_ahead_size} is not 1 or more": self.read_ahead_size < 1,
            "client_id has more than 255 characters": len(self.client_id) > 255,
        }
        for message, holds in wrong_ones.items():
            if holds:
                raise BadGroup(message)


class ConsumerSettings(TypedDict, total=False):
    """ConsumerOptions as keyword arguments. Generated by tests/support/surfaces.py."""

    group: str
    namespace: str
    with_meta: bool
    mode: Mode
    order: GroupOrder
    start: FirstStart
    auto_commit_s: float | None
    member: str
    session_s: float
    beat_s: float
    poll_s_max: float
    revoke_s: float
    on_assigned: OnParts | None
    on_revoked: OnParts | None
    missing: Missing
    on_gap: OnGap
    keep: bool | None
    read_ahead_size: int
    ack_timeout_s: float
    deliveries_max: int
    dead_topic: str
    unacked_max: int
    client_id: str
    value_decoder: ValueDecoder | None
