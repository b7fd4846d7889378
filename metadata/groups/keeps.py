"""Groups that hold back retention, and what they still need of a topic.

key                 value
------------------  ----------------------------------------------------------
group-keeps/<uid>   KeepRecord: the groups that keep the topic; uid has 20 digits

A group whose record says *keep* is named in the row of each topic that it consumes: before a member
gets the first partition of it, and until the group is deleted or keeps no longer. What the group
has not committed then stays: retention and purges remove a ledger in a transaction that checks this
row at the version at which they read it, and they read it before the group's progress. So whatever
moves a place of the group back, puts the row anew in its own transaction. Commits that go forward
need not: what they release goes a little later.

The leader adds and removes groups. A reset adds the group to the rows of the topics that it resets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
import trio

from metadata.errors import BadGroup, BadRecord, VersionConflict
from metadata.groups.assignment import Part
from metadata.groups.rows import (
    SLOTS,
    LaneProgress,
    Name,
    ProgressRecord,
    decode_group,
    decode_progress,
    group_key,
    progress_key,
    progress_part,
    progress_prefix,
)
from metadata.groups.shares import shares_of
from metadata.records import decode_row
from metadata.store import ABSENT, Check, CheckLease, Delete, MetadataStore, Op, Put, items_under

KEEPS = "group-keeps/"
KEEPERS_MAX = 1000
"""Groups that may keep one topic."""
ROWS_AT_ONCE = 100
GETS_MAX = 8
"""Progress of more partitions than these is listed, not read row by row."""
ATTEMPTS_MAX = 5

Needed = Mapping[int, LaneProgress]
"""The first place that a group still needs in each lane; all of a lane that is not here."""


class KeepRecord(msgspec.Struct, frozen=True):
    """The groups that keep a topic, sorted."""

    groups: Annotated[list[Name], msgspec.Meta(max_length=KEEPERS_MAX)] = []


class Keepers(msgspec.Struct, frozen=True):
    """The groups that keep a topic, and what a removal must check for them."""

    groups: Sequence[str]
    check: Check


def keeps_key(uid: int) -> str:
    """Return the key of the groups that keep the topic *uid*."""
    return f"{KEEPS}{uid:020d}"


def decode_keeps(key: str, value: bytes) -> KeepRecord:
    """Return the record stored at *key*. Raises BadRecord."""
    return decode_row(key, value, KeepRecord)


async def read_keepers(store: MetadataStore, uid: int) -> Keepers:
    """Return the groups that keep the topic *uid*. Raises MetadataError."""
    key = keeps_key(uid)
    found = await store.get(key)
    if found is None:
        return Keepers((), Check(key, ABSENT))
    return Keepers(decode_keeps(key, found.value).groups, Check(key, found.version))


async def first_needed(
    store: MetadataStore, group: str, uid: int, partitions: Collection[int]
) -> dict[int, Needed]:
    """Return what a group still needs in each of *partitions* of a topic. Raises MetadataError.

    In a partition in which it committed nothing, that is everything. Of a shared group, messages
    that members have are needed, too; they are read after the progress, which moves over them.
    """
    found = await store.get(group_key(group))
    mode = "exclusive" if found is None else decode_group(group_key(group), found.value).mode
    if mode == "key-shared":
        rows = await _needed_of_slots(store, group, uid, partitions)
    else:
        rows = {partition: {} for partition in partitions}
        for key, value in await _progress_rows(store, group, uid, partitions):
            partition = int(key.rpartition("/")[2]) - 1
            if partition in rows:
                rows[partition] = _places(decode_progress(key, value))
    if mode != "exclusive":
        # Twice, because one look misses a share that passes to a member whose shares it has read.
        for share in [*await shares_of(store, group, uid), *await shares_of(store, group, uid)]:
            lanes = rows.get(share.partition, {})
            first = share.first
            if share.lane in lanes and _at(first) < _at(lanes[share.lane]):
                lanes[share.lane] = first
    return {**rows}


async def _needed_of_slots(
    store: MetadataStore, group: str, uid: int, partitions: Collection[int]
) -> dict[int, dict[int, LaneProgress]]:
    """Return the first places that any slot of a partition needs."""
    prefix = f"{progress_prefix(group)}{uid:020d}/"
    slots: dict[int, list[dict[int, LaneProgress]]] = {each: [] for each in partitions}
    for key, value in await items_under(store, prefix):
        number = progress_part(key).partition // SLOTS
        partition = -1 if -1 in slots else number
        if partition in slots:
            slots[partition].append(_places(decode_progress(key, value.value)))
    rows: dict[int, dict[int, LaneProgress]] = {}
    for partition, found in slots.items():
        complete = len(found) == SLOTS
        lanes = set.intersection(*(set(each) for each in found)) if complete else set()
        rows[partition] = {lane: min((each[lane] for each in found), key=_at) for lane in lanes}
    return rows


def _places(progress: ProgressRecord) -> dict[int, LaneProgress]:
    return {each.lane: each for each in progress.lanes}


def _at(place: LaneProgress) -> tuple[int, int, int]:
    return place.number, place.entry, place.skip


async def _progress_rows(
    store: MetadataStore, group: str, uid: int, partitions: Collection[int]
) -> list[tuple[str, bytes]]:
    if len(partitions) > GETS_MAX:
        prefix = f"{progress_prefix(group)}{uid:020d}/"
        return [(key, found.value) for key, found in await items_under(store, prefix)]
    keys = [progress_key(group, Part(uid, partition)) for partition in partitions]
    return [(key, found.value) for key in keys if (found := await store.get(key)) is not None]


async def going_back(store: MetadataStore, group: str, uids: Iterable[int]) -> list[Op]:
    """Return the ops for a transaction that moves places of *group* back in these topics.

    They change rows that name the group, so that no removal planned before is made after it.
    Raises MetadataError.
    """
    ops: list[Op] = []
    for uid in sorted(set(uids)):
        key = keeps_key(uid)
        found = await store.get(key)
        if found is not None and group in decode_keeps(key, found.value).groups:
            ops.append(Put(key, found.value, found.version))
    return ops


async def keeping(
    store: MetadataStore, group: str, uids: Iterable[int], *, anew: bool = False
) -> list[Op]:
    """Return the ops that name *group* in the rows of these topics; *anew*: as going_back(), too.

    Raises:
        BadGroup: too many groups keep one of the topics.
        MetadataError: from the store.
    """
    ops: list[Op] = []
    for uid in sorted(set(uids)):
        key = keeps_key(uid)
        found = await store.get(key)
        groups = set() if found is None else set(decode_keeps(key, found.value).groups)
        if group in groups and not anew:
            continue
        groups.add(group)
        if len(groups) > KEEPERS_MAX:
            raise BadGroup(f"a topic is kept by {KEEPERS_MAX} groups, as many as may keep one")
        ops.append(Put(key, _encoded(groups), ABSENT if found is None else found.version))
    return ops


def _encoded(groups: Iterable[str]) -> bytes:
    return msgspec.json.encode(KeepRecord(sorted(groups)))


class TopicKeeps:
    """The leader's view of these rows, with which it names groups in them.

    Args:
        store: the metadata store.
        term: what each change checks: that the leader's term lasts.
    """

    def __init__(self, store: MetadataStore, term: CheckLease) -> None:
        self._store = store
        self._term = term
        self._held: dict[str, set[int]] = {}
        """uids of the topics that a group is known to keep"""
        self._turn = trio.Lock()

    async def begin(self) -> None:
        """Read all rows. Raises MetadataError."""
        self._held.clear()
        for key, _, groups in await self._rows():
            for group in groups:
                self._held.setdefault(group, set()).add(int(key.removeprefix(KEEPS)))

    async def hold(self, group: str, uids: Iterable[int]) -> None:
        """Name a group in the rows of these topics; costs nothing where it is known to be named.

        Raises:
            BadGroup: too many groups keep one of the topics.
            MetadataError: some rows may name it.
        """
        missing = sorted(set(uids) - self._held.get(group, set()))
        if not missing:
            return
        async with self._turn:
            for first in range(0, len(missing), ROWS_AT_ONCE):
                some = missing[first : first + ROWS_AT_ONCE]
                await self._name(group, some)
                self._held.setdefault(group, set()).update(some)

    async def _name(self, group: str, uids: Sequence[int]) -> None:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            ops = await keeping(self._store, group, uids)
            try:
                await self._store.transact([self._term, *ops])
                break
            except VersionConflict:
                if attempt == ATTEMPTS_MAX:
                    raise

    def suspect(self, group: str) -> None:
        """Have the next release() look for a group in all rows."""
        self._held.setdefault(group, set())

    async def release(self, keeps: Callable[[str], bool]) -> None:
        """Remove all groups from the rows for which *keeps* is false; costs nothing without any.

        Raises MetadataError; some rows may name them still.
        """
        if all(map(keeps, self._held)):
            return
        async with self._turn:
            for attempt in range(1, ATTEMPTS_MAX + 1):
                try:
                    await self._release(keeps)
                    break
                except VersionConflict:
                    if attempt == ATTEMPTS_MAX:
                        raise
            self._held = {name: held for name, held in self._held.items() if keeps(name)}

    async def _release(self, keeps: Callable[[str], bool]) -> None:
        ops: list[Op] = []
        for key, version, groups in await self._rows():
            left = [name for name in groups if keeps(name)]
            if not left:
                ops.append(Delete(key, version))
            elif left != groups:
                ops.append(Put(key, _encoded(left), version))
        for first in range(0, len(ops), ROWS_AT_ONCE):
            await self._store.transact([self._term, *ops[first : first + ROWS_AT_ONCE]])

    async def _rows(self) -> list[tuple[str, int, list[Name]]]:
        """Return key, version and groups of each row; a damaged one stays, and keeps its topic."""
        rows: list[tuple[str, int, list[Name]]] = []
        for key, found in await items_under(self._store, KEEPS):
            with suppress(BadRecord):
                rows.append((key, found.version, decode_keeps(key, found.value).groups))
        return rows
