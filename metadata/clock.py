"""The store's time, as a process that uses the store estimates it.

Retention and idle checks compare times that were taken on different hosts, so they use the store's
time and no host's wall clock. A process asks the store now and then, and counts on by its own
monotonic clock in between. So the estimate costs no call, and its error is less than the time
that the reply took.
"""

from __future__ import annotations

import time

import trio

from metadata.store import MetadataStore

RENEW_S = 300.0
"""Interval between requests to the store; hosts' clocks drift by some ms in that time."""
SLEPT_S = 0.1
"""A shorter difference is no sleep, because the two clocks are read one after the other."""


def host_wall_ms() -> int:
    """Return this host's wall clock in Unix milliseconds; no decision depends on it."""
    return time.time_ns() // 1_000_000


def asleep_s() -> float:
    """Return how many seconds this host slept since its boot; trio's clock stops during sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


class StoreClock:
    """Estimates the time of *store*. Any task of one trio.run may use it."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._offset_ms: float | None = None
        self._read_at = self._asleep_s = 0.0
        self._last_ms = 0

    async def read_ms(self) -> int:
        """Ask the store, and return its time in Unix milliseconds. Raises MetadataError."""
        asked_at = trio.current_time()
        store_ms = await self._store.now_ms()
        self._read_at, self._asleep_s = trio.current_time(), asleep_s()
        # Half of the round trip; the error is at most the other half.
        self._offset_ms = store_ms - (asked_at + self._read_at) / 2 * 1000
        return store_ms

    async def refresh(self) -> None:
        """Ask the store unless the last reply is recent. Raises MetadataError."""
        if self._offset_ms is None or self._slept_s or self._age_s > RENEW_S:
            await self.read_ms()

    def now_ms(self) -> int:
        """Return the store's time, as estimated, in Unix milliseconds; it never goes back.

        Call refresh() at least once before; until then this is the host's wall clock, which is
        good enough to show to people only.
        """
        if self._offset_ms is None:
            return host_wall_ms()
        now_ms = int((trio.current_time() + self._slept_s) * 1000 + self._offset_ms)
        self._last_ms = max(self._last_ms, now_ms)
        return self._last_ms

    @property
    def _age_s(self) -> float:
        return trio.current_time() - self._read_at

    @property
    def _slept_s(self) -> float:
        """Seconds that the host slept since the last reply; 0 if too short to measure."""
        slept_s = asleep_s() - self._asleep_s
        return slept_s if slept_s >= SLEPT_S else 0.0
