"""So many bytes a second and no more, shared by everybody who asks."""

from __future__ import annotations

import trio


class Throttle:
    """Lets *rate* bytes pass a second; who comes first goes first.

    What passes at once is paid for by the next: a large piece is never cut, and
    after it the pause is as long as it was large. Idle time is not saved up.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at = float("-inf")

    async def take(self, size: int) -> None:
        """Return when *size* bytes may pass."""
        now = trio.current_time()
        starts_at = max(self._free_at, now)
        self._free_at = starts_at + size / self._rate
        await trio.sleep_until(starts_at)
