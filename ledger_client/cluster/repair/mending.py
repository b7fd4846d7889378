"""The repair of one marked ledger, from the claim to the outcome.

An open ledger is mended up to its last fragment. If a bookie of that fragment is lost, its
writer gets some time to replace it; after that the ledger is recovered, which fences the
writer, and then mended as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import msgspec
import trio

from ledger_client.cluster.repair.claim import Claim, claim_ledger
from ledger_client.cluster.repair.copier import Copier, Rereads
from ledger_client.cluster.repair.marks import (
    AGAIN_S,
    WHOLE,
    RepairOutcome,
    StoredMark,
    joined,
    note_outcome,
    read_mark,
)
from ledger_client.cluster.repair.plan import Presence, RepairPlan, count, holds_all
from ledger_client.cluster.repair.survey import Census, Findings, Survey, damaged_on
from ledger_client.errors import LedgerError
from ledger_client.ledgers.ledgers import Ledgers
from metadata.errors import VersionConflict
from metadata.records import (
    DamagedRun,
    LedgerRecord,
    LedgerState,
    decode_ledger,
    encode_record,
    ledger_key,
)
from metadata.store import ABSENT, Check, MetadataStore, Op, Put

NO_OTHER_S = 30.0
"""Until the next look at an open ledger after which there could be none."""
_log = logging.getLogger(__name__)


class Repairs:
    """Repairs ledgers for one worker, which limits how many run at once."""

    def __init__(
        self,
        ledgers: Ledgers,
        store: MetadataStore,
        owner: str,
        *,
        census: Census,
        survey: Survey,
        copier: Copier,
        rereads: Rereads,
        open_grace_s: float,
    ) -> None:
        self._ledgers = ledgers
        self._store = store
        self._owner = owner
        self._census = census
        self._survey = survey
        self._copier = copier
        self._rereads = rereads
        self._patience = Patience(open_grace_s)

    async def attempt(self, ledger_id: int) -> RepairOutcome:
        """Make a marked ledger whole, as far as that is possible now.

        Raises:
            LeaseHeld: another process repairs it.
            MetadataError: the store is unavailable, or the claim was lost.
        """
        async with claim_ledger(self._ledgers.session, ledger_id, self._owner) as claim:
            mark = await read_mark(self._store, ledger_id)
            if mark is None:
                return RepairOutcome("another worker repaired it", AGAIN_S)
            try:
                outcome = await self._under_claim(claim, mark)
            except LedgerError as failure:
                outcome = RepairOutcome(str(failure))
            if outcome.reason:
                await note_outcome(self._store, mark, outcome, claim.check)
            return outcome

    async def _under_claim(self, claim: Claim, mark: StoredMark) -> RepairOutcome:
        ledger_id = mark.content.ledger_id
        found = await self._store.get(ledger_key(ledger_id))
        if found is None:
            return await self._unmark(claim, mark)
        record = decode_ledger(ledger_key(ledger_id), found.value)
        if record.state is not LedgerState.CLOSED:
            await self._census.refresh()  # the mark may be newer than the census
        away = sorted(b for b in _named(record) if self._census.away(b))
        if away:
            return RepairOutcome(f"{', '.join(away)} may come back", AGAIN_S)
        waiting = self._waiting(record, mark.content.bookies)
        if waiting.again_s == 0.0:
            await self._ledgers.recover(ledger_id, record.password_bytes)
            return RepairOutcome("it was recovered", 0.0)
        mending = Mending(self._store, claim, mark, record, found.version, waiting=waiting)
        return await mending.run(self._survey, self._copier, self._rereads)

    def _waiting(self, record: LedgerRecord, named: Sequence[str]) -> RepairOutcome:
        """Return the time that an open ledger's writer has left, and the reason for a limit.

        There is no limit while the writer can go on, but in no ledger after this one. *named*: the
        bookies that may lack copies, none for all of them.
        """
        trouble = "" if record.state is LedgerState.CLOSED else self._trouble(record)
        if not trouble:
            self._patience.forget(record.ledger_id)
            return WHOLE
        if self._has_no_other(record, named):
            self._patience.forget(record.ledger_id)
            reason = f"it is still written, and {trouble}; too few bookies could take another one"
            return RepairOutcome(reason, NO_OTHER_S)
        left_s = self._patience.left_s(record.ledger_id)
        return RepairOutcome(f"it is still written, and {trouble}", max(left_s, 0.0))

    def _has_no_other(self, record: LedgerRecord, named: Sequence[str]) -> bool:
        """Return True if a writer may go on without a bookie, and once it is fenced, nowhere.

        A bookie in limbo has fenced the ledgers that it had before: its marks name it.
        """
        census, places = self._census, record.fragments[-1].bookies
        if record.state is not LedgerState.OPEN or census.takers >= record.ensemble_size:
            return False
        takes = [
            census.takes(bookie)
            and not (census.in_limbo(bookie) and (not named or bookie in named))
            for bookie in places
        ] * 2
        return all(
            sum(takes[start : start + record.write_quorum]) >= record.ack_quorum
            for start in range(len(places))
        )

    def _trouble(self, record: LedgerRecord) -> str:
        """Describe trouble with the last fragment or the recoverer; "" if there is none."""
        if record.state is LedgerState.IN_RECOVERY:
            return "its recovery did not end"
        for bookie_id in record.fragments[-1].bookies:
            if not self._census.stays(bookie_id):
                return f"{bookie_id} is to be replaced"
            if self._census.in_limbo(bookie_id):
                return f"{bookie_id} may have lost entries"
        return ""

    async def _unmark(self, claim: Claim, mark: StoredMark) -> RepairOutcome:
        """Remove the mark of a ledger that was deleted."""
        self._patience.forget(mark.content.ledger_id)
        gone = Check(ledger_key(mark.content.ledger_id), ABSENT)
        await self._store.transact([claim.check, gone, mark.removal()])
        return WHOLE


def _named(record: LedgerRecord) -> set[str]:
    return {bookie for fragment in record.fragments for bookie in fragment.bookies}


# --- One attempt ------------------------------------------------------------------------
# A SIGKILL anywhere does no harm. Copies come first: entries on an unlisted bookie disturb
# nobody. Then the bookies are asked again, and one last transaction, guarded by the claim,
# changes the location list and removes the mark. So the list is the old one or the new one,
# and every bookie that the new one names holds what it should.


class Mending:
    """One attempt to make one ledger whole.

    Args:
        store: where the record and the mark are kept.
        claim: held until the attempt is over.
        mark: the ledger's mark.
        record: the ledger.
        version: the record's version in the store.
        waiting: the reason to keep the mark even if nothing is missing.
    """

    def __init__(
        self,
        store: MetadataStore,
        claim: Claim,
        mark: StoredMark,
        record: LedgerRecord,
        version: int,
        *,
        waiting: RepairOutcome = WHOLE,
    ) -> None:
        self._store = store
        self._claim = claim
        self._mark = mark
        self._record = record
        self._version = version
        self._waiting = waiting
        self._damaged = mark.content.damaged

    async def run(self, survey: Survey, copier: Copier, rereads: Rereads) -> RepairOutcome:
        """Copy what is missing and change the location list, as far as possible now.

        Damaged entries are read again first: the disk may have failed for a moment only.

        Raises:
            MetadataError: the store is unavailable, or the claim was lost.
        """
        self._damaged = await rereads.still_damaged(self._record, self._damaged)
        outcome = await self._run(survey, copier)
        return msgspec.structs.replace(outcome, damaged=self._damaged)

    async def _run(self, survey: Survey, copier: Copier) -> RepairOutcome:
        findings = await survey.look(self._record, self._damaged)
        if await self._forget_unidentified(survey, copier, findings.presence):
            findings = await survey.look(self._record, self._damaged)
        plan = findings.plan
        mended = msgspec.structs.replace(self._record, fragments=plan.fragments)
        failures = await self._copy_all(copier, findings)
        if failures:
            return RepairOutcome(joined([plan.blocked, *failures]))
        if plan.copies:
            findings = await survey.look(mended, self._damaged)
        if findings.plan.copies or findings.plan.fragments != mended.fragments:
            return RepairOutcome("its bookies changed meanwhile", AGAIN_S)
        if any(findings.presence.get(name) is None for name in _newly_named(self._record, plan)):
            return RepairOutcome("a bookie did not confirm its copies", AGAIN_S)
        return await self._publish(mended, findings)

    async def _forget_unidentified(
        self, survey: Survey, copier: Copier, presence: Presence
    ) -> bool:
        """Let bookies forget what nobody can read there, if all of it can be read elsewhere."""
        bookies = await survey.unidentified(self._record, presence)
        if not bookies:
            return False
        others = {name: runs for name, runs in presence.items() if name not in bookies}
        try:
            await copier.check(self._record, others)
        except LedgerError as failure:
            _log.warning("%s keep what nobody can read: %s", ", ".join(bookies), failure)
            return False
        return any([await survey.forget(self._record, bookie) for bookie in bookies])

    async def _copy_all(self, copier: Copier, findings: Findings) -> list[str]:
        """Make all copies of the plan, small ones first; return the failures."""
        copies = sorted(findings.plan.copies, key=lambda copy: count(copy.runs))
        entry_size = self._record.length / max(self._record.last_entry + 1, 1)
        self._claim.expect(round(entry_size * sum(count(copy.runs) for copy in copies)))
        failures: list[str] = []
        for copy in copies:
            try:
                await copier.copy(
                    self._record,
                    findings.presence,
                    copy,
                    self._claim.copied,
                    mends=bool(damaged_on(copy.target, self._damaged)),
                )
            except LedgerError as failure:
                failures.append(str(failure))
            else:
                self._damaged = [*self._left_by(copy.target)]
        return failures

    def _left_by(self, target: str) -> Iterator[DamagedRun]:
        """Yield the damage that is left once *target* has its copies.

        They are all that belongs there, except of a fragment that still grows. A run may span
        more: entries of other bookies, and some behind the end.
        """
        is_closed = self._record.state is LedgerState.CLOSED
        for run in self._damaged:
            if run.bookie_id != target:
                yield run
            elif not is_closed and run.last_entry >= self._record.fragments[-1].first_entry:
                first = max(run.first_entry, self._record.fragments[-1].first_entry)
                yield DamagedRun(target, first, run.last_entry)

    async def _publish(self, mended: LedgerRecord, findings: Findings) -> RepairOutcome:
        """Replace the record by *mended*, and remove the mark if the ledger is whole."""
        blocked = joined([findings.plan.blocked, self._growing_damage()])
        whole = not blocked and not self._waiting.reason
        changes = [self._change(mended)]
        if whole:
            changes.append(self._mark.removal())
        try:
            await self._store.transact([self._claim.check, *changes])
        except VersionConflict as conflict:
            return RepairOutcome(str(conflict), AGAIN_S)
        complete = sorted(
            bookie
            for bookie, runs in findings.presence.items()
            if runs is not None and holds_all(mended, bookie, runs)
        )
        if not blocked:
            return msgspec.structs.replace(self._waiting, whole=complete)
        details = [f"{bookie}: {reason}" for bookie, reason in findings.reasons.items()]
        return RepairOutcome(joined([blocked, *details]), whole=complete)

    def _change(self, mended: LedgerRecord) -> Op:
        key = ledger_key(mended.ledger_id)
        if mended == self._record:
            return Check(key, self._version)
        return Put(key, encode_record(mended), self._version)

    def _growing_damage(self) -> str:
        """Name the damage that has to wait for the close, as its fragment still grows."""
        if self._record.state is LedgerState.CLOSED or not self._damaged:
            return ""
        return "entries of the fragment that is written are damaged"


def _newly_named(record: LedgerRecord, plan: RepairPlan) -> set[str]:
    """Return the bookies that hold a fragment in *plan* but not in *record*."""
    before = {(f.first_entry, b) for f in record.fragments for b in f.bookies}
    if record.ensemble_size == record.write_quorum and len(plan.fragments) == 1:
        whole = [set(fragment.bookies) for fragment in record.fragments]
        before = {(0, b) for b in set.intersection(*whole)}
    return {b for f in plan.fragments for b in f.bookies if (f.first_entry, b) not in before}


# --- Patience ---------------------------------------------------------------------------


class Patience:
    """Measures how long open ledgers have had a lost bookie."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._since: dict[int, float] = {}

    def left_s(self, ledger_id: int) -> float:
        """Return how long the writer still has, counted from the first call for the ledger."""
        now = trio.current_time()
        return self._since.setdefault(ledger_id, now) + self._grace_s - now

    def forget(self, ledger_id: int) -> None:
        """Stop counting: the ledger is in order, closed or deleted."""
        self._since.pop(ledger_id, None)
