from __future__ import annotations


class LeaseClock:
    """A clock, such as that of leases, in milliseconds; it moves when a test says so."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)
