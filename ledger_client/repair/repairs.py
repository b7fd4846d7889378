"""One marked ledger, from the claim to the outcome.

A ledger that is still written is mended up to its last fragment. When a bookie of that
one is lost, the writer is given some time to replace it; then the ledger is recovered,
which fences the writer, and mended whole.
"""

from __future__ import annotations

from ledger_client.client import Client
from ledger_client.errors import LedgerError
from ledger_client.repair.census import Census
from ledger_client.repair.claim import Claim, claim_ledger
from ledger_client.repair.copier import Copier
from ledger_client.repair.marking import Mark, note_outcome, read_mark
from ledger_client.repair.mending import Mending
from ledger_client.repair.outcome import AGAIN_S, WHOLE, Outcome
from ledger_client.repair.patience import Patience
from ledger_client.repair.rereads import Rereads
from ledger_client.repair.survey import Survey
from metadata.records import LedgerRecord, LedgerState, decode_ledger, ledger_key
from metadata.store import ABSENT, Check, MetadataStore


class Repairs:
    """What all attempts of one worker share."""

    def __init__(
        self,
        client: Client,
        store: MetadataStore,
        owner: str,
        *,
        census: Census,
        survey: Survey,
        copier: Copier,
        rereads: Rereads,
        open_grace_s: float,
    ) -> None:
        self._client = client
        self._store = store
        self._owner = owner
        self._census = census
        self._survey = survey
        self._copier = copier
        self._rereads = rereads
        self._patience = Patience(open_grace_s)

    async def attempt(self, ledger_id: int) -> Outcome:
        """Make a marked ledger whole, as far as that can be done now.

        Raises:
            LeaseHeld: somebody else repairs it.
            MetadataError: the store is away, or the claim was lost.
        """
        async with claim_ledger(self._store, ledger_id, self._owner) as claim:
            mark = await read_mark(self._store, ledger_id)
            if mark is None:
                return Outcome("somebody else repaired it", AGAIN_S)
            try:
                outcome = await self._under_claim(claim, mark)
            except LedgerError as failure:
                outcome = Outcome(str(failure))
            if outcome.reason:
                await note_outcome(self._store, mark, outcome, claim.check)
            return outcome

    async def _under_claim(self, claim: Claim, mark: Mark) -> Outcome:
        ledger_id = mark.content.ledger_id
        found = await self._store.get(ledger_key(ledger_id))
        if found is None:
            return await self._unmark(claim, mark)
        record = decode_ledger(ledger_key(ledger_id), found.value)
        if record.state is not LedgerState.CLOSED:
            await self._census.refresh()  # the mark may be younger than what is known
        away = sorted(b for b in _named(record) if self._census.away(b))
        if away:
            return Outcome(f"{', '.join(away)} may come back", AGAIN_S)
        waiting = self._waiting(record)
        if waiting.again_s == 0.0:
            await self._client.recover_ledger(ledger_id, record.password_bytes)
            return Outcome("it was recovered", 0.0)
        mending = Mending(self._store, claim, mark, record, found.version, waiting=waiting)
        return await mending.run(self._survey, self._copier, self._rereads)

    def _waiting(self, record: LedgerRecord) -> Outcome:
        """Return for how long the writer of the ledger may go on, and why not for ever."""
        trouble = "" if record.state is LedgerState.CLOSED else self._trouble(record)
        if not trouble:
            self._patience.forget(record.ledger_id)
            return WHOLE
        left_s = self._patience.left_s(record.ledger_id)
        return Outcome(f"it is still written, and {trouble}", max(left_s, 0.0))

    def _trouble(self, record: LedgerRecord) -> str:
        """Return what is wrong with the bookies that are written now, or with the writer."""
        if record.state is LedgerState.IN_RECOVERY:
            return "its recovery did not end"
        for bookie_id in record.fragments[-1].bookies:
            if not self._census.stays(bookie_id):
                return f"{bookie_id} is to be replaced"
            if self._census.in_limbo(bookie_id):
                return f"{bookie_id} may have lost entries"
        return ""

    async def _unmark(self, claim: Claim, mark: Mark) -> Outcome:
        """The ledger was deleted."""
        self._patience.forget(mark.content.ledger_id)
        gone = Check(ledger_key(mark.content.ledger_id), ABSENT)
        await self._store.transact([claim.check, gone, mark.removal()])
        return WHOLE


def _named(record: LedgerRecord) -> set[str]:
    return {bookie for fragment in record.fragments for bookie in fragment.bookies}
