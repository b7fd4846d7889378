"""CALL messages between members of groups and their coordinator (metadata/calls.py).

A bookie that does not lead answers each of them with the failure NotLeader, which names the leader.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from metadata.groups.rows import MemberRecord, Mode, Name
from metadata.topics import Count

BEATS_MAX = 1000
"""Members in one report."""
GROUPS_PAGE = 200
"""Groups in one page of GroupPage."""


class JoinGroup(msgspec.Struct, frozen=True, tag=True):
    """Become a member of a group, or say anew what the member wants. -> GroupJoined.

    The reply comes once the member is stored; it gets partitions later, in its row.
    """

    group: Name
    member: Name
    record: MemberRecord
    """its run and what it wants; parts and epochs do not count"""
    mode: Mode = "exclusive"
    keep: bool | None = None
    """let the group hold back retention, or not; `None`: as it does now"""


class Beat(msgspec.Struct, frozen=True, array_like=True):
    """A member lives."""

    group: Name
    member: Name
    run: Name
    applied: Count = 0
    """the epoch of the last row that it applied"""
    polled_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """since it asked for messages"""


class ReportIn(msgspec.Struct, frozen=True, tag=True):
    """The members of a process live. -> ReportNoted."""

    beats: Annotated[list[Beat], msgspec.Meta(max_length=BEATS_MAX)]


class LeaveGroup(msgspec.Struct, frozen=True, tag=True):
    """Leave a group; others get the member's partitions. -> GroupLeft."""

    group: Name
    member: Name
    run: Name
    in_vain: bool = False
    """the member could begin nothing: if it founded the group for itself, that goes, too"""
    stays: bool = False
    """unless the group goes, the member does not leave: it may come again under its name"""


class FoundGroup(msgspec.Struct, frozen=True, tag=True):
    """Let a group exist: a new one has no members and no progress. -> GroupLeft."""

    group: Name


class DeleteGroup(msgspec.Struct, frozen=True, tag=True):
    """Delete a group with its progress. *force*: its members become none. -> GroupLeft."""

    group: Name
    force: bool = False


class KeepGroup(msgspec.Struct, frozen=True, tag=True):
    """Let a group hold back retention, or not. -> GroupLeft."""

    group: Name
    keep: bool


class DescribeGroups(msgspec.Struct, frozen=True, tag=True):
    """Describe groups with names above *after*, or one. -> GroupPage."""

    after: Name = ""
    group: Name = ""


class GroupJoined(msgspec.Struct, frozen=True, tag=True):
    """The member's row is stored, at this epoch of the group."""

    epoch: Count


class BeatNoted(msgspec.Struct, frozen=True, array_like=True):
    """Answer to one Beat."""

    is_member: bool
    """False: this run is no longer a member of the group"""
    epoch: Count = 0
    """of its row"""


class ReportNoted(msgspec.Struct, frozen=True, tag=True):
    """One answer for each Beat, in order."""

    answers: list[BeatNoted]


class GroupLeft(msgspec.Struct, frozen=True, tag=True):
    """The change was made."""


class MemberState(msgspec.Struct, frozen=True, kw_only=True):
    """A member as its coordinator sees it."""

    member: str
    record: MemberRecord
    state: Literal["rebalancing", "ready"]
    silent_s: float
    """since it reported in"""
    polled_s: float
    """since it asked for messages, when it reported in"""


class GroupState(msgspec.Struct, frozen=True, kw_only=True):
    """A group as its coordinator sees it."""

    group: str
    mode: Mode
    keep: bool = False
    """retention does not remove what the group has not committed"""
    epoch: int
    state: Literal["empty", "rebalancing", "ready"]
    rebalances: int
    """since this coordinator leads"""
    members: list[MemberState]


class GroupPage(msgspec.Struct, frozen=True, tag=True):
    """Groups, ordered by name; an empty page means the end."""

    groups: list[GroupState]


GroupRequest = (
    JoinGroup | ReportIn | LeaveGroup | FoundGroup | DeleteGroup | KeepGroup | DescribeGroups
)
GroupReply = GroupJoined | ReportNoted | GroupLeft | GroupPage
