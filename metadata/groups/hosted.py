"""A group in its coordinator's memory: its machine, the order of its steps, and its figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import trio

from metadata.errors import BadGroup, MetadataUnavailable
from metadata.groups.calls import GroupState, JoinGroup, MemberState
from metadata.groups.group import Group
from metadata.groups.rows import MEMBERS_MAX, WANTED_MAX, Mode, partitions_of
from metadata.store import ABSENT

FINISH_S = 30.0
"""After a deletion failed, until it is finished unasked: who asked for it asks again before."""


class GroupCounts(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a few numbers, of this coordinator's term."""

    group: str
    members: int
    partitions: int
    """of which members have something"""
    rebalances: int
    rebalance_s: float
    """how long all of these took that are over: from the cause until every member had its share"""
    rebalancing_s: float
    """how long the one under way lasts; 0 for none"""
    topics: frozenset[int]
    """uids of the topics that members consume"""


class Hosted:
    """A group, with what keeps its steps in order."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.turn = trio.Lock()
        self.rebalances = 0
        self.is_deleted = False
        self.is_kept = group.record.keep
        """True from before the first topic is kept"""
        self.founder: tuple[str, str] | None = None
        """the member, and its run, that founded the group, if nobody else ever wanted it"""
        self._is_founding = False
        self._is_wanted = group.version != ABSENT
        self._rebalance_s = 0.0
        self._unbalanced_at: float | None = None
        self._deleted_at = 0.0

    @contextmanager
    def founding(self) -> Iterator[None]:
        """Store the group without members, in the mode that it has now."""
        self._is_founding = True
        try:
            yield
        finally:
            self._is_founding = False

    @property
    def mode(self) -> Mode | None:
        """How members share topics; `None` until the first one comes, or the group is founded."""
        group = self.group
        is_begun = group.version != ABSENT or group.members or self._is_founding
        return group.record.mode if is_begun else None

    def delete(self, now: float) -> None:
        """Note that the group is being deleted: nothing of it counts any more."""
        self.is_deleted, self._deleted_at = True, now

    def check(self, name: str) -> None:
        """Raise MetadataUnavailable while the group is being deleted."""
        if self.is_deleted:
            raise MetadataUnavailable(f"group {name} is being deleted; ask again")

    def is_left_over(self, now: float) -> bool:
        """Return True if a deletion failed, and nobody asked for it again."""
        return self.is_deleted and now - self._deleted_at > FINISH_S

    def want(self, member: str = "", run: str = "") -> None:
        """Note that this run of a member, or somebody who is none, wants the group to be there."""
        if self.founder != (member, run):
            self.founder = (member, run) if member and not self._is_wanted else None
        self._is_wanted = True

    def is_only_for(self, member: str, run: str) -> bool:
        """Return True if this run founded the group, and nobody else ever wanted it."""
        found = self.group.members.get(member)
        is_stored = found is not None and found.joined.run == run and found.record is not None
        return is_stored and len(self.group.members) == 1 and self.founder == (member, run)

    def state(self, name: str, now: float) -> GroupState:
        """Return what the group is doing."""
        group = self.group
        members = [
            MemberState(
                member=member_name,
                record=member.joined if member.record is None else member.record,
                state="ready" if member.is_ready else "rebalancing",
                silent_s=now - member.beat_at,
                polled_s=member.polled_s,
            )
            for member_name, member in sorted(group.members.items())
        ]
        return GroupState(
            group=name,
            mode=group.record.mode,
            keep=group.record.keep,
            epoch=group.record.epoch,
            state="empty" if not members else "ready" if group.is_balanced else "rebalancing",
            rebalances=self.rebalances,
            members=members,
        )

    def note_balance(self, now: float) -> None:
        """Note whether every member has its share by now."""
        if self.group.members and not self.group.is_balanced:
            if self._unbalanced_at is None:
                self._unbalanced_at = now
        elif self._unbalanced_at is not None:
            self._rebalance_s += now - self._unbalanced_at
            self._unbalanced_at = None

    def counts(self, name: str, now: float) -> GroupCounts:
        """Return the group's figures."""
        since = self._unbalanced_at
        owned = {part for member in self.group.members.values() for part in member.owned}
        return GroupCounts(
            group=name,
            members=len(self.group.members),
            partitions=len(partitions_of(self.group.record.mode, owned)),
            rebalances=self.rebalances,
            rebalance_s=self._rebalance_s,
            rebalancing_s=0.0 if since is None else now - since,
            topics=frozenset(self.group.targeted),
        )


def check_joining(hosted: Hosted, request: JoinGroup) -> None:
    """Raise BadGroup if the member does not suit the group."""
    group = hosted.group
    named = len(request.record.wanted.topics) + len(request.record.wanted.patterns)
    if named > WANTED_MAX:
        raise BadGroup(f"a consumer of {named} topics and patterns; it may name {WANTED_MAX}")
    if hosted.mode not in (None, request.mode):
        raise BadGroup(
            f"group {request.group} is used in mode {hosted.mode}, not {request.mode}; "
            "take another name, or delete the group with its progress"
        )
    if request.member not in group.members and len(group.members) >= MEMBERS_MAX:
        raise BadGroup(f"group {request.group} has {MEMBERS_MAX} members, as many as it may have")
    member = group.members.get(request.member)
    is_taken = member is not None and not member.left and member.joined.run != request.record.run
    if is_taken and not request.record.is_static:
        raise BadGroup(f"group {request.group} has a member {request.member} already")
