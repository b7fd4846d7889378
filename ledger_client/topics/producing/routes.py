"""Over how many partitions the keys of a producer with a name were routed, now and before.

Partitions are added while a producer runs, or between two runs of it. What it sent before and
sends again after that has a key whose partition is another one by then. So each lane keeps,
with the producer's last number, from which number on keys were routed over how many
partitions; and a message that is sent again is looked for where its key was at its number.

    lane of partition 1    (4, 0) (8, 117)    numbers below 117 came when there were four
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

ROUTES_MAX = 8
"""Changes that are remembered for each producer and lane."""
Route = tuple[int, int]
"""How many partitions, and from which number on."""


def with_route(routes: Sequence[Route], partitions: int, following: int) -> list[Route]:
    """Return *routes* when numbers from *following* on are routed over *partitions*.

    What is above was not kept, whatever was said of it.
    """
    kept = [(count, min(first, following)) for count, first in routes]
    if not kept:
        return [(partitions, 0)]
    if kept[-1][0] != partitions:
        kept.append((partitions, following))
    # Of those that begin with the same number, the last alone has any.
    nexts = [*(first for _, first in kept[1:]), following + 1]
    return [route for route, stop in zip(kept, nexts, strict=True) if route[1] < stop][-ROUTES_MAX:]


def routed_over(routes: Sequence[Route], sequence: int, partitions: int) -> bool:
    """Whether a number is below those for which there were more than so many *partitions*."""
    return any(
        count == partitions and sequence < stop for (count, _), (_, stop) in pairwise(routes)
    )


class Routes:
    """What a producer knows of its own routes.

    Attributes:
        partitions: over how many it routes keys now.
        earlier: over how many it did before.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.earlier: set[int] = set()

    def widen(self, partitions: int) -> None:
        """Route over more partitions from now on."""
        self.earlier.add(self.partitions)
        self.partitions = partitions

    def learn(self, routes: Iterable[Route]) -> None:
        """Take note of what a lane knows."""
        self.earlier.update(count for count, _ in routes if count != self.partitions)
