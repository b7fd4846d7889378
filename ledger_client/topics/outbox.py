"""The messages of one partition on their way to its lane.

    put ─► gathering ──seal──► queue ──take──► lane.append ─► acknowledged
           one batch           batches         several calls at a time, which
                               in order        take their places in this order

A call of append takes all batches that wait, up to a MiB: so while calls are under way the
next ones grow.

When order or numbers count (*strict*), nothing is accepted before the lane is open, and
what waits behind a failed batch fails with it: it would overtake, and a number sent again
later would pass for one that is kept already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import trio

from ledger_client.errors import LedgerError
from ledger_client.topics.batching import Batch, Manner
from ledger_client.topics.errors import (
    BadTopic,
    EventTimeBack,
    ProducerClosed,
    ProducerFailed,
    SendUnknown,
)
from ledger_client.topics.keeper import Lane, LaneKeeper, Opener, final_cause
from ledger_client.topics.linger import Linger
from ledger_client.topics.message_id import NOT_BATCHED
from ledger_client.topics.numbering import Numbering
from ledger_client.topics.producer_options import ProducerOptions
from ledger_client.topics.room import Room
from metadata.topics import TopicRecord

APPEND_SIZE = 1 << 20
APPENDS_MAX = 4
UNHEARD_MAX = 1000
"""Failed batches for which nobody waited: flush() tells of one of them."""


class Surroundings(NamedTuple):
    """What the outboxes of a producer share."""

    topic: TopicRecord
    options: ProducerOptions
    manner: Manner
    opener: Opener
    room: Room
    linger: Linger
    failed: Callable[[ProducerFailed], None]
    """told when a lane is another producer's"""


class Outbox:
    """One partition of a producer.

    Attributes:
        partition: which.
        ordered: whether an event time lower than last_event_time is refused.
        last_event_time: the last that was accepted; known once the lane is open.
        numbering: of a producer with a name.
        strict: whether times or numbers count.
        gathering: the batch that takes messages now.
    """

    def __init__(self, partition: int, shared: Surroundings) -> None:
        options = shared.options
        self.partition = partition
        self.gathering: Batch | None = None
        self.numbering = Numbering(partition) if options.producer_name else None
        self.ordered = shared.topic.order == "event-time"
        self.strict = self.ordered or self.numbering is not None
        self._shared = shared
        self._room = shared.room
        self._size_max = options.batch_bytes
        self._count_max = options.batch_messages if options.batching else 1
        self._queue: deque[Batch] = deque()
        self._pending: deque[Batch] = deque()
        self._appends = 0
        self._held = False
        self._released = trio.lowlevel.ParkingLot()
        self._unheard: deque[Batch] = deque(maxlen=UNHEARD_MAX)
        self.last_event_time: int | None = None
        self._keeper = LaneKeeper(partition, self, shared.opener)

    # --- accepting -------------------------------------------------------------------

    @property
    def lane(self) -> Lane | None:
        """The lane, while it is open."""
        return self._keeper.lane

    @property
    def failure(self) -> LedgerError | None:
        """Why the lane was left last, or could not be opened."""
        return self._keeper.failure

    @property
    def ready(self) -> bool:
        """Whether put() may be called now."""
        return not self.strict or (self._keeper.lane is not None and not self._held)

    async def wait_ready(self) -> None:
        """Return when put() may be called. Raises why the lane cannot be opened."""
        while not self.ready:
            if self._held:
                await self._released.park()
            else:
                await self._keeper.open()

    def begin_open(self) -> None:
        """Have the lane opened; open() waits for it."""
        self._keeper.start()

    async def open(self) -> Lane:
        """Wait until the lane is open; return it. Raises why it cannot be opened."""
        return await self._keeper.open()

    def put(
        self,
        value: bytes | None,
        key: bytes | None,
        event_time: int | None,
        headers: Mapping[str, bytes] | None,
        sequence: int | None,
        size: int,
    ) -> tuple[Batch, int]:
        """Accept a message of *size* bytes, for which room was taken; return its place.

        Raises:
            EventTimeBack: on an ordered topic. Nothing was accepted.
        """
        if self.numbering is not None and sequence is not None and sequence < self.numbering.next:
            self._room.release(size)
            batch, place = self.numbering.find(sequence)
            return batch, place if self._shared.manner.batched else min(place, NOT_BATCHED)
        if self.strict:
            sequence = self._admit(event_time, sequence)
        batch = self._batch_for(size, sequence)
        place = batch.add(value, key, event_time, headers, size)
        if batch.count >= self._count_max or batch.size >= self._size_max:
            self.seal()
        return batch, place if self._shared.manner.batched else NOT_BATCHED

    def put_encoded(self, batch: Batch) -> None:
        """Accept a batch that is encoded, behind all that was accepted before."""
        self._seal()
        if self.ordered and batch.sealed is not None:
            self.last_event_time = batch.sealed.last_event_time
        if self.numbering is not None:
            self.numbering.next = batch.sequence + batch.count
        self._enlist(batch)
        self._queue.append(batch)
        self._drive()

    def check_event_time(self, event_time: int | None) -> None:
        """Raise EventTimeBack if *event_time* is lower than the last accepted one."""
        name, last = self._shared.topic.name, self.last_event_time
        if event_time is None:
            raise BadTopic("ordered by event time: every message needs one", topic=name)
        if last is not None and event_time < last:
            self.refuse_event_time(event_time, last)

    def refuse_event_time(self, event_time: int, last: int) -> None:
        """Raise EventTimeBack: *event_time* comes after *last*."""
        raise EventTimeBack(
            self._shared.topic.name,
            partition=self.partition,
            lane=self.lane.lane if self.lane else -1,
            event_time=event_time,
            last_event_time=last,
        )

    def hold(self) -> None:
        """Make all others wait, if strict: what is put now belongs together."""
        self._held = self.strict

    def let_go(self) -> None:
        """End what hold() began."""
        self._held = False
        self._released.unpark_all()

    def seal(self) -> None:
        """Let the batch that is gathered be sent; nothing happens without one."""
        if self._seal():
            self._drive()

    def _seal(self) -> bool:
        if self.gathering is None:
            return False
        self._queue.append(self.gathering)
        self.gathering = None
        return True

    def _admit(self, event_time: int | None, sequence: int | None) -> int | None:
        """Check a message against those before it; return its number."""
        if self.ordered:
            self.check_event_time(event_time)
            self.last_event_time = event_time
        if self.numbering is None:
            return None
        following = self.numbering.next
        if sequence is None:
            sequence = following
        elif sequence > following:
            self.seal()  # numbers of a batch follow each other without gaps
        self.numbering.next = sequence + 1
        return sequence

    def _batch_for(self, size: int, sequence: int | None) -> Batch:
        if self.gathering is not None and self.gathering.size + size > self._size_max:
            self.seal()
        if self.gathering is None:
            self.gathering = Batch(self.partition, sequence=-1 if sequence is None else sequence)
            self._enlist(self.gathering)
            if self._count_max > 1:
                self._shared.linger.begin(self, self.gathering)
        return self.gathering

    def _enlist(self, batch: Batch) -> None:
        while self._pending and self._pending[0].done.is_set():
            self._pending.popleft()
        self._pending.append(batch)
        if self.numbering is not None:
            self.numbering.remember(batch)

    # --- appending -------------------------------------------------------------------

    def _drive(self) -> None:
        """See that what waits is appended, by a lane that is open."""
        if self.lane is None:
            self._keeper.start()
        elif self._queue and self._appends < APPENDS_MAX:
            self._appends += 1
            self._shared.opener.nursery.start_soon(self._append_queued)

    async def _append_queued(self) -> None:
        # Nothing waits between taking batches and their append, so that calls take
        # their places in the lane in the order of the queue, whichever task is first.
        try:
            while self._queue and self.lane is not None:
                await self._append(self.lane, self._take())
        finally:
            self._appends -= 1

    def _take(self) -> list[Batch]:
        taken: list[Batch] = []
        room = APPEND_SIZE
        while self._queue and room > 0:
            taken.append(self._queue.popleft())
            room -= taken[-1].size
        return taken

    async def _append(self, lane: Lane, batches: list[Batch]) -> None:
        manner, epoch = self._shared.manner, lane.epoch
        try:
            places = await lane.append([batch.seal(manner, epoch=epoch) for batch in batches])
        except LedgerError as failure:
            news = self._keeper.leave(lane, failure)
            self._fail(batches, failure)
            self._follow(failure, news=news)
        except BaseException:
            self._fail(batches, self._unknown(lane, batches))
            raise
        else:
            for batch, place in zip(batches, places, strict=True):
                batch.acknowledge(place)
                self._room.release(batch.room)

    def _follow(self, failure: LedgerError, *, news: bool) -> None:
        """Decide what becomes of the batches that wait behind those that failed."""
        final = final_cause(failure)
        if final is not None:
            self.give_up(final)
            self._shared.failed(final)
        elif self.strict and news:
            self.give_up(failure)

    def _fail(self, batches: Sequence[Batch], failure: LedgerError) -> None:
        for batch in batches:
            if not batch.fail(failure):
                self._unheard.append(batch)
            self._room.release(batch.room)

    def _unknown(self, lane: Lane, batches: Sequence[Batch]) -> SendUnknown:
        return SendUnknown(
            self._shared.topic.name,
            partition=self.partition,
            lane=lane.lane,
            count=sum(batch.count for batch in batches),
            reason="the producer was left before they were acknowledged",
        )

    # --- what the keeper tells -------------------------------------------------------

    def lane_opened(self, lane: Lane) -> None:
        """Go on with what waited for the lane."""
        if self.strict:
            self.last_event_time = lane.last_event_time
        if self.numbering is not None:
            name = self._shared.options.producer_name
            self.numbering.begin(lane.last_sequence(name))
        self._drive()

    def lane_refused(self, failure: LedgerError) -> None:
        """Fail what waited for the lane."""
        self.give_up(failure)
        final = final_cause(failure)
        if final is not None:
            self._shared.failed(final)

    def lane_wanted(self) -> bool:
        """Return whether batches wait for a lane."""
        return bool(self._queue)

    # --- the end ---------------------------------------------------------------------

    @property
    def pending(self) -> list[Batch]:
        """What was put and is not settled."""
        return [batch for batch in self._pending if not batch.done.is_set()]

    async def flush(self) -> None:
        """Wait until everything that was put is acknowledged.

        Raises why some of it was not, also if that was earlier and nobody heard of it.
        """
        self.seal()
        failed = [batch for batch in self._unheard if not batch.followed]
        for batch in self.pending:
            await batch.done.wait()
            failed.append(batch)
        self._unheard.clear()
        for batch in failed:
            if batch.failure is not None:
                raise batch.failure.with_traceback(None)

    def give_up(self, failure: LedgerError) -> None:
        """Fail everything that is not under way yet."""
        self._seal()
        waiting = list(self._queue)
        self._queue.clear()
        self._fail(waiting, failure)

    def abort(self) -> None:
        """Fail everything that is not under way: the producer is left, and its tasks end."""
        closed = ProducerClosed(self._shared.topic.name)
        self._keeper.abort(closed)
        self.give_up(closed)

    def begin_close(self) -> None:
        """Have the lane left, for good; what was put was flushed."""
        self._keeper.end(ProducerClosed(self._shared.topic.name))

    async def closed(self) -> None:
        """Wait until the lane is left. Raises what leaving it raises."""
        await self._keeper.closed()
