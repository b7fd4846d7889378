"""The steward of a lane: the one task that changes its rows and turns from ledger to ledger.

    full, old ──► end: verify, drain ─┐
                                      ├──► turn: one transaction ──► go on
    failed ─────► recover ────────────┘    (the next ledger holds the lane's state already)

One step at a time, and each looks at what is: so a step that fails halfway is followed by
whichever is due then. While a ledger ends, batches queue; they go out once the lane has
turned, first those of which recovery says that they are not in the ledger that failed.

A full ledger takes batches on while nobody can make the next one: the limits are soft.
From the end of a ledger on, or its failure, turning has append_timeout_s; then the lane
fails, and what was sent is unknown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
import trio

from ledger_client.background import Background
from ledger_client.catalogue import CHANGE_S, RETRY_S
from ledger_client.client import Client
from ledger_client.errors import (
    LedgerClosed,
    LedgerError,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchLedger,
    OutcomeUnknown,
    Retryable,
    WriterFailed,
)
from ledger_client.topics.lane_ledgers import LaneEnd, make_ledger
from ledger_client.topics.lane_rows import End, Found, LaneRows
from ledger_client.topics.lane_state import LaneState
from ledger_client.topics.rolling import Rolling
from ledger_client.topics.sealed_batch import SealedBatch
from ledger_client.topics.written_ledger import Slice, WrittenLedger
from metadata.topics import LaneLedger

PATIENCE_S = 1.0
"""Batches wait so long for the next ledger; then they go to the one that is full."""
OPENING_ATTEMPTS = 3
PAUSE_S = 2.0
PAUSE_URGENT_S = 0.5
"""The longest between two attempts at a step; urgent: while a ledger ends."""
Step = Callable[[], Awaitable[None]]


async def _tell(work: Step, done: trio.Event) -> None:
    await work()
    done.set()


class Owner(Protocol):
    """The lane's writer, as its steward sees it."""

    state: LaneState
    """up to what is settled"""
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

    def settle(self, done: Slice) -> None:
        """A slice is durable."""

    def turned(self, old: WrittenLedger) -> None:
        """The lane goes on in the next ledger, *old* has ended."""

    def fail(self, failure: LedgerError) -> None:
        """End for good."""


class Steward:
    """Keeps one lane going. ``ledger`` is where batches go now."""

    ledger: WrittenLedger
    row: LaneLedger

    def __init__(self, owner: Owner, client: Client, rows: LaneRows, nursery: trio.Nursery) -> None:
        self._owner = owner
        self._client = client
        self._rows = rows
        self._nursery = nursery
        self._rolling = self._rules()
        self._prepared: WrittenLedger | None = None
        self._news = trio.Event()
        self._scope = trio.CancelScope()
        self._deadline = math.inf
        self._why: LedgerError | None = None
        self._found: Found | None = None
        self._pauses = 0
        self._is_open = self._is_closed = False

    # --- opening -----------------------------------------------------------------------

    async def open(self, last: LaneEnd) -> None:
        """Begin the first ledger of this writer, and close the last one of the writer before.

        Raises as make_ledger(), and WriterFailed or OutcomeUnknown: its bookies fail.
        """
        try:
            await self._open(last)
        except BaseException:
            if self._prepared is not None:
                self._prepared.give_up()
            raise

    async def _open(self, last: LaneEnd) -> None:
        following = await self._first(last)
        row = self._row(following, last.next_version)
        await self._rows.turn(last.unclosed, last.end, row)
        self._prepared, self.ledger, self.row = None, following, row
        following.opened_at = trio.current_time()
        self._is_open = True

    async def _first(self, last: LaneEnd) -> WrittenLedger:
        """Return the first ledger, which holds the lane's state."""
        attempts = OPENING_ATTEMPTS
        while True:
            await self._prepare()
            following = self._prepared
            assert following is not None
            try:
                self._begin(following, last.state, last.next_version)
                await following.wait_state()
            except (WriterFailed, OutcomeUnknown):
                attempts -= 1
                if not attempts:
                    raise
            else:
                return following

    # --- the loop ----------------------------------------------------------------------

    async def run(self) -> None:
        """Take one step after the other until the lane is closed or failed."""
        while not (self._is_closed or self._owner.is_failed):
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
        ledger, owner = self.ledger, self._owner
        if ledger.has_failed:
            return self._recover
        if ledger.end is not None:
            return self._close if self._is_leaving else self._ready(self._turn)
        if self._is_leaving:
            return self._end
        if owner.head is not None and self._must_share(owner.head):
            return self._share
        age_s = self._age_s()
        if self._rolling.is_due(ledger, age_s, owner.head):
            return self._ready(self._end)
        if self._rolling.wants_next(ledger, age_s) and not self._is_ready:
            return self._prepare
        return None

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
            limit_s = self._client.options.append_timeout_s
            self._owner.fail(
                MetadataUnavailable(f"the lane did not go on within {limit_s:g} s{reason}")
            )

    async def _named(self, failure: LedgerError) -> LedgerError:
        """Return what is behind *failure*: a ledger is gone when its topic was deleted."""
        if isinstance(failure, NoSuchLedger):
            try:
                await self._rows.verify(limit_s=CHANGE_S)
            except LedgerError as cause:
                return cause
        return failure

    # --- steps -------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Make the next ledger, in the place of one that cannot be used."""
        before = self._prepared
        self._prepared = await make_ledger(
            self._client,
            self._rows,
            instead_of=None if before is None else before.id,
            confirm=self._owner.settle,
            failed=self._failed,
        )
        if before is not None:
            before.give_up()

    async def _end(self) -> None:
        """Send no more to the ledger, and wait until all of it is durable."""
        ledger = self.ledger
        if self._is_leaving:
            ledger.is_ending = True
            self._limit()
            if ledger.has_news:  # the next writer reads this entry alone
                ledger.send_state(self._state_at(ledger.next_entry - 1))
        elif not await self._begin_ahead():
            return
        reason = await ledger.drain()
        ledger.end = End(
            last_entry=ledger.next_entry - 1,
            length=ledger.writer.confirmed_length,
            figures=msgspec.structs.replace(self._owner.state.figures),
            is_sealed=False,
            reason=reason,
        )

    async def _begin_ahead(self) -> bool:
        """Let the next ledger begin while the last entries of this one are under way.

        False if this one goes on: while the store is away, or when it failed.
        """
        ledger, following = self.ledger, self._prepared
        assert following is not None
        count = ledger.next_entry
        self._begin(following, self._state_at(count - 1), self.row.base_version + count)
        try:
            async with Background() as nursery:
                settling = trio.Event()
                nursery.start_soon(_tell, ledger.settle, settling)
                self._found = await self._rows.look(ledger.id)
                await settling.wait()
        except MetadataUnavailable:
            following.give_up()  # it begins with what will not be the end of this one
            raise
        if ledger.has_failed or not self._is_ready:
            return False
        if ledger.next_entry != count:  # it took batches on meanwhile
            following.give_up()
            return False
        ledger.is_ending = True
        self._limit()
        return True

    async def _recover(self) -> None:
        """Close the ledger that failed, which tells what of it is there."""
        ledger = self.ledger
        ledger.is_ending = True
        self._limit()
        await self._rows.verify(limit_s=CHANGE_S)
        info = await self._client.recover_ledger(ledger.id)
        state = self._state_at(info.last_entry)
        ledger.end = End(
            last_entry=info.last_entry, length=info.length, figures=state.figures, is_sealed=True
        )
        if self._prepared is not None and self._prepared.has_begun:
            self._prepared.give_up()  # the state it begins with may not have come about

    async def _turn(self) -> None:
        """Go on in the next ledger."""
        ledger, following = self.ledger, self._prepared
        assert ledger.end is not None and following is not None
        version = self.row.base_version + ledger.end.last_entry + 1
        if not following.has_begun:
            self._begin(following, self._state_at(ledger.end.last_entry), version)
        await following.wait_state()
        row = self._row(following, version)
        try:
            await self._rows.turn(self.row, ledger.end, row, found=self._found)
        except (LedgerFenced, LedgerClosed):  # somebody recovers it
            ledger.end, ledger.is_lost = None, True
            return
        self._prepared, self.ledger, self.row = None, following, row
        following.opened_at = trio.current_time()
        self._deadline, self._why, self._found = math.inf, None, None
        self._rolling = self._rules()
        self._owner.turned(ledger)

    async def _close(self) -> None:
        """Leave the lane without an open ledger."""
        ledger = self.ledger
        assert ledger.end is not None
        try:
            await self._rows.close(self.row, ledger.end)
        except (LedgerFenced, LedgerClosed):
            ledger.end, ledger.is_lost = None, True
            return
        self._is_closed = True
        if self._prepared is not None:
            self._prepared.give_up()

    async def _share(self) -> None:
        """Mark the ledger before a time comes into it that the ledger before has too."""
        self.row = await self._rows.share_first(self.row)
        self._owner.send()

    # --- inside ------------------------------------------------------------------------

    @property
    def _is_leaving(self) -> bool:
        return self._owner.is_closing and self._owner.is_idle

    @property
    def _is_ready(self) -> bool:
        return self._prepared is not None and not self._prepared.writer.failed

    def _ready(self, step: Step) -> Step:
        return step if self._is_ready else self._prepare

    def _must_share(self, batch: SealedBatch) -> bool:
        """True when *batch* would begin a ledger with the time that ended the one before."""
        time_ns = batch.first_event_time
        return (
            self._rows.topic.order == "event-time"
            and not (self.ledger.batches or self.ledger.is_ending or self.row.shares_first)
            and time_ns is not None
            and time_ns == self._owner.state.last_event_time
        )

    async def _lose_patience(self, ledger: WrittenLedger) -> None:
        await trio.sleep(PATIENCE_S)
        ledger.is_overdue = True
        self._owner.send()

    def _failed(self) -> None:
        """A ledger failed with something under way."""
        if self._is_open and self.ledger.has_failed:
            self._limit()
        self._news.set()

    def _limit(self) -> None:
        """Let turning begin to count its time."""
        if self._deadline == math.inf:
            self._deadline = trio.current_time() + self._client.options.append_timeout_s
            self._scope.deadline = min(self._scope.deadline, self._deadline)

    async def _pause(self) -> None:
        """Wait for a while, longer each time; while nothing can be sent, not for long."""
        longest_s = PAUSE_S if self._deadline == math.inf else PAUSE_URGENT_S
        await trio.sleep(min(RETRY_S * 2.0**self._pauses, longest_s))
        self._pauses = min(self._pauses + 1, 30)

    def _state_at(self, last_entry: int) -> LaneState:
        now_ms = time.time_ns() // 1_000_000
        return self.ledger.state_after(self._owner.state, last_entry, now_ms)

    def _begin(self, following: WrittenLedger, state: LaneState, version: int) -> None:
        """Let the next ledger begin with *state*."""
        state.begin(epoch=self._rows.record.epoch, base_version=version)
        following.send_state(state)

    def _row(self, following: WrittenLedger, version: int) -> LaneLedger:
        return LaneLedger(
            ledger_id=following.id,
            state="open",
            base_version=version,
            epoch=self._rows.record.epoch,
            created_ms=following.writer.metadata.created_ms,
        )

    def _rules(self) -> Rolling:
        topic = self._rows.topic
        return Rolling(topic.roll, ordered=topic.order == "event-time")

    def _age_s(self) -> float:
        return trio.current_time() - self.ledger.opened_at

    def give_up(self) -> None:
        """Count nothing any more; the ledger stays open for whoever takes the lane over."""
        for ledger in (self.ledger, self._prepared):
            if ledger is not None:
                ledger.give_up()
