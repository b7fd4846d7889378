"""Writing a ledger: entries out to the ensemble, acknowledgements back in order.

    append ──┐                                     ┌─► bookie 0 ─┐
    append ──┼─► requests ─► pump: one pass ───────┼─► bookie 1 ─┼─► acknowledged()
    append ──┘   (callers    through C a piece,    └─► bookie 2 ─┘   LAC moves on:
                 wait)       bounded in flight                       callers wake

All that is asked for in one turn of the scheduler goes through C together. The
pump is a task that exists while there is something to send. C counts who has
acknowledged what and says how far the ledger is confirmed.

A bookie that is lost is replaced (replacement.py). A writer fails once and for good:
when too few bookies are left, when one says that the ledger is fenced, or when an entry
takes too long. What it confirmed is safe; callers whose entries were sent and not
confirmed get OutcomeUnknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import trio

from ledger_client.alarms import Alarms
from ledger_client.appends import Payload, Piece, Request, RequestQueue
from ledger_client.background import OnDemand
from ledger_client.bookies import Bookies
from ledger_client.catalogue import Catalogue
from ledger_client.changes import Changes
from ledger_client.ensemble import Ensemble
from ledger_client.errors import (
    BookieUnavailable,
    EntryConflict,
    EntryTooLarge,
    LedgerClosed,
    LedgerError,
    LedgerFenced,
    LedgerReplaced,
    MetadataUnavailable,
    WrongPassword,
)
from ledger_client.marks import Reason
from ledger_client.options import Options
from ledger_client.placement import Placement
from ledger_client.replacement import Replacement
from ledger_client.vigil import LATE_S, Vigil
from metadata.records import LedgerRecord
from native.digest import Digest
from native.frame import Code
from native.link import Writer

PAYLOAD_SIZE_MAX = 5 * 1024 * 1024 - 256
"""A frame has 5 MiB; the entry must also fit the answer to any kind of read."""
SLOWER_S = 0.2
"""For bookies beyond the ack quorum, at the end; then somebody is asked to look after them."""
SLOWER_POLL_S = 0.002
ABORTED_CLOSE_S = 5.0
"""For the metadata when the writer failed, or the block is left by a cancellation."""


class LedgerWriter:
    """One ledger, being written by Client.create_ledger. Any task may append.

    *native* says where it begins, *changes* is told of each change of the ensemble.
    """

    def __init__(
        self,
        record: LedgerRecord,
        *,
        native: Writer,
        digest: Digest,
        ensemble: Ensemble,
        catalogue: Catalogue,
        changes: Changes,
        bookies: Bookies,
        placement: Placement,
        options: Options,
        nursery: trio.Nursery,
        alarms: Alarms,
    ) -> None:
        self._native = native
        self._ensemble = ensemble
        self._catalogue = catalogue
        self._options = options
        self._queue = RequestQueue()
        self._unconfirmed: deque[Request] = deque()
        self._pieces: deque[Piece] = deque()
        self._moved = trio.lowlevel.ParkingLot()
        self._failure: LedgerError | None = None
        self._closing = trio.Lock()
        self._ending = self._sealed = False
        state = native.state()
        self._next, self._lac, self._length = state.next_entry, state.lac, state.length
        self._pump = OnDemand(nursery, self._send_queued)
        self._vigil = Vigil(
            self, ensemble=ensemble, key=digest.master_key, alarms=alarms, options=options
        )
        self._replacement = Replacement(
            record,
            owner=self,
            native=native,
            ensemble=ensemble,
            bookies=bookies,
            placement=placement,
            changes=changes,
            nursery=nursery,
            alarms=alarms,
            limit_s=options.replace_timeout_s,
        )
        ensemble.attach(native, self)

    @property
    def id(self) -> int:
        """Id of the ledger."""
        return self.metadata.ledger_id

    @property
    def metadata(self) -> LedgerRecord:
        """The ledger's record as this writer knows it."""
        return self._replacement.record

    @property
    def last_confirmed(self) -> int:
        """The greatest entry that is acknowledged, as all before it are; -1 for none."""
        return self._lac

    @property
    def confirmed_length(self) -> int:
        """Payload bytes of the ledger up to last_confirmed."""
        return self._length if self._failure else self._native.state().confirmed_length

    @property
    def closed(self) -> bool:
        """True once the ledger is sealed by this writer."""
        return self._sealed

    @property
    def next_entry(self) -> int:
        """Id that the next entry gets; those above last_confirmed are under way."""
        return self._next

    @property
    def oldest(self) -> Piece | None:
        """The oldest entries that are sent and not all confirmed."""
        return self._pieces[0] if self._pieces else None

    @property
    def owing(self) -> dict[int, str]:
        """Bookies that lack the oldest entry though another one has it: index and name."""
        bits, names = self._native.owing(), self._ensemble.names
        is_elsewhere = 0 < bits.bit_count() < self.metadata.write_quorum
        return {i: name for i, name in enumerate(names) if is_elsewhere and bits >> i & 1}

    @property
    def failed(self) -> bool:
        """True once the writer takes nothing any more."""
        return self._failure is not None

    @property
    def failure(self) -> LedgerError | None:
        """Why the writer takes nothing any more."""
        return self._failure

    # --- appending -------------------------------------------------------------------

    async def append(self, payload: Payload) -> int:
        """Add one entry and return its id once ack_quorum bookies made it durable.

        Waits while bytes_in_flight_max bytes are not confirmed. Cancelled, it
        may or may not have added the entry; the writer stays usable.

        Raises:
            OutcomeUnknown: it was sent, and the writer failed before it was
                acknowledged; the cause says why.
            WriterFailed: the writer failed earlier: the entry was not sent.
            EntryTooLarge: larger than 5 MiB less 256 bytes; nothing was sent.
        """
        return (await self.append_many((payload,))).start

    async def append_many(self, payloads: Iterable[Payload]) -> range:
        """Add entries with consecutive ids and return the ids once all are durable.

        One pass through C for every 512 KiB. Raises as append(); the first entries
        may be in the ledger then, and the others not.
        """
        self._check_writable()
        request = Request(list(payloads))
        if not request.payloads:
            return range(self._next, self._next)
        self.submit(request)
        try:
            await request.done.wait()
        except trio.Cancelled:
            self._queue.withdraw(request)
            raise
        if request.failure is not None:
            raise request.failure
        return request.ids

    def submit(self, request: Request) -> None:
        """Send the entries of *request* after those of all before; it is told how they fare.

        For one who counts what is under way: nothing waits here. Raises as
        append_many(); then the request is told nothing.
        """
        self._check_writable()
        if request.largest > PAYLOAD_SIZE_MAX:
            raise EntryTooLarge(ledger_id=self.id, size=request.largest, size_max=PAYLOAD_SIZE_MAX)
        self._queue.put(request)
        self._pump.start()

    def _check_writable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._ending:
            raise LedgerClosed(self.id)

    # --- the pump --------------------------------------------------------------------

    async def _send_queued(self) -> None:
        while self._queue and self._failure is None:
            await self._wait_room()
            if self._queue and self._failure is None:
                self._send_piece()
            if self._queue:  # let the first pieces leave while the next are built
                await trio.lowlevel.checkpoint()

    def _send_piece(self) -> None:
        payloads, complete = self._queue.take_piece(self._next)
        told = self._lac  # these entries carry it
        first, frames = self._native.add(payloads)
        assert first == self._next
        self._next += len(payloads)
        self._pieces.append(Piece(first, self._next - 1, frames, trio.current_time()))
        self._unconfirmed.extend(complete)
        self._ensemble.send(frames)
        self._vigil.sent(told)

    async def _wait_room(self) -> None:
        """Wait for confirmations and for slow bookies, but for these not for ever."""
        limit = self._options.bytes_in_flight_max
        while self._failure is None and self._native.state().pending_bytes >= limit:
            await self._moved.park()
        while self._failure is None and self._ensemble.full():
            with trio.move_on_after(self._options.slow_bookie_s) as patience:
                await self._ensemble.wait_room()
            slow = self._ensemble.full()
            hung = trio.current_time() > patience.deadline + LATE_S  # this process, that is
            if patience.cancelled_caught and not hung and self._ensemble.has_quorum(without=slow):
                for index in slow:
                    self._replacement.lost(index, "too slow")

    # --- acknowledgements ------------------------------------------------------------

    def acknowledged(self) -> None:
        """The state of the native writer changed: wake who waited for that."""
        state = self._native.state()
        if state.lac > self._lac:
            self._confirm(state.lac)
        if state.refused and self._failure is None:
            self._take_refusals(state.refused, state.code)

    def bookie_lost(self, index: int, failure: BookieUnavailable) -> None:
        """The connection to a bookie of the ensemble broke."""
        self._replacement.lost(index, failure.reason)

    def resend(self, index: int) -> None:
        """Send everything that is not confirmed to the bookie at *index*."""
        for piece in self._pieces:
            self._ensemble.send_to(index, piece.frames)

    def _confirm(self, lac: int) -> None:
        self._lac = lac
        while self._pieces and self._pieces[0].last <= lac:
            self._pieces.popleft()
        while self._unconfirmed and self._unconfirmed[0].ids[-1] <= lac:
            self._unconfirmed.popleft().succeed()
        self._moved.unpark_all()
        self._vigil.confirmed()

    def _take_refusals(self, refused: int, code: int) -> None:
        if code == Code.FENCED:
            self.fail(LedgerFenced(self.id))
        elif code == Code.UNAUTHORIZED:
            self.fail(WrongPassword(self.id))
        elif code == Code.OTHER_LEDGER:
            self.fail(LedgerReplaced(self.id))
        elif code == Code.BAD_REQUEST:
            self.fail(EntryConflict(self.id))
        else:
            for index in range(self.metadata.ensemble_size):
                if refused >> index & 1:
                    self._replacement.lost(index, f"refused an entry with code {code}")

    def fail(self, failure: LedgerError) -> None:
        """End writing: the last confirmed entry stays where it is from here on."""
        if self._failure is not None:
            return
        state = self._native.state()
        if state.lac > self._lac:  # the connection that brought the news failed with it
            self._confirm(state.lac)
        self._length = state.confirmed_length
        self._failure = failure
        self._replacement.stop()
        if self._pieces:
            self._ensemble.detach()
        else:  # all that is on its way was acknowledged by others
            self._ensemble.leave()
        for request in [*self._unconfirmed, *self._queue.take_all()]:
            request.fail(failure, ledger_id=self.id, confirmed=self._lac)
        self._unconfirmed.clear()
        self._pieces.clear()
        self._moved.unpark_all()

    # --- closing ---------------------------------------------------------------------

    async def close(self) -> None:
        """Seal the ledger at its last confirmed entry.

        Waits up to close_timeout_s for entries under way, then as long for the
        metadata; works on a failed writer too, which gives the metadata 5 s.
        Closing twice does nothing.

        Raises:
            LedgerFenced: another client recovers the ledger.
            LedgerClosed: another client sealed it at another entry.
            NoSuchLedger: it was deleted.
            MetadataUnavailable: the store did not take it in time; the ledger
                stays open, and close() may be called again.
        """
        await self._seal(wait_s=self._options.close_timeout_s)

    async def abort(self) -> None:
        """Seal the ledger without waiting for entries under way, even when cancelled.

        Raises as close().
        """
        with trio.CancelScope(shield=True):
            await self._seal(wait_s=0.0)

    async def _seal(self, *, wait_s: float) -> None:
        async with self._closing:
            if self._sealed:
                return
            self._ending = True
            failed = self._failure is not None  # its bookies may be the way to the metadata
            with trio.move_on_after(wait_s):
                while self._queue or self._pieces:
                    await self._moved.park()
                await self._wait_for_slower(SLOWER_S)
            if self._failure is None:
                self.fail(LedgerClosed(self.id))
            limit_s = wait_s if wait_s > 0 and not failed else ABORTED_CLOSE_S
            with trio.move_on_after(limit_s) as scope:
                record = await self._catalogue.close(
                    self.id,
                    self._lac,
                    self._length,
                    reason=self.doubt(),
                    incarnation=self.metadata.incarnation,
                )
            if scope.cancelled_caught:
                raise MetadataUnavailable(f"not closed within {limit_s:g} s", ledger_id=self.id)
            self._replacement.record = record
            self._sealed = True
            self._native.close()

    async def _wait_for_slower(self, limit_s: float) -> None:
        """Give the bookies that the ack quorum did without a moment to acknowledge all."""
        with trio.move_on_after(limit_s):
            while True:
                if self._failure or self._replacement.lost_bookies or not self._native.behind():
                    return
                await trio.sleep(min(SLOWER_POLL_S, limit_s / 40))

    def doubt(self) -> Reason | None:
        """Return why copies of what is confirmed may be missing; None: they are not.

        Nobody else would ever notice.
        """
        if self._lac < 0:
            return None
        if self._replacement.lost_bookies:
            return "ensemble changed"
        return "check" if self._native.behind() else None

    async def settle(self, *, slower_s: float = 0.0) -> None:
        """Wait until everything appended is confirmed, or the writer failed; go on writing.

        Bookies beyond the ack quorum get *slower_s* more.
        """
        while self._queue or self._pieces:
            await self._moved.park()
        await self._wait_for_slower(slower_s)

    async def drain(self, *, slower_s: float = 0.0) -> LedgerRecord:
        """Wait until everything appended is confirmed and end writing; seal nothing.

        Bookies beyond the ack quorum get *slower_s* more; whether they made use of it,
        doubt() tells. Returns the record with the fragments that hold the entries.
        append_timeout_s and replace_timeout_s limit the wait.

        Raises:
            WriterFailed: not everything is confirmed, and the writer ended.
        """
        self._ending = True
        await self.settle(slower_s=slower_s)
        if self._failure is not None:
            raise self._failure
        self.fail(LedgerClosed(self.id))
        return self.metadata
