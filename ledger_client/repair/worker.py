"""A worker: takes marked ledgers, a few at a time, and makes them whole.

Every bookie runs one. Workers do not know of each other: whoever gets the claim of a
ledger repairs it, and the others turn to the next mark.
"""

from __future__ import annotations

import logging
import random

import trio

from ledger_client.client import Client
from ledger_client.errors import LedgerError
from ledger_client.repair.census import Census
from ledger_client.repair.copier import Copier
from ledger_client.repair.host import Figures
from ledger_client.repair.outcome import Outcome
from ledger_client.repair.patience import Schedule
from ledger_client.repair.records import list_marks
from ledger_client.repair.repairs import Repairs
from ledger_client.repair.rereads import Rereads
from ledger_client.repair.settings import RepairOptions
from ledger_client.repair.survey import Survey
from ledger_client.repair.throttle import Throttle
from metadata.errors import LeaseHeld, MetadataError
from metadata.records import UnderReplicated
from metadata.store import MetadataStore

LISTING_PAUSE = 10
"""A pause is at least so many times as long as listing the marks took."""
HELD_S = 3.0
"""Before a ledger is asked for again that another worker repairs."""

_log = logging.getLogger(__name__)


class Worker:
    """Repairs for one process.

    Args:
        client: its connections to the bookies.
        store: the cluster's metadata.
        owner: names this run of this process; the claims are its.
        options: how fast, and how patient.
        figures: told what was done; None: nobody wants to know.
        chance: where randomness comes from.
    """

    def __init__(
        self,
        client: Client,
        store: MetadataStore,
        owner: str,
        options: RepairOptions,
        *,
        figures: Figures | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._store = store
        self._options = options
        self._figures = figures
        self._chance = chance or random.Random()
        self._census = Census(store, lost_after_s=options.lost_after_s)
        throttle = Throttle(options.repair_rate)
        self._copier = Copier(client.bookies, throttle, client.options)
        self._repairs = Repairs(
            client,
            store,
            owner,
            census=self._census,
            survey=Survey(client, self._census, self._chance),
            copier=self._copier,
            rereads=Rereads(client.bookies, throttle, client.options),
            open_grace_s=options.open_grace_s,
        )
        self._schedule = Schedule(retry_s=options.retry_s, retry_max_s=options.retry_max_s)
        self._busy: set[int] = set()
        self._unreadable: set[str] = set()
        self._places: frozenset[tuple[str, int, bool, bool]] = frozenset()

    async def run(self) -> None:
        """Repair what is marked, until cancelled; then the claims are given back."""
        async with trio.open_nursery() as nursery:
            while True:
                began = trio.current_time()
                try:
                    await self._begin(nursery)
                except MetadataError as failure:
                    _log.debug("no look at the marks: %s", failure)
                took_s = trio.current_time() - began
                await trio.sleep(max(self._options.poll_s, LISTING_PAUSE * took_s))

    # --- which ledgers ----------------------------------------------------------------------

    async def _begin(self, nursery: trio.Nursery) -> None:
        """Begin with as many due ledgers as there is room for, in no particular order."""
        await self._census.refresh()
        self._notice_places()
        if len(self._busy) >= self._options.concurrency:
            return
        marks = await list_marks(self._store, unreadable=self._unreadable)
        self._schedule.keep_only({mark.ledger_id for mark in marks} | self._busy)
        if self._figures is not None:
            self._figures.marks = len(marks)
            self._figures.copied_size = self._copier.copied_size
        for mark in self._chance.sample(marks, len(marks)):
            if len(self._busy) >= self._options.concurrency:
                return
            if self._is_due(mark):
                self._busy.add(mark.ledger_id)
                nursery.start_soon(self._repair, mark.ledger_id)

    def _is_due(self, mark: UnderReplicated) -> bool:
        if mark.ledger_id in self._busy:
            return False
        return self._schedule.is_due(mark.ledger_id, mark.attempts)

    def _notice_places(self) -> None:
        """Try everything again when a bookie came, restarted, or takes copies again."""
        runs = self._census.runs
        places = frozenset(
            (name, runs[name], bookie.read_only, bookie.limbo)
            for name, bookie in self._census.live.items()
        )
        if places - self._places:
            self._schedule.hurry()
        self._places = places

    # --- one ledger -------------------------------------------------------------------------

    async def _repair(self, ledger_id: int) -> None:
        try:
            outcome = await self._repairs.attempt(ledger_id)
        except LeaseHeld:
            outcome = Outcome("somebody else repairs it", HELD_S)
        except (MetadataError, LedgerError) as failure:
            outcome = Outcome(str(failure))
        finally:
            self._busy.discard(ledger_id)
        self._schedule.ended(ledger_id, outcome)
        self._tell(ledger_id, outcome)

    def _tell(self, ledger_id: int, outcome: Outcome) -> None:
        failed = outcome.reason and outcome.again_s is None
        if failed:
            _log.warning("ledger %d is not whole: %s", ledger_id, outcome.reason)
        if self._figures is not None:
            self._figures.failed += bool(failed)
            self._figures.repaired += not outcome.reason
