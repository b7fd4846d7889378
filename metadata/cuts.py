"""Named cuts: places in the lanes of several topics at one moment, and what they keep.

key              value
---------------  ----------------------------------------------------------------------
cuts/<name>      CutRecord: its moment, and a place in each lane; a large one has pages
cut-keeps/<uid>  CutKeeps: the cuts that keep the topic, and those that are being made; uid
                 has 20 digits, and without either there is no row

A cut keeps what its topics had before its places when it was made. Whatever removes messages of a
topic checks the row cut-keeps in its own transaction, at the version at which it read it. So a cut
is made in three steps:

    stake in cut-keeps ──► places are looked up ──► cut shown: its row, and its name for the stake

After the first step, removals that were planned before it fail, and those planned later leave the
whole topic. The last step is one transaction, so there is a whole cut or none. A process that was
killed leaves its stake. The leader removes it once its time is over, and then the cut cannot be
shown any more: a stake holds until it is removed, whatever any clock says.

Decoders raise BadRecord, naming the key. Unknown fields are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Annotated, NamedTuple

import msgspec

from metadata.errors import BadRecord, MetadataBroken, VersionConflict
from metadata.paged import read_value, remove_pages_of, stage_value, whole_value
from metadata.records import decode_row
from metadata.store import (
    ABSENT,
    Check,
    CheckLease,
    Delete,
    MetadataStore,
    Op,
    Put,
    items_under,
    pages,
)
from metadata.topics import Count

CUTS = "cuts/"
CUT_KEEPS = "cut-keeps/"
NAME_SIZE_MAX = 64
TOPICS_MAX = 50
"""Topics of a cut. With their rows full, it still fits a transaction."""
LANES_MAX = 100_000
"""Lanes of a topic in a cut."""
KEEPS_SIZE_MAX = 4096
"""Bytes of a row cut-keeps: at least 55 cuts of a topic."""
STALE_COUNT = 100
"""Rows that one transaction rids of stakes."""
ATTEMPTS_MAX = 20

_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{NAME_SIZE_MAX - 1}}}")
CutName = Annotated[str, msgspec.Meta(pattern=rf"^{_NAME.pattern}$")]
Partition = Annotated[int, msgspec.Meta(ge=-1, le=9999)]
OrUnknown = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]


class CutLane(msgspec.Struct, frozen=True, array_like=True):
    """The place in a lane before which all of the cut lies."""

    partition: Partition
    lane: Count
    number: OrUnknown
    """of the ledger in its lane, -1 before the first one"""
    entry: Count
    skip: Count
    """messages of the entry that belong to the cut"""
    ledger_id: OrUnknown
    version: OrUnknown


class CutTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in a cut. A lane that is not here has nothing in it."""

    name: str
    uid: Count
    timed: bool
    """True if the messages up to the cut's timestamp are in it, and no others"""
    lanes: Annotated[list[CutLane], msgspec.Meta(max_length=LANES_MAX)] = []
    """by partition and lane"""


class CutRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A named cut."""

    name: CutName
    timestamp: Annotated[int, msgspec.Meta(ge=0)]
    """its moment; 0 if none of its topics has timestamps"""
    created_ms: Count
    topics: Annotated[list[CutTopic], msgspec.Meta(min_length=1, max_length=TOPICS_MAX)]

    def topic(self, uid: int) -> CutTopic | None:
        """Return the topic *uid* as it is in the cut; `None` if it is not."""
        return next((each for each in self.topics if each.uid == uid), None)


class Stake(msgspec.Struct, frozen=True):
    """Holds all of a topic while a cut of it is made."""

    id: Annotated[str, msgspec.Meta(max_length=64)]
    until_ms: Count
    """the store's time from which on the leader removes it"""


class CutKeeps(msgspec.Struct, frozen=True):
    """What holds back removals of a topic for cuts."""

    cuts: list[CutName] = []
    """sorted"""
    stakes: list[Stake] = []


class Kept(NamedTuple):
    """The cuts of a topic, and what each of its removals must check for them."""

    cuts: list[CutRecord]
    is_staked: bool
    """a cut is being made"""
    check: Check


class CutAt(NamedTuple):
    """A cut, and the version of its row."""

    record: CutRecord
    version: int


def check_cut(name: str) -> None:
    """Raise ValueError unless *name* may be the name of a cut."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a name of 1 to {NAME_SIZE_MAX} letters, digits, '_', '-' or '.'"
        )


def cut_key(name: str) -> str:
    """Return the key of a cut. Raises ValueError if its name is not valid."""
    check_cut(name)
    return CUTS + name


def cut_keeps_key(uid: int) -> str:
    """Return the key of the cuts that keep the topic *uid*."""
    return f"{CUT_KEEPS}{uid:020d}"


def decode_cut(key: str, value: bytes) -> CutRecord:
    """Return the cut stored at *key*, whose value is whole. Raises BadRecord."""
    return decode_row(key, value, CutRecord)


def decode_cut_keeps(key: str, value: bytes) -> CutKeeps:
    """Return the record stored at *key*. Raises BadRecord."""
    return decode_row(key, value, CutKeeps)


# --- reading ---------------------------------------------------------------------------------


async def read_cut(store: MetadataStore, name: str) -> CutAt | None:
    """Return a cut, or `None` if there is none of this name. Raises MetadataError."""
    key = cut_key(name)
    found = await read_value(store, key)
    return None if found is None else CutAt(decode_cut(key, found.value), found.version)


async def read_cuts(store: MetadataStore) -> list[CutRecord]:
    """Return all cuts, by name. Raises MetadataError."""
    cuts: list[CutRecord] = []
    async for page in pages(store, CUTS):
        for key, found in page:
            whole = await whole_value(store, key, found)
            if whole is not None:
                cuts.append(decode_cut(key, whole.value))
    return cuts


async def read_kept(store: MetadataStore, uid: int) -> Kept:
    """Return the cuts that keep the topic *uid*. Raises MetadataError."""
    key = cut_keeps_key(uid)
    keeps, version = await _read_keeps(store, key)
    found = [await read_cut(store, name) for name in keeps.cuts]
    cuts = [each.record for each in found if each is not None]  # else deleted since
    return Kept(cuts, bool(keeps.stakes), Check(key, version))


async def _read_keeps(store: MetadataStore, key: str) -> tuple[CutKeeps, int]:
    found = await store.get(key)
    if found is None:
        return CutKeeps(), ABSENT
    return decode_cut_keeps(key, found.value), found.version


# --- changing --------------------------------------------------------------------------------


async def put_stake(
    store: MetadataStore, stake: Stake, uids: Sequence[int], topics: Sequence[Check]
) -> None:
    """Hold all of the topics *uids* until the cut is shown or given up.

    Args:
        store: the metadata store.
        stake: the hold, with an id that was not used before.
        uids: TOPICS_MAX topics at most.
        topics: that the topics are as they were read.

    Raises:
        VersionConflict: one of the topics has changed.
        MetadataBroken: a topic has too many cuts.
        MetadataError: from the store; the stake may be there.
    """

    def add(keeps: CutKeeps) -> CutKeeps:
        return msgspec.structs.replace(keeps, stakes=[*keeps.stakes, stake])

    await _change_keeps(store, uids, add, checks=topics)


async def show_cut(store: MetadataStore, record: CutRecord, stake_id: str) -> bool:
    """Show a cut in place of the stake in all of its topics; False if the stake is gone.

    Then its pages are left over, as are those of another cut of the name that was not shown.

    Raises:
        VersionConflict: there is a cut of this name.
        MetadataBroken: a topic has too many cuts, or the cut is too large.
        MetadataError: from the store; the cut may be there.
    """
    key = cut_key(record.name)
    value = await stage_value(store, key, msgspec.json.encode(record))

    def show(keeps: CutKeeps) -> CutKeeps | None:
        stakes = [each for each in keeps.stakes if each.id != stake_id]
        if len(stakes) == len(keeps.stakes):
            return None
        return CutKeeps(sorted({*keeps.cuts, record.name}), stakes)

    uids = [topic.uid for topic in record.topics]
    put = Put(key, value.row, ABSENT)
    return await _change_keeps(store, uids, show, checks=[put, *value.checks])


async def remove_stake(store: MetadataStore, stake_id: str, uids: Sequence[int]) -> None:
    """Give up a cut that was not shown. Raises MetadataError."""
    for uid in uids:
        await _change_keeps(store, [uid], lambda keeps: _without(keeps, {stake_id}))


async def delete_cut(store: MetadataStore, name: str) -> bool:
    """Delete a cut and release what it kept; False if there is none.

    Raises MetadataError; then it may be there or not, whole.
    """
    key = cut_key(name)
    row = await store.get(key)
    whole = None if row is None else await whole_value(store, key, row)
    if row is None or whole is None:
        return False
    if whole.version != row.version:  # another cut of this name was made meanwhile
        return await delete_cut(store, name)

    def release(keeps: CutKeeps) -> CutKeeps:
        return msgspec.structs.replace(keeps, cuts=[each for each in keeps.cuts if each != name])

    uids = [topic.uid for topic in decode_cut(key, whole.value).topics]
    try:
        await _change_keeps(store, uids, release, checks=[Delete(key, row.version)])
    except VersionConflict:
        return False  # another process deleted it
    await remove_pages_of(store, key, row.value)  # there may be another cut of this name by now
    return True


async def remove_stale_stakes(
    store: MetadataStore, now_ms: int, *, checks: Sequence[CheckLease] = ()
) -> int:
    """Remove the stakes whose time is over; return the number of rows that had one.

    Raises:
        MetadataError: the rest is left to the next call.
        LeaseLost: one of *checks* is over.
    """
    ops: list[Op] = []
    for key, found in await items_under(store, CUT_KEEPS):
        with suppress(BadRecord):  # it stays, and keeps its topic
            keeps = decode_cut_keeps(key, found.value)
            stale = {each.id for each in keeps.stakes if each.until_ms <= now_ms}
            if stale:
                ops.append(_put(key, _without(keeps, stale), found.version))
    for first in range(0, len(ops), STALE_COUNT):
        with suppress(VersionConflict):  # the next call finds what is left
            await store.transact([*checks, *ops[first : first + STALE_COUNT]])
    return len(ops)


async def _change_keeps(
    store: MetadataStore,
    uids: Iterable[int],
    change: Callable[[CutKeeps], CutKeeps | None],
    *,
    checks: Sequence[Op] = (),
) -> bool:
    """Change the rows of topics at once; False if *change* returned `None` for one of them.

    Raises:
        VersionConflict: one of *checks* failed, or the rows keep changing.
        MetadataBroken: a row would be too large.
        MetadataError: from the store.
    """
    keys = [cut_keeps_key(uid) for uid in sorted(set(uids))]
    for attempt in range(1, ATTEMPTS_MAX + 1):
        ops: list[Op] = list(checks)
        for key in keys:
            before, version = await _read_keeps(store, key)
            after = change(before)
            if after is None:
                return False
            if after != before:
                ops.append(_put(key, after, version))
        try:
            await store.transact(ops)
        except VersionConflict as conflict:
            if conflict.key not in keys or attempt == ATTEMPTS_MAX:
                raise
            continue
        return True
    raise AssertionError("unreachable")


def _put(key: str, keeps: CutKeeps, version: int) -> Op:
    """Return the op that stores a row, or deletes an empty one."""
    if not (keeps.cuts or keeps.stakes):
        return Check(key, ABSENT) if version == ABSENT else Delete(key, version)
    value = msgspec.json.encode(keeps)
    if len(value) > KEEPS_SIZE_MAX:
        reason = f"{len(keeps.cuts)} cuts keep this topic, and no other fits; delete some"
        raise MetadataBroken(f"{key}: {reason}")
    return Put(key, value, version)


def _without(keeps: CutKeeps, stakes: set[str]) -> CutKeeps:
    left = [each for each in keeps.stakes if each.id not in stakes]
    return msgspec.structs.replace(keeps, stakes=left)
