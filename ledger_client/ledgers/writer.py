"""Writing a ledger: entries out to the ensemble, acknowledgements back in order.

    append ──┐                                     ┌─► bookie 0 ─┐
    append ──┼─► WriteState ─► pump: one pass ─────┼─► bookie 1 ─┼─► acknowledged()
    append ──┘   (callers      through C a chunk,  └─► bookie 2 ─┘   LAC moves on:
                 wait)         bounded in flight                     callers wake

WriteState (write_state.py) decides; the WriteDriver here does what it decides: it owns the
connections, the tasks and the alarm, and reports every event to the state. Everything
appended in one turn of the scheduler goes through C together. The pump is a task that
exists while there is something to send.

A writer fails once and for good: when too few bookies are left, when a bookie reports that
the ledger is fenced, or when an entry takes too long. Confirmed entries are safe; callers
whose entries were sent and not confirmed get OutcomeUnknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from weakref import WeakValueDictionary

import msgspec
import trio

from ledger_client.background import Alarms, OnDemand
from ledger_client.errors import (
    BookieUnavailable,
    LedgerClosed,
    LedgerError,
    LedgerFenced,
    MetadataUnavailable,
    Retryable,
)
from ledger_client.ledgers.catalogue import Catalogue
from ledger_client.ledgers.ensemble_state import NEVER, Vacancies
from ledger_client.ledgers.entries import digest_of
from ledger_client.ledgers.placement import Placement
from ledger_client.ledgers.records import Reason
from ledger_client.ledgers.write_state import (
    LATE_S,
    Action,
    Add,
    Announce,
    Attach,
    Confirm,
    Detach,
    End,
    Payload,
    Refuse,
    Replace,
    WriteState,
)
from ledger_client.opening import Openable
from ledger_client.options import Options
from ledger_client.wire.bookies import Bookies
from ledger_client.wire.inflight import LedgerName
from ledger_client.wire.session import Session
from metadata.records import Fragment, LedgerRecord
from native import frame
from native.frame import Flag
from native.link import Writer

SLOWER_S = 0.2
"""For bookies beyond the ack quorum, at the end; after that the ledger is marked for repair."""
SLOWER_POLL_S = 0.002
ABORTED_CLOSE_S = 5.0
"""For the metadata when the writer failed, or the block is left by a cancellation."""

ChangeEnsemble = Callable[[Fragment, Fragment], Awaitable[LedgerRecord]]
"""Publishes a fragment after, or in place of, the expected last one, as
Catalogue.change_ensemble does."""


class Request(Add):
    """Payloads to append, and an event for the task that waits for them."""

    __slots__ = ("done", "failure")

    def __init__(self, payloads: Sequence[Payload]) -> None:
        super().__init__(payloads)
        self.done = trio.Event()
        self.failure: LedgerError | None = None

    def succeed(self) -> None:
        """Wake the caller: all entries are confirmed."""
        self.done.set()

    def fail(self, failure: LedgerError) -> None:
        """Wake the caller; append() raises *failure* there."""
        self.failure = failure
        self.done.set()


class LedgerWriter(Openable):
    """One ledger that is open for writing. Any task may append."""

    def __init__(self, driver: WriteDriver) -> None:
        self._driver = driver

    @property
    def id(self) -> int:
        """Id of the ledger; it may be reused after a deletion."""
        return self._driver.id

    @property
    def metadata(self) -> LedgerRecord:
        """The ledger's record as this writer last published it."""
        return self._driver.metadata

    @property
    def last_confirmed(self) -> int:
        """The greatest acknowledged entry, -1 for none; all before it are acknowledged, too."""
        return self._driver.last_confirmed

    @property
    def closed(self) -> bool:
        """True once this writer has sealed the ledger."""
        return self._driver.closed

    @property
    def failure(self) -> LedgerError | None:
        """The error that ended the writer; `None` while it takes entries."""
        return self._driver.failure

    async def append(self, payload: Payload) -> int:
        """Add one entry and return its id once ack_quorum bookies made it durable.

        Waits while bytes_in_flight_max bytes are not confirmed. After a cancellation the
        entry may or may not be in the ledger; the writer stays usable.

        Raises:
            OutcomeUnknown: it was sent, and the writer failed before it was
                acknowledged; the cause says why.
            WriterFailed: the writer failed earlier: the entry was not sent.
            PayloadTooLarge: larger than 5 MiB less 256 bytes; nothing was sent.
        """
        return (await self._driver.append_many((payload,))).start

    async def append_many(self, payloads: Iterable[Payload]) -> range:
        """Add entries with consecutive ids and return the ids once all are durable.

        One pass through C for every 512 KiB. Raises as append(); then the ledger may hold
        the first of the entries without the others.
        """
        return await self._driver.append_many(payloads)

    async def close(self, *, wait: bool = True) -> None:
        """Seal the ledger at its last confirmed entry.

        Waits up to close_timeout_s for entries under way, then as long for the
        metadata; works on a failed writer too, which gives the metadata 5 s.
        Closing twice does nothing. Without *wait*, entries under way are not waited for,
        and the ledger is sealed even when the task is cancelled.

        Raises:
            LedgerFenced: another client recovers the ledger.
            LedgerClosed: another client sealed it at another entry.
            NoSuchLedger: it was deleted.
            MetadataUnavailable: the store did not answer in time; the ledger
                stays open, and close() may be called again.
        """
        try:
            await (self._driver.close() if wait else self._driver.abort())
        except Retryable:
            raise  # it may be called again
        except LedgerError:
            if self._held is not None:
                await self._held.cancel()
            raise
        if self._held is not None:
            await self._held.leave()


class WriteDriver:
    """The tasks and connections of one writer. Lanes and jobs append with it directly."""

    def __init__(
        self,
        record: LedgerRecord,
        *,
        native: Writer,
        key: bytes,
        token: int,
        change: ChangeEnsemble,
        catalogue: Catalogue,
        bookies: Bookies,
        placement: Placement,
        options: Options,
        nursery: trio.Nursery,
        alarms: Alarms,
    ) -> None:
        """Connect to the bookies of the last fragment of *record*.

        Args:
            record: the ledger.
            native: begins at the first entry to write; reports to links as *token*.
            key: the ledger's master key.
            token: identifies the writer on connections, which writers share.
            change: publishes changes of the ensemble.
            catalogue: seals the ledger.
            bookies: the connections.
            placement: chooses substitutes for lost bookies.
            options: deadlines and bounds.
            nursery: for the pump and for replacements.
            alarms: calls back when something is due.
        """
        self._state = WriteState(record, native, options)
        self._native = native
        self._key = key
        self._token = token
        self._change = change
        self._catalogue = catalogue
        self._bookies = bookies
        self._placement = placement
        self._options = options
        self._alarms = alarms
        self._name = LedgerName(record.ledger_id, record.incarnation)
        self._live: dict[int, Session] = {}
        self._actions: deque[Action] = deque()
        self._performing = False
        self._alarms_at = [NEVER]  # those that are set, the next one last
        self._moved = trio.lowlevel.ParkingLot()
        self._nursery = nursery
        self._pumps = False
        self._replacing = OnDemand(nursery, self._replace)
        self._replace_scope = trio.CancelScope()
        self._closing = trio.Lock()
        self._sealed: LedgerRecord | None = None
        for index, bookie_id in enumerate(self._state.ensemble.bookies):
            self._attach(index, bookie_id, ())

    @property
    def id(self) -> int:
        """Id of the ledger; it may be reused after a deletion."""
        return self._name.ledger_id

    @property
    def metadata(self) -> LedgerRecord:
        """The ledger's record as this writer last published it."""
        return self._sealed or self._state.record

    @property
    def last_confirmed(self) -> int:
        """The greatest acknowledged entry, -1 for none."""
        return self._state.last_confirmed

    @property
    def confirmed_length(self) -> int:
        """Payload bytes of the ledger up to last_confirmed."""
        return self._state.confirmed_length

    @property
    def next_entry(self) -> int:
        """Id that the next entry gets; those from last_confirmed + 1 on are under way."""
        return self._state.next_entry

    @property
    def closed(self) -> bool:
        """True once this writer has sealed the ledger."""
        return self._sealed is not None

    @property
    def failure(self) -> LedgerError | None:
        """The error that ended the writer; `None` while it takes entries."""
        return self._state.failure

    # --- appending -------------------------------------------------------------------

    async def append_many(self, payloads: Iterable[Payload]) -> range:
        """Append entries and wait, as LedgerWriter.append_many()."""
        request = Request(list(payloads))
        if not request.payloads:
            self._state.check_open()
            return range(self._state.next_entry, self._state.next_entry)
        self.submit(request)
        try:
            await request.done.wait()
        except trio.Cancelled:
            self._state.withdraw(request)
            raise
        if request.failure is not None:
            raise request.failure
        return request.ids

    def submit(self, request: Request) -> None:
        """Append the entries of *request* without waiting; it is notified of the outcome.

        For callers that bound the entries under way themselves. Raises as append_many();
        then the request is not notified.
        """
        self._state.add(request)
        if not self._pumps:
            self._pumps = True
            self._nursery.start_soon(self._pump)

    async def _pump(self) -> None:
        """Send what waits, from the scheduler's next turn on."""
        state = self._state
        try:
            while state.waiting:
                await self._wait_room()
                chunk = state.next_chunk(trio.current_time())
                if chunk is not None:
                    for index, session in self._live.items():
                        if chunk.frames[index]:
                            session.send(self._token, chunk.frames[index])
                    if state.due_at < self._alarms_at[-1]:
                        self._set_alarm()
                if state.waiting:  # let the first chunks leave while the next are built
                    await trio.lowlevel.checkpoint()
        finally:
            self._pumps = False

    async def _wait_room(self) -> None:
        """Wait for confirmations and for slow bookies, but not forever for these."""
        state = self._state
        while not state.has_room:
            await self._moved.park()
        while slow := [index for index, session in self._live.items() if session.outgoing.full]:
            with trio.move_on_after(self._options.slow_bookie_s) as patience:
                for index in slow:
                    if index in self._live:
                        await self._live[index].outgoing.wait_room()
            is_late = trio.current_time() > patience.deadline + LATE_S  # this process hung
            if patience.cancelled_caught and not is_late:
                still = [index for index, session in self._live.items() if session.outgoing.full]
                self._perform(state.slow(still, trio.current_time()))

    # --- events and actions ------------------------------------------------------------

    def acknowledged(self) -> None:
        """Handle answers that a connection counted in the native writer."""
        self._perform(self._state.acknowledged(trio.current_time()))

    def bookie_lost(self, index: int, failure: BookieUnavailable) -> None:
        """Handle the end of the connection to the bookie at *index*."""
        self._perform(self._state.lost(index, failure.reason, trio.current_time()))

    def bookie_left(self, index: int) -> None:
        """Connect again to the bookie at *index*, which has everything."""
        if self._live.pop(index, None) is not None:
            self._attach(index, self._state.ensemble.bookies[index], ())

    def fail(self, failure: LedgerError) -> None:
        """End writing: the last confirmed entry is final."""
        self._perform(self._state.fail(failure, trio.current_time()))

    def _alarm(self) -> None:
        self._alarms_at.pop()
        self._perform(self._state.tick(trio.current_time()))

    def _set_alarm(self) -> None:
        self._alarms_at.append(self._state.due_at)
        self._alarms.set(self._state.due_at, self._alarm)

    def _perform(self, actions: Iterable[Action]) -> None:
        """Perform *actions* after those that are under way: one may cause further events."""
        queue = self._actions
        queue.extend(actions)
        if not self._performing:
            self._performing = True
            try:
                while queue:
                    self._perform_one(queue.popleft())
            finally:
                self._performing = False
        self._moved.unpark_all()
        if self._state.due_at < self._alarms_at[-1]:
            self._set_alarm()

    def _perform_one(self, action: Action) -> None:
        match action:
            case Confirm(adds):
                for add in adds:
                    assert isinstance(add, Request)
                    add.succeed()
            case Refuse(add, failure):
                assert isinstance(add, Request)
                add.fail(failure)
            case Detach(place, bookie_id):
                self._detach(place, bookie_id)
            case Replace():
                self._replacing.start()
            case Attach(place, bookie_id, chunks):
                self._attach(place, bookie_id, chunks)
            case Announce(last_confirmed):
                self._announce(last_confirmed)
            case End(is_sent):
                self._leave_all(is_sent=is_sent)

    # --- bookies -------------------------------------------------------------------------

    def _attach(self, index: int, bookie_id: str, chunks: Sequence[Sequence[memoryview]]) -> None:
        bookie = self._bookies.connections[bookie_id]
        try:
            session = bookie.attach(self._token, self._native, index, self, self._name)
        except BookieUnavailable as failure:
            self.bookie_lost(index, failure)
            return
        self._live[index] = session
        for frames in chunks:
            if frames[index]:
                session.send(self._token, frames[index])

    def _detach(self, index: int, bookie_id: str) -> None:
        session = self._live.pop(index, None)
        if session is not None:
            session.detach(self._token)
        self._placement.failed(bookie_id)

    def _announce(self, last_confirmed: int) -> None:
        for index in self._live:
            bookie = self._bookies.connections[self._state.ensemble.bookies[index]]
            request_id = bookie.next_request_id()
            request = frame.write_lac(self._key, self.id, request_id=request_id, lac=last_confirmed)
            bookie.notify(request, self._name)

    def _leave_all(self, *, is_sent: bool) -> None:
        self._replace_scope.cancel()
        for session in self._live.values():
            if is_sent:
                session.leave(self._token)
            else:
                session.detach(self._token)
        self._live.clear()

    async def _replace(self) -> None:
        with trio.CancelScope() as self._replace_scope:
            while (vacancies := self._state.begin_replacement()) is not None:
                self._perform(await self._try_to_replace(vacancies))

    async def _try_to_replace(self, vacancies: Vacancies) -> list[Action]:
        state = self._state
        try:
            places = await self._placement.substitutes(
                vacancies.bookies,
                vacancies.lost,
                write_quorum=state.record.write_quorum,
                urgent=vacancies.urgent,
            )
        except LedgerError as cause:
            return state.not_replaced(cause, trio.current_time())
        change = state.chosen(places)
        if change is None:
            return []
        try:
            record = await self._change(change.expected_last, change.fragment)
        except MetadataUnavailable as cause:
            return state.not_replaced(cause, trio.current_time())
        except LedgerError as failure:
            return state.fail(failure, trio.current_time())
        return state.replaced(record, trio.current_time())

    # --- closing ---------------------------------------------------------------------

    async def close(self) -> None:
        """Seal the ledger within twice close_timeout_s, as LedgerWriter.close()."""
        await self._seal(wait_s=self._options.close_timeout_s)

    async def abort(self) -> None:
        """Seal the ledger as LedgerWriter.close(wait=False) does; adds under way fail."""
        with trio.CancelScope(shield=True):
            await self._seal(wait_s=0.0)

    async def _seal(self, *, wait_s: float) -> None:
        async with self._closing:
            if self._sealed is not None:
                return
            self._state.end()
            failed = self.failure is not None  # its bookies may be the way to the metadata
            with trio.move_on_after(wait_s):
                await self.settle(slower_s=SLOWER_S)
            self.fail(LedgerClosed(self.id))
            limit_s = wait_s if wait_s > 0 and not failed else ABORTED_CLOSE_S
            with trio.move_on_after(limit_s) as scope:
                self._sealed = await self._catalogue.close(
                    self.id,
                    self.last_confirmed,
                    self.confirmed_length,
                    reason=self.doubt(),
                    incarnation=self._name.incarnation,
                )
            if scope.cancelled_caught:
                late = f"ledger {self.id}: not closed within {limit_s:g} s"
                raise MetadataUnavailable(late, ledger_id=self.id)
            self._native.close()

    async def settle(self, *, slower_s: float = 0.0) -> None:
        """Wait until everything appended is confirmed, or the writer failed; go on writing.

        Bookies beyond the ack quorum get *slower_s* more.
        """
        while not self._state.is_idle:
            await self._moved.park()
        with trio.move_on_after(slower_s):
            while self._state.is_behind():  # noqa: ASYNC110 - C reports only a new LAC
                await trio.sleep(min(SLOWER_POLL_S, slower_s / 40))

    async def drain(self, *, slower_s: float = 0.0) -> LedgerRecord:
        """Wait until everything appended is confirmed and end writing, without sealing.

        Bookies beyond the ack quorum get *slower_s* more; doubt() says whether they caught
        up. Returns the record with the fragments that hold the entries.
        append_timeout_s and replace_timeout_s limit the wait.

        Raises:
            WriterFailed: not everything is confirmed, and the writer ended.
        """
        self._state.end()
        await self.settle(slower_s=slower_s)
        if self.failure is not None:
            raise self.failure
        self.fail(LedgerClosed(self.id))
        return self.metadata

    def doubt(self) -> Reason | None:
        """Return a reason to check copies of confirmed entries; None if none are missing."""
        return self._state.doubt()


class Writers:
    """Opens writers for ledgers whose records exist."""

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        bookies: Bookies,
        placement: Placement,
        options: Options,
        nursery: trio.Nursery,
    ) -> None:
        self._catalogue = catalogue
        self._bookies = bookies
        self._placement = placement
        self._options = options
        # Until a recovered ledger is closed, readers must not see entries that were added again.
        self._quiet = msgspec.structs.replace(options, explicit_lac_s=0.0)
        self._nursery = nursery
        self._alarms = Alarms(nursery)
        self._open: WeakValueDictionary[int, WriteDriver] = WeakValueDictionary()

    def open(
        self,
        record: LedgerRecord,
        *,
        change: ChangeEnsemble | None = None,
        first_entry: int = 0,
        length: int = 0,
        flags: int = 0,
    ) -> WriteDriver:
        """Return a writer that appends to the last fragment of *record*.

        A connection counts acknowledgements for one writer of a ledger. So a writer that
        recovers the ledger ends this client's earlier one, which could not acknowledge
        anything any more.

        Args:
            record: the ledger; the caller has made sure that no other client writes to it.
            change: publishes changes of the ensemble; by default in metadata.
            first_entry: id of the first entry to append.
            length: payload bytes of the entries before it.
            flags: of every ADD frame, as native.frame.Flag.
        """
        earlier = self._open.get(record.ledger_id)
        if earlier is not None and flags & Flag.RECOVERY:
            earlier.fail(LedgerFenced(record.ledger_id))
        catalogue, token = self._catalogue, self._bookies.new_token()
        digest = digest_of(record)
        native = Writer(
            record.ledger_id,
            record.ensemble_size,
            record.write_quorum,
            record.ack_quorum,
            digest,
            first_entry=first_entry,
            length=length,
            token=token,
            flags=flags,
        )
        writer = WriteDriver(
            record,
            native=native,
            key=digest.master_key,
            token=token,
            change=change
            or partial(catalogue.change_ensemble, record.ledger_id, incarnation=record.incarnation),
            catalogue=catalogue,
            bookies=self._bookies,
            placement=self._placement,
            options=self._quiet if flags & Flag.RECOVERY else self._options,
            nursery=self._nursery,
            alarms=self._alarms,
        )
        self._open[record.ledger_id] = writer
        return writer
