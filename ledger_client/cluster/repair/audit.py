"""The leader's part in repair: detect lost bookies and missing copies, and mark ledgers.

    bookie without a lease for lost_after_s ──┐
    bookie being decommissioned ──────────────┴──► every ledger that names it is marked
    once a day: every ledger is checked ─────────► ledgers that lack copies are marked

Each mark is written in a transaction that checks the leader's term, so a deposed leader
changes nothing. Marking is idempotent: a new leader simply starts over.
"""

from __future__ import annotations

import logging
import random

import msgspec
import trio

from ledger_client.cluster.repair.host import RepairOptions
from ledger_client.cluster.repair.marks import add_mark, size_on
from ledger_client.cluster.repair.survey import Census, Survey
from ledger_client.errors import LedgerError
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.ledgers.records import Reason, new_mark
from metadata.errors import LeaseLost, MetadataError
from metadata.leadership import Term
from metadata.listings import ledger_records
from metadata.records import LedgerRecord, LedgerState
from metadata.store import MetadataStore

RESCAN_S = 60.0
"""How often ledgers are searched again for a bookie that is lost or draining: a client that
was slow to notice may have given it a new ledger."""
FIRST_CHECK_PART = 1 / 24
"""A new leader first checks every ledger after this fraction of the interval."""
_log = logging.getLogger(__name__)


class Auditor:
    """Marks ledgers for as long as its bookie leads."""

    def __init__(
        self,
        ledgers: Ledgers,
        store: MetadataStore,
        options: RepairOptions,
        *,
        chance: random.Random | None = None,
    ) -> None:
        self._store = store
        self._options = options
        self._census = Census(store, lost_after_s=options.lost_after_s)
        self._survey = Survey(ledgers, self._census, chance or random.Random())
        self._unreadable: set[str] = set()

    async def lead(self, term: Term) -> None:
        """Mark ledgers until cancelled, waiting out outages of the metadata store.

        Raises:
            LeaseLost: the term is over. It may come inside an exception group.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_bookies, term)
            nursery.start_soon(self._check_ledgers, term)

    # --- bookies ----------------------------------------------------------------------------

    async def _watch_bookies(self, term: Term) -> None:
        marked: set[tuple[str, Reason]] = set()
        rescan_at = trio.current_time() + RESCAN_S
        while True:
            try:
                await self._census.refresh()
                gone = self._gone()
                due = trio.current_time() >= rescan_at
                if gone and (due or not gone <= marked):
                    await self._mark_all(term, gone if due else gone - marked)
                    rescan_at = trio.current_time() + RESCAN_S
                marked = gone
            except LeaseLost:
                raise
            except (MetadataError, LedgerError) as failure:
                _log.warning("audit of bookies interrupted, trying again: %s", failure)
            await trio.sleep(self._options.poll_s)

    def _gone(self) -> set[tuple[str, Reason]]:
        """Return lost and draining bookies, each with the reason for its marks."""
        gone: set[tuple[str, Reason]] = {(b, "bookie lost") for b in self._census.all_lost()}
        return gone | {(b, "draining") for b in self._census.draining}

    async def _mark_all(self, term: Term, gone: set[tuple[str, Reason]]) -> None:
        """Mark every ledger that names a bookie in *gone*."""
        reasons = dict(sorted(gone))
        _log.warning("marking the ledgers of %s for repair", ", ".join(sorted(reasons)))
        async for record in ledger_records(self._store, unreadable=self._unreadable):
            hit = {b for f in record.fragments for b in f.bookies if b in reasons}
            if hit:
                mark = new_mark(record.ledger_id, reasons[min(hit)], hit, [])
                mark = msgspec.structs.replace(mark, size=size_on(record, hit))
                await add_mark(self._store, mark, term.check)

    # --- ledgers ----------------------------------------------------------------------------

    async def _check_ledgers(self, term: Term) -> None:
        interval_s = self._options.audit_interval_s
        await trio.sleep(interval_s * FIRST_CHECK_PART)
        while True:
            await self._check_all(term)
            await trio.sleep(interval_s)

    async def _check_all(self, term: Term) -> None:
        """Compare every ledger with what its bookies hold, and mark those that lack copies."""
        try:
            async for record in ledger_records(self._store, unreadable=self._unreadable):
                if not await self._is_whole(record):
                    mark = new_mark(record.ledger_id, "check", [], [])
                    await add_mark(self._store, mark, term.check)
        except LeaseLost:
            raise
        except (MetadataError, LedgerError) as failure:
            _log.warning("check of all ledgers ended early: %s", failure)

    async def _is_whole(self, record: LedgerRecord) -> bool:
        if record.state is LedgerState.IN_RECOVERY:
            return False  # its recoverer may be dead; a worker finishes the job if so
        plan = (await self._survey.look(record)).plan
        return not (plan.copies or plan.blocked) and plan.fragments == record.fragments
