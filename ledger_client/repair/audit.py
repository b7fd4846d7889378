"""The leader's part: notice what is wrong with bookies, and mark the ledgers that suffer.

    bookie without a lease for some time ──┐
    bookie that is to be emptied ──────────┼──► all ledgers that name it are marked
    now and then: every ledger is looked at ──► those that lack copies are marked

Each mark is written together with a check of the term, so that a leader whose time is
over changes nothing. Marking twice says nothing new, so a leader that takes over
begins again without harm.
"""

from __future__ import annotations

import logging
import random

import msgspec
import trio

from ledger_client.client import Client
from ledger_client.errors import LedgerError
from ledger_client.marks import Reason, new_mark
from ledger_client.repair.census import Census
from ledger_client.repair.marking import add_mark, size_on
from ledger_client.repair.records import ledger_records
from ledger_client.repair.settings import RepairOptions
from ledger_client.repair.survey import Survey
from metadata.errors import LeaseLost, MetadataError
from metadata.leadership import Term
from metadata.records import LedgerRecord, LedgerState
from metadata.store import MetadataStore

RESCAN_S = 60.0
"""While a bookie is lost or emptied, its name is looked for again: a client that was slow
to notice may have given it a ledger."""
FIRST_CHECK_PART = 1 / 24
"""Of the interval: when a new leader looks at every ledger for the first time."""
_log = logging.getLogger(__name__)


class Auditor:
    """What a leader does in its terms."""

    def __init__(
        self,
        client: Client,
        store: MetadataStore,
        options: RepairOptions,
        *,
        chance: random.Random | None = None,
    ) -> None:
        self._store = store
        self._options = options
        self._census = Census(store, lost_after_s=options.lost_after_s)
        self._survey = Survey(client, self._census, chance or random.Random())
        self._unreadable: set[str] = set()

    async def lead(self, term: Term) -> None:
        """Mark ledgers until cancelled. While the store is away, wait for it.

        Raises:
            LeaseLost: the term is over; alone or in a group.
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
                _log.warning("the audit waits: %s", failure)
            await trio.sleep(self._options.poll_s)

    def _gone(self) -> set[tuple[str, Reason]]:
        """Return the bookies whose copies belong elsewhere, and why."""
        gone: set[tuple[str, Reason]] = {(b, "bookie lost") for b in self._census.all_lost()}
        return gone | {(b, "draining") for b in self._census.draining}

    async def _mark_all(self, term: Term, gone: set[tuple[str, Reason]]) -> None:
        """Mark every ledger that names any of *gone*."""
        reasons = dict(sorted(gone))
        _log.warning("looking for the ledgers of %s", ", ".join(sorted(reasons)))
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
        """Look at every ledger, and mark those that lack copies."""
        try:
            async for record in ledger_records(self._store, unreadable=self._unreadable):
                if not await self._is_whole(record):
                    mark = new_mark(record.ledger_id, "check", [], [])
                    await add_mark(self._store, mark, term.check)
        except LeaseLost:
            raise
        except (MetadataError, LedgerError) as failure:
            _log.warning("the check of all ledgers ended early: %s", failure)

    async def _is_whole(self, record: LedgerRecord) -> bool:
        if record.state is LedgerState.IN_RECOVERY:
            return False  # whoever began it may be gone; a worker ends it in time
        plan = (await self._survey.look(record)).plan
        return not (plan.copies or plan.blocked) and plan.fragments == record.fragments
