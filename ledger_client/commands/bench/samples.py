"""Durations, gathered cheaply and told as percentiles."""

from __future__ import annotations

from array import array

import msgspec


class Percentiles(msgspec.Struct, frozen=True):
    """Milliseconds within which that part of the samples stayed; 0 without samples."""

    p50_ms: float
    p99_ms: float
    p999_ms: float


class Samples:
    """Durations in seconds."""

    def __init__(self) -> None:
        self._seconds = array("d")

    def add(self, seconds: float) -> None:
        """Add one duration."""
        self._seconds.append(seconds)

    def percentiles(self) -> Percentiles:
        """Return the percentiles of what was added so far, by nearest rank."""
        ordered = sorted(self._seconds)
        if not ordered:
            return Percentiles(p50_ms=0.0, p99_ms=0.0, p999_ms=0.0)
        values = [ordered[min(int(part * len(ordered)), len(ordered) - 1)] for part in _PARTS]
        return Percentiles(*(round(value * 1e3, 4) for value in values))


_PARTS = (0.5, 0.99, 0.999)
