"""The steward of a lane: the one task that changes its rows and turns from ledger to ledger.

    full, old ──► end: look at the store, drain ─┐
                                                 ├──► turn: one transaction ──► go on
    failed ─────► recover ───────────────────────┘    (the next ledger has the state already)

One step at a time, and each looks at what is: so a step that fails halfway is followed by
whichever is due then. While a ledger ends, batches queue; they go out once the lane has
turned, first those of which recovery says that they are not in the ledger that failed.

A full ledger takes batches on while nobody can make the next one: the limits are soft.
From the end of a ledger on, or its failure, turning has append_timeout_s; then the lane
fails, and what was sent is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from ledger_client.catalogue import CHANGE_S, RETRY_S
from ledger_client.client import Client
from ledger_client.errors import (
    LedgerError,
    MetadataUnavailable,
    NoSuchLedger,
    OutcomeUnknown,
    Retryable,
    WriterFailed,
)
from ledger_client.topics.lanes.lane_ledgers import LaneEnd
from ledger_client.topics.lanes.lane_rows import LaneRows
from ledger_client.topics.lanes.rolling import Rolling
from ledger_client.topics.lanes.sealed_batch import SealedBatch
from ledger_client.topics.lanes.turning import Settled, Turning
from ledger_client.topics.lanes.written_ledger import WrittenLedger

PATIENCE_S = 1.0
"""Batches wait so long for the next ledger; then they go to the one that is full."""
PAUSE_S = 2.0
PAUSE_URGENT_S = 0.5
"""The longest between two attempts at a step; urgent: while a ledger ends."""
Step = Callable[[], Awaitable[None]]


class Owner(Settled, Protocol):
    """The lane's writer, as its steward sees it."""

    is_closing: bool

    @property
    def is_failed(self) -> bool:
        """True once the lane has failed."""

    @property
    def head(self) -> SealedBatch | None:
        """The next batch to be sent."""

    @property
    def is_idle(self) -> bool:
        """True when everything is settled."""

    def send(self) -> None:
        """Send what may be sent."""

    def fail(self, failure: LedgerError) -> None:
        """End for good."""


class Steward:
    """Keeps one lane going."""

    def __init__(self, owner: Owner, client: Client, rows: LaneRows, nursery: trio.Nursery) -> None:
        self._owner = owner
        self._rows = rows
        self._nursery = nursery
        self._limit_s = client.options.append_timeout_s
        self._turning = Turning(
            owner, client, rows, nursery, ending=self._limit, failed=self._failed
        )
        self._rolling = self._rules()
        self._news = trio.Event()
        self._scope = trio.CancelScope()
        self._deadline = math.inf
        self._why: LedgerError | None = None
        self._pauses = 0

    @property
    def ledger(self) -> WrittenLedger:
        """Where batches go now."""
        return self._turning.ledger

    @property
    def base_version(self) -> int:
        """Version of entry 0 of the ledger."""
        return self._turning.row.base_version

    @property
    def lacks_start(self) -> bool:
        """True while the times are not published with which the ledger begins."""
        return self._turning.lacks_start

    async def open(self, last: LaneEnd) -> None:
        """Begin the first ledger of this writer. Raises as Turning.open()."""
        await self._turning.open(last)

    def give_up(self) -> None:
        """Count nothing any more; the ledger stays open for whoever takes the lane over."""
        self._turning.give_up()

    # --- the loop ----------------------------------------------------------------------

    async def run(self) -> None:
        """Take one step after the other until the lane is closed or failed."""
        while not (self._turning.is_closed or self._owner.is_failed):
            self._news = trio.Event()
            step = self._next_step()
            if step is not None:
                await self._take(step)
                continue
            with trio.move_on_after(self._rolling.due_in_s(self.ledger, self._age_s())):
                await self._news.wait()

    def look(self) -> None:
        """See whether there is something to do now."""
        if self._is_leaving:
            self._limit()  # whatever step is under way
        if self._next_step() is not None:
            self._news.set()

    def takes(self, batch: SealedBatch) -> bool:
        """Return whether *batch* may be sent to the ledger now."""
        ledger = self.ledger
        if ledger.is_ending or ledger.has_failed or self._must_share(batch):
            return False
        if ledger.is_overdue or not self._rolling.is_due(ledger, self._age_s(), batch):
            return True
        if ledger.full_since is None:
            ledger.full_since = trio.current_time()
            self._nursery.start_soon(self._lose_patience, ledger)
        return False

    def _next_step(self) -> Step | None:
        ledger, head, turning = self.ledger, self._owner.head, self._turning
        if ledger.has_failed:
            return turning.recover
        if ledger.end is not None:
            return turning.close if self._is_leaving else self._ready(self._turn)
        if self._is_leaving:
            return turning.leave
        if head is not None and self._must_share(head):
            return self._share
        age_s = self._age_s()
        if self._rolling.is_due(ledger, age_s, head):
            return self._ready(turning.end)
        if self._rolling.wants_next(ledger, age_s) and not turning.is_ready:
            return turning.prepare
        return turning.note_start if turning.lacks_start else None

    async def _take(self, step: Step) -> None:
        with trio.CancelScope(deadline=self._deadline) as self._scope:
            try:
                await step()
                self._pauses = 0
            except (WriterFailed, OutcomeUnknown) as why:
                self._why = why  # the ledger knows, and another step is next
            except Retryable as why:
                self._why = why
                await self._pause()
            except LedgerError as failure:
                self._owner.fail(await self._named(failure))
        if self._scope.cancelled_caught:
            reason = "" if self._why is None else f": {self._why}"
            late = f"the lane did not go on within {self._limit_s:g} s{reason}"
            self._owner.fail(MetadataUnavailable(late))

    async def _turn(self) -> None:
        old = self.ledger
        await self._turning.turn()
        if self.ledger is not old:
            self._is_well()
            self._rolling = self._rules()
            self._owner.send()

    async def _share(self) -> None:
        self._limit()
        await self._turning.share()
        if not self.ledger.has_failed:
            self._is_well()
        self._owner.send()

    async def _named(self, failure: LedgerError) -> LedgerError:
        """Return what is behind *failure*: a ledger is gone when its topic was deleted."""
        if isinstance(failure, NoSuchLedger):
            try:
                await self._rows.verify(limit_s=CHANGE_S)
            except LedgerError as cause:
                return cause
        return failure

    # --- time --------------------------------------------------------------------------

    def _limit(self) -> None:
        """Let turning begin to count its time."""
        if self._deadline == math.inf:
            self._deadline = trio.current_time() + self._limit_s
            self._scope.deadline = min(self._scope.deadline, self._deadline)

    def _is_well(self) -> None:
        """The lane goes on: there is no limit."""
        self._deadline = self._scope.deadline = math.inf
        self._why = None

    async def _pause(self) -> None:
        """Wait for a while, longer each time; while nothing can be sent, not for long."""
        longest_s = PAUSE_S if self._deadline == math.inf else PAUSE_URGENT_S
        await trio.sleep(min(RETRY_S * 2.0**self._pauses, longest_s))
        self._pauses = min(self._pauses + 1, 30)

    async def _lose_patience(self, ledger: WrittenLedger) -> None:
        await trio.sleep(PATIENCE_S)
        ledger.is_overdue = True
        self._owner.send()

    def _age_s(self) -> float:
        return trio.current_time() - self.ledger.opened_at

    # --- what is -----------------------------------------------------------------------

    @property
    def _is_leaving(self) -> bool:
        return self._owner.is_closing and self._owner.is_idle

    def _ready(self, step: Step) -> Step:
        return step if self._turning.is_ready else self._turning.prepare

    def _must_share(self, batch: SealedBatch) -> bool:
        """True when *batch* would begin a ledger with the time that ended the one before."""
        time_ns = batch.first_event_time
        return (
            self._rows.topic.order == "event-time"
            and not (self.ledger.batches or self.ledger.is_ending or self._turning.row.shares_first)
            and time_ns is not None
            and time_ns == self._owner.state.last_event_time
        )

    def _failed(self) -> None:
        """A ledger failed with something under way."""
        if self._turning.is_open and self.ledger.has_failed:
            self._limit()
        self._news.set()

    def _rules(self) -> Rolling:
        topic = self._rows.topic
        return Rolling(topic.roll, ordered=topic.order == "event-time")
