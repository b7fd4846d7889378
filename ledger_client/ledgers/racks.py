"""Copies on different racks: an ensemble's order, and the bookie for one place of it.

An entry is on write_quorum consecutive bookies of its ensemble, which is a circle. Each such run is
a write set, and the fewer racks the worst one spans, the more a single switch or power supply can
take away. So that number is made as great as the bookies allow, then the sum over all write sets.

    ensemble a1 b1 c1 a2 b2, write quorum 2: a1 b1, b1 c1, c1 a2, a2 b2, b2 a1 span two racks each

Bookies come here in the order of a weighted draw, which decides all that racks leave open. Bookies
that state no rack share one, so a cluster without racks is placed as if there were none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

Racks = Sequence[str | None]
"""The rack of each place of an ensemble; `None`, an unknown one, counts as one more rack."""
SEARCHED_MAX = 12
"""Larger ensembles are ordered by rule alone, which misses the best by one rack at times."""


class Spread(NamedTuple):
    """How many racks the write sets span; the greater, the better."""

    least: int
    """by the worst write set"""
    total: int
    """by all write sets together"""


def spread_of(racks: Racks, write_quorum: int) -> Spread:
    """Return how many racks the write sets of an ensemble span."""
    return _measure(racks, write_quorum, range(len(racks)))


def best_spread(sizes: Iterable[int], ensemble_size: int, write_quorum: int) -> Spread:
    """Return the best that racks with so many bookies allow; zeros if they have too few."""
    counts = _shares([*sizes], ensemble_size)
    if sum(counts) < ensemble_size:
        return Spread(0, 0)
    return spread_of([str(rack) for rack in _pattern(_falling(counts), write_quorum)], write_quorum)


def spread_out(
    drawn: Sequence[str],
    rack_of: Mapping[str, str],
    size: int,
    write_quorum: int,
    *,
    used: Iterable[str | None] = (),
) -> list[str]:
    """Choose *size* of *drawn*, fewer if there are not so many, and order them as an ensemble.

    Args:
        drawn: bookies, the preferred ones first.
        rack_of: their racks.
        size: how many to choose.
        write_quorum: of the ledger.
        used: racks of bookies that hold copies already; others come first.
    """
    load = Counter(used)
    queues: dict[str, list[str]] = {}
    for bookie_id in drawn:
        queues.setdefault(rack_of[bookie_id], []).append(bookie_id)
    order = {bookie_id: place for place, bookie_id in enumerate(drawn)}
    chosen: list[str] = []
    while queues and len(chosen) < size:
        rack = min(queues, key=lambda each: (load[each], order[queues[each][0]]))
        chosen.append(queues[rack].pop(0))
        load[rack] += 1
        if not queues[rack]:
            del queues[rack]
    return _ordered(chosen, rack_of, write_quorum)


def best_for(racks: Racks, index: int, candidates: Iterable[str], write_quorum: int) -> str | None:
    """Return the rack of *candidates* that suits place *index* best; the first one among equals.

    `None` if there is no candidate.
    """
    distinct = [*dict.fromkeys(candidates)]
    return max(distinct, key=lambda rack: spread_at(racks, index, rack, write_quorum), default=None)


def spread_at(racks: Racks, index: int, rack: str | None, write_quorum: int) -> Spread:
    """Return the spread of the write sets with place *index*, if that were on *rack*."""
    size = len(racks)
    tried = [*racks[:index], rack, *racks[index + 1 :]]
    first = range(index - write_quorum + 1, index + 1)
    return _measure(tried, write_quorum, first if write_quorum < size else [index])


def _measure(racks: Racks, write_quorum: int, starts: Iterable[int]) -> Spread:
    size = len(racks)
    spans: list[int] = []
    for start in starts:
        write_set = [racks[(start + i) % size] for i in range(min(write_quorum, size))]
        spans.append(len({*write_set} - {None}) + write_set.count(None))
    return Spread(min(spans, default=0), sum(spans))


# --- the order of an ensemble -----------------------------------------------------------


def _ordered(chosen: list[str], rack_of: Mapping[str, str], write_quorum: int) -> list[str]:
    """Return *chosen* in the order that spreads the write sets best."""
    counts = Counter(rack_of[bookie_id] for bookie_id in chosen)
    if write_quorum >= len(chosen) or len(counts) < 2:  # any order is as good
        return chosen
    ranked = sorted(counts, key=lambda rack: -counts[rack])
    queues = {rack: iter([b for b in chosen if rack_of[b] == rack]) for rack in ranked}
    pattern = _pattern(tuple(counts[rack] for rack in ranked), write_quorum)
    return [next(queues[ranked[place]]) for place in pattern]


def _shares(sizes: list[int], ensemble_size: int) -> list[int]:
    """Return how many places each rack gets: as even as their sizes allow."""
    shares = [0] * len(sizes)
    for _ in range(min(ensemble_size, sum(sizes))):
        shares[min((i for i, n in enumerate(shares) if n < sizes[i]), key=shares.__getitem__)] += 1
    return shares


def _falling(counts: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted((count for count in counts if count), reverse=True))


@lru_cache(maxsize=1024)
def _pattern(counts: tuple[int, ...], write_quorum: int) -> tuple[int, ...]:
    """Return an order of racks, by index, in which each occurs as often as *counts*, falling, says.

    The circle is cut into as many blocks as the most frequent rack has places, and racks are dealt
    out one after the other: the first place of every block, then the second, and so on. So
    equal racks are about one block apart. If no block is shorter than the write quorum, no write
    set has a rack twice. Otherwise places are swapped for as long as that helps.
    """
    patterns: list[list[int]] = [_dealt(counts, evenly=evenly) for evenly in (False, True)]
    if sum(counts) <= SEARCHED_MAX:
        patterns = [_improved(pattern, write_quorum) for pattern in patterns]
    best = max(patterns, key=lambda pattern: _score(pattern, write_quorum))
    return tuple(best)


def _dealt(counts: tuple[int, ...], *, evenly: bool) -> list[int]:
    blocks: list[list[int]] = [[] for _ in range(counts[0])]
    racks = [rack for rack, count in enumerate(counts) for _ in range(count)]
    rest = len(racks) % len(blocks)
    for place, rack in enumerate(racks):
        in_last = place - (len(racks) - rest)
        column = in_last * len(blocks) // rest if evenly and in_last >= 0 else place % len(blocks)
        blocks[column].append(rack)
    return [rack for block in blocks for rack in block]


def _improved(pattern: list[int], write_quorum: int) -> list[int]:
    """Swap two places for as long as some swap makes the spread better."""
    best, better = _score(pattern, write_quorum), True
    while better:
        better = False
        for one in range(len(pattern)):
            for other in range(one):
                tried = [*pattern]
                tried[one], tried[other] = tried[other], tried[one]
                score = _score(tried, write_quorum)
                if score > best:
                    pattern, best, better = tried, score, True
    return pattern


def _score(pattern: Sequence[int], write_quorum: int) -> Spread:
    return spread_of([str(rack) for rack in pattern], write_quorum)
