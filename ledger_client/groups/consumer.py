"""A consumer: a member of a group, with the messages of its partitions, at least once.

    Membership ──row──► Partitions ──messages──► InOrder ──► application
                             ▲                      │
                             └────── Progress ◄─────┘

Bookies know no groups: a consumer that was cut off may still fetch messages of a partition that
another member has by now. It cannot commit them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Unpack

import trio

from ledger_client.background import Background
from ledger_client.errors import BadGroup, Gap, LedgerError, MemberRemoved
from ledger_client.groups.arrivals import Arrivals
from ledger_client.groups.feed import OpenTicks
from ledger_client.groups.heartbeats import Heartbeats, SharedHeartbeats
from ledger_client.groups.in_order import InOrder
from ledger_client.groups.membership import Membership
from ledger_client.groups.options import (
    ConsumedLane,
    ConsumerOptions,
    ConsumerSettings,
    TopicPartition,
)
from ledger_client.groups.partitions import Partitions
from ledger_client.groups.shared import Shared
from ledger_client.groups.sources import OpenDead
from ledger_client.groups.turns import Turns
from ledger_client.groups.wanted import Subscribed, wanted_topics
from ledger_client.opening import Openable
from ledger_client.options import check_timeout
from ledger_client.topics.context import TopicContext
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import LanePlace, Position
from metadata.groups.rows import MemberRecord

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)
BY_ACK = "acknowledge its messages with ack()"
NO_PLACES = "its members have no places; Client.groups.lag() and reset() have the group's"
CLOSED = "it was closed; open another consumer to go on"
CLOSE_S = 5.0
DELAY_S_MAX = 86_400.0
"""Until a message is delivered again."""
MESSAGES_MAX = (1 << 31) - 1
"""Messages that one call may be asked for."""


class GroupConsumer(Openable):
    """An async iterator of Message, from Client.consumer().

    One task takes messages; another that asks for them meanwhile gets Busy.
    """

    def __init__(
        self,
        context: TopicContext,
        options: ConsumerOptions,
        subscribed: Subscribed,
        heartbeats: Heartbeats,
        nursery: trio.Nursery,
        open_dead: OpenDead,
        open_ticks: OpenTicks,
    ) -> None:
        self._options = options
        self._nursery = nursery
        self._is_closed = False
        self._has_failed = False
        """its block ends with an error of ours"""
        self._membership = Membership(
            context,
            options,
            subscribed.wanted,
            heartbeats,
            progress=self._taken,
            apply=self._apply,
            prepare=self._prepare,
            wake=self._wake,
        )
        self._unseen: Gap | None = None  # raise_unseen()
        self._arrivals = Arrivals(self._membership)
        self._partitions = Partitions(
            context,
            options,
            subscribed.wanted.topics,
            subscribed.uids,
            self._membership.rows,
            nursery,
            on_arrival=self._arrive,
            on_failure=self._membership.fail,
            open_ticks=open_ticks,
        )
        self._delivery: InOrder | Shared
        if options.mode == "exclusive":
            turns = Turns(
                context,
                options.group,
                self._partitions.feeds,
                self._partitions.active,
                nursery,
                with_meta=options.with_meta,
                on_arrival=self._arrivals.note,
                on_deleted=self._partitions.end,
            )
            self._delivery = InOrder(
                options.group,
                self._partitions,
                self._membership.rows,
                self._arrivals,
                turns,
                options.value_decoder,
            )
        else:
            self._delivery = Shared(
                context,
                options,
                self._membership,
                self._membership.rows,
                self._partitions,
                self._arrivals,
                open_dead,
            )

    # --- messages ------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._delivery

    async def __anext__(self) -> Message:
        return await self._delivery.__anext__()

    async def poll(self, *, wait_s: float = 1.0, messages_max: int = 4096) -> list[Message]:
        """Return the next messages, at most *messages_max*; none if *wait_s* passes without any.

        `math.inf` waits for ever.

        Raises:
            ValueError: *wait_s* is no time, or *messages_max* not 1 to 2147483647.
            Busy: another task or thread waits for messages.
            Gap: messages at the group's place were removed. The next call goes on after them.
            BadGroup: with start="none", the group has committed nothing in a partition.
            MemberRemoved: another consumer was started under this member's name, or this one is
                closed.
            NoSuchTopic: a topic that the consumer names was deleted; raised once.
            LedgerError: reading failed; the next call tries again.
        """
        _check_poll(wait_s, messages_max)
        return await self._delivery.poll(wait_s=wait_s, messages_max=messages_max)

    async def poll_batches(
        self, *, wait_s: float = 1.0, messages_max: int = 50_000
    ) -> list[pa.RecordBatch]:
        """Return the next messages as Arrow RecordBatches; no message becomes an object.

        They count as handed out and as consumed like those of poll(), and have the columns that
        TopicReader.read_batches() has. Each is of one topic, which its schema's metadata names as
        "topic". Raises as poll().
        """
        _check_poll(wait_s, messages_max)
        in_order = self._exclusive("its messages come one by one; take them with poll()")
        return await in_order.poll_batches(wait_s=wait_s, messages_max=messages_max)

    def take_back(self) -> None:
        """Take back what was handed out last, as if it had not been: it is read again.

        For callers that a cancellation keeps from seeing what was returned to them.
        """
        self._delivery.take_back()

    def pause(self, parts: Iterable[TopicPartition] | None = None) -> None:
        """Hand out nothing more of these partitions; `None` for all. They stay assigned.

        Of what assignment() returned, partitions that moved elsewhere meanwhile are passed over.
        One that comes back is not paused any more. Raises TypeError for other things.
        """
        self._delivery.pause(parts)

    def resume(self, parts: Iterable[TopicPartition] | None = None) -> None:
        """Hand out these partitions again; `None` for all. Raises TypeError as pause()."""
        self._delivery.resume(parts)

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that this consumer reads now; none once it is over."""
        is_over = self._membership.failure is not None
        return self._partitions.named(() if is_over else self._partitions.active)

    # --- progress ------------------------------------------------------------------------

    async def commit(self, what: Message | Sequence[LanePlace] | None = None) -> None:
        """Store the group's progress, and return when it is durable.

        Args:
            what: a message, to go on after it; or places, as position() returned them, which may
                lie before what was committed. Lanes of their partitions that they do not name begin
                at their first message, as in seek(). Default: all messages that were handed out;
                in on_revoked, those that the application is done with.

        A place that is committed already may be committed again. Other places than those of
        position(), as it is now, are looked up, if they lie ahead of it or within a batch: that
        costs a few calls for each lane.

        Raises:
            BadGroup: nothing was asked for yet, and there are no partitions.
            BadTopic: a place is behind the end of its lane, ledger or batch; nothing was committed.
            CommitRefused: partitions are another member's by now; their messages come again. The
                rest was committed. Of EARLIEST, only if the group has gone on from there.
            MemberRemoved: as poll().
            MetadataUnavailable: the store did not answer in time; it may have been committed.
            LedgerError: a place could not be looked up; or a commit that commit_nowait() started
                has failed, and this one was made.
        """
        self._check_member()
        await self._exclusive(BY_ACK).commit(what)

    def commit_nowait(self, what: Message | Sequence[LanePlace] | None = None) -> None:
        """Begin to store the group's progress, and do not wait for it.

        Commits that were begun while another one was under way are stored together. If one fails,
        the next call of commit() raises why, or the next one that asks for messages, or the end
        of the block. It takes what commit() takes.

        Raises:
            BadGroup: nothing was asked for yet, and there are no partitions.
            CommitRefused: the message is not of this consumer's partitions; or as commit().
            MemberRemoved: as poll().
        """
        self._check_member()
        self._exclusive(BY_ACK).commit_nowait(what)

    def position(self) -> Position:
        """Return the position, a place in each lane, after the messages that were handed out.

        It names each partition of this consumer. A lane that is not there begins at its first
        message that is left; so do all lanes of a partition that has lane 0 at EARLIEST, alone.
        """
        return self._exclusive(NO_PLACES).position()

    def committed(self) -> Position:
        """Return the position at which the group goes on in this consumer's partitions.

        It names lanes as position() does. Nothing was committed in a partition that has lane 0 at
        EARLIEST, alone.
        """
        return self._exclusive(NO_PLACES).committed()

    async def lag(self) -> list[ConsumedLane]:
        """Return the lanes of this consumer's partitions: where it is, and what lies before it.

        Members of a shared group have no places of their own; Client.groups.lag() has the group's.

        Raises:
            BadGroup: the group is shared.
            LedgerError: the lanes could not be looked up.
        """
        return await self._partitions.lag(self.position(), self.committed())

    async def seek(self, position: Sequence[LanePlace]) -> None:
        """Go on from a position, in partitions that this consumer has; nothing is committed.

        Lanes of these partitions that *position* does not name begin at their first message.

        Raises:
            CommitRefused: a partition is not this consumer's, and *position* has a place in it that
                is not EARLIEST; nothing changed.
            BadTopic: a place is behind the end of its lane, ledger or batch; nothing changed.
            MemberRemoved: as poll().
            LedgerError: the lanes, or a place, could not be looked up.
        """
        self._check_member()
        await self._exclusive(NO_PLACES).seek(position)

    def _check_member(self) -> None:
        """Raise MemberRemoved once the membership has ended for good.

        While the consumer leaves, its on_revoked may still commit.
        """
        failure = self._membership.failure
        if isinstance(failure, MemberRemoved) and not self._membership.is_member:
            raise failure

    async def _commit_sometimes(self, every_s: float) -> None:
        while True:
            await trio.sleep(every_s)
            await self._delivery.commit_consumed()

    def _exclusive(self, otherwise: str) -> InOrder:
        """Return what delivers in order; in a shared group BadGroup says what to do *otherwise*."""
        if isinstance(self._delivery, Shared):
            raise BadGroup(f"group {self._options.group} is shared: {otherwise}")
        return self._delivery

    # --- acknowledgements ----------------------------------------------------------------

    async def ack(self, message: Message | Iterable[Message]) -> None:
        """Acknowledge a message of a shared group, or several; return when that is durable.

        What this consumer acknowledged lately may be acknowledged again, as after a cancellation.

        Raises:
            CommitRefused: other members have some of them by now, or had. The others are
                acknowledged.
            MetadataUnavailable: the store did not answer in time; they are acknowledged later.
        """
        shared = self._shared
        await shared.saved(shared.ack(_messages_of(message)))

    def ack_nowait(self, message: Message | Iterable[Message]) -> None:
        """Acknowledge a message of a shared group, or several, and do not wait.

        It is durable after a few milliseconds; flush() waits for that, and the end of the block
        does. Raises CommitRefused as ack().
        """
        self._shared.ack(_messages_of(message))

    async def flush(self) -> None:
        """Return when all acknowledgements so far are durable.

        Raises:
            CommitRefused: since the last call, some came too late; their messages come again.
            MetadataUnavailable: the store did not answer in time.
        """
        await self._shared.flush()

    def nack(self, message: Message, *, delay_s: float = 1.0, reason: str = "refused") -> None:
        """Let a message of a shared group be delivered again after *delay_s* seconds.

        *reason* is kept in its dead letter, if it becomes one. Raises CommitRefused if another
        member has the message by now.
        """
        if not isinstance(reason, str):
            raise TypeError(f"reason takes a text, not {reason!r:.80}")
        if not (isinstance(delay_s, float | int) and 0 <= delay_s <= DELAY_S_MAX):
            raise BadGroup(f"delay_s {delay_s!r:.80} is not 0 to {DELAY_S_MAX}")
        self._shared.nack(_one_message(message), delay_s, reason)

    def extend(self, message: Message) -> None:
        """Let the time in which a message is to be acknowledged begin anew.

        Raises CommitRefused if another member has the message by now.
        """
        self._shared.extend(_one_message(message))

    def deliveries(self, message: Message) -> int:
        """Return how often a message of a shared group was delivered, this time included.

        It may be one too many if a member was lost that had it. Raises CommitRefused as extend().
        """
        return self._shared.deliveries(_one_message(message))

    @property
    def _shared(self) -> Shared:
        if isinstance(self._delivery, InOrder):
            raise BadGroup(
                f"group {self._options.group} is exclusive: commit() its messages, or open it "
                'with mode="shared"'
            )
        return self._delivery

    # --- the whole -----------------------------------------------------------------------

    def _taken(self) -> object:
        return self._delivery.taken(), self._arrivals.asked

    def _arrive(self) -> None:
        self._delivery.arrive()

    def _wake(self) -> None:
        self._arrivals.note()

    async def _apply(self, row: MemberRecord | None) -> None:
        if row is None:
            self._delivery.lose()
        await self._partitions.apply(row, self._delivery)

    async def _prepare(self) -> None:
        if isinstance(self._delivery, Shared):
            await self._delivery.prepare()

    async def _open(self) -> None:
        await self._membership.join()
        self._nursery.start_soon(self._delivery.run)
        self._nursery.start_soon(self._membership.run)
        self._nursery.start_soon(self._partitions.deletions.look_at_unread)
        if self._options.auto_commit_s is not None:
            self._nursery.start_soon(self._commit_sometimes, self._options.auto_commit_s or 0.01)

    async def close(self) -> None:
        """Commit what was consumed, unless auto_commit_s is `None`, and leave the group.

        The message that was handed out last, or what poll() returned last, is not counted as
        consumed: another task may be at work on it. It comes again, unless commit() comes before
        close(). The end of the consumer's own block counts it. Harmless if it is closed.

        Raises the failure of a commit that commit_nowait() began.
        """
        if self._held is not None:
            await self._held.leave()
        else:
            await self._close(is_done=False)
            _raise_what_is_left(self)

    async def _close(self, *, is_done: bool) -> None:
        """Commit what was consumed, and leave the group, in CLOSE_S at most."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_S):
                await self._leave(is_done=is_done)
        finally:  # also where the store does not answer: else it would go on reporting
            self._membership.end(CLOSED)
            self._membership.vanish()

    async def _leave(self, *, is_done: bool) -> None:
        """Commit what was consumed, and leave the group.

        *is_done*: the application is done with what it has, as its block ended without an error.
        """
        is_refused, is_stored = isinstance(self._membership.failure, BadGroup), False
        with suppress(LedgerError):
            await self._delivery.close(
                is_done=is_done and self._unseen is None,  # it ends with that gap
                commits=self._options.auto_commit_s is not None and self._membership.is_member,
            )
            is_stored = True  # what it has begun
        self._membership.end(CLOSED)  # who waits learns it now, however long leaving takes
        has_failed = self._has_failed or is_refused
        in_vain = has_failed and (not self._partitions.has_begun or (is_refused and is_stored))
        await self._membership.leave(in_vain=in_vain)


def _check_poll(wait_s: float, messages_max: int) -> None:
    """Raise ValueError for arguments that poll() does not take."""
    check_timeout(wait_s, "wait_s")
    is_count = isinstance(messages_max, int) and 1 <= messages_max <= MESSAGES_MAX
    if not is_count or isinstance(messages_max, bool):
        raise ValueError(f"messages_max takes 1 to {MESSAGES_MAX}, not {messages_max!r}")


def _messages_of(named: Message | Iterable[Message]) -> list[Message]:
    """Return a message, or several, as a list. Raises TypeError for anything else."""
    if isinstance(named, Message):
        return [named]
    found = list(named) if isinstance(named, Iterable) else [named]
    for each in found:
        if not isinstance(each, Message):
            raise TypeError(f"neither a message nor several: {each!r:.80}")
    return found


def _one_message(named: Message) -> Message:
    """Return *named*. Raises TypeError if it is no message."""
    if not isinstance(named, Message):
        raise TypeError(f"not a message: {named!r:.80}")
    return named


def at_hand(consumer: GroupConsumer) -> Iterator[Message]:
    """Return what the next calls of *consumer* return without a wait; see InOrder.at_hand."""
    delivery = consumer._delivery
    return delivery.at_hand if isinstance(delivery, InOrder) else iter(())


def note_unseen(consumer: GroupConsumer, gap: Gap) -> None:
    """Keep a gap that a call brought which was given up: nobody saw it.

    raise_unseen() is for the next call. If there is none, the end of the block raises it.
    """
    consumer._unseen = gap
    _log.warning("%s; nobody saw it, so the next call raises it", gap)


def raise_unseen(consumer: GroupConsumer) -> None:
    """Raise the gap that nobody saw, once."""
    unseen, consumer._unseen = consumer._unseen, None
    if unseen is not None:
        raise unseen


def _raise_what_is_left(consumer: GroupConsumer) -> None:
    """Raise what nobody was told: a gap that nobody saw, before what else went wrong."""
    try:
        raise_unseen(consumer)
    except Gap as unseen:
        try:
            consumer._delivery.raise_failures()
        except LedgerError as other:
            unseen.add_note(f"besides: {other}")
        raise
    consumer._delivery.raise_failures()


def _names_of(topics: str | Sequence[str]) -> list[str]:
    """Return names and patterns as a list. Raises TypeError for anything else."""
    names = (
        list(topics) if isinstance(topics, Iterable) and not isinstance(topics, str) else [topics]
    )
    for each in names:
        if not isinstance(each, str):
            raise TypeError(f"neither the name of a topic nor several: {each!r:.80}")
    return names


@asynccontextmanager
async def open_consumer(
    context: TopicContext,
    heartbeats: SharedHeartbeats,
    open_dead: OpenDead,
    open_ticks: OpenTicks,
    topics: str | Sequence[str],
    **settings: Unpack[ConsumerSettings],
) -> AsyncIterator[GroupConsumer]:
    """Consume topics as a member of a group; Client.consumer() has the details."""
    options = ConsumerOptions(**settings)
    options.check()
    subscribed = await wanted_topics(context, _names_of(topics), options)
    async with heartbeats.held() as beats, Background() as nursery:
        consumer = GroupConsumer(
            context, options, subscribed, beats, nursery, open_dead, open_ticks
        )
        try:
            await consumer._open()
        except trio.Cancelled:
            await consumer._close(is_done=False)  # it may have become a member
            raise
        is_done = False
        try:
            yield consumer
            is_done = consumer._held is None or consumer._held.is_block_over
        except LedgerError:
            consumer._has_failed = True
            raise
        finally:
            await consumer._close(is_done=is_done)
        _raise_what_is_left(consumer)
