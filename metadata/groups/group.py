"""One group as its leader sees it: who is there, who gives up what, who gets what next.

    join ─┐                      every 2 s, if anything changed: a new target
    beat ─┼─► Group ──► step() ──► Change ──► one transaction ──► stored()
    leave ┘                      at once, if a member gave up partitions

A machine without I/O: the coordinator stores what step() returns, and reports that back. Until
then nothing counts.

The target is who should read what. Rows follow it in steps, of which each keeps the rule that a
partition has one owner: first the members that have too much are asked to give it up, and read on
elsewhere; once they have, or their time is up, others get it.

    parts - revoked     the member reads and commits these
    revoked             it finishes them, commits, and reports the row's epoch as applied
    gone                its row is deleted, and with it the right to commit

Whether a member lives is known in memory alone. A new leader gives each member a whole session to
report in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from metadata.groups.assignment import Assignment, Part, assign
from metadata.groups.rows import (
    SINCE_MAX,
    SLOTS,
    GroupRecord,
    MemberRecord,
    Mode,
    Revoked,
    Wanted,
    matches,
    parts_of,
    runs_of,
)
from metadata.store import ABSENT

ROWS_MAX = 200
"""Rows that one step changes; a transaction takes 256 ops."""
ROWS_SIZE_MAX = 400 << 10


class Inventory(NamedTuple):
    """A topic that exists."""

    uid: int
    partitions: range


Topics = Mapping[str, Inventory]


@dataclass
class Member:
    """A member in the leader's memory."""

    joined: MemberRecord
    """what the member said when it joined; parts, revoked and epochs do not count"""
    beat_at: float
    record: MemberRecord | None = None
    """as stored"""
    version: int = ABSENT
    polled_s: float = 0.0
    """since the member polled last, when it reported in"""
    applied: int = 0
    """the epoch that the member reported as applied"""
    asked_at: dict[int, float] = field(default_factory=dict)
    """when it was asked to give up what is revoked since an epoch"""
    left: bool = False

    @property
    def owned(self) -> set[Part]:
        """The partitions of its row."""
        return set() if self.record is None else parts_of(self.record.parts)

    @property
    def revoked(self) -> set[Part]:
        """The partitions that it is asked to give up."""
        rows = () if self.record is None else self.record.revoked
        return set().union(*(parts_of(each.runs) for each in rows))

    @property
    def is_ready(self) -> bool:
        """True if the row is stored, and nothing has to be given up."""
        return self.record is not None and not self.record.revoked

    def is_gone(self, now: float) -> bool:
        """Return True if it left, did not report in, or did not poll, for too long."""
        return (
            self.left
            or now - self.beat_at > self.joined.session_s
            or self.polled_s > self.joined.poll_s_max
        )


Rows = dict[str, MemberRecord | None]
"""By member; None deletes the row."""


class Change(NamedTuple):
    """Rows to store in one transaction, with the group's record."""

    group: GroupRecord
    rows: Rows


class Group:
    """See the head of this module.

    Args:
        record: as stored.
        version: of the record; ABSENT for a group that is not stored yet.
        topics: all topics that exist, shared with other groups; see topics_changed().
    """

    def __init__(self, record: GroupRecord, version: int, topics: Topics) -> None:
        self.record = record
        self.version = version
        self.members: dict[str, Member] = {}
        self._topics = topics
        self._targeted: set[Inventory] = set()
        """the topics of the target"""
        self._target: Assignment = {}
        self._is_stale = True
        """the target must be computed anew"""
        self.targets = 0
        """computed so far"""

    # --- events ---------------------------------------------------------------------------

    def load(
        self, record: GroupRecord, version: int, rows: Mapping[str, tuple[MemberRecord, int]]
    ) -> None:
        """Take over what is stored, after a change of leader or an unknown outcome."""
        self._take(record, version)
        for name, member in self.members.items():
            member.record, member.version = rows.get(name, (None, ABSENT))
        self._is_stale = True

    def _take(self, record: GroupRecord, version: int) -> None:
        """Take over the stored record, and keep what was noted while it was stored."""
        since, is_noted = self.record.since | record.since, self.record.is_noted or record.is_noted
        self.record = msgspec.structs.replace(record, since=since, is_noted=is_noted)
        self.version = version

    def add_stored(self, name: str, record: MemberRecord, version: int, now: float) -> None:
        """Add a member that an earlier leader stored; it has a whole session to report in."""
        self.members[name] = Member(record, now, record, version)

    def join(self, name: str, joined: MemberRecord, now: float) -> None:
        """Add a member, or replace its former run. It counts once step() is stored."""
        member = self.members.get(name)
        if member is not None and member.joined.wanted != joined.wanted:
            self._is_stale = True
        if member is None or member.left:
            stored = (None, ABSENT) if member is None else (member.record, member.version)
            member = self.members[name] = Member(joined, now, *stored)
        if member.joined.run != joined.run:
            member.applied = 0
        member.joined = joined
        member.beat_at, member.polled_s, member.left = now, 0.0, False

    def beat(self, name: str, run: str, *, applied: int, polled_s: float, now: float) -> bool:
        """Note that a member lives; return False if this run is not a member.

        *applied* is the epoch of its row that it has applied: it no longer reads nor commits
        what was revoked then.
        """
        member = self.members.get(name)
        if member is None or member.left or member.joined.run != run:
            return False
        member.beat_at, member.polled_s = now, polled_s
        if member.record is not None and member.record.run == run:
            member.applied = max(member.applied, min(applied, member.record.epoch))
        return True

    def leave(self, name: str, run: str) -> None:
        """Let a member go, if this is its run."""
        member = self.members.get(name)
        if member is not None and member.joined.run == run:
            member.left = True

    def topics_changed(self) -> None:
        """Note that some topics changed, of which a member wants one."""
        wanted = (self.wanted(member.joined.wanted) for member in self.members.values())
        self._is_stale |= self._targeted != set().union(*wanted)

    def distrust(self) -> None:
        """Note that a change which step() returned may not be stored: the target is still due."""
        self._is_stale = True

    def configure(self, mode: Mode) -> None:
        """Set how the members share topics; it is stored with the next change."""
        self.record = msgspec.structs.replace(self.record, mode=mode)

    def note_wanted(self, wanted: Wanted, now_ms: int) -> None:
        """Note since when the group wants these; it is stored with the next change.

        A group that was stored without notes may have wanted these all along, and what its members
        want who have not joined anew yet.
        """
        record, all_wanted = self.record, [wanted]
        if self.version != ABSENT and not record.is_noted:
            now_ms = record.created_ms or now_ms
            all_wanted += [member.joined.wanted for member in self.members.values()]
        named = dict.fromkeys(
            name for each in all_wanted for name in (*each.topics, *each.patterns)
        )
        new = [name for name in named if name not in record.since]
        since = record.since | dict.fromkeys(new[: max(SINCE_MAX - len(record.since), 0)], now_ms)
        self.record = msgspec.structs.replace(record, since=since, is_noted=True)

    # --- decisions ------------------------------------------------------------------------

    def wants(self, topic: str) -> bool:
        """Return True if a member names the topic, or a pattern of one matches."""
        return any(matches(member.joined.wanted, topic) for member in self.members.values())

    def wanted_of(self, topics: set[str]) -> set[str]:
        """Return those of *topics* that a member wants; the cost is that of one pass."""
        named, patterns = set[str](), set[str]()
        for member in self.members.values():
            named.update(member.joined.wanted.topics)
            patterns.update(member.joined.wanted.patterns)
        by_pattern = Wanted(patterns=list(patterns))
        return {topic for topic in topics if topic in named or matches(by_pattern, topic)}

    def wanted(self, wanted: Wanted) -> list[Inventory]:
        """Return the topics that exist and that *wanted* names or matches."""
        named = {self._topics[name] for name in wanted.topics if name in self._topics}
        if wanted.patterns:
            named.update(topic for name, topic in self._topics.items() if matches(wanted, name))
        return sorted(named, key=lambda topic: topic.uid)

    def step(self, now: float, *, rebalance: bool) -> Change | None:
        """Return the next change of rows, or None if none is due.

        With *rebalance* a new target is computed if anything changed since the last one.
        """
        present = {name: m for name, m in self.members.items() if not m.is_gone(now)}
        self._is_stale |= present.keys() != self._target.keys()
        kept = {name: self._kept(member, now) for name, member in present.items()}
        if rebalance and self._is_stale:
            self._retarget(present, kept)
        return self._change(present, kept)

    def stored(self, change: Change, versions: Mapping[str, int], version: int, now: float) -> None:
        """Note that *change* was made; *versions* are those of the members' rows."""
        self._take(change.group, version)
        for name, record in change.rows.items():
            member = self.members[name]
            if record is None:
                member.record, member.version = None, ABSENT
                if member.is_gone(now):  # else it came back meanwhile
                    del self.members[name]
                continue
            member.record, member.version = record, versions[name]
            epochs = [revoked.epoch for revoked in record.revoked]
            member.asked_at = {epoch: member.asked_at.get(epoch, now) for epoch in epochs}

    def dissolved(self, name: str) -> None:
        """Note that neither the group nor this member is stored any more: it would begin anew."""
        self.members.pop(name, None)
        since = self.record.since if self.members else {}  # who came meanwhile noted that already
        self.record = GroupRecord(mode=self.record.mode, since=since, is_noted=True)
        self.version = ABSENT
        self._is_stale = True

    @property
    def targeted(self) -> set[int]:
        """The topics, by uid, of which members have partitions or get some."""
        return {topic.uid for topic in self._targeted} | {
            part.topic for member in self.members.values() for part in member.owned
        }

    @property
    def is_moving(self) -> bool:
        """True while a member is asked to give something up."""
        return any(m.record is not None and m.record.revoked for m in self.members.values())

    def is_due(self, now: float, *, rebalance: bool) -> bool:
        """Return False if step() has nothing to change; it costs less."""
        if (rebalance and self._is_stale) or self.is_moving:
            return True
        return any(m.record is None or m.is_gone(now) for m in self.members.values())

    @property
    def is_balanced(self) -> bool:
        """True if every member has all that it should, and nothing else."""
        return not self._is_stale and all(
            member.is_ready and member.owned == self._target.get(name, set())
            for name, member in self.members.items()
        )

    def _kept(self, member: Member, now: float) -> set[Part]:
        """Return what a member still owns: not what it gave up, nor what is taken from it."""
        owned = member.owned
        for revoked in member.record.revoked if member.record else ():
            asked_at = member.asked_at.setdefault(revoked.epoch, now)
            if member.applied >= revoked.epoch or now - asked_at >= member.joined.revoke_s:
                owned -= parts_of(revoked.runs)
        return owned

    def _retarget(self, present: Mapping[str, Member], kept: Mapping[str, set[Part]]) -> None:
        wanted = {name: self.wanted(member.joined.wanted) for name, member in present.items()}
        self._targeted = {topic for named in wanted.values() for topic in named}
        self._target = assign(
            {topic.uid: self._units(topic) for topic in self._targeted},
            {name: [topic.uid for topic in named] for name, named in wanted.items()},
            kept,
        )
        self._is_stale = False
        self.targets += 1

    def _units(self, topic: Inventory) -> range:
        """Return what is assigned of a topic: its partitions, or their slots."""
        if self.record.mode != "key-shared":
            return topic.partitions
        return range(len(topic.partitions) * SLOTS)

    def _change(
        self, present: Mapping[str, Member], kept: Mapping[str, set[Part]]
    ) -> Change | None:
        """Return rows that come nearer to the target.

        What does not fit one transaction comes in several. Then those that take something away
        go first and give nothing, as what they would give may have another owner still.
        """
        epoch = self.record.epoch + 1
        owned = set().union(*kept.values())
        gone = dict.fromkeys(name for name in self.members if name not in present)
        less: Rows = {**gone}
        rows: Rows = {**gone}
        for name, member in present.items():
            target = self._target.get(name, kept[name] - member.revoked)
            revoked = kept[name] - target
            if (row := _row(member, kept[name], revoked, epoch)) is not None:
                less[name] = row
            if (row := _row(member, kept[name] | (target - owned), revoked, epoch)) is not None:
                rows[name] = row
        if less and not _fits(rows):
            rows = less
        group = msgspec.structs.replace(self.record, epoch=epoch)
        return Change(group, _first(rows)) if rows else None


def _row(
    member: Member, parts: Collection[Part], revoked: Collection[Part], epoch: int
) -> MemberRecord | None:
    """Return a member's new row, or None if it stays as it is."""
    before = member.record
    since = _since(before, revoked, epoch)
    row = msgspec.structs.replace(
        member.joined,
        epoch=epoch if before is None else before.epoch,
        parts=runs_of(parts),
        revoked=[Revoked(e, runs_of(these)) for e, these in sorted(since.items())],
        changed_ms=0 if before is None else before.changed_ms,
    )
    return None if row == before else msgspec.structs.replace(row, epoch=epoch)


def _since(
    before: MemberRecord | None, revoked: Collection[Part], epoch: int
) -> dict[int, set[Part]]:
    """Return what is revoked, by the epoch in which the member was first asked for it."""
    left = set(revoked)
    since: dict[int, set[Part]] = {}
    for former in before.revoked if before else ():
        these = parts_of(former.runs) & left
        if these:
            since[former.epoch] = these
            left -= these
    if left:
        since[epoch] = left
    return since


def _fits(rows: Rows) -> bool:
    return len(_first(rows)) == len(rows)


def _first(rows: Rows) -> Rows:
    """Return as many rows as one transaction takes."""
    taken: Rows = {}
    size = 0
    for name, row in rows.items():
        size += 0 if row is None else len(msgspec.json.encode(row))
        if taken and (size > ROWS_SIZE_MAX or len(taken) == ROWS_MAX):
            break
        taken[name] = row
    return taken
