"""How far a bounded read goes in a ledger that is being written.

Every entry acknowledged before the read belongs to it. The last confirmed entry that bookies know
lags acknowledgements by some milliseconds, and for good if the writer dies or stops in these. So
the entry after it is asked for, from all of its bookies:

    enough deny it ─────────────────► it was not acknowledged: the read ends before it
    one has it ──► confirmed soon ──► ask for the entry after the last confirmed one
               ├─► the lease is over ► recover the ledger: its record says where it ends
               └─► silence ─────────► entries that ack_quorum bookies have are stated

To state entries is to put into the ledger's record that they are confirmed. That ack_quorum bookies
have them is not enough: a writer that did not hear of these copies may replace one of the bookies
from such an entry on, and die before the new one has it. A recovery may then find the entry absent,
though a reader has returned it. What is stated cannot be lost so: the change of the record fails
if the ensemble changed meanwhile, and every later change of it, recovery or end of the ledger
counts from there (records.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import msgspec
import trio

from ledger_client.errors import BookieUnavailable, ReplicasUnavailable
from ledger_client.ledgers.entries import EntryQuestion, Unsound
from ledger_client.ledgers.inquiry import Answer, Inquiry, absent, is_negative
from ledger_client.ledgers.reader import IsWritten, LedgerView
from ledger_client.ledgers.replica_reads import LedgerSource
from ledger_client.wire.bookies import BookieConnection
from ledger_client.wire.inflight import Reply
from metadata.calls import LedgerRuns, RunPage
from metadata.records import LedgerRecord, LedgerState
from native.link import Response

SETTLE_S = 0.03
"""A quiet writer reports its last confirmed entry to bookies within a third of this."""
PATIENCE_S = (0.0, SETTLE_S, 0.1, 0.2)
"""Pauses between looks whether the writer confirms an entry that bookies have already."""
ASK_S = 2.0
"""Deadline for a bookie to list the entries that it has; so long it is tried if unreachable."""
LIMIT_S = 30.0
"""Longer than a dead writer's lease lives, and the recovery after it takes."""

Recover = Callable[[LedgerRecord], Awaitable[LedgerRecord]]
"""Closes a ledger in its writer's place; see recovery.py."""


async def settle(view: LedgerView, is_written: IsWritten, *, recover: Recover) -> int:
    """Return the last entry acknowledged before this call, -1 for none.

    Takes SETTLE_S and two questions to the bookies. If there are entries that the writer does not
    confirm, it takes half a second more, or as long as a dead writer's lease lives where too few
    bookies answer. While the lease lasts, entries are left out if all bookies that have them are
    away.

    Raises:
        NoSuchLedger, MetadataUnavailable: as LedgerView.refresh().
        ReplicasUnavailable: the bookies that answer leave open where the ledger ends. Entries up
            to last_confirmed can be read.
    """
    if view.closed:
        return view.last_confirmed
    await trio.sleep(SETTLE_S)
    settling = _Settling(view, is_written, recover)
    with trio.move_on_after(LIMIT_S):
        return await settling.run()
    reason = f"undecided for {LIMIT_S:g} s"
    raise settling.undecided(dict.fromkeys(view.source.record.fragments[-1].bookies, reason))


class _Settling:
    """One call of settle()."""

    def __init__(self, view: LedgerView, is_written: IsWritten, recover: Recover) -> None:
        self._view = view
        self._is_written = is_written
        self._recover = recover
        self._goal: int | None = None
        """of the entries that bookies had when they were asked, the last; `None` if unknown"""
        self._is_certain = False
        """True if no entry after the goal was acknowledged before the call"""

    async def run(self) -> int:
        """Return the last entry. Raises as settle()."""
        view = self._view
        await view.refresh()
        while not view.closed and not await self._is_reached():
            record, last = view.source.record, view.last_confirmed
            copies = await _copies_of(view.source, last + 1)
            if copies.is_denied():
                break
            if not copies.sound and not await self._is_left(record):
                break
            held = await self._held(record, last)
            if not await self._moves(record, last):
                await self._decide(record, last, held)
        return view.last_confirmed

    async def _is_reached(self) -> bool:
        """True if the read ends before the entry after the last confirmed one.

        While a writer goes on, entries are left out that only bookies have that did not answer.
        """
        view = self._view
        if self._goal is None or view.last_confirmed < self._goal:
            return False
        return self._is_certain or not await self._is_left(view.source.record)

    async def _held(self, record: LedgerRecord, last: int) -> int:
        """Return the last entry up to which ack_quorum bookies have all entries, durably.

        Of a striped ledger, which no lane has, it is *last*.
        """
        found: list[list[tuple[int, int]]] = []

        async def ask(bookie: BookieConnection) -> None:
            request = LedgerRuns(record.ledger_id, last, incarnation=record.incarnation)
            try:
                page = await bookie.call(request, timeout_s=ASK_S)
            except BookieUnavailable:
                return
            if isinstance(page, RunPage):
                found.append(page.runs)

        async with trio.open_nursery() as nursery:
            for bookie in self._view.source.newest_ensemble():
                nursery.start_soon(ask, bookie)
        self._learn_goal(record, last, found)
        if record.ensemble_size > record.write_quorum:
            return last
        ends = [runs[0][1] for runs in found if runs and runs[0][0] == last + 1]
        ends.sort(reverse=True)
        return ends[record.ack_quorum - 1] if len(ends) >= record.ack_quorum else last

    def _learn_goal(
        self, record: LedgerRecord, last: int, found: list[list[tuple[int, int]]]
    ) -> None:
        is_certain = record.ensemble_size - len(found) < record.ack_quorum
        if self._is_certain or (self._goal is not None and not is_certain):
            return
        end = max((runs[-1][1] for runs in found if runs), default=last)
        self._goal = end if is_certain else max(end, last + 1)  # a bookie has that one
        self._is_certain = is_certain

    async def _moves(self, record: LedgerRecord, last: int) -> bool:
        """Wait for PATIENCE_S; return True as soon as more is confirmed, or the record changes."""
        view = self._view
        for pause_s in PATIENCE_S:
            await trio.sleep(pause_s)
            await view.refresh()
            if view.last_confirmed > last or view.source.record != record:
                return True
        return False

    async def _is_left(self, record: LedgerRecord) -> bool:
        """True if no writer confirms anything any more."""
        return record.state is LedgerState.IN_RECOVERY or not await self._is_written()

    async def _decide(self, record: LedgerRecord, last: int, held: int) -> None:
        """Recover the ledger, or state the entries up to *held*; else wait for either."""
        view = self._view
        if await self._is_left(record):
            try:
                await self._recover(record)
            except ReplicasUnavailable as failure:
                raise self.undecided(failure.reasons) from failure
            await view.reload()
        elif held > last:
            await view.catalogue.state_confirmed(record, held)
            await view.refresh()
        # Otherwise the writer replaces a bookie, or its lease ends soon.

    def undecided(self, reasons: Mapping[str, str]) -> ReplicasUnavailable:
        """Return the error for an end that could not be told."""
        return ReplicasUnavailable(
            ledger_id=self._view.source.ledger_id,
            entry_id=self._view.last_confirmed + 1,
            reasons=reasons,
        )


async def _copies_of(source: LedgerSource, entry_id: int) -> _Copies:
    """Ask the bookies of an entry for it, fencing none, until it is decided or all have answered.

    Takes request_timeout_s at most for a silent bookie, and ASK_S more for an unreachable one.
    """
    copies = _Copies(source, entry_id)
    reach_s = min(source.options.read_timeout_s, ASK_S)
    options = msgspec.structs.replace(source.options, read_timeout_s=reach_s)
    with Inquiry(copies, source.replicas(entry_id), options) as inquiry:
        await inquiry.wait(copies.is_decided)
    return copies


class _Copies:
    """The bookies that have an entry, and those that deny it. Others have proved nothing."""

    def __init__(self, source: LedgerSource, entry_id: int) -> None:
        self.sound: set[str] = set()
        self._absent: set[str] = set()
        self._record = source.record
        self._question = EntryQuestion(source.name, entry_id, source.digest)

    def is_denied(self) -> bool:
        """True if so many bookies deny the entry that it cannot have been acknowledged."""
        return absent(self._record.write_quorum, self._record.ack_quorum, len(self._absent))

    def is_decided(self) -> bool:
        return self.is_denied() or len(self.sound) >= self._record.ack_quorum

    def ask(self, bookie: BookieConnection, on_arrival: Callable[[], None]) -> Reply:
        request, key = self._question.request(0)
        return bookie.ask(request, key, on_arrival, self._question.ledger)

    def take(self, bookie_id: str, answer: Answer) -> None:
        if is_negative(answer):
            self._absent.add(bookie_id)
        elif isinstance(answer, Response):
            with suppress(Unsound):
                self._question.judge(answer, bookie_id)
                self.sound.add(bookie_id)
