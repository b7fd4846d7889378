"""The store's time for all hosts: one node that holds the last time that was given out.

Each call reads the node, computes a time that is not before it, and writes that by compare-and-set.
So the times of all stores are in one order, and never go back. Calls of one store that wait
together share a turn.

How long it is since the last time, each store knows by its own monotonic clock, which nobody can
set. Towards the wall clocks the time is slewed by at most a tenth of what passes, so a clock
that is an hour ahead for an hour moves it by six minutes at most; and a store looks at two wall
clocks, its own host's and the one by which ZooKeeper's leader stamped the last write, and goes
after the earlier one. So one host alone that is ahead changes nothing, and one that is behind
slows the time down while it asks.

A store that has just been opened has no measure yet. It takes the shorter of the two times that
passed since the last write, by the leader's stamps and by its host's clock: after an outage of
all stores the time is right unless both are wrong, and no single clock pushes it ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import trio

from metadata.errors import MetadataBroken, MetadataUnavailable
from metadata.zookeeper import paths
from metadata.zookeeper.floors import raise_number
from metadata.zookeeper.znodes import Connection, Create, Node, Refused, Set, Stat

SLEW_PART = 10
"""The store's time runs at most a tenth faster or slower than real time."""
NEAR_MS = 1000
"""Wall clocks are not followed more closely."""


class _Measure(NamedTuple):
    """The store's time at a moment of this host's monotonic clock."""

    clock_ms: int
    store_ms: int


class StoreTime:
    """The clock of the cluster, as one store reads it.

    Args:
        connection: to ZooKeeper.
        clock_ms: milliseconds of a clock that nobody can set.
        wall_ms: the host's wall clock, in Unix milliseconds.
    """

    def __init__(
        self, connection: Connection, *, clock_ms: Callable[[], int], wall_ms: Callable[[], int]
    ) -> None:
        self._connection = connection
        self._clock_ms = clock_ms
        self._wall_ms = wall_ms
        self._measure: _Measure | None = None
        self._turn = trio.Lock()
        self._begun = 0
        self._last = (0, 0)
        """number of the last turn that ended, and its time"""

    async def now_ms(self) -> int:
        """Return the store's time in Unix milliseconds. Raises MetadataUnavailable."""
        asked = self._begun
        async with self._turn:
            if self._last[0] > asked:  # a turn that began after this call
                return self._last[1]
            self._begun += 1
            number = self._begun
            now_ms = await self._take()
            self._last = (number, now_ms)
            return now_ms

    async def raise_to(self, floor_ms: int) -> None:
        """Let the store's time continue at *floor_ms*, unless it is later already."""
        await raise_number(self._connection, paths.CLOCK, floor_ms)

    async def _take(self) -> int:
        while True:
            (node,) = await self._connection.get([paths.CLOCK], fresh=True)
            if self._measure is None:
                node = await self._begin(node)
            if node is None:
                continue
            stored_ms = _parse(node)
            clock_ms = self._clock_ms()
            now_ms = self._advance(stored_ms, node[1], clock_ms)
            stat = await self._write(now_ms, node[1].version)
            if stat is not None:
                self._measure = _Measure(clock_ms, now_ms)
                return now_ms

    async def _begin(self, node: Node | None) -> Node | None:
        """Measure what passed since the last write of any store, by wall clocks."""
        wall_ms = self._wall_ms()
        if node is None:
            await self._connection.multi([Create(paths.CLOCK, str(wall_ms).encode())])
            return None
        stored_ms = _parse(node)
        stat = await self._write(stored_ms, node[1].version)
        if stat is None:
            return None
        passed_ms = min(stat.modified_ms - node[1].modified_ms, wall_ms - stored_ms)
        self._measure = _Measure(self._clock_ms(), stored_ms + max(0, passed_ms))
        return node[0], stat

    def _advance(self, stored_ms: int, stat: Stat, clock_ms: int) -> int:
        """Return the time now, at least *stored_ms*."""
        assert self._measure is not None
        measured_ms = self._measure.store_ms + clock_ms - self._measure.clock_ms
        passed_ms = max(0, measured_ms - stored_ms)
        off_ms = min(self._wall_ms(), stat.modified_ms + passed_ms) - measured_ms
        slew_ms = max(-(passed_ms // SLEW_PART), min(off_ms, passed_ms // SLEW_PART))
        return max(stored_ms, measured_ms + (slew_ms if abs(off_ms) > NEAR_MS else 0))

    async def _write(self, now_ms: int, version: int) -> Stat | None:
        """Return the Stat after the write, or None if another store was faster."""
        try:
            outcome = await self._connection.multi(
                [Set(paths.CLOCK, str(now_ms).encode(), version)]
            )
        except MetadataUnavailable as lost:
            # Whether it was written or not, the next turn goes on from what it finds.
            raise MetadataUnavailable(lost.message) from lost
        if isinstance(outcome, Refused):
            return None
        (stat,) = outcome
        assert isinstance(stat, Stat)
        return stat


def _parse(node: Node) -> int:
    try:
        return int(node[0])
    except ValueError:
        raise MetadataBroken(f"{paths.CLOCK} holds {node[0][:20]!r} and no time") from None
