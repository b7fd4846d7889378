"""A look at one ledger: what is where, and what would make it whole."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import msgspec

from ledger_client.client import Client
from ledger_client.repair.census import Census
from ledger_client.repair.plan import Holding, Plan, fragment_ends, plan_repair
from ledger_client.repair.presence import Presence, look
from ledger_client.repair.runs import Runs, union, without
from ledger_client.statements import LedgerName
from metadata.records import DamagedRun, LedgerRecord

GIB = 1 << 30
NEWCOMERS_MAX = 8
"""Bookies that have no part in a ledger and are looked at for room, at most."""


class Findings(msgspec.Struct, frozen=True):
    """What is where, what to do about it, and why some bookies did not answer."""

    presence: Presence
    plan: Plan
    reasons: dict[str, str]


class Survey:
    """Looks at ledgers with the eyes of one client."""

    def __init__(self, client: Client, census: Census, chance: random.Random) -> None:
        self._client = client
        self._census = census
        self._chance = chance

    async def look(self, record: LedgerRecord, damaged: Sequence[DamagedRun] = ()) -> Findings:
        """Ask as many bookies as it takes to tell what is to be done.

        First those that are listed and alive. If that is not enough, some that could take
        copies; and if entries are missing on all of these, whoever is listed or alive: a
        copy that was left behind when the ledger moved may be the last.
        """
        listed = _listed(record)
        seen = _Seen(self._client, LedgerName(record.ledger_id, record.incarnation), damaged)
        await seen.ask(bookie for bookie in listed if bookie in self._census.live)
        plan = plan_repair(record, self._holdings(listed, seen.presence, assume=True))
        if set(_listed(msgspec.structs.replace(record, fragments=plan.fragments))) - set(listed):
            await seen.ask(self._newcomers(listed))
            plan = plan_repair(record, self._holdings(listed, seen.presence, assume=False))
        if without(_needed(plan), seen.held()):
            await seen.ask([*listed, *self._census.live.keys() - set(listed)])
        return Findings(seen.presence, plan, seen.reasons)

    def _holdings(
        self, listed: Iterable[str], presence: Presence, *, assume: bool
    ) -> list[Holding]:
        """Return what is known of bookies; with *assume*, others are taken to have nothing."""
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
            )
            for bookie_id, runs in held.items()
            if bookie_id in self._census.live and (runs is not None or bookie_id in named)
        ]

    def _newcomers(self, listed: Iterable[str]) -> list[str]:
        """Return some bookies that take new ledgers, at random, the emptier the likelier."""
        live = self._census.live
        able = [
            bookie
            for bookie in sorted(live.keys() - set(listed))
            if self._census.stays(bookie) and not (live[bookie].read_only or live[bookie].limbo)
        ]
        # Efraimidis and Spirakis: the greatest of u ** (1 / weight) are a weighted draw.
        drawn = {b: self._chance.random() ** (1 / max(live[b].free / GIB, 0.01)) for b in able}
        return sorted(able, key=lambda b: drawn[b], reverse=True)[:NEWCOMERS_MAX]


class _Seen:
    """What bookies said of one ledger so far; none is asked twice."""

    def __init__(self, client: Client, ledger: LedgerName, damaged: Sequence[DamagedRun]) -> None:
        self._client = client
        self._ledger = ledger
        self._damaged = damaged
        self.presence: Presence = {}
        self.reasons: dict[str, str] = {}

    async def ask(self, bookie_ids: Iterable[str]) -> None:
        fresh = [bookie for bookie in bookie_ids if bookie not in self.presence]
        presence, reasons = await look(self._client, fresh, self._ledger, self._damaged)
        self.presence.update({bookie: presence[bookie] for bookie in fresh})
        self.reasons.update(reasons)

    def held(self) -> Runs:
        return union(*(runs for runs in self.presence.values() if runs is not None))


def _listed(record: LedgerRecord) -> list[str]:
    """Return the bookies of all fragments that do not grow any more."""
    named = (bookie for fragment, _ in fragment_ends(record) for bookie in fragment.bookies)
    return list(dict.fromkeys(named))


def _needed(plan: Plan) -> Runs:
    return union(*(copy.runs for copy in plan.copies))
