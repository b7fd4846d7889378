"""Groups, their members and their progress, as readable JSON.

key                                  value
-----------------------------------  -------------------------------------------------
groups/<group>                       GroupRecord
group-members/<group>/<member>       MemberRecord: what the member may commit
progress/<group>/<uid>/<partition>   ProgressRecord: where the group goes on

uid has 20 digits, partition + 1 has 10. The leader alone writes groups and members, each change in
one transaction with the check of its term and with the group's version. A commit does not pass the
leader: it is one transaction of Check(the member's row) and Put(progress), so a member that lost a
partition, which changed its row, cannot commit it any more.

A partition is in one member's *parts* at most. A member that is to give a partition up keeps it,
as one of *revoked*, until it reports that it applied the row's epoch, or until its time is up. Only
the transaction that takes the partition out of its row, or a later one, gives it to another member.

Decoders raise BadRecord, naming the key. Unknown fields are ignored.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable
from itertools import groupby
from typing import Annotated, Literal

import msgspec

from metadata.groups.assignment import Part
from metadata.records import decode_row
from metadata.topics import PARTITIONS_MAX, Count, split_topic

GROUPS = "groups/"
GROUP_MEMBERS = "group-members/"
PROGRESS = "progress/"
NAME_SIZE_MAX = 192
"""Of a group, as of TDengine's group.id; it has no ':' either."""
MEMBERS_MAX = 1000
"""Members of one group."""
WANTED_MAX = 100
"""Topics and patterns that one member names."""
LANES_MAX = 4000
"""Lanes of one partition whose places a group stores."""
SINCE_MAX = 200
PARAMETERS_SIZE_MAX = 1000
SESSION_S_MIN = 6.0
SESSION_S_MAX = 1800.0

Mode = Literal["exclusive", "shared", "key-shared"]
Name = Annotated[str, msgspec.Meta(max_length=NAME_SIZE_MAX)]
"""Of a group or of a member."""
SLOTS = 16
"""Slots of a partition in a key-shared group: so many members may read it at once."""
Partition = Annotated[int, msgspec.Meta(ge=-1, lt=PARTITIONS_MAX * SLOTS)]
"""Of a topic; in a key-shared group one of its slots, see shares.py."""

_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{NAME_SIZE_MAX}}}")


class PartRun(msgspec.Struct, frozen=True, array_like=True):
    """Partitions *first* to *last* of a topic."""

    topic: Count
    first: Partition
    last: Partition

    def __post_init__(self) -> None:
        if self.first > self.last:
            raise ValueError("a run of partitions ends before it begins")


class Revoked(msgspec.Struct, frozen=True, array_like=True):
    """Partitions that a member is asked to give up, since *epoch* of its group."""

    epoch: Count
    runs: list[PartRun]


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A group. *epoch* rises with every change of its members' rows."""

    epoch: Count = 0
    mode: Mode = "exclusive"
    created_ms: Count = 0
    keep: bool = False
    """retention does not remove what the group has not committed; see keeps.py"""
    since: dict[str, Count] = {}
    """the first SINCE_MAX topics and patterns that a member named, each with the store's time
    then: partitions that are younger are read from their first message"""
    is_noted: bool = False
    """*since* names what was wanted from the first on; not so if an earlier version made the group,
    which may have wanted anything since *created_ms*"""
    deleting: bool = False
    """some of its rows are gone, so nobody goes on from the others"""

    def since_ms(self, topic: str) -> int | None:
        """Return when the group first wanted a topic, at the earliest; `None` if nobody knows."""
        times = [
            ms
            for name, ms in self.since.items()
            if matches(Wanted(topics=[name], patterns=[name]), topic)
        ]
        is_known = self.is_noted and len(self.since) < SINCE_MAX
        return min(times, default=None if is_known else self.created_ms or None)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The topics that a member subscribes to: those named, and those that match a pattern."""

    topics: list[str] = []
    """namespace/name each, sorted and without repetition"""
    patterns: list[str] = []
    """namespace/pattern each, where * stands for any characters"""


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A member, and the partitions that it may commit."""

    epoch: Count
    """the group's epoch when this row was changed"""
    run: str
    """identifies the run of a process; a member with a name of its own outlives its runs"""
    wanted: Wanted
    parts: list[PartRun] = []
    revoked: list[Revoked] = []
    """among *parts*"""
    is_static: bool = False
    """the member has a name of its own, and may come back under it"""
    session_s: Annotated[float, msgspec.Meta(ge=SESSION_S_MIN, le=SESSION_S_MAX)] = 12.0
    poll_s_max: Annotated[float, msgspec.Meta(ge=1, le=2_147_483)] = 300.0
    revoke_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 10.0
    """how long it may take to finish and commit what it is asked to give up"""
    client_id: str = ""
    host: str = ""
    process_id: int = 0
    parameters: Annotated[str, msgspec.Meta(max_length=PARAMETERS_SIZE_MAX)] = ""
    """its options, for people"""
    up_ms: Count = 0
    """the store's time when this run began, as the member says"""
    joined_ms: Count = 0
    """when it joined last"""
    changed_ms: Count = 0
    """when its partitions changed last"""


class LaneProgress(msgspec.Struct, frozen=True, array_like=True):
    """The place in a lane before the next message to read; see Place of the client."""

    lane: Count
    number: Annotated[int, msgspec.Meta(ge=-1)]
    entry: Count = 0
    skip: Count = 0
    ledger_id: Annotated[int, msgspec.Meta(ge=-1)] = -1
    version: Annotated[int, msgspec.Meta(ge=-1)] = -1


class ProgressRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group goes on in a partition. A lane that is not here begins at its first message."""

    lanes: Annotated[list[LaneProgress], msgspec.Meta(max_length=LANES_MAX)]
    member: str = ""
    """who committed it; "" for a reset"""
    epoch: Count = 0
    """of the member's row"""


def check_group(name: str) -> None:
    """Raise ValueError unless *name* may be the name of a group or of a member."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a name of 1 to {NAME_SIZE_MAX} letters, digits, '_', '-' or '.'"
        )


def group_key(group: str) -> str:
    """Return the key of a group. Raises ValueError if its name is not valid."""
    check_group(group)
    return GROUPS + group


def members_prefix(group: str) -> str:
    """Return the prefix of the keys of a group's members. Raises ValueError."""
    check_group(group)
    return f"{GROUP_MEMBERS}{group}/"


def member_key(group: str, member: str) -> str:
    """Return the key of a member. Raises ValueError if a name is not valid."""
    check_group(member)
    return members_prefix(group) + member


def progress_prefix(group: str) -> str:
    """Return the prefix of the keys of a group's progress. Raises ValueError."""
    check_group(group)
    return f"{PROGRESS}{group}/"


def progress_key(group: str, part: Part) -> str:
    """Return the key of a group's progress in a partition."""
    return f"{topic_progress_prefix(group, part.topic)}{part.partition + 1:010d}"


def topic_progress_prefix(group: str, uid: int) -> str:
    """Return the prefix of the keys of a group's progress in one topic."""
    return f"{progress_prefix(group)}{uid:020d}/"


def progress_part(key: str) -> Part:
    """Return the partition of a progress_key()."""
    uid, partition = key.split("/")[-2:]
    return Part(int(uid), int(partition) - 1)


def decode_group(key: str, value: bytes) -> GroupRecord:
    """Return the group stored at *key*. Raises BadRecord."""
    return decode_row(key, value, GroupRecord)


def decode_member(key: str, value: bytes) -> MemberRecord:
    """Return the member stored at *key*. Raises BadRecord."""
    return decode_row(key, value, MemberRecord)


def decode_progress(key: str, value: bytes) -> ProgressRecord:
    """Return the progress stored at *key*. Raises BadRecord."""
    return decode_row(key, value, ProgressRecord)


def runs_of(parts: Collection[Part]) -> list[PartRun]:
    """Return partitions as runs, in order."""
    runs: list[PartRun] = []
    # In a run, a partition and its index among the sorted ones rise together.
    for (topic, _), run in groupby(
        enumerate(sorted(parts)), key=lambda item: (item[1].topic, item[1].partition - item[0])
    ):
        numbers = [part.partition for _, part in run]
        runs.append(PartRun(topic, numbers[0], numbers[-1]))
    return runs


def matches(wanted: Wanted, topic: str) -> bool:
    """Return True for a topic that is named or matched. Patterns match no internal topics."""
    if topic in wanted.topics:
        return True
    if split_topic(topic)[1].startswith("__"):
        return False
    return any(fnmatch.fnmatchcase(topic, pattern) for pattern in wanted.patterns)


def partitions_of(mode: Mode, parts: Iterable[Part]) -> set[Part]:
    """Return the partitions of what members have: in a key-shared group, those of their slots.

    There, the only partition of a topic without partitions is 0.
    """
    if mode != "key-shared":
        return set(parts)
    return {Part(part.topic, part.partition // SLOTS) for part in parts}


def parts_of(runs: Iterable[PartRun]) -> set[Part]:
    """Return the partitions of some runs."""
    return {
        Part(run.topic, partition) for run in runs for partition in range(run.first, run.last + 1)
    }
