"""What to copy where, and the location list that is true afterwards. Nothing but arithmetic.

The goal, for a closed ledger whose entries all lie on every bookie of its ensemble: one
fragment, on ensemble_size bookies that are alive and stay, each holding every entry. Of
all bookies those are taken that hold most already. A ledger whose list is so needs nothing.

Where that cannot be reached (entries are striped over the ensemble, too few bookies, a
bookie that did not say what it holds, a ledger that is still written), each fragment is
mended by itself: what its bookies lack is copied to them, and who is gone is replaced
as far as there is somebody.

A list in a plan never names a new bookie for entries that it does not hold or get by the
plan, so no step lowers the number of readable copies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

import msgspec

from ledger_client.repair.runs import Runs, count, run_of, striped, union, without
from metadata.records import Fragment, LedgerRecord, LedgerState


class Holding(msgspec.Struct, frozen=True):
    """A bookie, as a place for copies of one ledger."""

    bookie_id: str
    runs: Runs | None = []
    """the sound entries that it holds; None: it did not say"""
    stays: bool = True
    """False: it is gone or is to be emptied, so its copies belong elsewhere"""
    takes: bool = True
    """False: it gets no ledger that it has no part in"""
    full: bool = False
    """it is read-only: others go first where something has to be copied"""


class Copy(msgspec.Struct, frozen=True):
    """Entries that a bookie is to get."""

    target: str
    runs: Runs


class Plan(msgspec.Struct, frozen=True):
    """Make *copies*, all of them; then *fragments* are true.

    *blocked* says in one line why the ledger is not whole after that; empty: it is.
    """

    copies: list[Copy]
    fragments: list[Fragment]
    blocked: str = ""


def plan_repair(record: LedgerRecord, holdings: Collection[Holding]) -> Plan:
    """Return what to do for *record*, as far as *holdings* allow.

    Args:
        record: the ledger. Of one that is not closed the last fragment is left alone.
        holdings: the bookies that are known, with what they hold. One that
            is not named is gone. Of equals, the first is taken.
    """
    known = {holding.bookie_id: holding for holding in holdings}
    if record.state is LedgerState.CLOSED and record.ensemble_size == record.write_quorum:
        plan = _whole(record, known)
        if plan is not None:
            return plan
    return _mended(record, known)


def fragment_ends(record: LedgerRecord) -> Iterator[tuple[Fragment, int]]:
    """Yield each fragment that does not grow any more, with its last entry."""
    for fragment, after in pairwise(record.fragments):
        yield fragment, after.first_entry - 1
    if record.state is LedgerState.CLOSED:
        yield record.fragments[-1], record.last_entry


def wanted(record: LedgerRecord, fragment: Fragment, end: int, index: int) -> Runs:
    """Return the entries of *fragment* that belong on the bookie at *index* of it."""
    return striped(
        fragment.first_entry,
        end,
        index=index,
        ensemble_size=record.ensemble_size,
        write_quorum=record.write_quorum,
    )


# --- one fragment, everywhere -----------------------------------------------------------


def _whole(record: LedgerRecord, known: dict[str, Holding]) -> Plan | None:
    """Return the plan that reaches the goal; None: it cannot be reached now."""
    listed = {bookie for fragment in record.fragments for bookie in fragment.bookies}
    if any(known[b].runs is None for b in listed if b in known and known[b].stays):
        return None
    everything = run_of(0, record.last_entry)
    able = [h for h in known.values() if h.runs is not None and _may_hold(h, listed)]
    chosen = sorted(able, key=lambda h: _rank(h, everything, record.fragments[-1].bookies))
    chosen = chosen[: record.ensemble_size]
    if len(chosen) < record.ensemble_size:
        return None
    missing = [(h.bookie_id, without(everything, h.runs or [])) for h in chosen]
    bookies = _seated([h.bookie_id for h in chosen], record.fragments[-1].bookies)
    copies = [Copy(bookie, runs) for bookie, runs in missing if runs]
    return Plan(copies, [Fragment(0, bookies)])


def _may_hold(holding: Holding, listed: Collection[str]) -> bool:
    return holding.stays and (holding.takes or holding.bookie_id in listed)


def _rank(holding: Holding, everything: Runs, preferred: Sequence[str]) -> tuple[bool, int, bool]:
    """Return a key by which the bookies to choose come first."""
    lacking = count(without(everything, holding.runs or []))
    return holding.full and lacking > 0, lacking, holding.bookie_id not in preferred


def _seated(chosen: list[str], seats: Sequence[str]) -> list[str]:
    """Return *chosen*, with those that have a seat already at their place."""
    newcomers = iter([bookie for bookie in chosen if bookie not in seats])
    return [bookie if bookie in chosen else next(newcomers) for bookie in seats]


# --- fragment by fragment ---------------------------------------------------------------


def _mended(record: LedgerRecord, known: dict[str, Holding]) -> Plan:
    needs: dict[str, Runs] = {}
    fragments: list[Fragment] = []
    blocked: list[str] = []
    for fragment, end in fragment_ends(record):
        bookies = [*fragment.bookies]
        for index, bookie in enumerate(fragment.bookies):
            share = wanted(record, fragment, end, index)
            if bookie not in known or not known[bookie].stays:
                spare = _spare(known, bookies, share, needs)
                if spare is None:
                    blocked.append(f"no bookie can take the place of {bookie}")
                else:
                    bookies[index] = bookie = spare
            blocked += _need(known.get(bookie), share, needs)
        fragments.append(Fragment(fragment.first_entry, bookies))
    if record.state is not LedgerState.CLOSED:
        fragments.append(record.fragments[-1])
    copies = [Copy(bookie, runs) for bookie, runs in sorted(needs.items())]
    return Plan(copies, fragments, "; ".join(dict.fromkeys(blocked)))


def _spare(
    known: dict[str, Holding], taken: Collection[str], share: Runs, needs: dict[str, Runs]
) -> str | None:
    """Return the bookie for which least has to be copied, and which gets least besides."""
    able = [
        holding
        for holding in known.values()
        if holding.stays
        and holding.takes
        and holding.runs is not None
        and not holding.full
        and holding.bookie_id not in taken
    ]
    if not able:
        return None
    return min(
        able,
        key=lambda h: (
            count(without(share, h.runs or [])),
            count(needs.get(h.bookie_id, [])),
        ),
    ).bookie_id


def _need(holding: Holding | None, share: Runs, needs: dict[str, Runs]) -> list[str]:
    """Add what *holding* lacks of *share* to *needs*; return what is in the way."""
    if holding is None or (holding.runs is None and not holding.stays):
        return []  # gone, and told already
    if holding.runs is None:
        return [f"{holding.bookie_id} did not say what it holds"]
    missing = without(share, holding.runs)
    if missing and holding.stays:
        needs[holding.bookie_id] = union(needs.get(holding.bookie_id, []), missing)
    return []
