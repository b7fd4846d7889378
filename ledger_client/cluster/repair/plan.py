"""The plan of a repair: copies, and the location list that is true after them. Pure arithmetic.

The goal for a closed ledger that stores every entry on all of its ensemble: one fragment, on
ensemble_size bookies that are alive and not draining, each holding every entry. Bookies that
already hold most are preferred. A ledger in that state needs nothing, even if its copies could be
on more racks; but a bookie that takes the place of another one is on a rack without a copy, if
there is such a bookie.

If that is out of reach (entries are striped over the ensemble, bookies are too few, one did
not report what it holds, or the ledger is open), each fragment is mended by itself:
its bookies get what they lack, and a bookie that is gone is replaced if there is a spare.

A plan never lists a new bookie for entries that it neither holds nor receives by the plan,
so no step lowers the number of readable copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import msgspec

from ledger_client.ledgers.racks import Spread, spread_at
from metadata.records import Fragment, LedgerRecord, LedgerState


class Holding(msgspec.Struct, frozen=True):
    """A bookie, as a place for copies of one ledger."""

    bookie_id: str
    runs: Runs | None = []
    """the sound entries that it holds; `None` if it did not report"""
    stays: bool = True
    """False if it is gone or draining, so that its copies belong elsewhere"""
    takes: bool = True
    """False if it gets no ledger that it has no part in yet"""
    full: bool = False
    """True if it is read-only: others are preferred when entries must be copied"""
    rack: str = ""


class RepairCopy(msgspec.Struct, frozen=True):
    """Entries to copy to one bookie."""

    target: str
    runs: Runs


class RepairPlan(msgspec.Struct, frozen=True):
    """Once all *copies* are made, *fragments* is the ledger's location list.

    *blocked* gives in one line the reasons why the ledger is still not whole then; it is
    empty if the ledger is whole.
    """

    copies: list[RepairCopy]
    fragments: list[Fragment]
    blocked: str = ""


def plan_repair(record: LedgerRecord, holdings: Collection[Holding]) -> RepairPlan:
    """Plan the repair of *record*, as far as *holdings* allow.

    Args:
        record: the ledger. The last fragment of an open one is left alone.
        holdings: the known bookies with what they hold. A bookie that is missing here is
            gone. Among equals, the first one is chosen.
    """
    known = {holding.bookie_id: holding for holding in holdings}
    if record.state is LedgerState.CLOSED and record.ensemble_size == record.write_quorum:
        plan = _whole(record, known)
        if plan is not None:
            return plan
    return _mended(record, known)


def fragment_ends(record: LedgerRecord) -> Iterator[tuple[Fragment, int]]:
    """Yield each fragment that is complete, with its last entry."""
    for fragment, after in pairwise(record.fragments):
        yield fragment, after.first_entry - 1
    if record.state is LedgerState.CLOSED:
        yield record.fragments[-1], record.last_entry


def wanted(record: LedgerRecord, fragment: Fragment, end: int, index: int) -> Runs:
    """Return the entries of *fragment* that belong on its bookie number *index*."""
    return striped(
        fragment.first_entry,
        end,
        index=index,
        ensemble_size=record.ensemble_size,
        write_quorum=record.write_quorum,
    )


def holds_all(record: LedgerRecord, bookie_id: str, runs: Runs) -> bool:
    """Return True if *runs* are all that a bookie should hold of a ledger; unknown is False.

    What belongs on a bookie of the last fragment is known once the ledger is closed.
    """
    if record.state is not LedgerState.CLOSED and bookie_id in record.fragments[-1].bookies:
        return False
    return not any(
        without(wanted(record, fragment, end, index), runs)
        for fragment, end in fragment_ends(record)
        for index, name in enumerate(fragment.bookies)
        if name == bookie_id
    )


class LedgerShares(msgspec.Struct, frozen=True):
    """The payload bytes that each bookie holds of a closed ledger."""

    ledger_id: int
    sizes: dict[str, int]
    ensembles: list[list[str]] = []
    """the bookies of each fragment"""
    write_quorum: int = 1


def shares_of(record: LedgerRecord) -> LedgerShares:
    """Estimate what each bookie holds of a closed ledger from its record alone.

    Entries are assumed to be of one average size.
    """
    entries = record.last_entry + 1
    part = record.length * record.write_quorum / record.ensemble_size / max(entries, 1)
    ends = [*(fragment.first_entry for fragment in record.fragments[1:]), entries]
    sizes: dict[str, float] = {}
    for fragment, end in zip(record.fragments, ends, strict=True):
        for bookie_id in fragment.bookies:
            held = part * (end - fragment.first_entry)
            sizes[bookie_id] = sizes.get(bookie_id, 0.0) + held
    return LedgerShares(
        record.ledger_id,
        {name: round(size) for name, size in sizes.items()},
        [fragment.bookies for fragment in record.fragments],
        record.write_quorum,
    )


# --- one fragment, everywhere -----------------------------------------------------------


def _whole(record: LedgerRecord, known: dict[str, Holding]) -> RepairPlan | None:
    """Return the plan that reaches the goal, or `None` if that is impossible now."""
    listed = {bookie for fragment in record.fragments for bookie in fragment.bookies}
    if any(known[b].runs is None for b in listed if b in known and known[b].stays):
        return None
    everything = run_of(0, record.last_entry)
    able = [h for h in known.values() if h.runs is not None and _may_hold(h, listed)]
    if len(able) < record.ensemble_size:
        return None
    chosen = _chosen(able, record.ensemble_size, everything, record.fragments[-1].bookies)
    missing = [(h.bookie_id, without(everything, h.runs or [])) for h in chosen]
    bookies = _seated([h.bookie_id for h in chosen], record.fragments[-1].bookies)
    copies = [RepairCopy(bookie, runs) for bookie, runs in missing if runs]
    return RepairPlan(copies, [Fragment(0, bookies)])


def _may_hold(holding: Holding, listed: Collection[str]) -> bool:
    return holding.stays and (holding.takes or holding.bookie_id in listed)


def _chosen(
    able: Sequence[Holding], size: int, everything: Runs, preferred: Sequence[str]
) -> list[Holding]:
    """Return the bookies to hold a ledger: first those that do, or did and stay.

    The others are taken from the racks with the fewest copies. A bookie of the last fragment
    does not lose its place because of its rack, as that would copy a ledger that is on it.
    """
    lacking = {h.bookie_id: count(without(everything, h.runs or [])) for h in able}
    copies: Counter[str] = Counter()
    chosen: list[Holding] = []
    left = [*able]

    least = 0

    def rank(holding: Holding) -> tuple[bool, bool, int, int, bool]:
        missing, listed = lacking[holding.bookie_id], holding.bookie_id in preferred
        crowd = 0 if listed and missing else copies[holding.rack] - least
        return missing > 0, holding.full and missing > 0, crowd, missing, not listed

    while len(chosen) < size:
        least = min(copies[holding.rack] for holding in left)
        chosen.append(min(left, key=rank))
        left.remove(chosen[-1])
        copies[chosen[-1].rack] += 1
    return chosen


def _seated(chosen: list[str], seats: Sequence[str]) -> list[str]:
    """Return *chosen*, ordered so that bookies listed already keep their index."""
    newcomers = iter([bookie for bookie in chosen if bookie not in seats])
    return [bookie if bookie in chosen else next(newcomers) for bookie in seats]


# --- fragment by fragment ---------------------------------------------------------------


def _mended(record: LedgerRecord, known: dict[str, Holding]) -> RepairPlan:
    needs: dict[str, Runs] = {}
    fragments: list[Fragment] = []
    blocked: list[str] = []
    for fragment, end in fragment_ends(record):
        bookies = [*fragment.bookies]
        for index, bookie in enumerate(fragment.bookies):
            share = wanted(record, fragment, end, index)
            if bookie not in known or not known[bookie].stays:
                racks = [known[b].rack if b in known else None for b in bookies]
                spread = partial(spread_at, racks, index, write_quorum=record.write_quorum)
                spare = _spare(known, bookies, share, needs, spread)
                if spare is None:
                    blocked.append(f"no bookie can take the place of {bookie}")
                else:
                    bookies[index] = bookie = spare
            blocked += _need(known.get(bookie), share, needs)
        fragments.append(Fragment(fragment.first_entry, bookies))
    if record.state is not LedgerState.CLOSED:
        fragments.append(record.fragments[-1])
    copies = [RepairCopy(bookie, runs) for bookie, runs in sorted(needs.items())]
    return RepairPlan(copies, fragments, "; ".join(dict.fromkeys(blocked)))


def _spare(
    known: dict[str, Holding],
    taken: Collection[str],
    share: Runs,
    needs: dict[str, Runs],
    spread: Callable[[str], Spread],
) -> str | None:
    """Return the bookie on the best rack that needs the fewest copied entries.

    Among equals, it is the least loaded one.
    """
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
    best = max(spread(rack) for rack in {h.rack for h in able})
    return min(
        (h for h in able if spread(h.rack) == best),
        key=lambda h: (
            count(without(share, h.runs or [])),
            count(needs.get(h.bookie_id, [])),
        ),
    ).bookie_id


def _need(holding: Holding | None, share: Runs, needs: dict[str, Runs]) -> list[str]:
    """Add what *holding* lacks of *share* to *needs*; return obstacles."""
    if holding is None or (holding.runs is None and not holding.stays):
        return []  # gone, and reported already
    if holding.runs is None:
        return [f"{holding.bookie_id} did not report what it holds"]
    missing = without(share, holding.runs)
    if missing and holding.stays:
        needs[holding.bookie_id] = union(needs.get(holding.bookie_id, []), missing)
    return []


# --- Runs: sets of entries as (first, last) pairs ---------------------------------------
# Pairs rise and do not touch. A bookie's part of a ledger is usually a few runs, however
# large the ledger is, so bookies report what they hold as runs.


Run = tuple[int, int]
Runs = list[Run]
Presence = dict[str, Runs | None]
"""The entries that each bookie holds; `None` for a bookie that did not report."""


def run_of(first: int, last: int) -> Runs:
    """Return the entries from *first* to *last*; none when *last* is below *first*."""
    return [(first, last)] if first <= last else []


def count(runs: Iterable[Run]) -> int:
    """Count the entries in *runs*, which must not overlap."""
    return sum(last - first + 1 for first, last in runs)


def union(*several: Iterable[Run]) -> Runs:
    """Return the entries in any of *several*; their runs may touch and overlap."""
    merged: Runs = []
    for first, last in sorted(run for runs in several for run in runs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def without(runs: Iterable[Run], taken: Iterable[Run]) -> Runs:
    """Return the entries of *runs* less those in *taken*."""
    return list(_remaining(runs, list(taken)))


def common(runs: Iterable[Run], others: Iterable[Run]) -> Runs:
    """Return the entries in both, as runs."""
    kept = list(runs)
    return without(kept, without(kept, others))


def striped(first: int, last: int, *, index: int, ensemble_size: int, write_quorum: int) -> Runs:
    """Return the entries from *first* to *last* that belong on the ensemble's bookie *index*.

    Entry e belongs on *write_quorum* bookies in a row, from index e modulo *ensemble_size* on.
    """
    if ensemble_size == write_quorum:
        return run_of(first, last)
    shift = (first - (index - write_quorum + 1)) % ensemble_size
    starts = range(first - shift, last + 1, ensemble_size)
    found = ((max(at, first), min(at + write_quorum - 1, last)) for at in starts)
    return [run for run in found if run[0] <= run[1]]


def _remaining(runs: Iterable[Run], taken: Runs) -> Iterator[Run]:
    position = 0
    for first, last in runs:
        while position < len(taken) and taken[position][1] < first:
            position += 1
        start, at = first, position
        while at < len(taken) and taken[at][0] <= last:
            if start < taken[at][0]:
                yield start, taken[at][0] - 1
            start = max(start, taken[at][1] + 1)
            at += 1
        if start <= last:
            yield start, last
