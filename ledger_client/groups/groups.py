"""The groups of a cluster, as operators see them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from ledger_client.errors import BadGroup, BadTopic, MetadataUnavailable
from ledger_client.groups.consumers import (
    ConsumerInfo,
    GroupLane,
    Subscription,
    consumed,
    consumers_of,
    subscriptions_of,
)
from ledger_client.groups.exports import ExportedPartition, GroupExport, check_places
from ledger_client.groups.lanes import GroupLanes
from ledger_client.groups.progress import (
    ATTEMPTS_MAX,
    PARTS_AT_ONCE,
    StoredPlaces,
    by_part,
    encode_progress,
    position_in,
    read_all_progress,
)
from ledger_client.groups.share_rows import shares_in
from ledger_client.groups.slots import placed_in
from ledger_client.ledgers.catalogue import translated
from ledger_client.topics.context import TopicContext
from ledger_client.topics.positions import LanePlace, Place, Places, Position
from ledger_client.topics.reading.options import Start
from ledger_client.topics.reading.place_finder import PlaceFinder
from metadata.errors import VersionConflict
from metadata.groups.assignment import Part
from metadata.groups.calls import (
    DeleteGroup,
    DescribeGroups,
    FoundGroup,
    GroupLeft,
    GroupPage,
    GroupState,
    KeepGroup,
)
from metadata.groups.keeps import keeping, keeps_key
from metadata.groups.rows import (
    GroupRecord,
    check_group,
    decode_group,
    group_key,
    members_prefix,
    progress_key,
    progress_part,
)
from metadata.records import INSTANCE
from metadata.store import ABSENT, Check, Delete, Op, Put
from metadata.topics import TopicRecord


class Groups:
    """The groups of one cluster. Any task may use it."""

    def __init__(self, context: TopicContext) -> None:
        self._context = context
        self._calls = context.leader
        self._timeout_s = context.options.metadata_timeout_s

    async def list(self) -> list[GroupState]:
        """Return all groups with their members, sorted by name.

        Raises:
            MetadataUnavailable: no bookie leads.
        """
        groups: list[GroupState] = []
        while True:
            request = DescribeGroups(after=groups[-1].group if groups else "")
            page = await self._calls.ask(request, GroupPage, timeout_s=self._timeout_s)
            if not page.groups:
                return groups
            groups += page.groups

    async def describe(self, group: str) -> GroupState:
        """Return a group with its members.

        Raises:
            BadGroup: there is none of this name.
            MetadataUnavailable: no bookie leads.
        """
        check_name(group)
        request = DescribeGroups(group=group)
        page = await self._calls.ask(request, GroupPage, timeout_s=self._timeout_s)
        if not page.groups:
            raise _no_such(group)
        return page.groups[0]

    async def lag(self, group: str, topics: Sequence[str] = ()) -> Sequence[GroupLane]:
        """Return how far the group came in each lane of these topics, and its lag in messages.

        By default of those in which it has progress. Messages that members of a shared group hold,
        not acknowledged, count as lag, too.

        Raises:
            BadGroup: there is none of this name.
            NoSuchTopic: a topic does not exist.
            MetadataUnavailable: the store did not answer in time.
        """
        await self._record(group)
        lanes = GroupLanes(self._context, group)
        return await lanes.lag(await lanes.topics(topics))

    async def consumers(self, group: str = "") -> Sequence[ConsumerInfo]:
        """Return the members of a group, or of all groups: when they came, and their options.

        Raises:
            BadGroup: there is none of this name.
            MetadataUnavailable: no bookie leads.
        """
        return consumers_of([await self.describe(group)] if group else await self.list())

    async def subscriptions(self, group: str) -> Sequence[Subscription]:
        """Return the lanes that a group consumes: who has them, how far it came, and its lag.

        They are those of topics in which it has progress, or of which a member has partitions.

        Raises:
            BadGroup: there is none of this name.
            MetadataUnavailable: no bookie leads, or the store did not answer.
            LedgerError: as reading does.
        """
        state = await self.describe(group)
        lanes, uids = GroupLanes(self._context, group), consumed(state)
        known = {topic.uid: topic for topic in await lanes.topics()}
        known |= {
            topic.uid: topic
            for topic in (await self._context.catalogue.list() if uids - known.keys() else ())
            if topic.uid in uids
        }
        topics = sorted(known.values(), key=lambda topic: topic.name)
        return subscriptions_of(state, topics, await lanes.lag(topics))

    async def committed(self, group: str, topics: Sequence[str] = ()) -> Position:
        """Return the position at which a group goes on in these topics.

        By default in all in which it has progress. A lane that is not there begins at its first
        message; lane 0 at EARLIEST stands for a partition of which nothing was consumed. Members
        of a shared group may have messages before it. Raises BadGroup for a name that is none,
        NoSuchTopic, MetadataUnavailable.
        """
        check_name(group)
        chosen = await GroupLanes(self._context, group).topics(topics)
        return _position(await GroupLanes(self._context, group).committed(chosen), chosen)

    async def commit(
        self, group: str, position: Sequence[LanePlace], *, goes_back: bool = False
    ) -> None:
        """Store the progress of a program that is no member, such as a query of Spark.

        A group that does not exist is founded. A lane's place only rises, unless *goes_back*: then
        lanes of these partitions that *position* does not name begin at their first message.
        Returns when the progress is durable. Of more than 120 partitions, some may be stored if
        this fails.

        Raises:
            BadGroup: the group has members, who alone commit then, or it is of another mode.
            BadTopic: a place is not in its lane, or of an earlier topic of this name; nothing was
                committed. In a ledger that is being written, any entry is taken.
            NoSuchTopic: a topic does not exist.
            MetadataUnavailable: no answer in time; it may have been committed.
        """
        check_name(group)
        wanted = by_part(position)
        named = {each.uid: each.topic for each in position}
        parts = [ExportedPartition.of(named[part.topic], part, wanted[part]) for part in wanted]
        await self._checked_topics(group, parts)
        await self._commit(group, wanted, goes_back=goes_back, is_whole=goes_back)

    async def _commit(
        self, group: str, wanted: Mapping[Part, Places], *, goes_back: bool, is_whole: bool
    ) -> None:
        """Commit. *is_whole*: lanes that are not named begin at their first message."""
        for _ in range(ATTEMPTS_MAX):
            version = await self._idle_version(group)
            if version is None:
                await self._found(group)
                continue
            stored = await read_all_progress(self._context.store, group, self._timeout_s)
            puts: list[Put] = []
            for part, lanes in sorted(wanted.items()):
                row = stored.get(part, StoredPlaces({}, ABSENT))
                after = _moved({} if is_whole else row.places, lanes, goes_back=goes_back)
                if after != row.places or row.version == ABSENT:
                    puts.append(Put(progress_key(group, part), encode_progress(after), row.version))
            try:
                await self._store(group, version, puts, goes_back=goes_back)
            except VersionConflict:
                continue
            return
        raise MetadataUnavailable(f"group {group} changes all the time; commit again")

    async def reset(
        self, group: str, to: Start, topics: Sequence[str] = (), *, dry_run: bool = False
    ) -> Position:
        """Let a group without members go on from *to*, in these topics; return its new position.

        The position has every lane of the partitions that are changed. A lane whose place has
        number -1 begins at its first message.

        Args:
            group: its name.
            to: "earliest", "latest", a time, a MessageId, which changes its partition alone, or a
                Position, which changes those that it names. A message may have been removed from
                the beginning of its lane, if *topics* has one alone; then the lane begins at its
                first message.
            topics: namespace/name each. By default those in which the group has progress.
            dry_run: change nothing.

        Raises:
            BadGroup: there is no such group, or it has members; nothing was changed. If a member
                joins meanwhile, some partitions were changed before.
            BadTopic: there is no such place, or it is behind the end of its lane; nothing was
                changed.
            NoSuchTopic: a topic does not exist.
            MetadataUnavailable: the store did not answer in time; some partitions may be changed.
        """
        check_name(group)
        if to is None:  # which readers take for their default
            raise BadGroup(
                'to takes "earliest", "latest", a time, a MessageId or a Position, not None'
            )
        version = await self._idle_version(group, any_mode=True)
        if version is None:
            raise _no_such(group)
        lanes = GroupLanes(self._context, group)
        chosen = await lanes.topics(topics)
        places = await lanes.places(chosen, to)
        shown = _position(await lanes.shown(chosen, places), chosen)
        if not dry_run:
            record = await self._record(group)
            await self._put(group, version, placed_in(record.mode, places))
            if record.mode != "exclusive":  # before, a failure here would lose what is in shares
                await self._end_shares(group, version, set(places))
        return shown

    async def _end_shares(self, group: str, version: int, parts: Set[Part]) -> None:
        """Delete what nobody acknowledged in these partitions of a group without members."""
        rows = await shares_in(self._context.store, group, parts, self._timeout_s)
        keys = sorted(rows)
        for first in range(0, len(keys), PARTS_AT_ONCE):
            gone = [Delete(key) for key in keys[first : first + PARTS_AT_ONCE]]
            try:
                with translated(self._timeout_s):
                    await self._context.store.transact([Check(group_key(group), version), *gone])
            except VersionConflict as conflict:
                raise _changed(group) from conflict

    async def export(self, group: str) -> GroupExport:
        """Return a group's progress as a document to keep, for restore().

        Raises:
            BadGroup: there is none of this name, or it is not of mode exclusive.
            MetadataUnavailable: the store did not answer in time.
        """
        _check_mode(group, await self._record(group))
        stored = await read_all_progress(self._context.store, group, self._timeout_s)
        names = {each.uid: each.name for each in await GroupLanes(self._context, group).topics()}
        return GroupExport(
            cluster=await self._cluster_id(),
            group=group,
            partitions=[
                ExportedPartition.of(names[part.topic], part, row.places)
                for part, row in sorted(stored.items())
                if part.topic in names
            ],
        )

    async def restore(
        self, export: GroupExport, *, group: str = "", dry_run: bool = False
    ) -> Position:
        """Let a group without members go on where an export says; return its new position.

        A group that does not exist is founded. Partitions that the export does not name stay as
        they are, and are not in the position; in the others it has every lane, as from reset().

        Args:
            export: from export(), of the same cluster.
            group: name of the group; by default the exported one.
            dry_run: check everything, and change nothing.

        Raises:
            BadGroup: the export is of another cluster, or the group has members, or is not of
                mode exclusive; nothing was changed.
            BadTopic: a topic was created anew since, or has no such place; nothing was changed.
            NoSuchTopic: a topic does not exist.
            MetadataUnavailable: the store did not answer in time; some partitions may be changed.
        """
        if not isinstance(export, GroupExport):
            raise TypeError(f"restore takes what export() returned, not {export!r:.80}")
        name = group or export.group
        check_name(name)
        version = await self._idle_version(name)
        if export.cluster != await self._cluster_id():
            raise BadGroup(
                f"the export of group {export.group} is of another cluster: its places do not "
                "exist here"
            )
        topics = await self._checked_topics(export.group, export.partitions)
        places: dict[Part, Places] = {each.part: each.places for each in export.partitions}
        shown = _position(await GroupLanes(self._context, name).shown(topics, places), topics)
        if not dry_run:
            if version is None:
                await self._found(name)
                version = await self._idle_version(name)
            await self._put(name, ABSENT if version is None else version, places)
        return shown

    async def keep(self, group: str, keep: bool) -> None:
        """Let a group hold back retention, or not.

        While it does, neither retention nor a purge removes messages that the group has not
        committed, in topics that its members consume or in which it has progress; in a partition
        in which it committed nothing, none at all. `topics.explain()` names the group.

        Raises:
            BadGroup: there is none of this name.
            MetadataUnavailable: no bookie leads, or the store did not answer.
        """
        check_name(group)
        if not isinstance(keep, bool):
            raise TypeError(f"keep takes True or False, not {keep!r}")
        await self._calls.ask(KeepGroup(group, keep), GroupLeft, timeout_s=self._timeout_s)

    async def delete(self, group: str, *, force: bool = False) -> None:
        """Delete a group with its progress. With *force*, also if it has members.

        A consumer that goes on founds the group anew.

        Raises:
            BadGroup: there is none of this name, or it has members.
            MetadataUnavailable: no bookie leads.
        """
        check_name(group)
        request = DeleteGroup(group, force)
        await self._calls.ask(request, GroupLeft, timeout_s=self._timeout_s)

    # --- what is stored -------------------------------------------------------------------

    async def _found(self, group: str) -> None:
        """Let the group exist."""
        await self._calls.ask(FoundGroup(group), GroupLeft, timeout_s=self._timeout_s)

    async def _record(self, group: str) -> GroupRecord:
        """Return a group's record. Raises BadGroup if there is none of this name."""
        check_name(group)
        key = group_key(group)
        with translated(self._timeout_s):
            found = await self._context.store.get(key)
        if found is None:
            raise _no_such(group)
        return decode_group(key, found.value)

    async def _idle_version(self, group: str, *, any_mode: bool = False) -> int | None:
        """Return the version of a group's row, which changes with any member; `None`: no group.

        Raises:
            BadGroup: the group has members, or is not of mode exclusive.
        """
        key, store = group_key(group), self._context.store
        with translated(self._timeout_s):
            found = await store.get(key)
            members = await store.list(members_prefix(group), limit=1)
        if found is None:
            return None
        if members:
            raise BadGroup(f"group {group} has members; stop them first")
        record = decode_group(key, found.value)
        if record.deleting:
            raise MetadataUnavailable(f"group {group} is being deleted; try again")
        if not any_mode:
            _check_mode(group, record)
        return found.version

    async def _put(self, group: str, version: int, places: Mapping[Part, Places]) -> None:
        """Store places while the group has the version that it had without members."""
        rows = sorted(places.items())
        puts = [Put(progress_key(group, part), encode_progress(lanes)) for part, lanes in rows]
        try:
            await self._store(group, version, puts, goes_back=True)
        except VersionConflict as conflict:
            raise _changed(group) from conflict

    async def _store(
        self, group: str, version: int, puts: Sequence[Put], *, goes_back: bool
    ) -> None:
        """Store progress while the group has this version, and keep its topics if the group does.

        Raises VersionConflict.
        """
        keeps = (await self._record(group)).keep
        for first in range(0, len(puts), PARTS_AT_ONCE):
            some = puts[first : first + PARTS_AT_ONCE]
            checked: list[Op] = [Check(group_key(group), version), *some]
            uids = {progress_part(put.key).topic for put in some} if keeps else set()
            with translated(self._timeout_s):
                await self._transact(group, checked, uids, goes_back=goes_back)

    async def _transact(
        self, group: str, ops: Sequence[Op], uids: Collection[int], *, goes_back: bool
    ) -> None:
        """Make a change and keep these topics; other groups may change the same topics' rows."""
        store = self._context.store
        for attempt in range(1, ATTEMPTS_MAX + 1):
            kept = await keeping(store, group, uids, anew=goes_back)
            try:
                await store.transact([*ops, *kept])
            except VersionConflict as conflict:
                if conflict.key not in map(keeps_key, uids) or attempt == ATTEMPTS_MAX:
                    raise
            else:
                return

    async def _cluster_id(self) -> str:
        with translated(self._timeout_s):
            found = await self._context.store.get(INSTANCE)
        return "" if found is None else found.value.decode(errors="replace")

    async def _checked_topics(
        self, group: str, parts: Sequence[ExportedPartition]
    ) -> Sequence[TopicRecord]:
        """Return the topics of *parts*, in which all their places lie. Raises as restore()."""
        lanes = GroupLanes(self._context, group)
        finder = PlaceFinder(self._context.opener)
        names = sorted({each.topic for each in parts})
        found = await lanes.topics(names) if names else []
        for topic in found:
            named = [each for each in parts if each.topic == topic.name]
            for each in named:
                if each.uid != topic.uid:
                    reason = "the places are of a topic that was deleted and created again"
                    raise BadTopic(reason, topic=topic.name)
                if each.partition not in topic.partition_indexes:
                    raise BadTopic(f"there is no partition {each.partition}", topic=topic.name)
            await check_places(await lanes.known(topic), named, finder)
        return found


async def commit_read(
    groups: Groups, group: str, position: Sequence[LanePlace], *, goes_back: bool = False
) -> None:
    """Commit what a reader returned, as Groups.commit() but for two things.

    No place is looked up, which would cost a read for each lane. And lanes that *position* does not
    name stay as they are: the reader may read some lanes of a partition only.
    """
    check_name(group)
    await groups._commit(group, by_part(position), goes_back=goes_back, is_whole=False)


def check_name(group: str) -> None:
    """Raise BadGroup unless *group* may be the name of a group."""
    if not isinstance(group, str):
        raise BadGroup(f"a group is named by a str, not {group!r} ({type(group).__name__})")
    try:
        check_group(group)
    except ValueError as wrong:
        raise BadGroup(str(wrong)) from wrong


def _changed(group: str) -> BadGroup:
    return BadGroup(f"group {group} changed meanwhile; stop its members, and try again")


def _no_such(group: str) -> BadGroup:
    return BadGroup(f"there is no group {group}; `quire group list` shows all")


def _check_mode(group: str, record: GroupRecord) -> None:
    """Raise BadGroup if the group has progress of another kind."""
    if record.mode != "exclusive":
        raise BadGroup(f"group {group} is used in mode {record.mode}, not exclusive")


def _moved(stored: Places, wanted: Places, *, goes_back: bool) -> dict[int, Place]:
    """Return the stored places with those of *wanted* that lie further on, or all of *wanted*."""
    after = dict(stored)
    for lane, place in wanted.items():
        if goes_back or lane not in after or after[lane].at < place.at:
            after[lane] = place
    return after


def _position(places: Mapping[Part, Places], topics: Iterable[TopicRecord]) -> Position:
    """Return the places in these topics."""
    names = {topic.uid: topic.name for topic in topics}
    chosen = {part: lanes for part, lanes in places.items() if part.topic in names}
    return position_in(chosen, lambda part: names[part.topic])
