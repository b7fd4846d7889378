"""Which bookies failed lately, so that nobody relies on them again at once.

A bookie that goes and comes back every second would be chosen each time, because it
is registered and idle. So after a failure it is passed over for a while, and for twice
as long each time it fails soon after that.
"""

from __future__ import annotations

import msgspec
import trio


class _Stay(msgspec.Struct):
    ends_at: float
    length_s: float


class Quarantine:
    """Bookies that are better not chosen for a while; all times are trio's."""

    def __init__(self, *, first_s: float, longest_s: float) -> None:
        """*first_s* doubles up to *longest_s*, which is also how long a failure is remembered."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._stays: dict[str, _Stay] = {}

    def failed(self, bookie_id: str) -> None:
        """Note a failure. What fails in quarantine stays no longer for it.

        So a broken connection counts once, although every writer reports it.
        """
        now = trio.current_time()
        stay = self._stays.get(bookie_id)
        if stay is not None and now < stay.ends_at:
            return
        length_s = self._first_s
        if stay is not None and now < stay.ends_at + self._longest_s:
            length_s = min(2 * stay.length_s, self._longest_s)
        self._stays[bookie_id] = _Stay(now + length_s, length_s)

    def __contains__(self, bookie_id: str) -> bool:
        stay = self._stays.get(bookie_id)
        return stay is not None and trio.current_time() < stay.ends_at
