"""A lane going from one ledger to the next: what each step does to ledgers and rows.

    prepare ──► begin_ahead ──► end ──┐
                                      ├──► turn ──► (the next is written)
                       recover ───────┘

Which step is due, the steward decides. Each leaves, when it fails or is cut short by a failure
of the store, what the next one can go on from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
import trio

from ledger_client.background import Background
from ledger_client.catalogue import CHANGE_S
from ledger_client.client import Client
from ledger_client.errors import (
    LedgerClosed,
    LedgerFenced,
    MetadataUnavailable,
    OutcomeUnknown,
    WriterFailed,
)
from ledger_client.topics.lanes.lane_ledgers import LaneEnd, make_ledger
from ledger_client.topics.lanes.lane_rows import Found, LaneRows
from ledger_client.topics.lanes.lane_state import LaneState
from ledger_client.topics.lanes.ledger_end import End
from ledger_client.topics.lanes.slower_copies import SlowerCopies
from ledger_client.topics.lanes.written_ledger import Slice, WrittenLedger
from metadata.topics import LaneLedger

OPENING_ATTEMPTS = 3


async def _tell(work: Callable[[], Awaitable[None]], done: trio.Event) -> None:
    await work()
    done.set()


class Settled(Protocol):
    """The lane's writer, as far as ledgers are concerned."""

    state: LaneState
    """up to what is settled"""

    def settle(self, done: Slice) -> None:
        """A slice is durable."""

    def turned(self, old: WrittenLedger) -> None:
        """The lane goes on in the next ledger, *old* has ended."""


class Turning:
    """The ledgers of one lane.

    Attributes:
        ledger: the one that is written.
        row: of that ledger.
        prepared: the next one, if it is made.
        is_open: there is a ledger that is written.
        is_closed: it was closed, and none followed.
    """

    ledger: WrittenLedger
    row: LaneLedger

    def __init__(
        self,
        owner: Settled,
        client: Client,
        rows: LaneRows,
        nursery: trio.Nursery,
        *,
        ending: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        """*ending* is called when the ledger takes no more, *failed* when one failed.

        The latter only if something was under way.
        """
        self.prepared: WrittenLedger | None = None
        self.is_open = self.is_closed = False
        self._owner = owner
        self._client = client
        self._rows = rows
        self._slower = SlowerCopies(client.catalogue, nursery)
        self._ending = ending
        self._failed = failed
        self._figures = client.figures.sending(rows.topic.name)
        self._stopped_at = 0.0
        self._found: Found | None = None
        self._is_disturbed = False

    @property
    def is_ready(self) -> bool:
        """True while there is a next ledger that can be written."""
        return self.prepared is not None and not self.prepared.writer.failed

    # --- opening -----------------------------------------------------------------------

    async def open(self, last: LaneEnd) -> None:
        """Begin the first ledger of this writer, and close the last one of the writer before.

        Raises as make_ledger(), and WriterFailed or OutcomeUnknown: its bookies fail.
        """
        try:
            await self._open(last)
        except BaseException:
            if self.prepared is not None:
                self.prepared.give_up()
            raise

    async def _open(self, last: LaneEnd) -> None:
        following = await self._first(last)
        row = self._row(following, last.next_version)
        await self._rows.turn(last.unclosed, last.end, row)
        self.prepared, self.ledger, self.row = None, following, row
        following.opened_at = trio.current_time()
        self._figures.takeovers += last.unclosed is not None
        self.is_open = True

    async def _first(self, last: LaneEnd) -> WrittenLedger:
        """Return the first ledger, which holds the lane's state."""
        attempts = OPENING_ATTEMPTS
        while True:
            await self.prepare()
            following = self.prepared
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

    # --- steps -------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Make the next ledger, in the place of one that cannot be used."""
        before = self.prepared
        self.prepared = await make_ledger(
            self._client,
            self._rows,
            instead_of=None if before is None else before.id,
            confirm=self._owner.settle,
            failed=self._failed,
        )
        if before is not None:
            before.give_up()

    async def leave(self) -> None:
        """Send the lane's state for the next writer, and wait until all is durable."""
        self._stop()
        if self.ledger.has_news:  # it is all that the next writer reads
            state = self._state_at(self.ledger.next_entry - 1)
            self.ledger.send_state(state, self._client.clock.now_ms())
        await self._drain(with_slower=True)

    async def end(self) -> None:
        """Send no more to the ledger, and wait until all of it is durable.

        Raises MetadataUnavailable: it is not the time to turn, the ledger goes on.
        """
        is_late = self.ledger.is_overdue or self._is_disturbed
        if await (self._begin_late() if is_late else self._begin_ahead()):
            self._stop()
            await self._slower.wait()  # so that of one ledger alone it is not known
            await self._drain(with_slower=False)

    def _stop(self) -> None:
        if not self.ledger.is_ending:
            self._stopped_at = trio.current_time()
        self.ledger.is_ending = True
        self._ending()

    async def _drain(self, *, with_slower: bool) -> None:
        """Wait until all is durable; slower bookies have time once the lane has turned."""
        ledger = self.ledger
        await ledger.settle()
        if with_slower:
            await ledger.wait_slower()
        reason = ledger.writer.doubt()
        is_slow = reason == "check" and not with_slower
        if not is_slow:
            ledger.give_up()
        ledger.end = End(
            last_entry=ledger.next_entry - 1,
            length=ledger.writer.confirmed_length,
            figures=msgspec.structs.replace(self._owner.state.figures),
            is_sealed=False,
            reason=None if is_slow else reason,
        )

    async def _begin_ahead(self) -> bool:
        """Let the next ledger begin while the last entries of this one are under way.

        False: something came in between.
        """
        ledger, following = self.ledger, self.prepared
        assert following is not None
        count = ledger.next_entry
        self._begin(following, self._state_at(count - 1), self.row.base_version + count)
        try:
            async with Background() as nursery:
                settling = trio.Event()
                nursery.start_soon(_tell, ledger.writer.settle, settling)
                self._found = await self._rows.look(ledger.id)
                with trio.move_on_after(CHANGE_S if ledger.next_entry == count else 0):
                    await settling.wait()
        except MetadataUnavailable:
            following.give_up()  # it begins with what will not be the end of this one
            raise
        if ledger.has_failed or not self.is_ready:
            return False
        if ledger.next_entry != count:  # it took batches on meanwhile
            following.give_up()
            self._is_disturbed = True
            return False
        return True

    async def _begin_late(self) -> bool:
        """The same for a ledger that takes batches on: they wait once the store has answered.

        Else it would never end, as something always comes in between.
        """
        ledger = self.ledger
        self._found = await self._rows.look(ledger.id)
        if ledger.has_failed or self.prepared is None or not self.is_ready:
            return False
        self._stop()
        version = self.row.base_version + ledger.next_entry
        self._begin(self.prepared, self._state_at(ledger.next_entry - 1), version)
        return True

    async def recover(self) -> None:
        """Close the ledger that failed, which tells what of it is there."""
        ledger = self.ledger
        self._stop()
        await self._rows.verify(limit_s=CHANGE_S)
        info = await self._client.recover_ledger(ledger.id)
        state = self._state_at(info.last_entry)
        ledger.end = End(
            last_entry=info.last_entry, length=info.length, figures=state.figures, is_sealed=True
        )
        if self.prepared is not None and self.prepared.has_begun:
            self.prepared.give_up()  # the state it begins with may not have come about

    async def turn(self) -> None:
        """Go on in the next ledger."""
        ledger, following = self.ledger, self.prepared
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
        self.prepared, self.ledger, self.row = None, following, row
        following.opened_at = trio.current_time()
        self._figures.roll_times.add_s(following.opened_at - self._stopped_at)
        self._figures.recoveries += ledger.has_failed
        self._found, self._is_disturbed = None, False
        if not ledger.writer.failed:
            self._slower.watch(ledger)
        self._owner.turned(ledger)

    async def close(self) -> None:
        """Leave the lane without an open ledger."""
        ledger = self.ledger
        assert ledger.end is not None
        await self._slower.wait()
        try:
            await self._rows.close(self.row, ledger.end)
        except (LedgerFenced, LedgerClosed):
            ledger.end, ledger.is_lost = None, True
            return
        self.is_closed = True
        if self.prepared is not None:
            self.prepared.give_up()

    async def share(self) -> None:
        """Mark the ledger before a time comes into it that the ledger before has too."""
        self.row = await self._rows.share_first(self.row)

    @property
    def lacks_start(self) -> bool:
        """True while the row of an open ledger does not say with which times it begins."""
        row, figures = self.row, self._owner.state.figures
        if row.first_timestamp or row.first_event_time is not None:
            return False
        return bool(figures.first_timestamp) or figures.first_event_time is not None

    async def note_start(self) -> None:
        """Say in the row with which times the ledger begins, as far as it is durable."""
        self.row = await self._rows.note_start(self.row, self._owner.state.figures)

    # --- inside ------------------------------------------------------------------------

    def _state_at(self, last_entry: int) -> LaneState:
        return self.ledger.state_after(self._owner.state, last_entry, self._client.clock.now_ms())

    def _begin(self, following: WrittenLedger, state: LaneState, version: int) -> None:
        """Let the next ledger begin with *state*."""
        state.begin(epoch=self._rows.record.epoch, base_version=version)
        following.send_state(state, self._client.clock.now_ms())

    def _row(self, following: WrittenLedger, version: int) -> LaneLedger:
        return LaneLedger(
            ledger_id=following.id,
            state="open",
            base_version=version,
            epoch=self._rows.record.epoch,
            created_ms=following.writer.metadata.created_ms,
        )

    def give_up(self) -> None:
        """Count nothing any more; the ledger stays open for whoever takes the lane over."""
        self.ledger.give_up()
        if self.prepared is not None:
            self.prepared.give_up()
