"""The ledger that a lane writes, and what is under way to it.

The lane is the only one who appends, so entries get the ids in which they were sent: 0 and
up. When the writer fails, the last entry of the recovered ledger tells exactly which of the
entries that were not acknowledged are in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat

import trio

from ledger_client.appends import Request
from ledger_client.errors import LedgerClosed, LedgerError
from ledger_client.marks import Reason
from ledger_client.topics.lanes.lane_state import LaneState, greater
from ledger_client.topics.lanes.ledger_end import End
from ledger_client.topics.lanes.sealed_batch import SealedBatch
from ledger_client.writer import LedgerWriter

STATE_ENTRIES = 1000
STATE_S = 120.0
STATE_SIZE = 16 * 1024 * 1024
"""The state of the lane is told again after so many entries, seconds or bytes."""
SLOWER_S = 0.2
"""For bookies beyond the ack quorum, when a ledger ends."""


STATE = SealedBatch(payload=b"", count=0, size=0)
"""Stands for a control entry whose bytes are made when it is sent."""


class Append:
    """One call of LaneWriter.append: its batches, and where they are.

    With *state* the call has no batches: it waits until a state of the lane is durable.
    """

    __slots__ = ("batches", "done", "failure", "ids", "is_state", "sent")

    def __init__(self, batches: Sequence[SealedBatch], *, state: bool = False) -> None:
        self.batches = [STATE] if state else batches
        self.is_state = state
        self.sent = 0
        self.ids: list[tuple[int, int]] = []
        """of those that are settled: ledger and entry"""
        self.done = trio.Event()
        self.failure: LedgerError | None = None

    @property
    def is_settled(self) -> bool:
        """True once all batches are in the lane."""
        return len(self.ids) == len(self.batches)

    def settle(self, ledger_id: int, entries: range) -> None:
        """Note where the next batches are, for good."""
        self.ids.extend(zip(repeat(ledger_id), entries))
        if self.is_settled:
            self.done.set()

    def fail(self, failure: LedgerError) -> None:
        """Wake the caller with *failure*."""
        self.failure = failure
        self.done.set()


class Slice(Request):
    """Batches of one call that were sent together; without a call a control entry."""

    __slots__ = ("call", "first_entry", "ledger", "start")

    def __init__(
        self, ledger: WrittenLedger, payloads: Sequence[bytes], call: Append | None, start: int
    ) -> None:
        super().__init__(payloads)
        self.ledger = ledger
        self.call = call
        self.start = start
        self.first_entry = ledger.next_entry

    @property
    def entries(self) -> range:
        """Ids that the entries get."""
        return range(self.first_entry, self.first_entry + len(self.payloads))

    def batches_up_to(self, last_entry: int) -> Iterator[SealedBatch]:
        """Yield the batches whose entries are at most *last_entry*."""
        if self.call is not None:
            count = min(len(self.payloads), last_entry + 1 - self.entries.start)
            yield from islice(self.call.batches, self.start, self.start + max(count, 0))

    def succeed(self) -> None:
        """All entries are confirmed."""
        super().succeed()
        self.ledger.confirm(self)

    def fail(self, failure: LedgerError, *, ledger_id: int, confirmed: int) -> None:
        """The writer failed; the ledger knows why."""
        super().fail(failure, ledger_id=ledger_id, confirmed=confirmed)
        self.ledger.failed()


class WrittenLedger:
    """A ledger of a lane, open or prepared.

    Attributes:
        batches, size, last_event_time: of what was sent, without control entries.
        slices: what was sent and is not confirmed, in order.
        end: where the ledger ends, once that is known.
        is_ending: nothing more is sent to it.
        is_overdue: it should have ended, and nobody can make the next; it takes batches on.
    """

    def __init__(
        self,
        writer: LedgerWriter,
        *,
        confirm: Callable[[Slice], None],
        failed: Callable[[], None],
    ) -> None:
        """*confirm* is told of each slice whose entries are durable, *failed* of the end."""
        self.writer = writer
        self.confirm_slice = confirm
        self.failed = failed
        self.next_entry = 0
        self.batches = 0
        self.size = 0
        self.last_event_time: int | None = None
        self.slices: deque[Slice] = deque()
        self.end: End | None = None
        self.is_ending = self.is_overdue = self.is_lost = False
        self.full_since: float | None = None
        self.opened_at = trio.current_time()
        self._state: Slice | None = None
        self._state_at = 0
        self._state_time = self.opened_at
        self._state_size = 0

    @property
    def id(self) -> int:
        """Id of the ledger."""
        return self.writer.id

    @property
    def has_failed(self) -> bool:
        """True when it must be recovered to know where it ends."""
        return self.end is None and (self.is_lost or self.writer.failed)

    @property
    def has_begun(self) -> bool:
        """True once something was sent to it."""
        return self.next_entry > 0

    def note(self, batch: SealedBatch) -> None:
        """Count a batch that is sent now."""
        self.batches += 1
        self.size += batch.size
        self.last_event_time = greater(self.last_event_time, batch.last_event_time)

    def wants_state(self, now: float, unsent: int) -> bool:
        """Return whether the state of the lane should be told before the next batch.

        *unsent* batches were noted and are not sent yet.
        """
        since = self.next_entry + unsent - self._state_at
        return since > 0 and (
            since >= STATE_ENTRIES
            or self.size - self._state_size >= STATE_SIZE
            or now - self._state_time >= STATE_S
        )

    @property
    def has_news(self) -> bool:
        """True when something was sent after the last state."""
        return self.next_entry > self._state_at

    def send(self, call: Append, start: int, stop: int) -> None:
        """Send batches of *call*. Raises WriterFailed; then nothing was sent."""
        payloads = [batch.payload for batch in call.batches[start:stop]]
        self._submit(Slice(self, payloads, call, start))

    def send_state(self, state: LaneState, now_ms: int, call: Append | None = None) -> None:
        """Send a control entry, for *call* if one waits for it.

        Raises WriterFailed; then it was not sent.
        """
        self._state = Slice(self, [state.encode(now_ms)], call, 0)
        self._submit(self._state)
        if call is not None:
            call.sent = 1
        self._state_at, self._state_size = self.next_entry, self.size
        self._state_time = trio.current_time()

    def _submit(self, request: Slice) -> None:
        self.writer.submit(request)
        self.slices.append(request)
        self.next_entry += len(request.payloads)

    async def wait_state(self) -> None:
        """Wait until the last control entry is durable. Raises OutcomeUnknown."""
        assert self._state is not None
        await self._state.done.wait()
        if self._state.failure is not None:
            raise self._state.failure

    def confirm(self, done: Slice) -> None:
        """Take note that the oldest slice is durable."""
        assert self.slices[0] is done
        self.slices.popleft()
        self.confirm_slice(done)

    def state_after(self, settled: LaneState, last_entry: int, now_ms: int) -> LaneState:
        """Return *settled* with what is under way, up to *last_entry*."""
        state = settled.copy()
        for under_way in self.slices:
            for batch in under_way.batches_up_to(last_entry):
                state.note(batch, now_ms)
        return state

    async def settle(self) -> None:
        """Wait until all is durable. Raises WriterFailed: the ledger must be recovered."""
        await self.writer.settle()
        if self.writer.failure is not None:
            raise self.writer.failure

    async def wait_slower(self) -> Reason | None:
        """Let bookies beyond the ack quorum catch up; return why copies may be missing."""
        await self.writer.settle(slower_s=SLOWER_S)
        return self.writer.doubt()

    def give_up(self) -> None:
        """Count nothing any more."""
        self.writer.fail(LedgerClosed(self.id))
