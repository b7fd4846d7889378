"""Measures how long something makes no progress, not counting pauses of this process.

A process that was stopped for a minute sees a minute pass at once, and would take its own pause
for a hang of its peer. So a late look counts as two intervals at most. On an overloaded machine
a hang is noticed a little later, but a peer is never given up for a pause of this process.
"""

from __future__ import annotations


class StallTimer:
    """Seconds without progress. Call look() about every *interval_s*."""

    def __init__(self, interval_s: float) -> None:
        self._gap_max_s = 2 * interval_s
        self._looked_at = 0.0
        self._works = False
        self._steps = 0
        self.lasted_s = 0.0
        """as of the last look"""

    def look(self, now: float, *, works: bool, steps: int) -> float:
        """Return the seconds of work without progress; *steps* counts the progress."""
        if works and self._works and steps == self._steps:
            self.lasted_s += min(now - self._looked_at, self._gap_max_s)
        else:
            self.lasted_s = 0.0
        self._looked_at, self._works, self._steps = now, works, steps
        return self.lasted_s
