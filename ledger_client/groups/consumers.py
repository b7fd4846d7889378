"""The consumers of groups and what they are subscribed to, as TDengine's tables of these names.

A consumer is a member of a group. A subscription is a lane of a partition that a group consumes,
with the consumer that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from metadata.groups.assignment import Part
from metadata.groups.calls import GroupState, MemberState
from metadata.groups.rows import partitions_of, parts_of
from metadata.topics import TopicRecord


class ConsumerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer. Times are Unix milliseconds, by the store's clock."""

    group: str
    member: str
    """its id, or the name that it keeps"""
    client_id: str
    state: str
    """ready, or rebalancing: it is to get partitions, or to give some up"""
    topics: list[str]
    """names and patterns"""
    partitions: int
    """that it has; in a key-shared group, those of which it has slots"""
    slots: int
    """that it has in a key-shared group, 16 in a whole partition; 0 in other groups"""
    up_ms: int
    """when it was started"""
    joined_ms: int
    """when it subscribed last"""
    rebalanced_ms: int
    """when its partitions changed last"""
    parameters: str
    """all its options"""
    session_s: float
    poll_s_max: float
    revoke_s: float
    host: str
    process_id: int
    silent_s: float
    """since it reported in"""
    polled_s: float
    """since it asked for messages, when it reported in"""


class GroupLane(msgspec.Struct, frozen=True, kw_only=True):
    """A lane of a partition that a group consumes.

    Versions count entries, each a batch of messages, from the lane's beginning. Its last entry may
    have no messages: *end* may be above *committed* though *lag* is 0.
    """

    topic: str
    partition: int
    lane: int
    committed: int
    """version of the next entry that the group reads; -1: its first one"""
    end: int
    """version after the last entry"""
    lag: int
    """messages that the group has not done: those from *committed* to *end*, and *unacked*"""
    is_exact: bool = True
    """False: *lag* is an estimate in part, see lag.py; or the slots of a key-shared group are not
    all at one place, and it is the most that it can be"""
    lag_s: float = 0.0
    """age of the oldest of these messages, by the cluster's clock; 0 without any"""
    member: str = ""
    """the member that has the partition; "" for none, or several that share it"""
    unacked: int = 0
    """those of *lag* that members of a shared group hold, not acknowledged"""


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A lane of a group's partition. A partition without messages has lane -1."""

    topic: str
    group: str
    partition: int
    lane: int
    member: str
    """that has the partition; "" for none, or several that share it"""
    position: int
    """version of the next entry, as committed; -1: the first one"""
    end: int
    """version after the last entry"""
    lag: int
    """messages that the group has not done: those between the two, and *unacked*"""
    is_exact: bool
    """False: *lag* is an estimate in part"""
    lag_s: float
    """age of the oldest of these messages"""
    unacked: int
    """those of *lag* that members of a shared group hold, not acknowledged"""


def consumers_of(groups: Iterable[GroupState]) -> list[ConsumerInfo]:
    """Return the consumers of some groups, by group and name."""
    return [_consumer(group, member) for group in groups for member in group.members]


def _consumer(group: GroupState, member: MemberState) -> ConsumerInfo:
    record = member.record
    parts = parts_of(record.parts)
    return ConsumerInfo(
        group=group.group,
        member=member.member,
        client_id=record.client_id,
        state=member.state,
        topics=[*record.wanted.topics, *record.wanted.patterns],
        partitions=len(partitions_of(group.mode, parts)),
        slots=len(parts) if group.mode == "key-shared" else 0,
        up_ms=record.up_ms,
        joined_ms=record.joined_ms,
        rebalanced_ms=record.changed_ms,
        parameters=record.parameters,
        session_s=record.session_s,
        poll_s_max=record.poll_s_max,
        revoke_s=record.revoke_s,
        host=record.host,
        process_id=record.process_id,
        silent_s=member.silent_s,
        polled_s=member.polled_s,
    )


def consumed(group: GroupState) -> set[int]:
    """Return the topics, by uid, of which members have partitions."""
    return {part.topic for part in _owners(group)}


def subscriptions_of(
    group: GroupState, topics: Iterable[TopicRecord], lanes: Sequence[GroupLane]
) -> list[Subscription]:
    """Return the subscriptions of a group in *topics*, which have these *lanes*."""
    owners = {} if group.mode == "key-shared" else _owners(group)  # slots are no partitions
    written: dict[tuple[str, int], list[GroupLane]] = {}
    for lane in lanes:
        written.setdefault((lane.topic, lane.partition), []).append(lane)
    return [
        _subscription(group.group, lane)
        for topic in topics
        for partition in topic.partition_indexes
        for lane in written.get((topic.name, partition))
        or [_unwritten(topic, partition, owners.get(Part(topic.uid, partition), ""))]
    ]


def _subscription(group: str, lane: GroupLane) -> Subscription:
    return Subscription(
        topic=lane.topic,
        group=group,
        partition=lane.partition,
        lane=lane.lane,
        member=lane.member,
        position=lane.committed,
        end=lane.end,
        lag=lane.lag,
        is_exact=lane.is_exact,
        lag_s=lane.lag_s,
        unacked=lane.unacked,
    )


def _unwritten(topic: TopicRecord, partition: int, member: str) -> GroupLane:
    return GroupLane(
        topic=topic.name,
        partition=partition,
        lane=-1,
        committed=-1,
        end=0,
        lag=0,
        member=member,
    )


def _owners(group: GroupState) -> dict[Part, str]:
    owners: dict[Part, str] = {}
    for member in group.members:
        for part in parts_of(member.record.parts):
            owners[part] = member.member if part not in owners else ""
    return owners
