"""The partitions that a member reads, as its row changes.

    row ──► gone: nothing more is handed out ──► finished, committed ──► forgotten
        └─► gained: progress read ──► begun ──► lanes read

Each topic begins in a task of its own: one whose bookies are away holds no other one back, but for
BEGIN_MAX of them, and keeps no partition from being given up in time. What the application has of
them is the business of their holder.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import count
from typing import Protocol, TypeVar

import trio

from ledger_client.errors import BadGroup, CommitRefused, LedgerError, NoSuchTopic
from ledger_client.groups.beginnings import Beginnings
from ledger_client.groups.deletions import Deletions
from ledger_client.groups.feed import FoundLanes, OpenTicks, TopicFeed
from ledger_client.groups.options import ConsumedLane, ConsumerOptions, TopicPartition
from ledger_client.groups.progress import Progress
from ledger_client.groups.slots import Units
from ledger_client.groups.telling import Revocation, Telling
from ledger_client.groups.topic_search import TopicSearch
from ledger_client.topics.context import TopicContext
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import EARLIEST, Places, Position
from ledger_client.topics.reading.options import ReadOptions
from metadata.groups.assignment import Part
from metadata.groups.rows import MemberRecord, parts_of
from metadata.topics import TopicRecord

T = TypeVar("T")
RETRY_S = 0.5
RETRY_S_MAX = 5.0
BEGIN_MAX = 64
"""Topics for which it is looked up at once where to begin."""
NAMES_KEPT = 1000
"""How many names of topics are kept, for errors; those of topics that are read in any case."""
FINISH_PART = 0.8
"""Of revoke_s, for the application and its on_revoked to be done."""
BEGIN_PART = 0.4
"""Of revoke_s, until on_revoked is called; while another handler runs then, it is called later."""
COMMIT_PART = 0.95
"""Of revoke_s, until what was consumed is committed."""
_log = logging.getLogger(__name__)


class Holder(Protocol):
    """What the application has of the partitions."""

    def begin(self, part: Part, places: Places) -> None:
        """Note that messages of *part* come from these places on."""

    def withhold(self, parts: set[Part]) -> None:
        """Read *parts* no longer, and hand out nothing more, not even what has arrived."""

    async def finish(self, parts: set[Part]) -> None:
        """Wait until the application is done with what it has of *parts*."""

    async def finish_commits(self) -> None:
        """Wait until the commits that were only started are stored, or have failed."""

    async def commit_consumed(self, only: Iterable[Part] | None = None) -> None:
        """Commit what was consumed by itself. Failures are logged."""

    async def read(self, starts: dict[Part, Places]) -> None:
        """Read partitions of a topic from these places on, as soon as that is possible."""

    def at_work(self) -> set[Part]:
        """Return the parts of which the application has messages that it may be at work on."""

    def lapse(self, gone: Set[Part], at_work: Set[Part]) -> Set[Part]:
        """Return those of *gone* of which messages were handed out that are not committed.

        Those messages come again, at another member. The application is told of *at_work*.
        """

    def forget(self, parts: set[Part]) -> None:
        """Forget what the application has of *parts*: others have them by now."""


class Partitions:
    """See the head of this module.

    Args:
        context: the client's.
        options: the consumer's.
        names: the topics that the consumer names.
        uids: those whose deletion the application hears of: their names, by uid.
        progress: of this member.
        nursery: for the tasks that read.
        on_arrival: called when there may be something to take.
        on_failure: called with what ends the consumer.
        open_ticks: makes the order of timestamps of a topic.
    """

    def __init__(
        self,
        context: TopicContext,
        options: ConsumerOptions,
        names: Sequence[str],
        uids: Mapping[int, str],
        progress: Progress,
        nursery: trio.Nursery,
        *,
        on_arrival: Callable[[], None],
        on_failure: Callable[[LedgerError], None],
        open_ticks: OpenTicks,
    ) -> None:
        self.active: set[Part] = set()
        """what the member has and reads: partitions, or slots of them"""
        self.parts: set[Part] = set()
        """what it has, as far as its row says"""
        self.begun: set[Part] = set()
        """those of *active* of which the application was told"""
        self.has_begun = False
        """the member has had something to read"""
        self.feeds: dict[int, TopicFeed] = {}
        """by topic uid"""
        self._topic_names: dict[int, str] = {}
        """of topics that are or were read, by uid"""
        self._up_ms = 0
        self._restarted: dict[Part, Places] = {}
        """where partitions begin or go on that are not read yet, as lanes are looked up first"""
        self._due: set[Part] = set()
        """what the member is to have; what its row takes away is not begun any more"""
        self._beginning: dict[int, set[Part]] = {}
        """topics that a task begins, by uid: those parts for which it is looked up where"""
        self._room = trio.CapacityLimiter(BEGIN_MAX)
        self._search = TopicSearch(context, names)
        self._news = trio.Event()
        """set as there is a newer row"""
        self._turn = trio.Lock()
        """held while partitions are given up: nothing begins in between"""
        self._going: set[Part] = set()
        """what is being given up"""
        self.telling = Telling(options)
        self.deletions = Deletions(context, uids, self.feeds, nursery, on_arrival)
        self._context = context
        self._options = options
        self._units = Units(options.mode)
        self._progress = progress
        self._beginnings = Beginnings(options, self._units, progress)
        self._nursery = nursery
        self._on_arrival = on_arrival
        self._on_failure = on_failure
        self._open_ticks = open_ticks

    @property
    def _kept(self) -> set[Part]:
        """What is active, and is not being given up."""
        return self.active - self._going

    async def apply(self, row: MemberRecord | None, holder: Holder) -> None:
        """Read what the row says, from now on; `None` if the member is none any more.

        Return once the rest is given up. What is gained begins in tasks of its own.
        """
        wanted = set[Part]()
        if row is not None:
            self._up_ms = row.up_ms
            wanted = parts_of(row.parts)
            for revoked in row.revoked:
                wanted -= parts_of(revoked.runs)
        self.parts = wanted
        self._due &= wanted
        for looked_up in self._beginning.values():
            looked_up &= wanted
        if gone := self.active - wanted:
            async with self._turn:
                await self._give_up(gone, holder, is_lost=row is None)
        self._due = set(wanted)
        self._note_row()
        for uid in sorted({part.topic for part in wanted - self.active} - self._beginning.keys()):
            self._beginning[uid] = set()
            self._nursery.start_soon(self._begin, uid, holder)
        if row is not None:  # else they may come back
            self.deletions.look()
        self._on_arrival()

    def _note_row(self) -> None:
        """Let those that try again do so at once."""
        self._news.set()
        self._news = trio.Event()
        self._search.keep({part.topic for part in self._due})

    def topic_of(self, part: Part) -> str:
        """Return the name of the topic of a partition that is or was read."""
        return self.feeds[part.topic].topic.name

    def refusal(self, parts: Iterable[Part], reason: str = "") -> CommitRefused:
        """Return the error for commits of *parts*, which names topics that are or were read."""
        chosen, names = sorted(parts), self._topic_names
        return CommitRefused(self._options.group, chosen, reason=reason, topics=names)

    def refusal_of(self, messages: Iterable[Message], reason: str) -> CommitRefused:
        """Return the error for messages that this member does not have."""
        uids = {feed.topic.name: uid for uid, feed in self.feeds.items()}
        unread = count(-1, -1)  # in place of the uids of topics that are not read now
        names: dict[int, str] = {}
        parts: set[Part] = set()
        for message in messages:
            if message.topic not in uids:
                uids[message.topic] = next(unread)
            uid = uids[message.topic]
            names[uid] = message.topic
            parts.add(Part(uid, message.id.partition))
        return CommitRefused(self._options.group, sorted(parts), reason=reason, topics=names)

    def named(self, parts: Iterable[Part]) -> list[TopicPartition]:
        """Return partitions by the names of their topics, sorted."""
        known = self.known(parts)
        return sorted({TopicPartition(self.topic_of(p), self.partition(p)) for p in known})

    def known(self, parts: Iterable[Part]) -> list[Part]:
        """Return the parts whose topic is or was read; those just assigned may not be yet."""
        return [part for part in parts if part.topic in self.feeds]

    def partition(self, part: Part) -> int:
        """Return the partition of a part that is or was read."""
        return self._units.partition(self.feeds[part.topic].topic, part)

    async def feed(self, uid: int) -> TopicFeed:
        """Return what reads a topic. Raises NoSuchTopic, LedgerError."""
        return self.feeds.get(uid) or await self._open_feed(uid)

    def chosen(self, parts: Iterable[TopicPartition] | None) -> set[Part]:
        """Return the parts of these partitions that are read; `None` for all."""
        named = None if parts is None else _named(parts)
        return {
            part
            for part in self.active
            if named is None or TopicPartition(self.topic_of(part), self.partition(part)) in named
        }

    def pause(self, parts: Iterable[TopicPartition] | None) -> None:
        """Take nothing of these partitions any more; `None` for all."""
        for uid, partitions in self._by_topic(parts).items():
            self.feeds[uid].pause(partitions)

    def resume(self, parts: Iterable[TopicPartition] | None) -> None:
        """Take these partitions again; `None` for all."""
        for uid, partitions in self._by_topic(parts).items():
            self.feeds[uid].resume(partitions)

    def drop(self, parts: Iterable[Part]) -> None:
        """Read these partitions no longer."""
        gone = set(parts)
        for uid in {part.topic for part in gone}:
            self.feeds[uid].drop({part.partition for part in gone if part.topic == uid})

    async def move(self, starts: Mapping[Part, Places]) -> None:
        """Go on from other places in these partitions, but for those that are being given up.

        Raises LedgerError; then nothing changed.
        """
        self._move(starts, await self._lanes(starts))

    async def _lanes(self, starts: Mapping[Part, Places]) -> dict[int, FoundLanes]:
        """Return the lanes of topics by uid. Raises LedgerError."""
        found: dict[int, FoundLanes] = {}
        for uid in {part.topic for part in starts} & self.feeds.keys():
            of_topic = {p.partition: places for p, places in starts.items() if p.topic == uid}
            found[uid] = await self.feeds[uid].look_up(of_topic)
        return found

    def _move(self, starts: Mapping[Part, Places], lanes: Mapping[int, FoundLanes]) -> None:
        for part in starts:
            self._restarted.pop(part, None)
        here = self._kept
        kept = {part: places for part, places in starts.items() if part in here}
        for uid in lanes.keys() & self.feeds.keys():
            moved = {p.partition: places for p, places in kept.items() if p.topic == uid}
            self.feeds[uid].move(moved, lanes[uid])

    def begin_again(self, starts: Mapping[Part, Places]) -> None:
        """Go on from other places in these partitions, once their lanes can be looked up.

        Those that are being given up are left out.
        """
        here = self._kept
        starts = {part: places for part, places in starts.items() if part in here}
        for uid in {part.topic for part in starts}:
            self.feeds[uid].stop({part.partition for part in starts if part.topic == uid})
        self._hold(starts)
        self._restarted.update(starts)
        for uid in sorted({part.topic for part in starts}):
            of_topic = {part: places for part, places in starts.items() if part.topic == uid}
            self._nursery.start_soon(self.add, of_topic)

    def _hold(self, parts: Iterable[Part]) -> None:
        """In the order of timestamps, hand out nothing until these are read."""
        for part in parts:
            if part.topic in self.feeds:
                self.feeds[part.topic].hold([part.partition])

    async def add(self, starts: Mapping[Part, Places]) -> None:
        """Read partitions of a topic that were announced, once its lanes can be looked up.

        What was given up meanwhile, or is read from another place, is passed over.
        """
        try:
            lanes = await self._until_done(partial(self._lanes, starts))
        except NoSuchTopic:
            for uid in {part.topic for part in starts} & self.feeds.keys():
                self.end(self.feeds[uid].topic)
            return
        self._move(self._announced(starts), lanes)

    def _announced(self, starts: Mapping[Part, Places]) -> dict[Part, Places]:
        """Return those of *starts* that still hold."""
        restarted = self._restarted.items()
        return {part: places for part, places in restarted if starts.get(part) is places}

    async def check(self, places: Mapping[Part, Places]) -> None:
        """Raise BadTopic unless each place is in its lane, of partitions that are read."""
        for uid in {part.topic for part in places} & self.feeds.keys():
            of_topic = {p.partition: lanes for p, lanes in places.items() if p.topic == uid}
            await self.feeds[uid].check(of_topic)

    async def lag(self, position: Position, committed: Position) -> list[ConsumedLane]:
        """Return the lanes of the partitions that are read. Raises LedgerError."""
        places = {(Part(each.uid, each.partition), each.lane): each.place for each in position}
        stored = {(Part(each.uid, each.partition), each.lane): each.place for each in committed}
        found: list[ConsumedLane] = []
        for uid in sorted({part.topic for part in self.active}):
            for lane, begin, end in await self.feeds[uid].spans():
                part = Part(uid, lane.partition)
                if part in self.active:
                    at = places.get((part, lane.lane), EARLIEST)
                    kept = stored.get((part, lane.lane), EARLIEST)
                    where = (lane.topic, lane.partition, lane.lane)
                    first = max(begin.version, 0)
                    versions = (max(at.version, first), kept.version, first, end.version)
                    found.append(ConsumedLane(*where, *versions))
        return found

    def _by_topic(self, parts: Iterable[TopicPartition] | None) -> dict[int, set[int]]:
        chosen: dict[int, set[int]] = {}
        for part in self.chosen(parts):
            chosen.setdefault(part.topic, set()).add(self.partition(part))
        return chosen

    async def _give_up(self, gone: set[Part], holder: Holder, *, is_lost: bool) -> None:
        """Hand out nothing more of these partitions, and commit them while that is possible."""
        self._going = gone
        holder.withhold(gone)
        for part in gone:
            self._restarted.pop(part, None)
        told = self.telling.revocation({part: name for part in gone for name in self.named([part])})
        busy = holder.at_work() & gone if is_lost else await self._finish(told, holder)
        told.lapsed = holder.lapse(gone, gone if told.is_cut_off else busy or set())
        self.active -= gone
        self.begun -= gone
        self._unpause(gone)
        if busy is not None:
            with trio.move_on_after(self._options.revoke_s):
                await self.telling.revoked(told)
        if not told.is_told:  # another handler is not done, and others are to be given up in time
            self._nursery.start_soon(self.telling.revoked, told)
        self._progress.forget(gone)
        holder.forget(gone)
        self._going = set()
        for uid in {part.topic for part in gone}:
            self._close_feed(uid)

    def _unpause(self, gone: set[Part]) -> None:
        """Let partitions that come back not be paused any more, whenever they were."""
        for uid in {part.topic for part in gone}:
            kept = {self.partition(part) for part in self.active if part.topic == uid}
            self.feeds[uid].resume({self.partition(p) for p in gone if p.topic == uid} - kept)

    async def _finish(self, told: Revocation, holder: Holder) -> set[Part] | None:
        """Let the application be done with these partitions, and commit them.

        Return those that it is at work on when the time is over; `None` if it is done. If it is
        not, on_revoked was not called: it could only commit what the application is at work on.
        """
        begun_at, revoke_s = trio.current_time(), self._options.revoke_s
        gone, is_done = told.parts, False
        with trio.move_on_at(begun_at + revoke_s * FINISH_PART) as limit:
            await holder.finish(gone)
            is_done = True
            await self.telling.revoked(told, begin_by=begun_at + revoke_s * BEGIN_PART)
        told.is_cut_off = told.is_told and limit.cancelled_caught
        if told.is_cut_off:
            _log.warning(
                "on_revoked was cut off, as %g of revoke_s was over (%g s); the rest comes again",
                FINISH_PART,
                revoke_s * FINISH_PART,
            )
        busy = None if is_done else holder.at_work() & gone
        with trio.move_on_at(begun_at + revoke_s * COMMIT_PART):
            await holder.finish_commits()
            if self._options.auto_commit_s is not None:
                await holder.commit_consumed(gone)
            else:
                await self._progress.settle()  # what the application commits just now counts
        return busy

    def end(self, topic: TopicRecord) -> None:
        """Read a topic no longer that was deleted. Its partitions go with the next row."""
        if topic.uid in self.feeds and not self.feeds[topic.uid].is_over:
            self.feeds[topic.uid].end()
        self.deletions.note(topic.uid)

    def raise_deleted(self) -> None:
        """Raise NoSuchTopic once for each topic that the consumer names and that was deleted."""
        self.deletions.raise_one()

    def _close_feed(self, uid: int) -> None:
        """Forget a topic if the member has no partition of it any more: it may be deleted."""
        is_read = uid in self._beginning or any(
            part.topic == uid for part in self.active | self._going
        )
        if uid in self.feeds and not is_read:
            feed = self.feeds.pop(uid)
            if not feed.is_over:
                feed.end()
            self.deletions.doubt(uid)

    async def _begin(self, uid: int, holder: Holder) -> None:
        """Begin what the member is to have of a topic; try again while that fails."""
        pause_s, told = RETRY_S, ""
        try:
            while parts := {part for part in self._due - self.active if part.topic == uid}:
                left, news = set(parts), self._news
                self._beginning[uid] = left
                failure = await self._begin_some(uid, parts, left, holder)
                self._progress.forget(parts - self.active)
                if failure is None:
                    pause_s = RETRY_S
                    continue
                if isinstance(failure, BadGroup):
                    self._on_failure(failure)
                    return
                if str(failure) != told and not isinstance(failure, CommitRefused):
                    told = str(failure)
                    self._log_failure(failure, uid)
                with trio.move_on_after(pause_s):
                    await news.wait()
                pause_s = RETRY_S if news.is_set() else min(2 * pause_s, RETRY_S_MAX)
        finally:
            del self._beginning[uid]
            self._close_feed(uid)
            self.deletions.look()

    async def _begin_some(
        self, uid: int, parts: set[Part], left: set[Part], holder: Holder
    ) -> LedgerError | None:
        """Begin partitions of a topic, but for those that *left* has no more by then.

        Return why it failed, if it did.
        """
        try:
            async with self._room:
                starts = await self._beginnings.starts(await self.feed(uid), parts, self._up_ms)
        except NoSuchTopic as failure:  # soon the row will not have it either
            self.deletions.note(uid)
            return failure
        except LedgerError as failure:
            return failure
        async with self._turn:
            begun = {part: starts[part] for part in left & starts.keys()}
            left.clear()
            self._hold(begun)
            for part, places in begun.items():
                holder.begin(part, places)
            self._restarted.update(begun)
            self.active.update(begun)
        if begun:
            self.has_begun = True
            await self.telling.assigned(lambda: begun.keys() & self._kept, self.named)
            self.begun.update(begun.keys() & self._kept)
            left_alone = self._announced(begun)  # else the application moved it, or it went
            await holder.read(left_alone)
            for part in self._announced(left_alone):
                del self._restarted[part]
            self._on_arrival()
        return None

    async def _until_done(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what *work* returns; try again while it fails for a reason that may pass."""
        while True:
            try:
                return await work()
            except (BadGroup, CommitRefused, NoSuchTopic):
                raise
            except LedgerError as failure:
                self._log_failure(failure)
                await trio.sleep(RETRY_S)

    def _log_failure(self, failure: LedgerError, uid: int | None = None) -> None:
        what = "partitions" if uid is None else f"partitions of {self._name(uid)}"
        _log.warning("group %s: %s not begun yet: %s", self._options.group, what, failure)

    def _name(self, uid: int) -> str:
        return self._topic_names.get(uid) or self._search.name(uid)

    async def _open_feed(self, uid: int) -> TopicFeed:
        topic = await self._search.topic(uid)
        if uid in self.feeds:  # somebody else was faster
            return self.feeds[uid]
        by_timestamp = self._options.order == "timestamp"
        if by_timestamp and not topic.timesync:
            raise BadGroup(f"{topic.name} is without timesync: its messages have no timestamps")
        options = ReadOptions(
            follow=True,
            on_gap=self._options.on_gap,
            read_ahead_size=self._options.read_ahead_size,
        )
        feed = TopicFeed(
            self._context,
            topic,
            options,
            self._nursery,
            self._on_arrival,
            open_ticks=self._open_ticks if by_timestamp else None,
        )
        self._nursery.start_soon(feed.run)
        self.feeds[uid] = feed
        self._note_name(topic)
        self.deletions.begin(topic)
        self._context.figures.consuming(self._options.group, topic.name)  # there before it counts
        return feed

    def _note_name(self, topic: TopicRecord) -> None:
        """Keep the name of a topic that is read, and those of the last ones that were."""
        names = self._topic_names
        names.pop(topic.uid, None)
        names[topic.uid] = topic.name
        over = [uid for uid in names if uid not in self.feeds][: max(len(names) - NAMES_KEPT, 0)]
        for uid in over:
            del names[uid]


def _named(parts: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Return *parts* as a set. Raises TypeError for what assignment() does not return."""
    named = list(parts) if isinstance(parts, Iterable) else [parts]
    if not all(isinstance(each, TopicPartition) for each in named):
        raise TypeError(f"these are no partitions as assignment() returns them: {parts!r:.80}")
    return set(named)
