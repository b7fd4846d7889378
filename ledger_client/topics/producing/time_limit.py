"""The time that a send may take."""

from __future__ import annotations

from typing import NamedTuple

import trio

from ledger_client.options import check_timeout


class TimeLimit(NamedTuple):
    """So many seconds, and when they are over by trio's clock."""

    timeout_s: float
    deadline: float

    @classmethod
    def of(cls, timeout_s: float) -> TimeLimit:
        """Begin now. Raises ValueError unless *timeout_s* is a number of seconds."""
        check_timeout(timeout_s)
        return cls(timeout_s, trio.current_time() + timeout_s)

    def scope(self) -> trio.CancelScope:
        """Return a scope that is cancelled when the time is over."""
        return trio.CancelScope(deadline=self.deadline)
