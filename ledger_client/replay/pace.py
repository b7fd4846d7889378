"""How fast a replay goes: at once, or as far apart as messages were, by a factor.

The first message that a run sends is due at once, and each one after it as much later as its
time is later, divided by the speed. Time that goes back counts as standing still; messages
without a time come with those before them. What is due within TICK_S goes together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import trio

TICK_S = 0.005
NS_PER_S = 1_000_000_000
Times = Sequence[int | None]
"""Nanoseconds."""


class Pace:
    """The clock of one run; *speed* 0: nothing waits."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._first_ns: int | None = None
        self._last_ns = 0
        self._started_at = 0.0

    def cut(self, times: Times) -> Iterator[tuple[int, int, float]]:
        """Yield runs of messages of these times that go together: from, to before, due when.

        When is a time of trio's clock.
        """
        rising = self._rising(times)
        start = 0
        while start < len(rising):
            due_at = self._due_at(rising[start])
            stop = start + 1
            while stop < len(rising) and self._due_at(rising[stop]) < due_at + TICK_S:
                stop += 1
            yield start, stop, due_at
            start = stop

    async def wait(self, due_at: float) -> None:
        """Return when that is due."""
        if due_at > trio.current_time():
            await trio.sleep_until(due_at)

    def _rising(self, times: Times) -> list[int]:
        """Return times that never go back, in place of those that are not there too."""
        if self._first_ns is None:
            self._first_ns = next((time for time in times if time is not None), None)
            self._last_ns = self._first_ns or 0
            self._started_at = trio.current_time()
        known = (self._last_ns if time is None else time for time in times)
        rising = list(accumulate(known, max, initial=self._last_ns))[1:]
        self._last_ns = rising[-1] if rising else self._last_ns
        return rising

    def _due_at(self, time_ns: int) -> float:
        passed_s = (time_ns - (self._first_ns or 0)) / NS_PER_S
        return self._started_at + (passed_s / self.speed if self.speed else 0.0)
