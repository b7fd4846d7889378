"""How long something has made no progress, in time for which this process was awake.

Whoever looks in intervals cannot tell a peer that hangs from a hang of its own: a process
that was stopped for a minute sees a minute pass at once. So a look that comes late counts
for two intervals at most. What hangs is noticed a little later on a machine that is
overloaded; nothing is ever condemned for a pause of its judge.
"""

from __future__ import annotations


class Standstill:
    """Seconds without progress. Look about every *interval_s*."""

    def __init__(self, interval_s: float) -> None:
        self._gap_max_s = 2 * interval_s
        self._looked_at = 0.0
        self._works = False
        self._steps = 0
        self.lasted_s = 0.0
        """as of the last look"""

    def look(self, now: float, *, works: bool, steps: int) -> float:
        """Return for how long there was work and *steps*, which only rises, stood still."""
        if works and self._works and steps == self._steps:
            self.lasted_s += min(now - self._looked_at, self._gap_max_s)
        else:
            self.lasted_s = 0.0
        self._looked_at, self._works, self._steps = now, works, steps
        return self.lasted_s
