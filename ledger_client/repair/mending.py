"""One attempt to make one ledger whole, under its claim.

Entries that are marked as damaged are read once more, and what is sound counts again. The
order makes it safe to be killed anywhere. Copies first: entries on a bookie that is
not listed harm nobody. Then all is looked at again. At last one transaction with
the claim: the new location list, and the mark is gone. So the list is the old one or the
new one, and every bookie that it newly names holds what it should.
"""

from __future__ import annotations

import msgspec

from ledger_client.errors import LedgerError
from ledger_client.repair.claim import Claim
from ledger_client.repair.copier import Copier
from ledger_client.repair.marking import Mark
from ledger_client.repair.outcome import AGAIN_S, WHOLE, Outcome, told
from ledger_client.repair.plan import Copy, Plan
from ledger_client.repair.presence import damaged_on
from ledger_client.repair.rereads import Rereads
from ledger_client.repair.runs import count, without
from ledger_client.repair.survey import Findings, Survey
from metadata.errors import VersionConflict
from metadata.records import DamagedRun, LedgerRecord, LedgerState, encode_record, ledger_key
from metadata.store import Check, MetadataStore, Op, Put


class Mending:
    """The attempt; make one for each.

    Args:
        store: where the record and the mark are.
        claim: held until the attempt is over.
        mark: what is said of the ledger.
        record: the ledger.
        version: of the record in the store.
        waiting: why the mark has to stay even if nothing is missing.
    """

    def __init__(
        self,
        store: MetadataStore,
        claim: Claim,
        mark: Mark,
        record: LedgerRecord,
        version: int,
        *,
        waiting: Outcome = WHOLE,
    ) -> None:
        self._store = store
        self._claim = claim
        self._mark = mark
        self._record = record
        self._version = version
        self._waiting = waiting
        self._damaged = mark.content.damaged

    async def run(self, survey: Survey, copier: Copier, rereads: Rereads) -> Outcome:
        """Copy what is missing and change the list, as far as that can be done now.

        Damaged entries are read again first: a disk may have failed for a moment only.

        Raises:
            MetadataError: the store is away, or the claim is lost.
        """
        self._damaged = await rereads.still_damaged(self._record, self._damaged)
        outcome = await self._run(survey, copier)
        return msgspec.structs.replace(outcome, damaged=self._damaged)

    async def _run(self, survey: Survey, copier: Copier) -> Outcome:
        findings = await survey.look(self._record, self._damaged)
        plan = findings.plan
        mended = msgspec.structs.replace(self._record, fragments=plan.fragments)
        failures = await self._copy_all(copier, findings)
        if failures:
            return Outcome(told([plan.blocked, *failures]))
        if plan.copies:
            findings = await survey.look(mended, self._damaged)
        if findings.plan.copies or findings.plan.fragments != mended.fragments:
            return Outcome("its bookies changed meanwhile", AGAIN_S)
        if any(findings.presence.get(name) is None for name in _newly_named(self._record, plan)):
            return Outcome("a bookie did not confirm its copies", AGAIN_S)
        return await self._publish(mended, findings)

    async def _copy_all(self, copier: Copier, findings: Findings) -> list[str]:
        """Make all copies of the plan, the small ones first; return what went wrong."""
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
                self._damaged = [run for run in self._damaged if not _covers(copy, run)]
        return failures

    async def _publish(self, mended: LedgerRecord, findings: Findings) -> Outcome:
        """Put *mended* in the place of the record, and take the mark off if it is whole."""
        blocked = told([findings.plan.blocked, self._growing_damage()])
        whole = not blocked and not self._waiting.reason
        changes = [self._change(mended)]
        if whole:
            changes.append(self._mark.removal())
        try:
            await self._store.transact([self._claim.check, *changes])
        except VersionConflict as conflict:
            return Outcome(str(conflict), AGAIN_S)
        if not blocked:
            return self._waiting
        details = [f"{bookie}: {reason}" for bookie, reason in findings.reasons.items()]
        return Outcome(told([blocked, *details]))

    def _change(self, mended: LedgerRecord) -> Op:
        key = ledger_key(mended.ledger_id)
        if mended == self._record:
            return Check(key, self._version)
        return Put(key, encode_record(mended), self._version)

    def _growing_damage(self) -> str:
        """Return what has to wait until the ledger is closed, since its place still grows."""
        if self._record.state is LedgerState.CLOSED or not self._damaged:
            return ""
        return "entries of the fragment that is written are damaged"


def _covers(copy: Copy, run: DamagedRun) -> bool:
    damaged = damaged_on(copy.target, [run])
    return bool(damaged) and not without(damaged, copy.runs)


def _newly_named(record: LedgerRecord, plan: Plan) -> set[str]:
    """Return the bookies to which *plan* gives a place that they have not in *record*."""
    before = {(f.first_entry, b) for f in record.fragments for b in f.bookies}
    if record.ensemble_size == record.write_quorum and len(plan.fragments) == 1:
        whole = [set(fragment.bookies) for fragment in record.fragments]
        before = {(0, b) for b in set.intersection(*whole)}
    return {b for f in plan.fragments for b in f.bookies if (f.first_entry, b) not in before}
