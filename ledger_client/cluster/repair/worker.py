"""The worker: takes marked ledgers, a few at a time, and makes them whole.

Every bookie runs one. Workers do not coordinate: the one that gets a ledger's claim repairs
it, and the others go on to the next mark.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Sequence

import trio

from ledger_client.cluster.repair.copier import Copier, Rereads, Throttle
from ledger_client.cluster.repair.host import RepairFigures, RepairOptions
from ledger_client.cluster.repair.marks import RepairOutcome
from ledger_client.cluster.repair.mending import Repairs
from ledger_client.cluster.repair.survey import Census, Survey
from ledger_client.errors import LedgerError
from ledger_client.ledgers.ledgers import Ledgers
from metadata.errors import LeaseHeld, MetadataError
from metadata.listings import list_marks
from metadata.records import UnderReplicated
from metadata.store import MetadataStore

LISTING_PAUSE = 10
"""A pause lasts at least this many times as long as listing the marks took."""
CENSUS_RATE = 10_000
"""Registrations that all workers of a cluster together read a second. Each reads all of them, so in
a cluster of more than a hundred bookies a worker reads them less often than poll_s."""
IDLE_CENSUS_S = 5.0
"""How often a worker reads the registrations while no ledger is marked; only to know since when a
bookie is away."""
POLL_RATE = 100
"""And so often a second they list the marks, all together."""
HELD_S = 3.0
"""Pause before trying again a ledger that another worker repairs."""

TOLD_S = 60.0
REASONS_MAX = 100
_log = logging.getLogger(__name__)


class Worker:
    """Repairs marked ledgers for one process.

    Args:
        ledgers: its connections to the bookies.
        store: the cluster's metadata.
        owner: names this run of this process in its claims.
        options: how fast, and how patient.
        figures: counters to update, if anybody shows them.
        chance: the source of randomness.
    """

    def __init__(
        self,
        ledgers: Ledgers,
        store: MetadataStore,
        owner: str,
        options: RepairOptions,
        *,
        figures: RepairFigures | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._store = store
        self._options = options
        self._figures = figures
        self._chance = chance or random.Random()
        self._census = Census(store, lost_after_s=options.lost_after_s)
        throttle = Throttle(options.repair_rate)
        self._copier = Copier(ledgers.bookies, throttle, ledgers.options)
        self._repairs = Repairs(
            ledgers,
            store,
            owner,
            census=self._census,
            survey=Survey(ledgers, self._census, self._chance),
            copier=self._copier,
            rereads=Rereads(ledgers.bookies, throttle, ledgers.options),
            open_grace_s=options.open_grace_s,
        )
        self._schedule = Schedule(retry_s=options.retry_s, retry_max_s=options.retry_max_s)
        self._complaints = Complaints()
        self._busy: set[int] = set()
        self._unreadable: set[str] = set()
        self._census_at = self._census_due = float("-inf")
        self._doubted: set[str] = set()
        self._places: frozenset[tuple[str, int, bool, bool]] = frozenset()

    async def run(self) -> None:
        """Repair marked ledgers until cancelled, then release the claims."""
        async with trio.open_nursery() as nursery:
            while True:
                began = trio.current_time()
                try:
                    await self._begin(nursery)
                except MetadataError as failure:
                    _log.debug("cannot list the marks: %s", failure)
                took_s = trio.current_time() - began
                count = len(self._census.live)
                pause_s = max(self._options.poll_s, LISTING_PAUSE * took_s, count / POLL_RATE)
                await trio.sleep(pause_s)

    # --- which ledgers ----------------------------------------------------------------------

    async def _begin(self, nursery: trio.Nursery) -> None:
        """Start repairs of due ledgers, in random order, up to the limit of concurrency."""
        if self._figures is not None:
            self._figures.copied_size = self._copier.copied_size  # of repairs under way, too
        if len(self._busy) >= self._options.concurrency:
            await self._look([])
            return
        marks = await list_marks(self._store, unreadable=self._unreadable)
        await self._look(marks)
        self._schedule.keep_only({mark.ledger_id for mark in marks} | self._busy)
        if self._figures is not None:
            self._figures.marks = len(marks)
        for mark in self._chance.sample(marks, len(marks)):
            if len(self._busy) >= self._options.concurrency:
                return
            if self._is_due(mark):
                self._busy.add(mark.ledger_id)
                nursery.start_soon(self._repair, mark.ledger_id)

    async def _look(self, marks: Sequence[UnderReplicated]) -> None:
        """Refresh the census if that is due, or if the leader gave up a bookie that it has.

        The leader has waited for such a bookie already.
        """
        given_up = {b for mark in marks if mark.reason == "bookie lost" for b in mark.bookies}
        stale = given_up & self._census.live.keys()
        now = trio.current_time()
        if not (marks or self._busy) and now < self._census_at + IDLE_CENSUS_S:
            return
        if now < self._census_due and stale <= self._doubted:
            return
        await self._census.refresh()
        self._census_at = now
        self._census.give_up(stale)
        self._doubted = stale
        self._census_due = now + len(self._census.live) ** 2 / CENSUS_RATE
        self._notice_places()

    def _is_due(self, mark: UnderReplicated) -> bool:
        if mark.ledger_id in self._busy:
            return False
        return self._schedule.is_due(mark.ledger_id, mark.attempts)

    def _notice_places(self) -> None:
        """Make every ledger due when a bookie appeared, restarted or takes copies again."""
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
            outcome = RepairOutcome("another worker repairs it", HELD_S)
        except (MetadataError, LedgerError) as failure:
            outcome = RepairOutcome(str(failure))
        finally:
            self._busy.discard(ledger_id)
        self._schedule.ended(ledger_id, outcome)
        self._report(ledger_id, outcome)

    def _report(self, ledger_id: int, outcome: RepairOutcome) -> None:
        failed = outcome.reason and outcome.again_s is None
        if failed:
            self._complaints.tell(ledger_id, outcome.reason)
        if self._figures is not None:
            self._figures.failed += bool(failed)
            self._figures.repaired += not outcome.reason


class Complaints:
    """Says in the log why ledgers lack copies: once in TOLD_S for each reason, whatever they are.

    A bookie that is lost is the reason of thousands, which are all tried again and again.
    """

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, set[int]]] = {}
        """when each reason was told last, and the other ledgers since then"""

    def tell(self, ledger_id: int, reason: str) -> None:
        """Say it, unless another ledger was named for this reason lately."""
        now = trio.current_time()
        told_at, others = self._told.get(reason, (-math.inf, set[int]()))
        if now < told_at + TOLD_S:
            others.add(ledger_id)
            return
        count = len(others - {ledger_id})
        more = f", and so do {count} others" if count else ""
        _log.warning("ledger %d still lacks copies%s: %s", ledger_id, more, reason)
        if len(self._told) >= REASONS_MAX:
            self._told.clear()
        self._told[reason] = now, set()


# --- Schedule ---------------------------------------------------------------------------


class Schedule:
    """Schedules the next attempt at each marked ledger.

    After a failure all workers back off, by the number of attempts in the mark, so a
    ledger that cannot be mended costs little. When the cluster's bookies change, every
    ledger is due again.
    """

    def __init__(self, *, retry_s: float, retry_max_s: float) -> None:
        self._retry_s = retry_s
        self._retry_max_s = retry_max_s
        self._due_at: dict[int, float] = {}
        self._attempts: dict[int, int] = {}

    def is_due(self, ledger_id: int, attempts: int) -> bool:
        """Return True if the ledger is due after *attempts* failures of all workers."""
        if attempts > self._attempts.get(ledger_id, 0):
            self._attempts[ledger_id] = attempts
            self._wait(ledger_id, self._pause_s(attempts))
        return trio.current_time() >= self._due_at.get(ledger_id, 0.0)

    def ended(self, ledger_id: int, outcome: RepairOutcome) -> None:
        """Record how an attempt of this worker ended."""
        if not outcome.reason:
            self.forget(ledger_id)
        elif outcome.again_s is not None:
            self._wait(ledger_id, outcome.again_s)
        else:
            attempts = self._attempts.get(ledger_id, 0) + 1
            self._attempts[ledger_id] = attempts
            self._wait(ledger_id, self._pause_s(attempts))

    def forget(self, ledger_id: int) -> None:
        """Drop the ledger: it needs no repair any more."""
        self._due_at.pop(ledger_id, None)
        self._attempts.pop(ledger_id, None)

    def hurry(self) -> None:
        """Make every ledger due now, as an obstacle may be gone."""
        self._due_at.clear()

    def keep_only(self, ledger_ids: set[int]) -> None:
        """Drop all other ledgers, whose marks are gone."""
        for ledger_id in (self._due_at.keys() | self._attempts.keys()) - ledger_ids:
            self.forget(ledger_id)

    def _wait(self, ledger_id: int, pause_s: float) -> None:
        self._due_at[ledger_id] = trio.current_time() + pause_s

    def _pause_s(self, attempts: int) -> float:
        return float(min(self._retry_s * 2.0 ** min(attempts - 1, 30), self._retry_max_s))
