"""A group's progress: read when a partition is assigned, committed by the member that has it.

A commit is one transaction of the check of the member's row and the progress of its partitions. So
it does not need the leader, and fails once the member lost a partition, which changed its row. A
member of which another partition moved has a new version of its row, and tries again with it.

A commit that goes back says so to retention, if the group holds it back (metadata/groups/keeps.py).

Each progress row is put with its expected version: a commit whose answer was lost, and that arrives
late, cannot undo a later one. A member that was paused may have lost a partition and got it back
without knowing; what others committed meanwhile stays. Commits that wait together travel together,
also those of other members of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

import msgspec
import trio

from ledger_client.background import Rounds
from ledger_client.errors import BadTopic, CommitRefused, LedgerError
from ledger_client.ledgers.catalogue import translated
from ledger_client.topics.positions import (
    EARLIEST,
    LanePlace,
    Place,
    Places,
    Position,
    is_position,
)
from ledger_client.wire.joint_changes import JointChanges
from metadata.errors import MetadataUnavailable, VersionConflict
from metadata.groups.assignment import Part
from metadata.groups.keeps import going_back
from metadata.groups.rows import (
    LaneProgress,
    MemberRecord,
    ProgressRecord,
    decode_group,
    decode_member,
    decode_progress,
    group_key,
    member_key,
    parts_of,
    progress_key,
    progress_part,
    progress_prefix,
    topic_progress_prefix,
)
from metadata.store import ABSENT, Check, MetadataStore, Op, Put, items_under

GETS_MAX = 8
"""Rows that are read one by one; of more partitions of a topic, all rows of it are listed."""
PARTS_AT_ONCE = 120
"""Partitions in one transaction; each may need its topic's row put anew, too."""
ATTEMPTS_MAX = 5


class Waiting(dict[int, Place]):
    """The places of a partition that commits wait for, by lane."""

    def __init__(self, stored: Places, *, is_owned: bool) -> None:
        super().__init__(stored)
        self._is_owned = is_owned
        self.is_over = False
        """the partition is not the member's any more; *stored* decides"""
        self.stored: dict[int, Place] = {}

    def end(self, stored: Places) -> None:
        """Note that the partition went, in which this was *stored* before."""
        self.is_over = True
        self.stored |= stored

    def is_stored(self, lanes: Places, *, goes_back: bool) -> bool:
        """Return True unless the partition went before all of *lanes* was stored."""
        if not self.is_over:
            return True
        if is_begin(lanes) and (not self._is_owned or (goes_back and not self.stored)):
            return False  # it was not even asked for at the store
        if goes_back:
            lanes = all_lanes(self.stored, lanes)
        pairs = [(self.stored.get(lane, EARLIEST).at, at.at) for lane, at in lanes.items()]
        return all(at == wanted if goes_back else at >= wanted for at, wanted in pairs)


class Progress:
    """The progress of one member's partitions.

    Args:
        store: the metadata store.
        joint: makes changes of the store, together with those of other members.
        group: name of the group.
        member: name of the member.
        run: identifies this run of the member.
        timeout_s: for one operation of the store.
    """

    def __init__(
        self,
        store: MetadataStore,
        joint: JointChanges,
        group: str,
        member: str,
        run: str,
        *,
        timeout_s: float,
    ) -> None:
        self._store = store
        self._joint = joint
        self._group = group
        self._member = member
        self._run = run
        self._timeout_s = timeout_s
        self._row_version = ABSENT
        self._owned: set[Part] = set()
        self._epoch = 0
        self._stored: dict[Part, dict[int, Place]] = {}
        self._versions: dict[Part, int] = {}
        self._waiting: dict[Part, Waiting] = {}
        self._first: set[Part] = set()
        """partitions that begin, unless somebody has begun them"""
        self._back: dict[Part, set[int]] = {}
        """lanes whose place that waits may lie before the stored one"""
        self._rounds = Rounds(self._flush)
        self._claims = trio.Lock()

    async def read_row(self) -> MemberRecord | None:
        """Return the member's row, `None` if this run has none. Commits count by it.

        Raises:
            MetadataUnavailable: the store did not answer in time.
        """
        key = member_key(self._group, self._member)
        with translated(self._timeout_s):
            found = await self._store.get(key)
        row = None if found is None else decode_member(key, found.value)
        if found is None or row is None or row.run != self._run:
            self._row_version, self._owned = ABSENT, set()
            return None
        self._row_version, self._owned, self._epoch = found.version, parts_of(row.parts), row.epoch
        return row

    async def read(self, parts: Iterable[Part]) -> dict[Part, Places | None]:
        """Return where the group goes on in each partition, `None` if nothing was committed."""
        found: dict[Part, Places | None] = {}
        for uid, of_topic in groupby(sorted(parts), key=lambda part: part.topic):
            wanted = list(of_topic)
            if len(wanted) > GETS_MAX:
                rows = await read_all_progress(self._store, self._group, self._timeout_s, topic=uid)
                found |= {
                    part: self._note(part, *rows.get(part, (None, ABSENT))) for part in wanted
                }
            else:
                found |= {part: await self._read(part) for part in wanted}
        return found

    async def since_ms(self, topic: str) -> int | None:
        """Return when the group first wanted a topic, by the store's clock; `None`: not known."""
        key = group_key(self._group)
        with translated(self._timeout_s):
            found = await self._store.get(key)
        return None if found is None else decode_group(key, found.value).since_ms(topic)

    def committed(self, part: Part) -> Places | None:
        """Return the last known progress of a partition of this member."""
        return self._stored.get(part)

    def lanes(self, part: Part) -> set[int]:
        """Return the lanes in which something is stored, or waits for that."""
        return {*self._stored.get(part, ()), *self._waiting.get(part, ())}

    def forget(self, parts: Iterable[Part]) -> None:
        """Drop what is known of partitions that the member lost."""
        for part in parts:
            stored, waiting = self._stored.pop(part, {}), self._waiting.pop(part, None)
            if waiting is not None:
                waiting.end(stored)
            self._versions.pop(part, None)
            self._back.pop(part, None)

    async def commit(self, places: Mapping[Part, Places], *, goes_back: bool = False) -> None:
        """Store progress, and return when it is durable.

        A lane's place only rises, unless *goes_back*.

        Raises:
            CommitRefused: a partition is not this member's any more. The others were committed.
            MetadataUnavailable: the store did not answer in time; it may have been committed.
        """
        waiting: dict[Part, Waiting] = {}
        for part, lanes in places.items():
            if part not in self._waiting:
                stored = self._stored.get(part, {})
                self._waiting[part] = Waiting(stored, is_owned=part in self._owned)
            known = waiting[part] = self._waiting[part]
            for lane, place in lanes.items():
                if goes_back:
                    self._back.setdefault(part, set()).add(lane)
                if goes_back or lane not in known or known[lane].at < place.at:
                    known[lane] = place
        await self._rounds.share()
        lost = [
            part
            for part, lanes in sorted(places.items())
            if not waiting[part].is_stored(lanes, goes_back=goes_back)
            and not (goes_back and await self._is_at_begin(part, lanes))
        ]
        if lost:
            raise CommitRefused(self._group, lost)

    async def _is_at_begin(self, part: Part, lanes: Places) -> bool:
        """Return True if the group has consumed nothing of *part*, and goes on at its begin."""
        if not is_begin(lanes):
            return False
        stored, _ = await read_progress(self._store, self._group, part, self._timeout_s)
        return is_begin(stored or {})

    async def begin(self, places: Mapping[Part, Places]) -> dict[Part, Places]:
        """Store where partitions begin that have no progress yet, and return when it is durable.

        Return where they begin: another member may have had them meanwhile, and gone on.

        Raises as commit(), and CommitRefused even for a partition of which nothing was read.
        """
        self._first |= places.keys()
        try:
            await self.commit(places)
        except BaseException:
            self.forget(places)  # not to be stored later, when others may have gone on from it
            raise
        finally:
            self._first -= places.keys()
        if lost := sorted(p for p in places if p not in self._owned or p not in self._stored):
            raise CommitRefused(self._group, lost)
        return {part: self._stored[part] for part in places}

    async def settle(self) -> None:
        """Return when the commits that were under way are over, whatever became of them."""
        with suppress(LedgerError):
            await self._rounds.share()

    async def claim(self, places: Mapping[Part, Places], also: Sequence[Op]) -> list[int]:
        """Move progress on, and make the changes *also* with it; return their versions.

        Raises:
            CommitRefused: a partition is not this member's, or another one moved its progress.
            MetadataUnavailable: the store did not answer in time; it may have been made.
        """
        async with self._claims:
            for _ in range(ATTEMPTS_MAX):
                known = {part: self._stored.get(part) for part in places}
                moved = {part: {**(known[part] or {}), **lanes} for part, lanes in places.items()}
                lost = sorted(part for part in places if part not in self._owned)
                if lost:
                    raise CommitRefused(self._group, lost)
                versions = await self._store_progress(moved, also)
                if versions is not None:
                    return versions
                if changed := sorted(p for p in places if self._stored.get(p) != known[p]):
                    raise CommitRefused(self._group, changed)
        raise MetadataUnavailable("the group's rows change all the time")

    async def _flush(self) -> None:
        """Store what waits when this begins, with the row's version as it is by now."""
        left = list(self._waiting)
        for _ in range(ATTEMPTS_MAX):
            while left:
                if not await self._flush_some(left[:PARTS_AT_ONCE]):
                    break
                del left[:PARTS_AT_ONCE]
            else:
                return
        raise MetadataUnavailable("the group's rows change all the time; commit again")

    async def _flush_some(self, parts: Iterable[Part]) -> bool:
        """Make one transaction; False if rows had changed, which are read again by then."""
        for part in parts:
            if part not in self._owned:
                if (dropped := self._waiting.pop(part, None)) is not None:
                    dropped.end(self._stored.get(part, {}))
                self._back.pop(part, None)
        # Copies, because other commits may add to what waits while these are stored.
        waiting = {part: self._waiting[part] for part in parts if part in self._waiting}
        taken = {part: dict(lanes) for part, lanes in waiting.items()}
        wanted = {part: self._beyond_stored(part, lanes) for part, lanes in taken.items()}
        changed = {p: lanes for p, lanes in wanted.items() if lanes != self._stored.get(p)}
        is_made = not changed
        try:
            is_made = is_made or await self._store_progress(changed) is not None
        finally:
            for part in () if is_made else changed:  # as it was read again
                waiting[part].stored |= self._stored.get(part, {})
        if not is_made:
            return False
        for part, lanes in taken.items():
            waiting[part].stored |= wanted[part]
            if self._waiting.get(part) == lanes:
                del self._waiting[part]
                self._back.pop(part, None)
        return True

    def _beyond_stored(self, part: Part, lanes: Places) -> dict[int, Place]:
        """Return what to store: of each lane the greater place, unless it may go back.

        Lanes become known until then: a commit that goes back does so in these, too.
        """
        if part in self._first and part in self._stored:
            return dict(self._stored[part])
        back = self._back.get(part, ())
        places = dict(self._stored.get(part, {}))
        if back:
            places |= dict.fromkeys(places.keys() - lanes.keys(), EARLIEST)
        for lane, place in lanes.items():
            if lane in back or lane not in places or places[lane].at < place.at:
                places[lane] = place
        return places

    async def _store_progress(
        self, changed: Mapping[Part, dict[int, Place]], also: Sequence[Op] = ()
    ) -> list[int] | None:
        """Make one transaction; return the versions of what *also* was changed.

        `None` if rows had changed, which are read again by then.
        """
        ops: list[Op] = [Check(member_key(self._group, self._member), self._row_version)]
        for part, lanes in changed.items():
            row = encode_progress(lanes, member=self._member, epoch=self._epoch)
            key, version = progress_key(self._group, part), self._versions.get(part, ABSENT)
            ops.append(Put(key, row, version))
        back = {part.topic for part, lanes in changed.items() if self._goes_back(part, lanes)}
        try:
            with translated(self._timeout_s):
                if back:
                    ops += await going_back(self._store, self._group, back)
                versions = await self._joint.transact([*ops, *also])
        except VersionConflict:
            await self._read_again(changed)
            return None
        except MetadataUnavailable:
            with trio.CancelScope(shield=True), trio.move_on_after(self._timeout_s):
                await self._read_again(changed)
            raise
        after = len(ops)
        for part, version in zip(changed, versions[1 : len(changed) + 1], strict=True):
            self._stored[part], self._versions[part] = changed[part], version
        return versions[after:]

    def _goes_back(self, part: Part, lanes: Places) -> bool:
        stored = self._stored.get(part, {})
        return any(lane in stored and place.at < stored[lane].at for lane, place in lanes.items())

    async def _read_again(self, parts: Iterable[Part]) -> None:
        await self.read_row()
        for part in parts:
            await self._read(part)

    async def _read(self, part: Part) -> Places | None:
        row = await read_progress(self._store, self._group, part, self._timeout_s)
        return self._note(part, *row)

    def _note(self, part: Part, places: dict[int, Place] | None, version: int) -> Places | None:
        self._versions[part] = version
        if places is None:
            self._stored.pop(part, None)
        else:
            self._stored[part] = places
        return places


async def read_progress(
    store: MetadataStore, group: str, part: Part, timeout_s: float
) -> tuple[dict[int, Place] | None, int]:
    """Return a group's place in each lane of a partition, and the version of that row.

    Without a row these are `None` and ABSENT. Raises MetadataUnavailable.
    """
    key = progress_key(group, part)
    with translated(timeout_s):
        found = await store.get(key)
        if found is None:
            return None, ABSENT
        row = decode_progress(key, found.value)
    return {each.lane: _decoded(each) for each in row.lanes}, found.version


class StoredPlaces(NamedTuple):
    """A group's place in each lane of a partition, and the version of that row."""

    places: dict[int, Place]
    version: int


async def read_all_progress(
    store: MetadataStore, group: str, timeout_s: float, *, topic: int | None = None
) -> dict[Part, StoredPlaces]:
    """Return a group's progress in all partitions, of one topic only if its uid is given.

    Raises MetadataUnavailable.
    """
    found: dict[Part, StoredPlaces] = {}
    prefix = progress_prefix(group) if topic is None else topic_progress_prefix(group, topic)
    with translated(timeout_s):
        for key, row in await items_under(store, prefix):
            lanes = decode_progress(key, row.value).lanes
            places = {each.lane: _decoded(each) for each in lanes}
            found[progress_part(key)] = StoredPlaces(places, row.version)
    return found


def by_part(position: Sequence[LanePlace]) -> dict[Part, dict[int, Place]]:
    """Return the places of a position by partition and lane.

    Raises:
        TypeError: it is no position.
        BadTopic: a place has a number that no place has; stored, nothing could read it again.
    """
    if not isinstance(position, tuple | list) or not is_position(position):
        raise TypeError(f"neither a message nor what position() returned: {position!r:.80}")
    try:
        Position.from_json(Position(position).to_json())
    except ValueError as wrong:
        raise BadTopic(str(wrong), topic=position[0].topic) from wrong
    places: dict[Part, dict[int, Place]] = {}
    for each in position:
        places.setdefault(Part(each.uid, each.partition), {})[each.lane] = Place(*each.place)
    return places


def all_lanes(known: Iterable[int], lanes: Places) -> Places:
    """Return *lanes* with all *known* ones: those that it leaves out begin at EARLIEST."""
    return {**dict.fromkeys(known, EARLIEST), **lanes}


def is_begin(lanes: Places) -> bool:
    """Return True if all these lanes begin at their first message."""
    return all(place.at <= EARLIEST.at for place in lanes.values())


def position_in(places: Mapping[Part, Places], topic_of: Callable[[Part], str]) -> Position:
    """Return the position of these places. *topic_of* returns the name of a partition's topic.

    Lane 0 at EARLIEST stands for a partition without places, which begins at its first messages:
    what goes back to the position goes back there, too.
    """
    return Position(
        LanePlace(topic_of(part), part.topic, part.partition, lane, place)
        for part, lanes in sorted(places.items())
        for lane, place in sorted((lanes or {0: EARLIEST}).items())
    )


def encode_progress(lanes: Places, *, member: str = "", epoch: int = 0) -> bytes:
    """Return the row of a partition's progress."""
    rows = [LaneProgress(lane, *place) for lane, place in sorted(lanes.items())]
    return msgspec.json.encode(ProgressRecord(lanes=rows, member=member, epoch=epoch))


def _decoded(row: LaneProgress) -> Place:
    return Place(row.number, row.entry, row.skip, row.ledger_id, row.version)
