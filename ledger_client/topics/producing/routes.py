"""Over how many partitions a named producer routes each of its numbers.

A message that is sent again must be looked for where its key belonged when it was sent first.
So when partitions are added, the producer and its lanes agree on a boundary, which is above
every number that any lane accepted by then. A number below it is routed over as many partitions
as before, for ever; a number from it on over as many as there are now.

    (4, 0) (8, 117)    numbers below 117 are routed over 4 partitions, 117 and up over 8

Each lane keeps what it knows of this in its state (lanes/lane_state.py). What a producer goes
by is all that its lanes know together, so it is known as long as any lane knows the producer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import itemgetter

Route = tuple[int, int]
"""How many partitions, and from which number on."""


def merged(known: Iterable[Sequence[Route]]) -> list[Route]:
    """Return what several lanes know together.

    A lane may have missed a change, never made one of its own. Should two lanes name different
    boundaries, as when one was truncated and written since, the greater one holds.
    """
    first_of: dict[int, int] = {}
    for routes in known:
        for partitions, first in routes:
            first_of[partitions] = max(first, first_of.get(partitions, 0))
    routes, least = list[Route](), 0
    for partitions, first in sorted(first_of.items()):
        least = max(least, first)
        routes.append((partitions, least))
    return _used(routes)


def extended(routes: Sequence[Route], partitions: int, following: int) -> list[Route]:
    """Return *routes* when numbers from *following* on are routed over *partitions*.

    *following* is above every number that was accepted.
    """
    if routes and routes[-1][0] >= partitions:
        return list(routes)
    first = max(following, routes[-1][1]) if routes else 0
    return _used([*routes, (partitions, first)])


def _used(routes: Sequence[Route]) -> list[Route]:
    """Leave out what holds for no number."""
    used = [before for before, after in pairwise(routes) if before[1] < after[1]]
    return [*used, *routes[-1:]]


class Routes:
    """What a producer knows of its own routes.

    Attributes:
        partitions: over how many it routes now; 0: it routes nothing.
        known: what it and its lanes agreed on, in order; empty until they did, and for a
            producer without a name.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.known: list[Route] = []

    def agree(self, routes: Sequence[Route]) -> None:
        """Go by *routes* from now on."""
        self.known = list(routes)
        self.partitions = routes[-1][0]

    def partitions_at(self, sequence: int) -> int:
        """Return over how many partitions this number is routed."""
        at = bisect_right(self.known, sequence, key=itemgetter(1)) - 1
        return self.known[at][0] if at >= 0 else self.partitions
