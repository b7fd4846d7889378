"""The count of partitions over which a named producer routes each of its numbers.

A message that is sent again must be looked up in the partition that its key had at first.
So when partitions are added, the producer and its lanes agree on a boundary, which is above
every number that any lane accepted by then. A number below it is routed over as many partitions
as before, for ever; a number from it on over as many as there are now.

    (4, 0) (8, 117)    numbers below 117 are routed over 4 partitions, 117 and up over 8

Each lane keeps the boundaries it knows in its state (lanes/lane_state.py). A producer merges those
of all its lanes, so a boundary is known as long as any lane knows the producer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

Route = tuple[int, int]
"""A count of partitions, and the first number routed over them."""


def merged(known: Iterable[Sequence[Route]]) -> list[Route]:
    """Return the union of the routes that several lanes know.

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
    """Leave out routes that hold for no number."""
    used = [before for before, after in pairwise(routes) if before[1] < after[1]]
    return [*used, *routes[-1:]]
