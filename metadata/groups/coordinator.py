"""The coordinator of all groups: a role of the leader, behind the calls of every bookie.

    members ──► bookie ──► Coordinator ──► Office ──► Group.step() ──► one transaction
                              │ does not lead: NotLeader, with the leader's address

An office lasts one term. It reads all groups when it begins, and forgets them at the end; what
counts is in the store. Each change of rows carries the check of the term, so a former leader
changes nothing. A report of members changes no row, so it is answered only while the term is
certain: a former leader must not let members believe that they are still looked after.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio

from metadata.errors import (
    BadGroup,
    BadRecord,
    LeaseLost,
    MetadataError,
    MetadataUnavailable,
    NotLeader,
    VersionConflict,
)
from metadata.groups.calls import (
    GROUPS_PAGE,
    BeatNoted,
    DeleteGroup,
    DescribeGroups,
    FoundGroup,
    GroupJoined,
    GroupLeft,
    GroupPage,
    GroupReply,
    GroupRequest,
    JoinGroup,
    KeepGroup,
    LeaveGroup,
    ReportIn,
    ReportNoted,
)
from metadata.groups.group import Change, Group, Inventory
from metadata.groups.hosted import GroupCounts, Hosted, check_joining
from metadata.groups.keeps import TopicKeeps
from metadata.groups.rows import (
    GROUPS,
    GroupRecord,
    MemberRecord,
    check_group,
    decode_group,
    decode_member,
    group_key,
    member_key,
    members_prefix,
    progress_prefix,
)
from metadata.groups.shares import group_prefixes
from metadata.leadership import Term
from metadata.listings import Listing
from metadata.office import answer_of
from metadata.store import ABSENT, Delete, MetadataStore, Op, Put, pages
from metadata.topics import TOPICS, TopicRecord, decode_topic

REBALANCE_S = 2.0
"""Between two rebalances of a group, as TDengine's timer."""
FIRST_S = 0.2
"""From the first member of a group to its first rebalance; others may join meanwhile."""
TOPICS_S = 600.0
"""Between two looks at all topics, beside the hints."""
GROUPS_MAX = 10_000
GROUPS_OF_TOPIC_MAX = 100
DELETED_AT_ONCE = 200
_log = logging.getLogger(__name__)


class Coordinator:
    """Answers requests about groups while its bookie leads."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._office: Office | None = None

    async def lead(self, term: Term) -> None:
        """Coordinate all groups until cancelled, waiting out outages of the metadata store.

        Raises:
            LeaseLost: the term is over.
        """
        async with trio.open_nursery() as nursery:
            office = Office(self._store, term, nursery)
            await office.begin()
            self._office = office
            try:
                await office.work()
            finally:
                self._office = None
                office.is_over = True

    def counts(self) -> list[GroupCounts]:
        """Return figures of all groups, sorted by name; none while this bookie does not lead."""
        office, now = self._office, trio.current_time()
        return [] if office is None else office.counts(now)

    async def answer(self, request: GroupRequest) -> GroupReply:
        """Return the reply to *request*.

        Raises:
            NotLeader: another bookie leads, or nobody.
            BadGroup: the request does not suit the group.
            MetadataUnavailable: the store did not answer.
        """
        return await answer_of(self._office, request, self._store)


class Office:
    """All groups during one term."""

    def __init__(self, store: MetadataStore, term: Term, nursery: trio.Nursery) -> None:
        self.term = term
        self._store = store
        self._nursery = nursery
        self._keeps = TopicKeeps(store, term.check)
        self._groups: dict[str, Hosted] = {}
        self._topics: dict[str, Inventory] = {}
        self._unreadable: set[str] = set()
        self._is_needed = trio.Event()
        """set once a group has members: until then nothing is read of topics"""
        self._knows_topics = trio.Event()
        self.is_over = False
        """no task can be started any more"""
        self._handlers: dict[type, Callable[[Any], Awaitable[GroupReply]]] = {
            JoinGroup: self._join,
            ReportIn: self._report,
            LeaveGroup: self._leave,
            FoundGroup: self._found,
            DeleteGroup: self._delete,
            KeepGroup: self._keep,
            DescribeGroups: self._describe,
        }

    async def begin(self) -> None:
        """Read all groups, as soon as the store answers."""
        while True:
            try:
                await self._keeps.begin()
                await self._read_groups()
            except MetadataUnavailable:
                await trio.sleep(REBALANCE_S / 2)
            else:
                return

    async def work(self) -> None:
        """Rebalance, and follow the topics, until cancelled. Raises LeaseLost."""
        self._nursery.start_soon(self._follow_topics)
        while True:
            await trio.sleep(REBALANCE_S)
            await self._release()
            await self._finish_deletions()
            if not self._knows_topics.is_set():
                continue
            for name in list(self._groups):
                await self._try(name, rebalance=True)

    async def answer(self, request: GroupRequest) -> GroupReply:
        """Return the reply to *request*; raises as Coordinator.answer()."""
        return await self._handlers[type(request)](request)

    def counts(self, now: float) -> list[GroupCounts]:
        """Return figures of all groups, sorted by name."""
        return [hosted.counts(name, now) for name, hosted in sorted(self._groups.items())]

    # --- requests -------------------------------------------------------------------------

    async def _join(self, request: JoinGroup) -> GroupReply:
        self._is_needed.set()
        await self._knows_topics.wait()
        await self._finish_deletion(request.group)
        joined = msgspec.structs.replace(
            request.record, parts=[], revoked=[], joined_ms=await self._store.now_ms()
        )
        # From here to join() nothing is waited for: another one may join with another mode.
        hosted = self._hosted(request.group, request.member)
        group = hosted.group
        check_joining(hosted, request)
        self._check_topics(group, request)
        self._groups[request.group] = hosted
        hosted.want(request.member, request.record.run)
        is_first = not group.members
        group.configure(request.mode)
        group.note_wanted(joined.wanted, joined.joined_ms)
        group.join(request.member, joined, trio.current_time())
        await self._advance(request.group, hosted, rebalance=False)
        if self.is_over:
            raise NotLeader
        if is_first:
            self._nursery.start_soon(self._rebalance_soon, request.group)
        if request.keep is not None:
            await self._set_keep(request.group, hosted, keep=request.keep)
        member = group.members.get(request.member)
        if member is None or member.record is None:
            raise MetadataUnavailable(f"group {request.group} changed meanwhile; join again")
        return GroupJoined(member.record.epoch)

    def _hosted(self, name: str, member: str = "m") -> Hosted:
        """Return a group; a new one, which is to be kept, if there is none."""
        found = self._groups.get(name)
        if found is not None and not found.is_deleted:
            return found
        try:
            check_group(name)
            check_group(member)
        except ValueError as wrong:
            raise BadGroup(str(wrong)) from wrong
        if found is not None:
            raise MetadataUnavailable(f"group {name} is being deleted; ask again")
        if len(self._groups) >= GROUPS_MAX:
            raise BadGroup(f"there are {GROUPS_MAX} groups; delete some")
        return Hosted(Group(GroupRecord(is_noted=True), ABSENT, self._topics))

    def _check_topics(self, group: Group, request: JoinGroup) -> None:
        """Raise BadGroup if the group would be one too many for a topic that it names anew."""
        topics = set(request.record.wanted.topics)
        topics -= group.wanted_of(topics)
        if not topics or len(self._groups) < GROUPS_OF_TOPIC_MAX:
            return
        counts: Counter[str] = Counter()
        for hosted in self._groups.values():
            counts.update(hosted.group.wanted_of(topics))
        topic, groups = max(counts.items(), key=lambda item: item[1], default=("", 0))
        if groups >= GROUPS_OF_TOPIC_MAX:
            raise BadGroup(f"topic {topic} has {groups} groups, as many as it may have")

    async def _found(self, request: FoundGroup) -> GroupReply:
        await self._finish_deletion(request.group)
        hosted = self._groups[request.group] = self._hosted(request.group)
        hosted.want()
        async with hosted.turn:
            hosted.check(request.group)
            if hosted.group.version == ABSENT:
                change = Change(hosted.group.record, {})
                with hosted.founding():
                    await self._store_change(request.group, hosted.group, change)
        return GroupLeft()

    async def _report(self, request: ReportIn) -> GroupReply:
        now = trio.current_time()
        answers: list[BeatNoted] = []
        for beat in request.beats:
            hosted = self._groups.get(beat.group)
            if hosted is None or not hosted.group.beat(
                beat.member, beat.run, applied=beat.applied, polled_s=beat.polled_s, now=now
            ):
                answers.append(BeatNoted(is_member=False))
                continue
            if hosted.group.is_moving:
                await self._try(beat.group, rebalance=False)
            member = hosted.group.members.get(beat.member)
            record = None if member is None else member.record
            answers.append(BeatNoted(True, 0 if record is None else record.epoch))
        return ReportNoted(answers)

    async def _leave(self, request: LeaveGroup) -> GroupReply:
        hosted = self._groups.get(request.group)
        try:
            if hosted is None or (request.in_vain and await self._dissolve(request, hosted)):
                return GroupLeft()
        finally:  # nothing is stored by this
            if hosted is not None and not request.stays:
                hosted.group.leave(request.member, request.run)
        if not request.stays:
            await self._advance(request.group, hosted, rebalance=False)
        return GroupLeft()

    async def _delete(self, request: DeleteGroup) -> GroupReply:
        hosted = self._groups.get(request.group)
        if hosted is None:
            raise _no_such(request.group)
        async with hosted.turn:
            if self._groups.get(request.group) is not hosted:
                raise _no_such(request.group)
            if hosted.group.members and not (request.force or hosted.is_deleted):
                count = len(hosted.group.members)
                members = "1 member; stop it" if count == 1 else f"{count} members; stop them"
                raise BadGroup(f"group {request.group} has {members}, or force")
            await self._remove(request.group, hosted)
        return GroupLeft()

    async def _keep(self, request: KeepGroup) -> GroupReply:
        hosted = self._groups.get(request.group)
        if hosted is None:
            raise _no_such(request.group)
        hosted.want()
        await self._set_keep(request.group, hosted, keep=request.keep)
        return GroupLeft()

    async def _describe(self, request: DescribeGroups) -> GroupReply:
        if request.group:
            names = [request.group] if request.group in self._groups else []
        else:
            names = sorted(name for name in self._groups if name > request.after)[:GROUPS_PAGE]
        now = trio.current_time()
        return GroupPage([self._groups[name].state(name, now) for name in names])

    # --- changes --------------------------------------------------------------------------

    async def _rebalance_soon(self, name: str) -> None:
        await trio.sleep(FIRST_S)
        await self._try(name, rebalance=True)

    async def _try(self, name: str, *, rebalance: bool) -> None:
        """Make the changes that are due; a failure of the store is left to the next time."""
        hosted = self._groups.get(name)
        if hosted is None or not hosted.group.is_due(trio.current_time(), rebalance=rebalance):
            return
        try:
            await self._advance(name, hosted, rebalance=rebalance)
        except LeaseLost:
            raise
        except MetadataError as failure:
            _log.warning("group %s stays as it is for now: %s", name, failure)

    async def _advance(self, name: str, hosted: Hosted, *, rebalance: bool) -> None:
        """Make the changes that are due, one transaction after the other."""
        async with hosted.turn:
            group = hosted.group
            before = group.targets
            try:
                await self._approach(name, hosted, rebalance=rebalance)
            except BaseException:  # also a cancellation
                group.distrust()
                raise
            hosted.rebalances += group.targets - before
            hosted.note_balance(trio.current_time())

    async def _approach(self, name: str, hosted: Hosted, *, rebalance: bool) -> None:
        group = hosted.group
        while not hosted.is_deleted:
            change = group.step(trio.current_time(), rebalance=rebalance)
            if change is None:
                return
            if group.record.keep:
                await self._keeps.hold(name, group.targeted)
            await self._store_change(name, group, change)

    async def _set_keep(self, name: str, hosted: Hosted, *, keep: bool) -> None:
        """Store whether a group holds back retention.

        It is named in topics before its record says that it keeps them, and until it does no more.
        """
        async with hosted.turn:
            group = hosted.group
            hosted.check(name)
            if group.record.keep == keep:
                return
            self._keeps.suspect(name)
            try:
                hosted.is_kept = True
                if keep:
                    begun = await self._topics_begun(name)
                    await self._keeps.hold(name, begun | group.targeted)
                record = msgspec.structs.replace(group.record, keep=keep)
                await self._store_change(name, group, Change(record, {}))
            finally:
                hosted.is_kept = group.record.keep
        await self._release()

    async def _topics_begun(self, name: str) -> set[int]:
        """Return the topics, by uid, in which a group has progress."""
        prefix = progress_prefix(name)
        return {
            int(key.removeprefix(prefix).split("/")[0])
            async for page in pages(self._store, prefix)
            for key, _ in page
        }

    async def _release(self) -> None:
        """Let retention go on where no group keeps a topic; a failure is left to the next time."""
        try:
            await self._keeps.release(self._is_kept)
        except LeaseLost:
            raise
        except MetadataError as failure:
            _log.warning("groups still hold back retention for now: %s", failure)

    def _is_kept(self, name: str) -> bool:
        hosted = self._groups.get(name)
        if hosted is None:
            return group_key(name) in self._unreadable  # it may keep them
        return hosted.is_kept

    async def _store_change(self, name: str, group: Group, change: Change) -> None:
        change = await self._dated(change)
        ops: list[Op] = [self.term.check]
        ops.append(Put(group_key(name), msgspec.json.encode(change.group), group.version))
        for member, record in change.rows.items():
            key, version = member_key(name, member), group.members[member].version
            if record is not None:
                ops.append(Put(key, msgspec.json.encode(record), version))
            elif version != ABSENT:
                ops.append(Delete(key, version))
        try:
            versions = await self._store.transact(ops)
        except (MetadataUnavailable, VersionConflict):
            await self._reload(name, group)
            raise
        of_key = {op.key: v for op, v in zip(ops, versions, strict=True) if isinstance(op, Put)}
        rows = [member for member, record in change.rows.items() if record is not None]
        group.stored(
            change,
            {member: of_key[member_key(name, member)] for member in rows},
            of_key[group_key(name)],
            trio.current_time(),
        )

    async def _dated(self, change: Change) -> Change:
        """Return *change* with the store's time."""
        now_ms = await self._store.now_ms()
        rows = {
            member: record and msgspec.structs.replace(record, changed_ms=now_ms)
            for member, record in change.rows.items()
        }
        group = change.group
        if not group.created_ms:
            group = msgspec.structs.replace(group, created_ms=now_ms)
        return Change(group, rows)

    async def _reload(self, name: str, group: Group) -> None:
        """Read a group's rows again, after an outcome that is not known."""
        found = await self._store.get(group_key(name))
        record, version = group.record, ABSENT
        if found is not None:
            record, version = decode_group(group_key(name), found.value), found.version
        group.load(record, version, await self._read_members(name))

    async def _remove(self, name: str, hosted: Hosted) -> None:
        """Delete a group's rows in steps: members first, the group itself last.

        A group of which some are left is nobody's: who joins it would go on from a part of its
        progress. So _finish_deletion() comes first, also with the next leader, who sees a mark in
        the group's row. The mark changes its version, so nobody stores progress from now on.
        """
        hosted.delete(trio.current_time())
        group = hosted.group
        if group.version != ABSENT and not group.record.deleting:
            mark = msgspec.structs.replace(group.record, deleting=True)
            await self._store_change(name, group, Change(mark, {}))
        await self._clear(name)
        await self._store.transact([self.term.check, Delete(group_key(name))])
        group.members.clear()
        del self._groups[name]
        self._keeps.suspect(name)
        await self._release()

    async def _finish_deletion(self, name: str) -> None:
        """Delete what is left of a group whose deletion failed. One under way is left alone."""
        hosted = self._groups.get(name)
        if hosted is not None and hosted.is_deleted and not hosted.turn.locked():
            async with hosted.turn:
                if self._groups.get(name) is hosted:
                    await self._remove(name, hosted)

    async def _finish_deletions(self) -> None:
        """Delete what is left over of groups; a failure is left to the next time."""
        now = trio.current_time()
        for name in [name for name, each in self._groups.items() if each.is_left_over(now)]:
            try:
                await self._finish_deletion(name)
            except LeaseLost:
                raise
            except MetadataError as failure:
                _log.warning("group %s is not wholly deleted yet: %s", name, failure)

    async def _clear(self, name: str) -> None:
        for prefix in group_prefixes(name):
            while page := await self._store.list(prefix, limit=DELETED_AT_ONCE):
                await self._store.transact([self.term.check, *(Delete(key) for key, _ in page)])

    async def _dissolve(self, leaving: LeaveGroup, hosted: Hosted) -> bool:
        """Delete a group of which nothing has begun, and that only the leaving member wanted.

        It goes with that member, beside whom nobody can commit. What the member itself has begun
        to commit may be stored just before, so that goes last. Who joins meanwhile founds it anew.
        """
        name, group = leaving.group, hosted.group
        async with hosted.turn:
            for prefix in group_prefixes(name)[1:]:
                if await self._store.list(prefix, limit=1):
                    return False
            if hosted.is_deleted or not hosted.is_only_for(leaving.member, leaving.run):
                return False
            of_member = member_key(name, leaving.member), group.members[leaving.member].version
            gone = [Delete(group_key(name), group.version), Delete(*of_member)]
            try:
                await self._store.transact([self.term.check, *gone])
            except (MetadataUnavailable, VersionConflict):
                await self._reload(name, group)
                if group.version != ABSENT:  # else it was made
                    raise
            group.dissolved(leaving.member)
            hosted.is_kept = False
            await self._clear(name)
            hosted.is_deleted = hosted.founder is not None  # else somebody waits for the turn
            if hosted.is_deleted:
                del self._groups[name]
        self._keeps.suspect(name)
        await self._release()
        return True

    # --- what is stored -------------------------------------------------------------------

    async def _read_groups(self) -> None:
        now = trio.current_time()
        self._groups.clear()
        async for page in pages(self._store, GROUPS):
            for key, found in page:
                name = key.removeprefix(GROUPS)
                try:
                    group = Group(decode_group(key, found.value), found.version, self._topics)
                    rows = await self._read_members(name)
                except BadRecord as wrong:
                    self._pass_over(key, wrong)
                    continue
                for member, (record, version) in rows.items():
                    group.add_stored(member, record, version, now)
                    self._is_needed.set()
                self._groups[name] = hosted = Hosted(group)
                if group.record.deleting:
                    hosted.delete(now)

    async def _read_members(self, name: str) -> dict[str, tuple[MemberRecord, int]]:
        prefix = members_prefix(name)
        return {
            key.removeprefix(prefix): (decode_member(key, found.value), found.version)
            async for page in pages(self._store, prefix)
            for key, found in page
        }

    async def _follow_topics(self) -> None:
        """Look at topics at each hint, and at all of them from time to time, until cancelled."""
        await self._is_needed.wait()
        while True:
            try:
                async with self._store.watch(TOPICS) as hints:
                    await self._read_topics()
                    self._knows_topics.set()
                    while True:
                        key = TOPICS
                        with trio.move_on_after(TOPICS_S):
                            key = await hints.receive()
                        await (self._read_topics() if key == TOPICS else self._read_topic(key))
            except MetadataUnavailable:
                await trio.sleep(REBALANCE_S / 2)  # then everything is read again

    async def _read_topics(self) -> None:
        listing = Listing(self._store, TOPICS, decode_topic, unreadable=self._unreadable)
        found = {
            topic.name: _inventory(topic) async for topic in listing if topic.state == "active"
        }
        for name in found.keys() | self._topics.keys():
            self._note_topic(name, found.get(name))

    async def _read_topic(self, key: str) -> None:
        found = await self._store.get(key)
        name = key.removeprefix(TOPICS)
        try:
            topic = None if found is None else decode_topic(key, found.value)
        except BadRecord as wrong:
            self._pass_over(key, wrong)
            return
        self._note_topic(name, _inventory(topic) if topic and topic.state == "active" else None)

    def _note_topic(self, name: str, topic: Inventory | None) -> None:
        if self._topics.get(name) == topic:
            return
        if topic is None:
            del self._topics[name]
        else:
            self._topics[name] = topic
        for hosted in self._groups.values():
            if hosted.group.wants(name):
                hosted.group.topics_changed()

    def _pass_over(self, key: str, wrong: BadRecord) -> None:
        if key not in self._unreadable:
            self._unreadable.add(key)
            _log.warning("passed over: %s", wrong)


def _no_such(group: str) -> BadGroup:
    return BadGroup(f"there is no group {group}; `quire group list` shows all")


def _inventory(topic: TopicRecord) -> Inventory:
    return Inventory(topic.uid, topic.partition_indexes)
