"""Timestamps from the cluster's oracle: requests that wait together share one call.

    allocate(1) ──┐                    one call at a time        ┌──► [first, first]
    allocate(5) ──┼─► waiting ──► AllotTimestamps(7) ──► first ──┼──► [first + 1, first + 5]
    allocate(1) ──┘                                              └──► [first + 6, first + 6]

While a call is under way the next requests gather, so the calls grow with the load, and nobody
waits for others. An answer is worth something only as long as its bookie leads for certain: later,
another bookie may have issued greater timestamps, which somebody may have seen. So an answer that
came too late is dropped, and the call is made again.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime

import outcome
import trio

from ledger_client.errors import LedgerError, MetadataBroken, MetadataUnavailable
from ledger_client.figures import Figures
from ledger_client.ledgers.leader_calls import LeaderCalls
from metadata.time.calls import AllotTimestamps, ResetTime, TimeReset, TimestampsAllotted
from metadata.time.timestamps import PER_MS, TimestampRange, compose, first_at, split, utc_of

REQUESTS_MAX = 10_000
"""Requests that share one call, as in PD's client."""


class _Waiter:
    """A task that waits for *count* timestamps; it is None once it was cancelled."""

    __slots__ = ("count", "task")

    def __init__(self, count: int) -> None:
        self.count = count
        self.task: trio.lowlevel.Task | None = trio.lowlevel.current_task()

    def abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def wake(self, result: outcome.Outcome[TimestampRange]) -> None:
        if self.task is not None:
            trio.lowlevel.reschedule(self.task, result)


class Timestamps:
    """The cluster's time. Any task may use it.

    A client gets timestamps that rise: each is greater than all that it got before, and than all
    that anybody had got when the request was made.
    """

    def __init__(
        self, calls: LeaderCalls, nursery: trio.Nursery, figures: Figures, *, timeout_s: float
    ) -> None:
        self._figures = figures
        self._calls = calls
        self._nursery = nursery
        self._timeout_s = timeout_s
        self._waiting: deque[_Waiter] = deque()
        self._is_asking = False
        self._last = -1

    @property
    def greatest(self) -> int:
        """The greatest timestamp that this client got, 0 for none; the next one is greater."""
        return max(self._last, 0)

    async def allocate(self, count: int = 1) -> TimestampRange:
        """Take *count* consecutive timestamps, up to 262 144; nobody else gets them.

        Requests of many tasks share calls, so that many at once cost little more than one.

        Raises:
            ValueError: *count* is out of bounds.
            MetadataUnavailable: no bookie that leads answered in time.
            MetadataBroken: the cluster's timestamps went back; a person must look.
        """
        if not 1 <= count <= PER_MS:
            raise ValueError(f"{count} timestamps at once; it may be 1 to {PER_MS}")
        await trio.lowlevel.checkpoint_if_cancelled()
        waiter = _Waiter(count)
        self._waiting.append(waiter)
        if not self._is_asking:
            self._nursery.start_soon(self._ask_for_all)
            self._is_asking = True
        found: TimestampRange = await trio.lowlevel.wait_task_rescheduled(waiter.abort)
        return found

    async def reset(self, moment: datetime) -> datetime:
        """Move the cluster's time forward to *moment*, and return it as it is then, in UTC.

        It cannot be moved back: until clocks reach it, timestamps are ahead of them. A repeated
        call may fail with TimeRefused because the first one was made.

        Raises:
            ValueError: *moment* has no time zone, or no timestamp can have it.
            TimeRefused: it is not later than the cluster's time, or more than 24 h later.
            MetadataUnavailable: no bookie that leads answered in time.
        """
        request = ResetTime(split(first_at(moment)).physical_ms)
        reply = await self._calls.ask(request, TimeReset, timeout_s=self._timeout_s)
        return utc_of(compose(reply.physical_ms))

    async def _ask_for_all(self) -> None:
        """Make calls until nobody waits."""
        batch: list[_Waiter] = []
        failure: LedgerError = MetadataUnavailable("the client was closed")
        try:
            while self._waiting:
                batch = self._take()
                if batch:
                    first = await self._ask(sum(waiter.count for waiter in batch))
                    _hand_out(first, batch)
                    batch = []
        except LedgerError as reason:
            failure = reason
        finally:
            self._is_asking = False
            _fail([*batch, *self._waiting], failure)
            self._waiting.clear()

    def _take(self) -> list[_Waiter]:
        """Take those that share the next call; drop those that were cancelled."""
        batch: list[_Waiter] = []
        room = PER_MS
        while self._waiting and len(batch) < REQUESTS_MAX and self._waiting[0].count <= room:
            waiter = self._waiting.popleft()
            if waiter.task is not None:
                batch.append(waiter)
                room -= waiter.count
        return batch

    async def _ask(self, count: int) -> int:
        """Return the first of *count* timestamps, from an answer that came in time."""
        request = AllotTimestamps(count)
        deadline = trio.current_time() + self._timeout_s
        while (left_s := deadline - trio.current_time()) > 0:
            reply, took_s = await self._calls.ask_timed(
                request, TimestampsAllotted, timeout_s=left_s
            )
            if took_s < reply.valid_s:
                return self._checked(reply, count)
            self._figures.late_timestamps += 1
        raise MetadataUnavailable(
            f"timestamps came later than their bookie led for certain, for {self._timeout_s:g} s"
        )

    def _checked(self, reply: TimestampsAllotted, count: int) -> int:
        if reply.count != count:
            raise MetadataBroken(f"asked for {count} timestamps, the leader gave {reply.count}")
        if reply.first <= self._last:
            raise MetadataBroken(
                f"timestamps went back from {self._last} to {reply.first}: was an old copy of the "
                "metadata restored? Move time forward with `quire tso reset`, then connect again"
            )
        self._last = reply.first + count - 1
        return reply.first


def _hand_out(first: int, batch: list[_Waiter]) -> None:
    for waiter in batch:
        waiter.wake(outcome.Value(TimestampRange(first, waiter.count)))
        first += waiter.count


def _fail(waiters: list[_Waiter], failure: LedgerError) -> None:
    """Fail each with an error of its own, because a traceback belongs to one task."""
    for waiter in waiters:
        error: LedgerError = (
            MetadataBroken(str(failure))
            if isinstance(failure, MetadataBroken)
            else MetadataUnavailable(f"timestamps: {failure}")
        )
        error.__cause__ = failure
        waiter.wake(outcome.Error(error))
