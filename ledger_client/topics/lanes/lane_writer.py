"""Writing a lane: batches in order, into one ledger after the other.

    append ──┐            ┌─► ledger n ──────► settled: callers wake, in order
    append ──┼─► queue ───┤
    append ──┘            └─► ledger n + 1      steward: makes it, turns to it

What is appended goes out at once, and is settled when it is durable. The queue holds what
waits while the lane turns to its next ledger. When a ledger fails, the steward finds out what
is in it; the rest is sent again in the next one, so everything is in the lane once and in the
order of the calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

import trio

from ledger_client.client import Client
from ledger_client.errors import LedgerError
from ledger_client.topics.errors import (
    EventTimeBack,
    MessageTooLarge,
    ProducerClosed,
    SendUnknown,
)
from ledger_client.topics.lanes.lane_ledgers import LaneEnd
from ledger_client.topics.lanes.lane_rows import LaneRows
from ledger_client.topics.lanes.lane_state import greater
from ledger_client.topics.lanes.sealed_batch import SealedBatch
from ledger_client.topics.lanes.steward import Steward
from ledger_client.topics.lanes.written_ledger import Append, Slice, WrittenLedger
from ledger_client.topics.producing.routes import Route
from ledger_client.writer import PAYLOAD_SIZE_MAX

NEVER = 1 << 63


class LaneWriter:
    """One lane, being written. Made by open_lane(); any task may append.

    Attributes:
        lane: its number in the partition.
        epoch: rises with every writer of the lane.
        last_event_time: the greatest that was appended, now or ever; None: none has one.
    """

    def __init__(
        self, client: Client, rows: LaneRows, last: LaneEnd, nursery: trio.Nursery
    ) -> None:
        self.lane = rows.lane
        self.epoch = rows.record.epoch
        self.last_event_time = last.state.last_event_time
        self.state = last.state
        self.is_closing = False
        self._failure: LedgerError | None = None
        self._rows = rows
        self._clock = client.clock
        self._last = last
        self._sequences: dict[str, int] = {}
        self._has_rerouted = False
        self._calls: deque[Append] = deque()
        self._queue: deque[Append] = deque()
        self._ended = trio.Event()
        self._steward = Steward(self, client, rows, nursery)

    # --- for producers -----------------------------------------------------------------

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._rows.topic.name

    @property
    def partition(self) -> int:
        """Index of the partition, -1 for the only one."""
        return self._rows.partition

    def last_sequence(self, producer: str) -> int:
        """Return the greatest sequence number appended for *producer*, now or ever; -1: none."""
        return self._sequences.get(producer, self.state.last_sequence(producer))

    def routes(self, producer: str) -> Sequence[Route]:
        """Return what the lane knows of how the producer's numbers are routed."""
        return self.state.routes.get(producer, [])

    def set_routes(self, producer: str, routes: Sequence[Route]) -> None:
        """Keep in the lane how numbers are routed: durable before what is appended next."""
        if self.routes(producer) != routes:
            self.state.routes[producer] = list(routes)
            self._has_rerouted = True

    async def keep_routes(self, producer: str, routes: Sequence[Route]) -> None:
        """Make durable in the lane how numbers are routed. Costs one entry.

        Afterwards the next writer of the lane knows it, and nobody has taken the lane over
        before.

        Raises:
            SendUnknown: the lane failed, and may know it or not.
            LedgerError: as append(); the lane does not know it.
        """
        self._check_open()
        self.set_routes(producer, routes)
        await self._put(Append([], state=True))

    async def append(self, batches: Sequence[SealedBatch]) -> list[tuple[int, int]]:
        """Add batches, one entry each, and return ledger and entry of each, once all are durable.

        Calls are kept in the order in which they are made. Nothing is copied: what waits is
        bounded by whoever calls. Cancelled, the batches are written nevertheless.

        Raises:
            EventTimeBack: the topic is ordered by event time, and a time is lower than one
                appended before; nothing of the call was sent.
            MessageTooLarge: a payload does not fit a frame; nothing of the call was sent.
            SendUnknown: the lane failed, and some of the batches may be in it, the first
                ones; the cause is why.
            ProducerFenced: it was taken over; nothing of the call is in it.
            ProducerClosed: it was closed.
            LedgerError: the lane failed for another reason, and nothing of the call is in
                it. It takes nothing any more, but the partition's lane may be opened again.
        """
        self._check_open()
        batches = list(batches)
        self._admit(batches)
        if not batches:
            await trio.lowlevel.checkpoint()
            return []
        return await self._put(Append(batches))

    async def _put(self, call: Append) -> list[tuple[int, int]]:
        self._calls.append(call)
        self._queue.append(call)
        self.send()
        await call.done.wait()
        if call.failure is not None:
            raise call.failure
        return call.ids

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.is_closing:
            raise ProducerClosed(self.topic)

    def _admit(self, batches: Sequence[SealedBatch]) -> None:
        """Check *batches* and take note of their times and sequence numbers, or of nothing."""
        last = self.last_event_time
        is_ordered = self._rows.topic.order == "event-time"
        for batch in batches:
            if len(batch.payload) > PAYLOAD_SIZE_MAX:
                raise MessageTooLarge(
                    self.topic, size=len(batch.payload), size_max=PAYLOAD_SIZE_MAX
                )
            first = batch.first_event_time
            if is_ordered and first is not None and last is not None and first < last:
                raise EventTimeBack(
                    self.topic,
                    partition=self.partition,
                    lane=self.lane,
                    event_time=first,
                    last_event_time=last,
                )
            last = greater(last, batch.last_event_time)
        self.last_event_time = last
        for batch in batches:
            if batch.producer and batch.sequence >= 0:
                known = self.last_sequence(batch.producer)
                self._sequences[batch.producer] = max(known, batch.sequence)

    # --- sending -----------------------------------------------------------------------

    def send(self) -> None:
        """Send what the ledger takes, in order, and let the steward look at the rest."""
        if self._failure is not None:
            return
        ledger = self._steward.ledger
        now = trio.current_time()
        while self._queue and self._steward.takes(self._queue[0].batches[self._queue[0].sent]):
            call = self._queue[0]
            if ledger.wants_state(now, 0) or self._has_rerouted or call.is_state:
                self._has_rerouted = False
                now_ms = self._clock.now_ms()
                state = ledger.state_after(self.state, NEVER, now_ms)
                ledger.send_state(state, now_ms, call if call.is_state else None)
            if call.is_state:
                self._queue.popleft()
                continue
            start = call.sent
            for batch in islice(call.batches, start, None):
                if not self._steward.takes(batch) or ledger.wants_state(now, call.sent - start):
                    break
                ledger.note(batch)
                call.sent += 1
            ledger.send(call, start, call.sent)
            if call.sent == len(call.batches):
                self._queue.popleft()
        self._steward.look()

    def settle(self, done: Slice) -> None:
        """A slice is durable in the ledger that is written."""
        self._settle(done, NEVER)

    def _settle(self, done: Slice, last_entry: int) -> None:
        if self._failure is not None or done.call is None:
            return
        now_ms = self._clock.now_ms()
        count = 0
        for batch in done.batches_up_to(last_entry):
            self.state.note(batch, now_ms)
            count += 1
        done.call.settle(done.ledger.id, done.entries[:count])
        while self._calls and self._calls[0].is_settled:
            self._calls.popleft()
        if (self.is_closing and not self._calls) or self._steward.lacks_start:
            self._steward.look()

    def turned(self, old: WrittenLedger) -> None:
        """The lane goes on: settle what is in *old*; what is not is to be sent again."""
        assert old.end is not None
        for under_way in old.slices:
            self._settle(under_way, old.end.last_entry)
        old.slices.clear()
        for call in self._calls:
            call.sent = len(call.ids)
        self._queue = deque(self._calls)
        self.state.begin(epoch=self.epoch, base_version=self._steward.base_version)

    @property
    def head(self) -> SealedBatch | None:
        """The next batch to be sent."""
        return self._queue[0].batches[self._queue[0].sent] if self._queue else None

    @property
    def is_idle(self) -> bool:
        """True when everything that was appended is settled."""
        return not self._calls

    # --- the end -----------------------------------------------------------------------

    @property
    def is_failed(self) -> bool:
        """True once nothing is taken any more."""
        return self._failure is not None

    def fail(self, failure: LedgerError) -> None:
        """End for good; whoever waits is told whether something of theirs was sent."""
        if self._failure is not None:
            return
        self._failure = failure
        self._steward.give_up()
        for call in self._calls:
            call.fail(self._unknown(call) if call.sent else failure)
        self._calls.clear()
        self._queue.clear()
        self._ended.set()

    def _unknown(self, call: Append) -> SendUnknown:
        """Return the failure of a call of which something was sent; the first may be settled."""
        unknown = SendUnknown(
            self.topic,
            partition=self.partition,
            lane=self.lane,
            count=sum(batch.count for batch in call.batches[len(call.ids) :]),
            reason=str(self._failure),
        )
        unknown.__cause__ = self._failure
        return unknown

    # --- for open_lane -----------------------------------------------------------------

    async def open(self) -> None:
        """Begin the writer's first ledger. Raises as Steward.open()."""
        await self._steward.open(self._last)

    async def run(self) -> None:
        """Do what is to be done beside sending, until the lane is closed or failed."""
        await self._steward.run()
        self._ended.set()

    async def close(self) -> None:
        """Wait until all is settled, then close the ledger; the lane has no writer then.

        Raises what the lane failed with, unless it was taken over while nothing was under way.
        """
        self.is_closing = True
        if self._failure is None:
            self._steward.look()
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure

    async def abort(self, limit_s: float) -> None:
        """Once run() has ended, close if nothing is under way.

        Else the lane stays as it is, for whoever takes it over.
        """
        self.is_closing = True
        if self.is_idle and self._failure is None and not self._rows.is_changing:
            with trio.move_on_after(limit_s):
                await self._steward.run()
        self.fail(ProducerClosed(self.topic))
