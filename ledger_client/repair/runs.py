"""Sets of entries as runs: (first, last) pairs that rise and do not touch.

A bookie's share of a ledger is a few runs as a rule, whatever the ledger's size. So
what it holds, and lacks, is told and compared as runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Run = tuple[int, int]
Runs = list[Run]


def run_of(first: int, last: int) -> Runs:
    """Return the entries from *first* to *last*; none when *last* is below *first*."""
    return [(first, last)] if first <= last else []


def count(runs: Iterable[Run]) -> int:
    """Return how many entries there are."""
    return sum(last - first + 1 for first, last in runs)


def union(*several: Iterable[Run]) -> Runs:
    """Return the entries that are in any of *several*, whose runs may touch and overlap."""
    merged: Runs = []
    for first, last in sorted(run for runs in several for run in runs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def without(runs: Iterable[Run], taken: Iterable[Run]) -> Runs:
    """Return the entries of *runs* that are not in *taken*."""
    return list(_remaining(runs, list(taken)))


def common(runs: Iterable[Run], others: Iterable[Run]) -> Runs:
    """Return the entries that are in both."""
    kept = list(runs)
    return without(kept, without(kept, others))


def striped(first: int, last: int, *, index: int, ensemble_size: int, write_quorum: int) -> Runs:
    """Return the entries from *first* to *last* that belong on a place of the ensemble.

    Entry e belongs on the *write_quorum* places that follow e modulo *ensemble_size*.
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
