"""Messages of a shared group: taken, handed out, and acknowledged one by one.

    arrived ──taken (one transaction)──► Holdings ──► application ──ack──► stored
                                            ▲  ▲         │ nack, time out
             others' shares ──adopted───────┘  └─ noted ─┴──► too often: dead letter

The member that has a partition takes entries from the group's progress on; what it takes is in
rows of its own (metadata/groups/shares.py), so that nothing depends on where a member stops.
"""

from __future__ import annotations

import heapq
import logging
import math
import secrets
from collections import deque
from collections.abc import Iterable, Sequence, Set
from itertools import count, islice

import trio

from ledger_client.background import OneTaker
from ledger_client.errors import Gap, LedgerError, MetadataUnavailable
from ledger_client.figures import ConsumeFigures
from ledger_client.groups.acknowledging import GONE, Saver
from ledger_client.groups.arrivals import Arrivals, Awaited
from ledger_client.groups.holdings import Holdings
from ledger_client.groups.losses import Losses
from ledger_client.groups.options import ConsumerOptions, TopicPartition
from ledger_client.groups.progress import Progress
from ledger_client.groups.share import Share, State
from ledger_client.groups.share_rows import ShareRows
from ledger_client.groups.sharing import Sharing
from ledger_client.groups.sources import DeadSender, OpenDead, PartSource
from ledger_client.groups.taking import Taking
from ledger_client.topics.context import TopicContext
from ledger_client.topics.messages import Message, decoding
from ledger_client.topics.positions import Place, Places
from metadata.groups.assignment import Part

RETRY_S = 0.5
COUNTS_AGAIN_S = 10.0
"""Until deliveries are counted before other messages go out again, after that has failed."""
NO_ANSWER = "not acknowledged by a member that left or was lost"
REASON_MAX = 1000
"""Characters of a reason that are kept."""
LOOKS = 20
"""How often a message is looked at until its acknowledgement is overdue."""
_log = logging.getLogger(__name__)


class Shared:
    """An async iterator of messages, of which each is to be acknowledged.

    Args:
        context: the client's.
        options: the consumer's.
        membership: in the group.
        progress: the group's, in this member's partitions.
        partitions: those that this member takes from.
        arrivals: wakes the application.
        open_dead: returns what sends dead letters.
    """

    def __init__(
        self,
        context: TopicContext,
        options: ConsumerOptions,
        membership: Awaited,
        progress: Progress,
        partitions: PartSource,
        arrivals: Arrivals,
        open_dead: OpenDead,
    ) -> None:
        self._options = options
        self._decoding = decoding(options.value_decoder)
        self._partitions = partitions
        self._arrivals = arrivals
        self._figures = context.figures
        self._holdings = Holdings(
            by_key=options.mode == "key-shared",
            on_room=lambda: self._taking.look(),
            on_freed=arrivals.note,
        )
        self._rows = ShareRows(
            context.store,
            membership.group,
            membership.member,
            run=secrets.token_hex(8),
            timeout_s=context.options.metadata_timeout_s,
        )
        self._saver = Saver(membership.group, self._rows, self._holdings)
        self._losses = Losses(
            self._holdings,
            self._saver.change,
            context.figures,
            holds_back=options.mode == "key-shared" and options.on_gap == "raise",
        )
        self._was_told = False
        """the last call raised what is lost; if there are messages, the next one has some"""
        self._last_gap: Gap | None = None
        self._taking = Taking(
            options,
            partitions,
            progress,
            self._rows,
            self._holdings,
            self.receive,
            lambda: self._sharing.adopt_orphans(),
            arrivals.note,
        )
        self._sharing = Sharing(
            context.store.watches,
            options,
            membership,
            partitions,
            arrivals,
            self._rows,
            self._holdings,
            self,
        )
        self._dead: DeadSender = open_dead(
            context, membership.group, membership.member, options.dead_topic
        )
        self._due: deque[tuple[Share, int]] = deque()
        """messages to deliver again, which have to be counted first"""
        self._counts_again_at = -math.inf
        self._due_aside: list[tuple[Share, int]] = []
        """those of partitions that are paused, or held back"""
        self._later: list[tuple[float, int, Share, int]] = []
        """a heap of when messages are due"""
        self._numbers = count()
        self._sooner = trio.Event()
        """set when something is due before what was looked for"""
        # Without a bound of its own: there are no more of them than messages that this member has.
        self._send_dead, self._to_bury = trio.open_memory_channel[tuple[Share, int]](math.inf)
        self._begun: dict[Part, Places] = {}
        """partitions that are not read yet, as what others left of them comes first"""
        self._has_begun = trio.Event()
        self._taker = OneTaker("consumer")
        self._handed = 0
        self._last: Sequence[Message] = ()
        """what was handed out by the last call"""

    # --- messages ------------------------------------------------------------------------

    def __aiter__(self) -> Shared:
        return self

    async def __anext__(self) -> Message:
        message = None if self._counts_first or self._must_raise else self._next()
        while message is None:
            await self._have_some(1)
            message = self._next()
        self._last = (message,)
        return message

    async def poll(self, *, wait_s: float, messages_max: int) -> list[Message]:
        """Return the next messages; none if *wait_s* passes without any."""
        messages: list[Message] = []
        with trio.move_on_after(wait_s):
            while not messages:  # what there is may wait for others of its key
                await self._have_some(messages_max)
                messages = [*islice(iter(self._next, None), messages_max)]
        if not messages and not self._must_raise:  # what is due may not be stored in time
            messages = [*islice(iter(self._next, None), messages_max)]
        self._last = messages
        return messages

    def take_back(self) -> None:
        """Take back what was handed out last; the same delivery hands it out again."""
        for message in reversed(self._last):
            found = self._holdings.find(message)
            if found is not None and found[0].states[found[1]] == State.HANDED:
                self._holdings.release(found[0], [found[1]])
        self._last = ()
        self._arrivals.note()

    def _next(self) -> Message | None:
        message = self._holdings.next(trio.current_time())
        self._handed += 1
        self._taking.look()
        if message is None:
            return None
        self._was_told = False
        return message if self._decoding is None else self._decoding(message)

    async def _have_some(self, wanted: int) -> None:
        """Return when there is a message to hand out.

        Raises:
            Busy: another task or thread waits for one.
            NoSuchTopic: a topic that the consumer names was deleted; raised once.
            LedgerError: reading failed. Nothing is taken until then, however much is at hand.
        """
        with self._taker:
            self._raise_failure()
            while True:
                if self._counts_first:
                    await self._count_due(wanted)
                if self._holdings.has_next:
                    return
                await self._arrivals.until(self._has_some)

    @property
    def _counts_first(self) -> bool:
        """Whether what is due goes before what is at hand: not for a while after a failure."""
        has_failed = trio.current_time() < self._counts_again_at
        return bool(self._due) and not (has_failed and self._holdings.has_next)

    def _has_some(self) -> bool:
        self._raise_failure()
        return self._is_some_at_hand

    @property
    def _must_raise(self) -> bool:
        """Whether a call raises something before anything is handed out.

        Messages come between gaps, as more and more may be found to be lost.
        """
        has_lost = self._losses.has_some and not (self._was_told and self._is_some_at_hand)
        return has_lost or self._taking.has_failed

    @property
    def _is_some_at_hand(self) -> bool:
        return bool(self._due) or self._holdings.has_next

    def _raise_failure(self) -> None:
        self._taking.raise_failure()
        self._partitions.raise_deleted()
        if self._must_raise:
            gap = self._losses.take()
            self._sort_due()
            self._was_told = gap is not None
            if gap is not None:
                raise gap

    def taken(self) -> object:
        """Return something that changes whenever the application takes messages."""
        return self._handed

    # --- acknowledgements ----------------------------------------------------------------

    def ack(self, messages: Iterable[Message]) -> set[Share]:
        """Note that the application is done with messages; it is stored soon.

        Those that it acknowledged before are as good as new ones.

        Raises:
            CommitRefused: another member has some of them; the others are noted.
        """
        shares: set[Share] = set()
        lost: list[Message] = []
        for message in messages:
            found = self._holdings.find(message)
            if found is not None:
                share, index = found
                self._holdings.acknowledge(share, index, message)
                self._saver.change(share)
                shares.add(share)
            elif (before := self._holdings.acknowledged(message)) is not None:
                shares.update(before)
            else:
                lost.append(message)
        if lost:
            raise self._partitions.refusal_of(lost, GONE)
        return shares

    async def saved(self, shares: set[Share]) -> None:
        """Return when what was noted is durable. Raises CommitRefused, MetadataUnavailable."""
        lost = await self._saver.saved(shares)
        if lost:
            raise self._partitions.refusal({share.part for share in lost}, GONE)

    async def flush(self) -> None:
        """Return when everything that was noted is durable. Raises as saved()."""
        if lost := await self._saver.flush():
            raise self._partitions.refusal(lost, GONE)

    def nack(self, message: Message, delay_s: float, reason: str) -> None:
        """Deliver a message again after a while. Raises CommitRefused."""
        share, index = self._find(message)
        if share.states[index] == State.HANDED:
            self._put_off(share, index, delay_s, reason[:REASON_MAX])

    def extend(self, message: Message) -> None:
        """Let the time for a message's acknowledgement begin anew. Raises CommitRefused."""
        share, index = self._find(message)
        share.handed_at[index] = trio.current_time()

    def deliveries(self, message: Message) -> int:
        """Return how often a message was delivered, this time included. Raises CommitRefused."""
        share, index = self._find(message)
        return share.count(index)

    def _find(self, message: Message) -> tuple[Share, int]:
        found = self._holdings.find(message)
        if found is None:
            raise self._partitions.refusal_of([message], GONE)
        return found

    # --- again ---------------------------------------------------------------------------

    def _put_off(self, share: Share, index: int, delay_s: float, reason: str) -> None:
        """Deliver a message again after *delay_s*, or never more."""
        self._holdings.wait(share, index, State.WAITING, reason)
        if self._is_over(share, index):
            self._send_dead.send_nowait((share, index))
            return
        at = trio.current_time() + delay_s
        heapq.heappush(self._later, (at, next(self._numbers), share, index))
        self._sooner.set()

    def _is_over(self, share: Share, index: int) -> bool:
        limit = self._options.deliveries_max
        return bool(limit) and share.count(index) >= limit

    async def _count_due(self, wanted: int) -> None:
        """Count one more delivery of the next messages that are due, then let them go out."""
        chosen: list[tuple[Share, int]] = []
        while self._due and len(chosen) < wanted:
            share, index = self._due.popleft()
            if share.states[index] != State.DUE:
                continue
            chosen.append((share, index))
            if index not in share.ahead:
                share.note_delivery(index)
                self._saver.change(share)
        try:
            await self._saver.saved({share for share, _ in chosen})
        except BaseException as failure:
            self._due.extendleft(reversed(chosen))
            if not isinstance(failure, MetadataUnavailable):
                raise
            self._counts_again_at = trio.current_time() + COUNTS_AGAIN_S
            if not self._holdings.has_next:
                raise
            return  # what is at hand needs no store
        here = [(share, index) for share, index in chosen if share.states[index] == State.DUE]
        for share, index in reversed(self._holdings.in_order(here)):
            self._holdings.release(share, [index])
            message = share.messages[index]
            if message is not None and share.count(index) > 1:  # else it was only counted before
                self._count(message).redeliveries += 1

    async def _look_at_times(self) -> None:
        """Let messages be due whose delay is over, or whose acknowledgement is."""
        timeout_s = self._options.ack_timeout_s
        while True:
            now = trio.current_time()
            for share, index in self._holdings.overdue(now - timeout_s):
                self._put_off(share, index, 0, f"no acknowledgement in {timeout_s:g} s")
            while self._later and self._later[0][0] <= now:
                _, _, share, index = heapq.heappop(self._later)
                if share.states[index] == State.WAITING:
                    self._make_due(share, index)
            until = timeout_s / LOOKS
            if self._later:
                until = min(until, self._later[0][0] - now)
            self._sooner = trio.Event()
            with trio.move_on_after(max(until, 0.01)):
                await self._sooner.wait()

    def _make_due(self, share: Share, index: int) -> None:
        self._holdings.wait(share, index, State.DUE)
        if self._holdings.is_aside(share):
            self._due_aside.append((share, index))
            return
        self._due.append((share, index))
        self._arrivals.note()
        self._sharing.look()

    def changed(self, share: Share) -> None:
        """Store a share soon: it changed."""
        self._saver.change(share)

    async def _bury(self) -> None:
        """Send dead letters, and acknowledge their messages then."""
        async for share, index in self._to_bury:
            message = share.messages[index]
            while message is not None and share.states[index] != State.DONE:
                if share.states[index] == State.LEAVING:
                    await trio.sleep(RETRY_S)
                    continue
                times, reason = share.count(index), share.reasons.get(index, NO_ANSWER)
                try:
                    await self._dead.send(message, deliveries=times, reason=reason)
                except LedgerError as failure:
                    _log.warning("group %s: no dead letter yet: %s", self._options.group, failure)
                    await trio.sleep(RETRY_S)
                    continue
                self._count(message).dead_letters += 1
                if share.states[index] != State.DONE:
                    self._holdings.finish(share, index)
                    self._saver.change(share)

    def _count(self, message: Message) -> ConsumeFigures:
        # By the message's own word: the member may read nothing of its topic any more.
        return self._figures.consuming(self._options.group, message.topic)

    # --- shares come and go --------------------------------------------------------------

    def miss(self, gap: Gap, share: Share, lost: Sequence[Place]) -> None:
        """Note what a share has lost; tell() tells of it."""
        if self._losses.note(gap, share, lost):
            self._sort_due()

    def tell(self) -> None:
        """Let calls of the application raise what is lost, unless it skips gaps."""
        self._losses.gather()
        while self._options.on_gap == "skip" and self._losses.take() is not None:
            pass
        if self._losses.has_some:
            self._arrivals.note()

    def receive(self, share: Share) -> None:
        """Hand out the messages of a share that this member has by now."""
        self._holdings.add(share)
        self._sharing.keep_out(share)
        for index in share.in_state(State.READY):
            if share.is_new(index):
                continue
            if self._is_over(share, index):
                self._holdings.wait(share, index, State.WAITING)
                self._send_dead.send_nowait((share, index))
            else:
                self._make_due(share, index)
        self._holdings.release(share)
        self._sharing.look()
        if not share.left:
            self._saver.change(share)
        self._arrivals.note()

    def due(self) -> list[tuple[Share, int]]:
        """Return the messages that are to be delivered again, and that nobody has asked for."""
        return [each for each in self._due if each[0].states[each[1]] == State.DUE]

    def keep(self, share: Share, index: int) -> None:
        """Deliver a message again that could not be given away, if its time came meanwhile."""
        state, waits = share.states[index], (share, index)
        is_late = state == State.WAITING and not self._is_over(share, index)
        is_late &= all(each[2:] != waits for each in self._later)
        if is_late or (state == State.DUE and waits not in (*self._due, *self._due_aside)):
            self._make_due(share, index)

    # --- partitions come and go ----------------------------------------------------------

    def arrive(self) -> None:
        """Note that there may be something to take."""
        self._taking.arrive()
        self._arrivals.note()

    def begin(self, part: Part, places: Places) -> None:
        """Note that messages of *part* come from these places on."""
        self._taking.begin(part, places)

    async def read(self, starts: dict[Part, Places]) -> None:
        """Take what others left of these partitions, then read on: soon.

        That may take long, and other partitions are to be given up in time meanwhile.
        """
        self._begun |= starts
        self._has_begun.set()

    async def _read_begun(self) -> None:
        while True:
            await self._has_begun.wait()
            self._has_begun = trio.Event()
            while starts := dict(self._begun):
                try:
                    await self._sharing.adopt_orphans()
                    await self._taking.read(starts.keys() & self._begun.keys())
                except LedgerError as failure:
                    self._sharing.report("partitions not begun", failure)
                    await trio.sleep(RETRY_S)
                    continue
                for part, places in starts.items():
                    if self._begun.get(part) is places:  # else it went, and came again
                        del self._begun[part]

    async def prepare(self) -> None:
        """With keys in order, leave to others what is in this member's name before it joins.

        Later messages of these keys are others' by now, and they take nothing of a member that
        lives. Raises MetadataUnavailable.
        """
        if self._options.mode == "key-shared":
            await self._rows.free_former()

    def withhold(self, parts: set[Part]) -> None:
        """Take nothing more of *parts*."""
        for part in parts:
            self._begun.pop(part, None)
        self._taking.drop(parts)

    async def finish(self, parts: set[Part]) -> None:
        """With keys in order, wait until all messages of *parts* are done, or give them up."""
        try:
            await self._taking.settle()
        finally:
            if self._options.mode == "key-shared":
                await self._sharing.hand_over(parts)

    async def finish_commits(self) -> None:
        """Store what was acknowledged. Failures are logged."""
        await self.commit_consumed()

    async def commit_consumed(self, only: Iterable[Part] | None = None) -> None:
        """Store what was acknowledged. Failures are logged; flush() tells what came too late."""
        try:
            await self._saver.settle()
        except LedgerError as failure:
            _log.warning("group %s: %s", self._options.group, failure)

    def at_work(self) -> set[Part]:
        """None: see lapse()."""
        return set()

    def lapse(self, gone: Set[Part], at_work: Set[Part]) -> Set[Part]:
        """Nothing does: messages are acknowledged one by one, whoever has their partition."""
        return set()

    def forget(self, parts: set[Part]) -> None:
        """Messages that were taken stay with this member until they are done, and go out."""
        left = {self._whole_of(part) for part in self._partitions.active}
        self._holdings.resume({self._whole_of(part) for part in parts} - left)
        self._sort_due()

    def lose(self) -> None:
        """Have nothing any more: the member was removed, and others take what it had."""
        self._begun.clear()
        self._taking.lose()
        self._holdings.clear()
        self._losses.clear()
        self._due.clear()
        self._due_aside.clear()
        self._later.clear()
        self._rows.run = secrets.token_hex(8)

    def pause(self, parts: Iterable[TopicPartition] | None) -> None:
        """Hand out nothing of these partitions; `None` for all."""
        self._partitions.pause(parts)
        self._holdings.pause(self._whole(parts))
        self._sort_due()

    def resume(self, parts: Iterable[TopicPartition] | None) -> None:
        """Hand out these partitions again; `None` for all."""
        self._holdings.resume(self._whole(parts))
        self._partitions.resume(parts)
        self._sort_due()
        self._arrivals.note()

    def _sort_due(self) -> None:
        """Set those aside that may not go out by now, and take back those that may again."""
        every = [*self._due, *self._due_aside]
        self._due = deque(each for each in every if not self._holdings.is_aside(each[0]))
        self._due_aside = [each for each in every if self._holdings.is_aside(each[0])]

    def _whole(self, parts: Iterable[TopicPartition] | None) -> set[Part]:
        chosen = self._partitions.chosen(parts)
        return {self._whole_of(part) for part in chosen}

    def _whole_of(self, part: Part) -> Part:
        return Part(part.topic, self._partitions.partition(part))

    # --- the whole -----------------------------------------------------------------------

    async def run(self) -> None:
        """Take, store, give and deliver again until cancelled."""
        async with trio.open_nursery() as nursery:
            for work in (
                self._saver.run,
                self._taking.run,
                self._sharing.run,
                self._read_begun,
                self._look_at_times,
                self._bury,
            ):
                nursery.start_soon(work)

    def raise_failures(self) -> None:
        """Raise what went wrong and was not raised yet: a gap before all else."""
        gap, self._last_gap = self._last_gap, None
        if gap is not None:
            raise gap
        self._taking.raise_failure()

    async def close(self, *, is_done: bool, commits: bool) -> None:
        """Store acknowledgements, and leave everything else to others. Raises LedgerError."""
        self._taking.stop()
        await self._taking.settle()
        # Others tell of the rest, and of this one too if nobody would see it here.
        self._last_gap = self._losses.take() if is_done else None
        try:
            if lost := await self._saver.flush():
                _log.warning("%s", self._partitions.refusal(lost, GONE))
        finally:
            await self._sharing.leave()
            await self._dead.close()
