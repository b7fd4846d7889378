"""Messages in order: what was handed out of each partition, and what of it was consumed.

A message is handed out when the application gets it, and consumed when the application asks for
the next one. What is committed by itself is what was consumed; commit() takes what was handed out,
since the application calls it when it is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING

import trio

from ledger_client.background import OneTaker
from ledger_client.errors import BadGroup, CommitRefused, LedgerError
from ledger_client.groups.arrivals import Arrivals
from ledger_client.groups.commits import Commits
from ledger_client.groups.lapses import Lapses, beyond
from ledger_client.groups.options import TopicPartition
from ledger_client.groups.partitions import Partitions
from ledger_client.groups.progress import Progress, by_part, is_begin, position_in
from ledger_client.groups.telling import Revocation
from ledger_client.groups.turns import EVENTS, Turns, as_events
from ledger_client.topics.messages import (
    CollectionPaused,
    MergedBatch,
    Message,
    MessageBatch,
    MessageRange,
    ValueDecoder,
    converted,
    decoding,
    record_batches,
)
from ledger_client.topics.positions import EARLIEST, LanePlace, LaneRef, Place, Places, Position
from metadata.groups.assignment import Part

if TYPE_CHECKING:
    import pyarrow as pa

LEDGERS_KEPT = 64
"""Ledgers of a lane whose messages can be committed one by one."""
_log = logging.getLogger(__name__)
_NOTHING: tuple[Message, ...] = ()
Reached = tuple[MessageBatch, int]
"""A batch, and how many of its messages lie before a place."""


class InOrder:
    """An async iterator of the messages of some partitions, in the order of each lane."""

    def __init__(
        self,
        group: str,
        partitions: Partitions,
        progress: Progress,
        arrivals: Arrivals,
        turns: Turns,
        value_decoder: ValueDecoder | None = None,
    ) -> None:
        self._group = group
        self._partitions = partitions
        self._progress = progress
        self._arrivals = arrivals
        self._turns = turns
        self._decoding = decoding(value_decoder)
        self._taker = OneTaker("consumer")
        self._asked: trio.Event | None = None
        """set when the application asks, if somebody waits for that"""
        self._has_asked = False
        self._handed: dict[Part, dict[int, Place]] = {}
        """the place in each lane after the messages handed out, but those of *_lately*"""
        self._lately: dict[LaneRef, Reached] = {}
        """what was handed out of each lane since, but of *_current*; places are made when needed"""
        self._current: MessageRange | None = None
        self._ready: Iterator[Message] = iter(_NOTHING)
        """the messages of *_current* that were not handed out yet"""
        self._in_hand: dict[LaneRef, Reached] | None = None
        """where what poll() returned begins in each lane; `None`: the last message is in hand"""
        self._tick = 0
        """the tick up to which *_current* reaches, if messages come by timestamp"""
        self._lapses = Lapses()
        self._commits = Commits(progress, partitions.check, self._lapses, self._interrupt)
        self._ending: set[Part] = set()
        """partitions whose last commit has begun"""
        self._put_off: LedgerError | None = None
        """raised by the next call, as messages came before it"""
        self._last: dict[tuple[Part, int], tuple[int, int, int]] = {}
        """the last batch of each lane: its ledger, its entry, and the index of its last message"""
        self._numbers: dict[tuple[Part, int], dict[int, int]] = {}
        """the number of each ledger in its lane"""

    # --- messages ------------------------------------------------------------------------

    def __aiter__(self) -> InOrder:
        return self

    @property
    def at_hand(self) -> Iterator[Message]:
        """What the next calls return without a wait; one thread beside trio's may take from it.

        A message is handed out when it is taken. At its end, the application asks.
        """
        return self._ready

    async def __anext__(self) -> Message:
        if self._in_hand is not None:  # from poll()
            self.note_asked()
        for message in self._ready:
            return message
        with self._taker:
            self.note_asked()
            while not length_hint(self._ready):
                await self._arrivals.until(self._next)
            return next(self._ready)

    async def poll(self, *, wait_s: float, messages_max: int) -> list[Message]:
        """Return the next messages; none if *wait_s* passes without any."""
        in_hand: dict[LaneRef, Reached] = {}
        messages: list[Message] = []
        with self._taker, trio.move_on_after(wait_s):
            self.note_asked()
            while not messages:
                if not length_hint(self._ready):
                    await self._arrivals.until(self._next)
                with CollectionPaused():
                    self._gather(messages, max(messages_max, 1), in_hand)
        self._in_hand = in_hand
        return messages

    async def poll_batches(self, *, wait_s: float, messages_max: int) -> list[pa.RecordBatch]:
        """Return the next messages as RecordBatches; none if *wait_s* passes without any."""
        in_hand: dict[LaneRef, Reached] = {}
        ranges: list[MessageRange] = []
        left = max(messages_max, 1)
        with self._taker, trio.move_on_after(wait_s):
            self.note_asked()
            self.give_back()
            await self._arrivals.until(self._next_in_hand)
            while self._current is None:  # it went meanwhile
                await self._arrivals.until(self._next_in_hand)
            tick = self._tick
            while left and (not ranges or self._has_more(self._next_range)):
                if self._tick != tick:
                    self._put_back()
                    break
                ranges.append(taken := self._cut(left))
                in_hand.setdefault(taken.batch.lane, (taken.batch, taken.start))
                left -= taken.stop - taken.start
        self._in_hand = in_hand
        return record_batches(ranges)

    def note_asked(self) -> None:
        """Note that the application is done with what it has."""
        self._in_hand = None
        self._has_asked = True
        self._settle()
        if self._asked is not None:
            self._asked.set()
            self._asked = None

    def taken(self) -> object:
        """Return something that changes whenever the application takes messages."""
        return self._turns.count, length_hint(self._ready)

    def _has_more(self, take_next: Callable[[], bool]) -> bool:
        """Return True if there is another message; a failure waits for the next call."""
        try:
            return bool(length_hint(self._ready)) or (not self._commits.has_failed and take_next())
        except LedgerError as failure:
            self._put_off = failure
            return False

    def _gather(
        self, messages: list[Message], messages_max: int, in_hand: dict[LaneRef, Reached]
    ) -> None:
        """Add what has arrived to *messages*, and to *in_hand* where it begins."""
        tick = self._tick
        while (room := messages_max - len(messages)) and self._has_more(self._next):
            current = self._current
            assert current is not None
            if messages and self._tick != tick:
                self._put_back()
                break
            tick = self._tick
            if current.batch.lane not in in_hand:
                begin = current.stop - length_hint(self._ready)
                in_hand[current.batch.lane] = current.batch, begin
            messages += islice(self._ready, room)

    def _put_back(self) -> None:
        """Give all messages of the current batch back, of which none was handed out."""
        current = self._current
        assert current is not None
        self._take_rest()
        feed = self._partitions.feeds[current.batch.lane.uid]
        feed.give_back(MergedBatch((current,), None), current.stop - current.start)
        self._current = current._replace(stop=current.start)

    def _cut(self, rows_max: int) -> MessageRange:
        """Leave at most the first *rows_max* messages of the current batch; return those."""
        current = self._current
        assert current is not None
        over = current.stop - current.start - rows_max
        if over > 0:
            feed = self._partitions.feeds[current.batch.lane.uid]
            feed.give_back(MergedBatch((current,), None), over)
            current = self._current = current._replace(stop=current.stop - over)
        return current

    def _next(self) -> bool:
        """Make the next batch that has arrived current, as objects; False if there is none."""
        if not self._next_range() or self._current is None:
            return False
        messages = self._current.messages
        is_event = self._current.batch.lane.topic.endswith(EVENTS)
        self._ready = iter(as_events(messages) if is_event else converted(messages, self._decoding))
        return True

    def _next_in_hand(self) -> bool:
        """Make the next batch that has arrived current, and count nothing of it as consumed."""
        found = self._next_range()
        if found and self._current is not None:
            self._in_hand = {self._current.batch.lane: (self._current.batch, self._current.start)}
        return found

    def _next_range(self) -> bool:
        """Make the next batch that has arrived current; False if there is none."""
        self._settle()
        self.raise_failure()
        put_off, self._put_off = self._put_off, None
        if put_off is not None:
            raise put_off
        self._partitions.raise_deleted()
        batch = self._turns.take(self._reached)
        if batch is None:
            return False
        (self._current,), self._tick = batch.ranges, batch.tick
        self._note_ledger(self._current)
        return True

    # --- places --------------------------------------------------------------------------

    def _settle(self) -> None:
        """Count all messages of the current batch that were handed out as consumed."""
        current = self._current
        if current is not None:
            left = length_hint(self._ready)
            self._lately[current.batch.lane] = current.batch, current.stop - left
            if not left:
                self._current = None

    def _note_handed(self) -> None:
        """Make places of what was handed out lately."""
        for lane, (batch, count) in self._lately.items():
            if _part_of(lane) in self._partitions.active:
                self._handed.setdefault(_part_of(lane), {})[lane.lane] = batch.after(count)
        self._lately.clear()

    def _places(self, *, consumed: bool) -> dict[Part, dict[int, Place]]:
        """Return the places after what was handed out, or only after what was consumed."""
        places = self._handed_before()
        for feed in self._partitions.feeds.values():
            for ref, reached in feed.places().items():  # also after entries without messages
                known = places.get(Part(ref.uid, ref.partition))
                if known is not None and reached.at > known.get(ref.lane, EARLIEST).at:
                    known[ref.lane] = reached
        self._add_current(places, consumed=consumed)
        if consumed:
            for lane, (batch, count) in (self._in_hand or {}).items():
                if _part_of(lane) in places:
                    places[_part_of(lane)][lane.lane] = batch.after(count)
        return places

    def _handed_before(self) -> dict[Part, dict[int, Place]]:
        """Return the places after what was handed out, but of the current batch."""
        self._note_handed()
        active = self._partitions.active
        return {part: dict(lanes) for part, lanes in self._handed.items() if part in active}

    def _add_current(self, places: dict[Part, dict[int, Place]], *, consumed: bool) -> None:
        current = self._current
        if current is not None and _part_of(current.batch.lane) in self._partitions.active:
            lane, count = current.batch.lane, current.stop - length_hint(self._ready)
            if consumed and self._in_hand is None:
                count = max(count - 1, current.start)
            places.setdefault(_part_of(lane), {})[lane.lane] = current.batch.after(count)

    def _reached(self, part: Part) -> Places:
        """Return the places in a partition after what was handed out."""
        return self._places(consumed=False).get(part, {})

    def _note_ledger(self, current: MessageRange) -> None:
        lane, place = current.batch.lane, current.batch.place
        key = (_part_of(lane), lane.lane)
        self._last[key] = place.ledger_id, place.entry, current.batch.count - 1
        numbers = self._numbers.setdefault(key, {})
        if place.ledger_id not in numbers:
            numbers[place.ledger_id] = place.number
            while len(numbers) > LEDGERS_KEPT:
                del numbers[next(iter(numbers))]

    def position(self) -> Position:
        """Return the place in each lane after the messages that were handed out."""
        return position_in(self._places(consumed=False), self._partitions.topic_of)

    # --- progress ------------------------------------------------------------------------

    async def run(self) -> None:
        """Store the commits that were only started, until cancelled."""
        await self._commits.run()

    async def commit(self, what: Message | Sequence[LanePlace] | None) -> None:
        """Store the group's progress. Raises as GroupConsumer.commit()."""
        revoking = self._partitions.telling.revoking()
        places = self._named(what, revoking)
        refused: set[Part] = set()
        try:
            await self._commits.commit(places, explicit=_is_explicit(what))
        except CommitRefused as failure:
            refused = {Part(*part) for part in failure.parts}
        if revoking is None:
            refused |= self._commits.take_refused()
        self._raise_refused(refused | self._untold(what, revoking), revoking)
        if revoking is None and (other := self._commits.take_failure()):
            raise other

    def commit_nowait(self, what: Message | Sequence[LanePlace] | None) -> None:
        """Store the group's progress soon. Raises BadGroup, CommitRefused."""
        revoking = self._partitions.telling.revoking()
        places, untold = self._named(what, revoking), self._untold(what, revoking)
        self._commits.start(places, explicit=_is_explicit(what))
        self._raise_refused(untold, revoking)

    def _untold(
        self, what: Message | Sequence[LanePlace] | None, revoking: Revocation | None
    ) -> Set[Part]:
        """Return the partitions in which a commit of all that was handed out is not of all.

        Those in which something is under way are left for later: it may turn out to be stored.
        """
        if what is not None:
            return set()
        under_way = self._commits.under_way
        if revoking is not None:
            return self._lapses.among(revoking.lapsed) - under_way
        lapsed = self._lapses.untold - self._commits.refused
        self._commits.owe(lapsed & under_way)
        return lapsed - under_way

    def _raise_refused(self, refused: Set[Part], revoking: Revocation | None) -> None:
        """Raise CommitRefused once; what on_revoked learns of, the application still does."""
        if refused:
            if revoking is None:
                self._lapses.note_told(refused, self._handed_out())
            raise self._partitions.refusal(refused)

    async def finish_commits(self) -> None:
        """Wait until the commits that were only started are stored, or have failed."""
        await self._commits.finish()

    def raise_failure(self) -> None:
        """Raise why a commit that nobody waited for has failed, if one has; refusals first."""
        self._raise_refused(self._commits.take_refused(), None)
        if failure := self._commits.take_failure():
            raise failure

    def raise_failures(self) -> None:
        """Raise why commits that nobody waited for have failed, all at once: this is the end."""
        failure = self._commits.end()
        try:
            self._raise_refused(self._commits.take_refused(), None)
        except CommitRefused as refusal:
            if failure is not None:
                refusal.add_note(f"another commit failed, too: {failure}")
            raise
        if failure is not None:
            raise failure

    def _named(
        self, what: Message | Sequence[LanePlace] | None, revoking: Revocation | None
    ) -> Mapping[Part, Places]:
        """Return the places that the application means. Raises BadGroup, CommitRefused."""
        if what is None:
            if not self._has_asked and not self._partitions.active:
                raise BadGroup(f"group {self._group}: no partitions yet; poll, then commit")
            # Beside on_revoked, the application may be at work on partitions that stay.
            return self._places(consumed=revoking is not None)
        if isinstance(what, Message):
            part, lane, place = self._after(what, revoking)
            return {part: {lane: place}}
        return self._commits.whole(by_part(what))

    def _interrupt(self) -> None:
        """Let the application's next call raise what a commit has failed with."""
        self.give_back()
        self._arrivals.note()

    async def commit_consumed(self, only: Iterable[Part] | None = None) -> None:
        """Commit what was consumed by itself. Failures are logged.

        Args:
            only: partitions that are given up: forget() follows, and no other commit has them.
        """
        places = self._places(consumed=True)
        parts = places.keys() - self._ending if only is None else places.keys() & set(only)
        self._ending.update(only or ())
        chosen = {part: places[part] for part in sorted(parts)}
        try:
            await self._progress.commit(chosen)
        except LedgerError as failure:
            _log.warning("group %s: progress not committed: %s", self._group, failure)
        else:
            self._lapses.note_stored(chosen)

    def committed(self) -> Position:
        """Return the places at which the group goes on in this consumer's partitions."""
        parts = self._partitions.active
        places = {part: self._progress.committed(part) or {} for part in parts}
        return position_in(places, self._partitions.topic_of)

    async def seek(self, position: Sequence[LanePlace]) -> None:
        """Go on from these places. Raises as GroupConsumer.seek()."""
        named, active = by_part(position), self._partitions.active
        if strange := {part for part in named.keys() - active if not is_begin(named[part])}:
            raise self._partitions.refusal(strange)
        places = {part: lanes for part, lanes in named.items() if part in active}
        await self._partitions.check(places)
        await self._partitions.move(places)
        self._go_on(places)

    def take_back(self) -> None:
        """Take back what was handed out last."""
        lanes = list(self._in_hand or ())
        if self._in_hand is None and self._current is not None:
            lanes.append(self._current.batch.lane)
        parts = {_part_of(lane) for lane in lanes} & self._partitions.active
        places = self._places(consumed=True)
        chosen = {part: places[part] for part in parts}
        self._partitions.begin_again(chosen)
        self._go_on(chosen)

    def _go_on(self, places: Mapping[Part, Places]) -> None:
        """Forget what the application has of these partitions, which are read from there on."""
        parts = places.keys() & self._partitions.active
        self._withhold(parts)
        self._forget_in_hand(parts)
        for part in parts:
            self.begin(part, places[part])

    def _after(self, message: Message, revoking: Revocation | None) -> tuple[Part, int, Place]:
        feeds = self._partitions.feeds.values()
        uid = next((feed.topic.uid for feed in feeds if feed.topic.name == message.topic), -1)
        part = Part(uid, message.id.partition)
        number = self._numbers.get((part, message.lane), {}).get(message.id.ledger_id)
        if number is None:
            if revoking is None:
                self._lapses.note_told({part}, {})
            raise CommitRefused(self._group, [part], topics={part.topic: message.topic})
        entry, index, version = message.id.entry_id, message.id.batch_index, message.version
        if index < 0 or self._last[part, message.lane] == (*message.id[:2], index):
            after = Place(number, entry + 1, 0, message.id.ledger_id, version + 1)
        else:
            after = Place(number, entry, index + 1, message.id.ledger_id, version)
        return part, message.lane, after

    # --- partitions come and go ----------------------------------------------------------

    def begin(self, part: Part, places: Places) -> None:
        """Note that messages of *part* come from these places on."""
        if self._tick:
            self.give_back()  # older ones of the partition may come before them
        self._note_handed()
        self._handed[part] = dict(places)
        self._lapses.begin(part)

    async def read(self, starts: dict[Part, Places]) -> None:
        """Read partitions from these places on, once their lanes can be looked up."""
        await self._partitions.add(starts)

    def withhold(self, parts: set[Part]) -> None:
        """Read *parts* no longer, and hand out nothing more, not even what has arrived."""
        self._partitions.drop(parts)
        self._withhold(parts)

    def _withhold(self, parts: Set[Part]) -> None:
        if self._current is not None and _part_of(self._current.batch.lane) in parts:
            left = self._take_rest()
            self._current = self._current._replace(stop=self._current.stop - left)

    def pause(self, parts: Iterable[TopicPartition] | None) -> None:
        """Hand out nothing of these partitions; `None` for all."""
        self._partitions.pause(parts)
        self.give_back()

    def resume(self, parts: Iterable[TopicPartition] | None) -> None:
        """Hand out these partitions again; `None` for all."""
        self._partitions.resume(parts)

    def arrive(self) -> None:
        """Note that there may be something to take."""
        self._arrivals.note()

    def lose(self) -> None:
        """The member was removed: forget() follows for each of its partitions."""

    async def close(self, *, is_done: bool, commits: bool) -> None:
        """End what was begun, and commit what was consumed, if it *commits* by itself.

        *is_done*: the application is done with what it has.
        """
        self.give_back()
        if is_done:
            self.note_asked()
        await self.finish_commits()
        if commits:
            await self.commit_consumed()

    def give_back(self) -> None:
        """Give the messages back that were not handed out yet; they are taken again later."""
        left = self._take_rest()
        if self._current is not None and left:
            feed = self._partitions.feeds[self._current.batch.lane.uid]
            feed.give_back(MergedBatch((self._current,), None), left)
            self._current = self._current._replace(stop=self._current.stop - left)

    def _take_rest(self) -> int:
        """Take what is at hand away from the application; return the number of messages.

        list() takes all at one moment: a thread that has *at_hand* gets no message that is
        counted here.
        """
        return len(list(self._ready))

    async def finish(self, parts: set[Part]) -> None:
        """Wait until the application asks again, if it has messages of *parts*."""
        if self.at_work() & parts:
            self._asked = self._asked or trio.Event()
            await self._asked.wait()

    def at_work(self) -> set[Part]:
        """Return the parts of which the application has messages that it may be busy with."""
        if self._arrivals.is_awaited:
            return set()
        parts = {_part_of(lane) for lane in self._in_hand or {}}
        current = self._current
        if current is not None and current.stop - length_hint(self._ready) > current.start:
            parts.add(_part_of(current.batch.lane))
        return parts

    def lapse(self, gone: Set[Part], at_work: Set[Part]) -> Set[Part]:
        """As Holder.lapse."""
        places = self._handed_out()
        lapsed = {
            part: left
            for part in gone & places.keys()
            if (left := beyond(places[part], self._progress.committed(part) or {}))
        }
        self._lapses.add(lapsed, at_work)
        return lapsed.keys()

    def _handed_out(self) -> dict[Part, dict[int, Place]]:
        """Return the places after the messages that were handed out, and no others."""
        places = self._handed_before()
        self._add_current(places, consumed=False)
        return places

    def forget(self, parts: set[Part]) -> None:
        """Forget what the application has of *parts*."""
        self._note_handed()
        self._ending -= parts
        self._forget_in_hand(parts)
        for part in parts:
            self._handed.pop(part, None)
        for key in [each for each in self._numbers if each[0] in parts]:
            del self._numbers[key], self._last[key]

    def _forget_in_hand(self, parts: set[Part]) -> None:
        if self._current is not None and _part_of(self._current.batch.lane) in parts:
            self._take_rest()
            self._current = None
        if self._in_hand is not None:
            in_hand = self._in_hand.items()
            self._in_hand = {lane: at for lane, at in in_hand if _part_of(lane) not in parts}


def _part_of(lane: LaneRef) -> Part:
    return Part(lane.uid, lane.partition)


def _is_explicit(what: Message | Sequence[LanePlace] | None) -> bool:
    return what is not None and not isinstance(what, Message)
