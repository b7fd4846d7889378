"""Recovery of one ledger, from IN_RECOVERY to CLOSED.

The order is what makes it safe. Metadata first: from IN_RECOVERY on no writer can
change the ensemble. Then the fence: from there on nothing is acknowledged. Then
the tail, which is added again on whatever bookies are left. At last one
compare-and-set, which publishes the end and the fragments together; it fails if
anybody else was faster, and then theirs is the truth.
"""

from __future__ import annotations

import msgspec

from ledger_client.bookies import Bookies
from ledger_client.catalogue import Catalogue
from ledger_client.changes import MemoryChanges
from ledger_client.creation import DIGESTS
from ledger_client.entries import EntryBatch
from ledger_client.errors import (
    AckQuorumLost,
    EntryLost,
    LedgerError,
    LedgerFenced,
    NoSuchEntry,
    OutcomeUnknown,
    RecoveryIncomplete,
    ReplicasUnavailable,
    WriterFailed,
)
from ledger_client.fragments import fragments_up_to
from ledger_client.marks import Reason
from ledger_client.options import Options
from ledger_client.parts import persist
from ledger_client.questions import EntryQuestion
from ledger_client.recovery import fencing
from ledger_client.recovery.tail import Tail
from ledger_client.replicas import ReplicaRead
from ledger_client.source import LedgerSource
from ledger_client.writers import Writers
from metadata.records import LedgerRecord, LedgerState
from native.digest import Digest
from native.frame import Flag

RECOVERY_ADD_FLAGS = Flag.RECOVERY | Flag.PRIORITY
"""A fenced bookie takes such adds, and a read-only one from its reserve."""
LENGTH_SIZE = 8
"""Of the last field in an entry's header: the payload bytes up to the entry."""


async def recover_ledger(
    ledger_id: int,
    incarnation: int = 0,
    *,
    catalogue: Catalogue,
    bookies: Bookies,
    writers: Writers,
    options: Options,
) -> LedgerRecord:
    """Close a ledger whose writer is gone, or is to be gone; return its record.

    Afterwards every entry that was ever acknowledged is in it, and its writer gets
    no further acknowledgement. A closed ledger stays as it is. Others may do the
    same at the same time; all get the same record.

    Raises:
        RecoveryIncomplete: some bookies could not say what they hold. The
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
    """Return the ledger's record and version, not OPEN any more."""
    while True:
        record, version = await catalogue.get(ledger_id, incarnation)
        if record.state is not LedgerState.OPEN:
            return record, version
        begun = msgspec.structs.replace(record, state=LedgerState.IN_RECOVERY)
        await catalogue.replace(begun, version)


def _doubt(found: LedgerRecord, closed: LedgerRecord) -> Reason | None:
    """Return why somebody should look whether all copies are there; None: they are.

    Where the ack quorum is the write quorum, what was confirmed is on all of its bookies,
    and so is what was added again.
    """
    is_partial = closed.ack_quorum < closed.write_quorum
    is_changed = closed.fragments != found.fragments[: len(closed.fragments)]
    return "check" if closed.last_entry >= 0 and (is_partial or is_changed) else None


class Recovery:
    """One attempt to find the end of a ledger in recovery."""

    def __init__(
        self, record: LedgerRecord, *, bookies: Bookies, writers: Writers, options: Options
    ) -> None:
        digest = Digest(DIGESTS[record.digest], record.password_bytes)
        self._record = record
        self._source = LedgerSource(record, digest=digest, bookies=bookies, options=options)
        self._writers = writers
        self._changes = MemoryChanges(record)

    async def run(self) -> LedgerRecord:
        """Return the record as it is to be: closed at its end. Raises as recover_ledger()."""
        confirmed = fencing.floor(self._record, await fencing.fence_ensemble(self._source))
        tail = Tail(self._source, confirmed + 1)
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

    async def _add_again(self, found: list[EntryBatch], tail: Tail) -> tuple[int, int]:
        """Add *found* and what follows it in *tail*; return the last entry and the length."""
        writer = self._writers.open(
            self._record,
            changes=self._changes,
            first_entry=found[0].first_entry,
            length=self._length_before(found[0]),
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
        return RecoveryIncomplete(
            ledger_id=self._record.ledger_id, entry_id=entry_id, reasons=reasons
        )

    def _length_before(self, batch: EntryBatch) -> int:
        """Return the payload bytes of all entries before *batch*, as its first entry has it."""
        digest_size = self._source.digest.size
        end = batch.offsets[0] - digest_size
        length = int.from_bytes(batch.body[end - LENGTH_SIZE : end], "big")
        return length - batch.sizes[0]

    async def _length_up_to(self, entry_id: int) -> int:
        """Return the payload bytes up to an entry that is confirmed; 0 for -1."""
        if entry_id < 0:
            return 0
        question = EntryQuestion(self._source.name, entry_id, self._source.digest)
        try:
            read = ReplicaRead(self._source, question)
            batch = await persist(self._source, question, read)
        except (EntryLost, ReplicasUnavailable) as lost:
            raise RecoveryIncomplete(
                ledger_id=self._record.ledger_id, entry_id=entry_id, reasons=lost.reasons
            ) from lost
        except NoSuchEntry as missing:
            reasons = {b.bookie_id: "no such entry" for b in self._source.replicas(entry_id)}
            raise RecoveryIncomplete(
                ledger_id=self._record.ledger_id, entry_id=entry_id, reasons=reasons
            ) from missing
        return self._length_before(batch) + batch.size
