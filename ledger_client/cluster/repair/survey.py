"""A survey of a ledger: the entries that each bookie holds, and the plan to make it whole."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Collection, Iterable, Sequence

import msgspec
import trio

from ledger_client.cluster.repair.plan import (
    Holding,
    Presence,
    RepairPlan,
    Runs,
    fragment_ends,
    plan_repair,
    union,
    without,
)
from ledger_client.errors import BookieUnavailable
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.ledgers.racks import spread_out
from ledger_client.wire.inflight import LedgerName
from metadata.calls import ForgetUnknown, Forgotten, LedgerRuns, RunPage
from metadata.listings import list_cookies, list_draining
from metadata.records import BookieRecord, DamagedRun, LedgerRecord, LedgerState
from metadata.registrations import list_registrations
from metadata.store import MetadataStore

GIB = 1 << 30
NEWCOMERS_MAX = 8
"""At most this many bookies without a part in the ledger are asked whether they can take it."""


class Findings(msgspec.Struct, frozen=True):
    """What each bookie holds, the plan that follows, and why some bookies did not answer."""

    presence: Presence
    plan: RepairPlan
    reasons: dict[str, str]


class Survey:
    """Compares ledgers with what bookies hold, asking through one client."""

    def __init__(self, ledgers: Ledgers, census: Census, chance: random.Random) -> None:
        self._ledgers = ledgers
        self._census = census
        self._chance = chance

    async def look(self, record: LedgerRecord, damaged: Sequence[DamagedRun] = ()) -> Findings:
        """Ask as many bookies as it takes to plan the repair.

        Listed bookies that are alive come first. If they do not suffice, some that could take
        copies are asked; and if entries are missing on all of these, every listed or
        live bookie: a copy left behind when the ledger moved may be the last one.
        """
        listed = _listed(record)
        seen = _Seen(self._ledgers, LedgerName(record.ledger_id, record.incarnation), damaged)
        await seen.ask(bookie for bookie in listed if bookie in self._census.live)
        plan = plan_repair(record, self._holdings(listed, seen.presence, assume=True))
        if set(_listed(msgspec.structs.replace(record, fragments=plan.fragments))) - set(listed):
            await seen.ask(self._newcomers(listed))
            plan = plan_repair(record, self._holdings(listed, seen.presence, assume=False))
        if without(_needed(plan), seen.held()):
            await seen.ask([*listed, *sorted(self._census.live.keys() - set(listed))])
        return Findings(seen.presence, plan, seen.reasons)

    async def unidentified(self, record: LedgerRecord, presence: Presence) -> list[str]:
        """Return the bookies that have entries of a closed ledger and lost its incarnation.

        They are in limbo, and do not report what they hold.
        """
        silent = [b for b, runs in presence.items() if runs is None and self._census.in_limbo(b)]
        if record.state is not LedgerState.CLOSED:
            return []
        return [bookie for bookie in silent if await self.forget(record, bookie, dry_run=True)]

    async def forget(self, record: LedgerRecord, bookie_id: str, *, dry_run: bool = False) -> bool:
        """Let a bookie forget a ledger whose incarnation it lost; return whether it was so."""
        request = ForgetUnknown(record.ledger_id, record.incarnation, dry_run)
        try:
            reply = await self._ledgers.call(bookie_id, request, timeout_s=FORGET_S)
        except BookieUnavailable:  # it may be away, or have lost other things
            return False
        return isinstance(reply, Forgotten) and reply.was_here

    def _holdings(
        self, listed: Iterable[str], presence: Presence, *, assume: bool
    ) -> list[Holding]:
        """Return the known holdings; with *assume*, other live bookies count as empty."""
        others = sorted(self._census.live.keys() - presence.keys()) if assume else []
        held: Presence = presence | {name: [] for name in others}
        named = set(listed)
        return [
            Holding(
                bookie_id,
                runs,
                stays=self._census.stays(bookie_id),
                takes=not self._census.in_limbo(bookie_id),
                full=self._census.live[bookie_id].read_only,
                rack=self._census.live[bookie_id].rack,
            )
            for bookie_id, runs in held.items()
            if bookie_id in self._census.live and (runs is not None or bookie_id in named)
        ]

    def _newcomers(self, listed: Iterable[str]) -> list[str]:
        """Draw bookies that take new ledgers at random, weighted by free space.

        Racks without a copy come first.
        """
        live, listed = self._census.live, [*listed]
        able = [
            bookie
            for bookie in sorted(live.keys() - set(listed))
            if self._census.stays(bookie) and not (live[bookie].read_only or live[bookie].limbo)
        ]
        # Efraimidis and Spirakis: the greatest of u ** (1 / weight) are a weighted draw.
        drawn = {b: self._chance.random() ** (1 / max(live[b].free / GIB, 0.01)) for b in able}
        able.sort(key=lambda b: drawn[b], reverse=True)
        used = [live[b].rack for b in listed if self._census.stays(b)]
        racks = {b: live[b].rack for b in able}
        return spread_out(able, racks, NEWCOMERS_MAX, NEWCOMERS_MAX, used=used)


class _Seen:
    """The bookies' reports on one ledger so far; none is asked twice."""

    def __init__(self, ledgers: Ledgers, ledger: LedgerName, damaged: Sequence[DamagedRun]) -> None:
        self._ledgers = ledgers
        self._ledger = ledger
        self._damaged = damaged
        self.presence: Presence = {}
        self.reasons: dict[str, str] = {}

    async def ask(self, bookie_ids: Iterable[str]) -> None:
        fresh = [bookie for bookie in bookie_ids if bookie not in self.presence]
        presence, reasons = await look(self._ledgers, fresh, self._ledger, self._damaged)
        self.presence.update({bookie: presence[bookie] for bookie in fresh})
        self.reasons.update(reasons)

    def held(self) -> Runs:
        return union(*(runs for runs in self.presence.values() if runs is not None))


def _listed(record: LedgerRecord) -> list[str]:
    """Return the bookies of all complete fragments."""
    named = (bookie for fragment, _ in fragment_ends(record) for bookie in fragment.bookies)
    return list(dict.fromkeys(named))


def _needed(plan: RepairPlan) -> Runs:
    return union(*(copy.runs for copy in plan.copies))


# --- Presence: each bookie's own word ---------------------------------------------------


PAGE_COUNT = 1000
ASK_S = 5.0
"""Deadline for one page of runs, which a bookie reads from its index."""
FORGET_S = 60.0
"""Deadline for forgetting a ledger, for which a bookie flushes its memtable."""


async def runs_on(ledgers: Ledgers, bookie_id: str, ledger: LedgerName) -> Runs:
    """Return the entries of a ledger that a bookie holds; empty if it does not know the ledger.

    The bookie answers from its index and does not verify the records.

    Raises:
        BookieUnavailable: it is unreachable or silent, or its index is damaged.
    """
    found: Runs = []
    after = -1
    while True:
        request = LedgerRuns(ledger.ledger_id, after, PAGE_COUNT, ledger.incarnation)
        page = await ledgers.call(bookie_id, request, timeout_s=ASK_S)
        if not isinstance(page, RunPage):
            raise BookieUnavailable(bookie_id, f"answered {type(page).__name__}")
        if not page.runs:
            return union(found)
        found += page.runs
        if found[-1][1] <= after:
            raise BookieUnavailable(bookie_id, "reported runs that do not rise")
        after = found[-1][1]


async def look(
    ledgers: Ledgers,
    bookie_ids: Iterable[str],
    ledger: LedgerName,
    damaged: Iterable[DamagedRun] = (),
) -> tuple[Presence, dict[str, str]]:
    """Ask all of *bookie_ids* what they hold of a ledger, and subtract *damaged*.

    Returns:
        What each bookie holds, and the reasons of those that did not report.
    """
    presence: Presence = {}
    reasons: dict[str, str] = {}
    known = list(damaged)

    async def ask(bookie_id: str) -> None:
        try:
            runs = await runs_on(ledgers, bookie_id, ledger)
        except BookieUnavailable as failure:
            presence[bookie_id], reasons[bookie_id] = None, failure.reason
            return
        presence[bookie_id] = without(runs, damaged_on(bookie_id, known))

    async with trio.open_nursery() as nursery:
        for bookie_id in bookie_ids:
            nursery.start_soon(ask, bookie_id)
    return presence, reasons


def damaged_on(bookie_id: str, damaged: Iterable[DamagedRun]) -> Runs:
    """Return the entries that *damaged* names on one bookie."""
    return union((d.first_entry, d.last_entry) for d in damaged if d.bookie_id == bookie_id)


# --- Census: which bookies are alive, away, lost or draining ----------------------------
# A bookie that restarts is away for a few seconds, and nothing is copied because of it. Each
# process measures absence by its own clock, from the moment it first missed the bookie.


_log = logging.getLogger(__name__)


class Census:
    """The bookies of the cluster, as of the last refresh().

    Attributes:
        live: the bookies that hold a lease, by id.
        runs: the epochs of these leases; a restart changes a bookie's epoch.
        draining: ids of the bookies that are being decommissioned.
    """

    def __init__(self, store: MetadataStore, *, lost_after_s: float) -> None:
        self._store = store
        self._lost_after_s = lost_after_s
        self._known: set[str] = set()
        self._missed_since: dict[str, float] = {}
        self._unreadable: set[str] = set()
        self._refreshed_at = float("-inf")
        self.live: dict[str, BookieRecord] = {}
        self.runs: dict[str, int] = {}
        self.draining: set[str] = set()
        self._marked: set[str] = set()
        self._marks_at = -math.inf

    async def refresh(self, *, age_max_s: float = 0.0, marks_age_max_s: float = 0.0) -> None:
        """Read the leases and draining marks of all bookies. Raises MetadataError.

        Nothing is read if a call within *age_max_s* did; and no draining marks and cookies, if one
        within *marks_age_max_s* did: they change by hand, and a live bookie says that it drains.
        """
        now = trio.current_time()
        if now < self._refreshed_at + age_max_s:
            return
        found = await list_registrations(self._store)
        self.live = {bookie.bookie_id: bookie for bookie in found.bookies}
        self.runs = found.epochs
        self._report(found.unreadable)
        if now >= self._marks_at + marks_age_max_s:
            self._marked = await list_draining(self._store)
            self._known |= await list_cookies(self._store)
            self._marks_at = now
        self.draining = self._marked | {b.bookie_id for b in found.bookies if b.draining}
        self._known |= self.live.keys()
        self._notice(self._known)
        self._refreshed_at = now

    def away(self, bookie_id: str) -> bool:
        """Return True if it is down, but not for long enough to be lost."""
        return bookie_id not in self.live and not self.lost(bookie_id)

    def lost(self, bookie_id: str) -> bool:
        """Return True if it has been down for lost_after_s, as far as this process saw."""
        if bookie_id in self.live:
            return False
        self._notice([bookie_id])
        return trio.current_time() >= self._missed_since[bookie_id] + self._lost_after_s

    def give_up(self, bookie_ids: Iterable[str]) -> None:
        """Count those of *bookie_ids* that are down as lost: another process waited for them."""
        for bookie_id in bookie_ids:
            if bookie_id not in self.live:
                self._missed_since[bookie_id] = float("-inf")

    def stays(self, bookie_id: str) -> bool:
        """Return True if copies may stay on it: it is alive and not draining."""
        return bookie_id in self.live and bookie_id not in self.draining

    def in_limbo(self, bookie_id: str) -> bool:
        """Return True if it is alive and may have lost entries."""
        return bookie_id in self.live and self.live[bookie_id].limbo

    def takes(self, bookie_id: str) -> bool:
        """Return True if it takes the entries of ledgers that name it."""
        return bookie_id in self.live and not self.live[bookie_id].read_only

    @property
    def takers(self) -> int:
        """How many bookies take the entries of new ledgers."""
        return sum(self.stays(bookie) and self.takes(bookie) for bookie in self.live)

    def all_lost(self) -> set[str]:
        """Return the lost bookies, of all that have a cookie or were seen alive."""
        return {bookie_id for bookie_id in self._known if self.lost(bookie_id)}

    def _report(self, unreadable: dict[str, str]) -> None:
        for bookie_id in unreadable.keys() - self._unreadable:
            _log.error(
                "%s counts as away, its registration is unreadable: %s",
                bookie_id,
                unreadable[bookie_id],
            )
        self._unreadable = set(unreadable)

    def _notice(self, bookie_ids: Collection[str]) -> None:
        now = trio.current_time()
        for bookie_id in self.live:
            self._missed_since.pop(bookie_id, None)
        for bookie_id in bookie_ids:
            if bookie_id not in self.live:
                self._missed_since.setdefault(bookie_id, now)
