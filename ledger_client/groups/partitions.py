"""The partitions that a member reads, as its row changes.

    row ──► gained: progress read ──► begun ──► lanes read
        └─► gone: nothing more is handed out ──► finished, committed ──► forgotten

What the application has of them is the business of their holder.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Protocol, TypeVar

import trio

from ledger_client.errors import (
    BadGroup,
    CommitRefused,
    LedgerError,
    MemberRemoved,
    NoSuchTopic,
)
from ledger_client.groups.deletions import Deletions
from ledger_client.groups.feed import FoundLanes, OpenTicks, TopicFeed
from ledger_client.groups.options import ConsumedLane, ConsumerOptions, OnParts, TopicPartition
from ledger_client.groups.progress import Progress
from ledger_client.groups.slots import Units
from ledger_client.topics.context import TopicContext
from ledger_client.topics.positions import EARLIEST, Places, Position
from ledger_client.topics.reading.options import ReadOptions
from ledger_client.topics.times import Timestamp
from metadata.groups.assignment import Part
from metadata.groups.rows import MemberRecord, parts_of
from metadata.topics import TopicRecord

T = TypeVar("T")
RETRY_S = 0.5
NAMES_KEPT = 1000
"""How many names of topics are kept, for errors; those of topics that are read in any case."""
FINISH_PART = 0.8
"""Of revoke_s, for the application and its on_revoked to be done."""
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
        """Read partitions of a topic from these places on. Raises LedgerError if none is."""

    def at_work(self) -> set[Part]:
        """Return the parts of which the application has messages that it may be at work on."""

    def lapse(self, gone: Set[Part], at_work: Set[Part]) -> Set[Part]:
        """Return those of *gone* of which messages were handed out that are not committed.

        Those messages come again, at another member. The application is told of *at_work*.
        """

    def forget(self, parts: set[Part]) -> None:
        """Forget what the application has of *parts*: others have them by now."""


class Revocation:
    """A call of on_revoked, by which the calls that it makes are known."""

    def __init__(self, owner: object, parts: set[Part]) -> None:
        self.owner: object = owner
        """`None` once it has returned"""
        self.parts = parts
        self.lapsed: Set[Part] = set()
        """those whose messages come again elsewhere: it was called too late, or took too long"""
        self.is_cut_off = False
        """it took too long"""


_revocation: ContextVar[Revocation | None] = ContextVar("_revocation", default=None)
"""the one that the caller is in, whatever thread it runs in"""


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
        self.has_begun = False
        """the member has had something to read"""
        self.feeds: dict[int, TopicFeed] = {}
        """by topic uid"""
        self._topic_names: dict[int, str] = {}
        """of topics that are or were read, by uid"""
        self._up_ms = 0
        self._restarted: dict[Part, Places] = {}
        """where partitions go on whose lanes are looked up"""
        self.deletions = Deletions(context, uids, self.feeds, nursery, on_arrival)
        self._context = context
        self._options = options
        self._units = Units(options.mode)
        self._names = names
        self._progress = progress
        self._nursery = nursery
        self._on_arrival = on_arrival
        self._on_failure = on_failure
        self._open_ticks = open_ticks

    async def apply(self, row: MemberRecord | None, holder: Holder) -> bool:
        """Read what the row says, from now on; `None` if the member is none any more.

        Return False if some of it could not be begun. Then it is to be called again, with the
        newest row: others are to be given up in time meanwhile.
        """
        wanted, is_whole = set[Part](), True
        if row is not None:
            self._up_ms = row.up_ms
            wanted = parts_of(row.parts)
            for revoked in row.revoked:
                wanted -= parts_of(revoked.runs)
        self.parts = wanted
        if gone := self.active - wanted:
            await self._give_up(gone, holder, is_lost=row is None)
        if gained := wanted - self.active:
            is_whole = await self._begin(gained, holder)
        if row is not None:  # else they may come back
            self.deletions.look()
        self._on_arrival()
        return is_whole

    def topic_of(self, part: Part) -> str:
        """Return the name of the topic of a partition that is or was read."""
        return self.feeds[part.topic].topic.name

    def refusal(self, parts: Iterable[Part], reason: str = "") -> CommitRefused:
        """Return the error for commits of *parts*, which names topics that are or were read."""
        chosen, names = sorted(parts), self._topic_names
        return CommitRefused(self._options.group, chosen, reason=reason, topics=names)

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
        """Go on from other places in these partitions. Raises LedgerError; then nothing changed."""
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
        for uid in lanes.keys() & self.feeds.keys():
            of_topic = {p: places for p, places in starts.items() if p.topic == uid}
            moved = {p.partition: places for p, places in of_topic.items() if p in self.active}
            self.feeds[uid].move(moved, lanes[uid])

    def begin_again(self, starts: Mapping[Part, Places]) -> None:
        """Go on from other places in these partitions, once their lanes can be looked up."""
        self.drop(starts)
        self._hold(starts)
        self._restarted.update(starts)
        self._nursery.start_soon(self._add_restarted, starts)

    async def _add_restarted(self, starts: Mapping[Part, Places]) -> None:
        with suppress(NoSuchTopic):  # soon the row will not have it either
            lanes = await self._until_done(partial(self._lanes, starts))
            # What was given up meanwhile, or restarted once more, is not among them.
            restarted = self._restarted.items()
            left = {part: places for part, places in restarted if starts.get(part) is places}
            self._move(left, lanes)

    def _hold(self, parts: Iterable[Part]) -> None:
        """In the order of timestamps, hand out nothing until these are read."""
        for part in parts:
            if part.topic in self.feeds:
                self.feeds[part.topic].hold([part.partition])

    async def add(self, starts: dict[Part, Places]) -> None:
        """Read partitions from these places on. Raises LedgerError, but not for deleted topics."""
        for uid in {part.topic for part in starts}:
            of_topic = {p.partition: places for p, places in starts.items() if p.topic == uid}
            feed = self.feeds[uid]
            try:
                await feed.add(of_topic)
            except NoSuchTopic:
                self.end(feed.topic)

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

    def revoking(self) -> Revocation | None:
        """Return the call of on_revoked by which the caller is called, if it is."""
        revocation = _revocation.get()
        return revocation if revocation and revocation.owner is self else None

    async def _give_up(self, gone: set[Part], holder: Holder, *, is_lost: bool) -> None:
        """Hand out nothing more of these partitions, and commit them while that is possible."""
        holder.withhold(gone)
        named = self.named(gone)
        told = Revocation(self, gone)
        busy = holder.at_work() & gone if is_lost else await self._finish(told, holder, named)
        told.lapsed = holder.lapse(gone, gone if told.is_cut_off else busy or set())
        self.drop(gone)  # seek() may have had them read again
        for part in gone:
            self._restarted.pop(part, None)
        self.active -= gone
        if busy is not None:
            with trio.move_on_after(self._options.revoke_s):
                await self._tell_revoked(told, named)
        self._progress.forget(gone)
        holder.forget(gone)
        for uid in {part.topic for part in gone}:
            self._close_feed(uid)

    async def _finish(
        self, told: Revocation, holder: Holder, named: Sequence[TopicPartition]
    ) -> set[Part] | None:
        """Let the application be done with these partitions, and commit them.

        Return those that it is at work on when the time is over; `None` if it is done. If it is
        not, on_revoked was not called: it could only commit what the application is at work on.
        """
        begun_at, revoke_s = trio.current_time(), self._options.revoke_s
        gone, is_done = told.parts, False
        with trio.move_on_at(begun_at + revoke_s * FINISH_PART) as limit:
            await holder.finish(gone)
            is_done = True
            await self._tell_revoked(told, named)
        told.is_cut_off = is_done and limit.cancelled_caught
        if told.is_cut_off:
            _log.warning(
                "on_revoked was cut off after %g s (%g of revoke_s); the rest comes again",
                revoke_s * FINISH_PART,
                FINISH_PART,
            )
        busy = None if is_done else holder.at_work() & gone
        with trio.move_on_at(begun_at + revoke_s * COMMIT_PART):
            await holder.finish_commits()
            if self._options.auto_commit_s is not None:
                await holder.commit_consumed(gone)
            else:
                await self._progress.settle()  # what the application commits just now counts
        return busy

    async def _tell_revoked(self, told: Revocation, named: Sequence[TopicPartition]) -> None:
        token = _revocation.set(told)
        try:
            await _tell(self._options.on_revoked, named)
        except (CommitRefused, MemberRemoved) as failure:  # it cannot know that it is too late
            _log.warning("on_revoked: %s", failure)
        finally:
            _revocation.reset(token)
        # One that was cut off is not over: a thread goes on, and what it commits is still its own.
        told.owner = None

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
        if uid in self.feeds and not any(part.topic == uid for part in self.active):
            feed = self.feeds.pop(uid)
            if not feed.is_over:
                feed.end()
            self.deletions.doubt(uid)

    async def _begin(self, gained: set[Part], holder: Holder) -> bool:
        """Read these partitions from the group's progress on; return False if some could not be."""
        starts: dict[Part, Places] = {}
        is_whole = True
        for uid in sorted({part.topic for part in gained}):
            parts = {part for part in gained if part.topic == uid}
            try:
                starts |= await self._starts(uid, parts)
            except BadGroup as failure:
                self._on_failure(failure)
                return True
            except (NoSuchTopic, CommitRefused) as failure:
                # There is a newer row, or soon will be: without these, or all of them come then.
                gained -= parts
                self._close_feed(uid)
                if isinstance(failure, NoSuchTopic):
                    self.deletions.note(uid)
            except LedgerError as failure:
                self._log_failure(failure)
                gained -= parts
                self._close_feed(uid)
                is_whole = False
        if not gained:
            return is_whole
        self._hold(gained)
        for part in gained:
            holder.begin(part, starts[part])
        self.active |= gained
        self.has_begun = True
        await _tell(self._options.on_assigned, self.named(gained))
        for uid in sorted({part.topic for part in gained}):
            of_topic = {part: starts[part] for part in gained if part.topic == uid}
            try:
                await holder.read(of_topic)
            except LedgerError as failure:
                self._log_failure(failure)
                self.begin_again(of_topic)
        return is_whole

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

    def _log_failure(self, failure: LedgerError) -> None:
        _log.warning("group %s: partitions not begun: %s", self._options.group, failure)

    async def _starts(self, uid: int, parts: set[Part]) -> dict[Part, Places]:
        """Return the places at which to begin in each of these partitions of a topic."""
        feed = await self.feed(uid)
        stored = await self._progress.read(parts)
        starts: dict[Part, Places] = {part: places or {} for part, places in stored.items()}
        first = [part for part, places in stored.items() if places is None]
        start = self._options.start
        if not first or start == "earliest":
            return starts
        if start == "none":
            partition, where = self.partition(first[0]), feed.topic.name
            if partition >= 0:
                where = f"partition {partition} of {where}"
            raise BadGroup(
                f"group {self._options.group} has committed nothing in {where}, and start is "
                '"none"; begin at "earliest" or "latest"'
            )
        if isinstance(start, Timestamp) and not feed.topic.timesync:
            raise BadGroup(
                f"{feed.topic.name} is without timesync: its messages have no timestamps to begin "
                "at; begin at a publish time"
            )
        later = await self._later(feed, first) if start == "latest" else set()
        places = await feed.begin({self.partition(part) for part in first}, start)
        begun = {part: {} if part in later else places[self.partition(part)] for part in first}
        # Durable at once: what is written from now on is not missed by the next member.
        await self._progress.begin(begun)
        return starts | begun

    async def _later(self, feed: TopicFeed, parts: Iterable[Part]) -> set[Part]:
        """Return the partitions that came after the group: it has seen nothing of them before."""
        since_ms = await self._progress.since_ms(feed.topic.name)
        if since_ms is None:
            since_ms = self._up_ms
        return {part for part in parts if self._begun_ms(feed.topic, part) >= since_ms}

    def _begun_ms(self, topic: TopicRecord, part: Part) -> float:
        """Return when a partition came into being; infinity if it did since *topic* was read."""
        partition = self.partition(part)
        return topic.begun_ms(partition) if partition in topic.partition_indexes else math.inf

    async def _open_feed(self, uid: int) -> TopicFeed:
        topic = await self._topic(uid)
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

    async def _topic(self, uid: int) -> TopicRecord:
        """Return the topic with this uid. Raises NoSuchTopic."""
        for name in self._names:
            with suppress(NoSuchTopic):
                topic, _ = await self._context.catalogue.get(name)
                if topic.uid == uid:
                    return topic
        for topic in await self._context.catalogue.list():
            if topic.uid == uid:
                return topic
        raise NoSuchTopic(f"uid {uid}")


def _named(parts: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Return *parts* as a set. Raises TypeError for what assignment() does not return."""
    named = list(parts) if isinstance(parts, Iterable) else [parts]
    if not all(isinstance(each, TopicPartition) for each in named):
        raise TypeError(f"these are no partitions as assignment() returns them: {parts!r:.80}")
    return set(named)


async def _tell(function: OnParts | None, parts: Sequence[TopicPartition]) -> None:
    """Call a function of the application, which may be an async one."""
    if function is not None:
        result = function(parts)
        if result is not None:
            await result
