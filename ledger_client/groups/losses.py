"""What a lost member had, and what was removed before anybody was done with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NoReturn

import trio

from ledger_client.errors import Gap
from ledger_client.topics.positions import Place

GATHER_S = 0.25
"""What is found within so long after the first loss is told with it."""


class _Lane:
    """What is lost of one lane."""

    def __init__(self, gap: Gap) -> None:
        self.gap = gap
        """the one of the last entry"""
        self.entries: set[Place] = set()

    def note(self, gap: Gap, lost: set[Place]) -> None:
        """Add entries, and the gap that a reader of them met."""
        if not self.entries or max(lost) > max(self.entries):
            self.gap = gap
        self.entries |= lost

    def told(self) -> Gap:
        """Return one gap for all of it."""
        gap = self.gap
        return Gap(
            gap.topic,
            partition=gap.partition,
            lane=gap.lane,
            position=min(self.entries).message_id(gap.partition),
            first=gap.first,
            missing=len(self.entries),
        )


class Losses:
    """Gathers lost entries, by lane, for a short while: shares are taken over one by one.

    Messages wait meanwhile, so that a gap comes before what follows it; but not all the time, if
    more and more is found to be lost.

    Args:
        on_ready: called when there is something to take.
    """

    def __init__(self, on_ready: Callable[[], None]) -> None:
        self._lanes: dict[tuple[str, int, int], _Lane] = {}
        self._ready_at = math.inf
        self._free_until = -math.inf
        self._news = trio.Event()
        self._on_ready = on_ready

    @property
    def holds(self) -> bool:
        """True while messages wait."""
        return bool(self._lanes) and trio.current_time() >= self._free_until

    def note(self, gap: Gap, lost: Iterable[Place]) -> None:
        """Add entries of one share; several shares may have messages of the same entry."""
        if entries := set(lost):
            lane = (gap.topic, gap.partition, gap.lane)
            if not self._lanes:
                self._ready_at = trio.current_time() + GATHER_S
                self._news.set()
            self._lanes.setdefault(lane, _Lane(gap)).note(gap, entries)

    async def run(self) -> NoReturn:
        """Say when there is something to take, until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            await trio.sleep_until(self._ready_at)
            self._on_ready()

    def take(self, *, is_over: bool = False) -> Gap | None:
        """Return one gap for all that was lost of a lane, if it was gathered for long enough.

        *is_over*: however long it was.
        """
        now = trio.current_time()
        if not self._lanes or (now < self._ready_at and not is_over):
            return None
        told = self._lanes.pop(next(iter(self._lanes))).told()
        self._free_until = now + GATHER_S
        return told
