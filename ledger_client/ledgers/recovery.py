"""Closing a ledger in its writer's place, so that no acknowledged entry is lost.

    IN_RECOVERY ──► fence ─────► tail ──────────► writer ─────────► CLOSED
    one CAS         no bookie    each entry above those entries,    one CAS, with
                    takes the    the last known   on ack_quorum     the end and the
                    writer's     confirmed one:   bookies again     fragments
                    entries      there or absent

The order makes it safe. Metadata first: from IN_RECOVERY on no writer can change the
ensemble. Then the fence: from there on nothing is acknowledged. Then the tail, which is
added again on the bookies that are left. At last one compare-and-set publishes the end and
the fragments together.

Any number of clients may recover a ledger at once, and may stop anywhere: the last
compare-and-set decides, and the clients that lose it take the winner's result.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import msgspec
import trio

from ledger_client.errors import (
    AckQuorumLost,
    EntryLost,
    LedgerError,
    LedgerFenced,
    NoSuchEntry,
    OutcomeUnknown,
    ReplicasUnavailable,
    WriterFailed,
)
from ledger_client.ledgers import inquiry
from ledger_client.ledgers.catalogue import Catalogue
from ledger_client.ledgers.entries import EntryBatch, EntryQuestion, length_before
from ledger_client.ledgers.records import Reason, fragments_up_to, with_fragment
from ledger_client.ledgers.replica_reads import LedgerSource, ReplicaRead, persist
from ledger_client.ledgers.writer import Writers
from ledger_client.options import Options
from ledger_client.wire.bookies import Bookies
from metadata.records import Fragment, LedgerRecord, LedgerState
from native.frame import Flag

RECOVERY_ADD_FLAGS = Flag.RECOVERY | Flag.PRIORITY
"""A fenced bookie takes such adds, and a read-only one from its reserve."""


async def recover_ledger(
    ledger_id: int,
    incarnation: int = 0,
    *,
    catalogue: Catalogue,
    bookies: Bookies,
    writers: Writers,
    options: Options,
) -> LedgerRecord:
    """Close a ledger in place of its writer; return its record.

    Afterwards it holds every entry that was ever acknowledged, and its writer gets no
    further acknowledgement. A closed ledger stays as it is. Several clients may recover
    a ledger at once; all get the same record.

    Raises:
        ReplicasUnavailable: some bookies could not report what they hold. The
            ledger stays in recovery; nothing is lost, and the same call may
            succeed later.
        MetadataUnavailable: the store did not answer in time; call again.
        NoSuchLedger: it was deleted; with an *incarnation*, also if another has its id now.
        WrongPassword: a bookie knows the ledger with another password.
    """
    while True:
        record, version = await _begin(catalogue, ledger_id, incarnation)
        if record.state is LedgerState.CLOSED:
            return record
        closed = await Recovery(record, bookies=bookies, writers=writers, options=options).run()
        if await catalogue.replace(closed, version, reason=_doubt(record, closed)):
            return closed


async def _begin(
    catalogue: Catalogue, ledger_id: int, incarnation: int
) -> tuple[LedgerRecord, int]:
    """Return the ledger's record and version once it is not OPEN any more."""
    while True:
        record, version = await catalogue.get(ledger_id, incarnation)
        if record.state is not LedgerState.OPEN:
            return record, version
        begun = msgspec.structs.replace(record, state=LedgerState.IN_RECOVERY)
        await catalogue.replace(begun, version)


def _doubt(found: LedgerRecord, closed: LedgerRecord) -> Reason | None:
    """Return a reason to check for missing copies, or None if there can be none.

    If the ack quorum is the write quorum, confirmed entries are on all of their bookies,
    and so are the entries that were added again.
    """
    is_partial = closed.ack_quorum < closed.write_quorum
    is_changed = closed.fragments != found.fragments[: len(closed.fragments)]
    return "check" if closed.last_entry >= 0 and (is_partial or is_changed) else None


class UnpublishedChanges:
    """Changes of the ensemble that stay here until the ledger is closed.

    They are published with the end of the ledger, in one compare-and-set, so that of several
    clients that recover it the changes of only one are ever seen.
    """

    def __init__(self, record: LedgerRecord) -> None:
        self.record = record

    async def change(self, expected_last: Fragment, fragment: Fragment) -> LedgerRecord:
        """Return the record with *fragment*; takes no time.

        Raises:
            LedgerFenced: the last fragment is neither *fragment* nor *expected_last*.
        """
        self.record = with_fragment(self.record, expected_last, fragment)
        return self.record


class Recovery:
    """One attempt to find the end of a ledger in recovery."""

    def __init__(
        self, record: LedgerRecord, *, bookies: Bookies, writers: Writers, options: Options
    ) -> None:
        self._record = record
        self._source = LedgerSource(record, bookies=bookies, options=options)
        self._writers = writers
        self._changes = UnpublishedChanges(record)

    async def run(self) -> LedgerRecord:
        """Return the record to store, closed at the ledger's end. Raises as recover_ledger()."""
        confirmed = inquiry.floor(self._record, await inquiry.fence_ensemble(self._source))
        tail = inquiry.Tail(self._source, confirmed + 1)
        first = await tail.next()
        if first:
            last_entry, length = await self._add_again(first, tail)
        else:
            last_entry, length = confirmed, await self._length_up_to(confirmed)
        return msgspec.structs.replace(
            self._record,
            state=LedgerState.CLOSED,
            last_entry=last_entry,
            length=length,
            fragments=fragments_up_to(last_entry, self._changes.record.fragments),
        )

    async def _add_again(self, found: list[EntryBatch], tail: inquiry.Tail) -> tuple[int, int]:
        """Add *found* and the rest of *tail* again; return the last entry and the length."""
        writer = self._writers.open(
            self._record,
            change=self._changes.change,
            first_entry=found[0].first_entry,
            length=length_before(found[0], self._source.digest),
            flags=RECOVERY_ADD_FLAGS,
        )
        try:
            while found:
                await writer.append_many([p for batch in found for p in batch.payloads()])
                found = await tail.next()
            await writer.drain()
        except (OutcomeUnknown, WriterFailed) as failure:
            raise self._not_added(writer.last_confirmed + 1, failure) from failure
        finally:
            writer.fail(LedgerFenced(self._record.ledger_id))  # if it has not ended yet
        return writer.last_confirmed, writer.confirmed_length

    def _not_added(self, entry_id: int, failure: LedgerError) -> LedgerError:
        cause = failure.__cause__ if isinstance(failure, OutcomeUnknown) else failure
        if isinstance(cause, AckQuorumLost):
            reasons = cause.lost
        else:
            reasons = dict.fromkeys(self._changes.record.fragments[-1].bookies, str(cause))
        return ReplicasUnavailable.in_recovery(
            ledger_id=self._record.ledger_id, entry_id=entry_id, reasons=reasons
        )

    async def _length_up_to(self, entry_id: int) -> int:
        """Return the payload bytes up to a confirmed entry; 0 for -1."""
        if entry_id < 0:
            return 0
        question = EntryQuestion(self._source.name, entry_id, self._source.digest)
        try:
            read = ReplicaRead(self._source, question)
            batch = await persist(self._source, question, read)
        except (EntryLost, ReplicasUnavailable) as lost:
            raise ReplicasUnavailable.in_recovery(
                ledger_id=self._record.ledger_id, entry_id=entry_id, reasons=lost.reasons
            ) from lost
        except NoSuchEntry as missing:
            reasons = {b.bookie_id: "no such entry" for b in self._source.replicas(entry_id)}
            raise ReplicasUnavailable.in_recovery(
                ledger_id=self._record.ledger_id, entry_id=entry_id, reasons=reasons
            ) from missing
        return length_before(batch, self._source.digest) + batch.size


class Recoveries:
    """Recovers ledgers of one client, one recovery at a time for each ledger."""

    def __init__(
        self, *, catalogue: Catalogue, bookies: Bookies, writers: Writers, options: Options
    ) -> None:
        self._catalogue = catalogue
        self._bookies = bookies
        self._writers = writers
        self._options = options
        self._turns: WeakValueDictionary[int, trio.Lock] = WeakValueDictionary()

    async def recovered(self, record: LedgerRecord) -> LedgerRecord:
        """Return the ledger's record, closed. Raises as recover_ledger()."""
        if record.state is LedgerState.CLOSED:
            return record
        # A connection counts acknowledgements for one writer of a ledger only.
        turn = self._turns.setdefault(record.ledger_id, trio.Lock())
        async with turn:
            return await recover_ledger(
                record.ledger_id,
                record.incarnation,
                catalogue=self._catalogue,
                bookies=self._bookies,
                writers=self._writers,
                options=self._options,
            )
