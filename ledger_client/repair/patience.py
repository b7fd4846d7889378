"""When to look at a ledger again, and for how long its writer may go on."""

from __future__ import annotations

import trio

from ledger_client.repair.outcome import Outcome


class Patience:
    """For how long ledgers that are still written have had a lost bookie."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._since: dict[int, float] = {}

    def left_s(self, ledger_id: int) -> float:
        """Return how long the writer still has; it counts from the first time asked."""
        now = trio.current_time()
        return self._since.setdefault(ledger_id, now) + self._grace_s - now

    def forget(self, ledger_id: int) -> None:
        """The ledger is in order, or closed, or gone."""
        self._since.pop(ledger_id, None)


class Schedule:
    """When the next attempt of each marked ledger is due.

    After a failure all workers wait, for as long as the number of attempts in the mark
    says, so that a ledger that cannot be mended costs little. When the bookies of the
    cluster change, all is due again.
    """

    def __init__(self, *, retry_s: float, retry_max_s: float) -> None:
        self._retry_s = retry_s
        self._retry_max_s = retry_max_s
        self._due_at: dict[int, float] = {}
        self._attempts: dict[int, int] = {}

    def is_due(self, ledger_id: int, attempts: int) -> bool:
        """Whether to try now, when *attempts* failed, of whichever worker."""
        if attempts > self._attempts.get(ledger_id, 0):
            self._attempts[ledger_id] = attempts
            self._wait(ledger_id, self._pause_s(attempts))
        return trio.current_time() >= self._due_at.get(ledger_id, 0.0)

    def ended(self, ledger_id: int, outcome: Outcome) -> None:
        """An attempt here ended with *outcome*."""
        if not outcome.reason:
            self.forget(ledger_id)
        elif outcome.again_s is not None:
            self._wait(ledger_id, outcome.again_s)
        else:
            attempts = self._attempts.get(ledger_id, 0) + 1
            self._attempts[ledger_id] = attempts
            self._wait(ledger_id, self._pause_s(attempts))

    def forget(self, ledger_id: int) -> None:
        """The ledger wants no repair any more."""
        self._due_at.pop(ledger_id, None)
        self._attempts.pop(ledger_id, None)

    def hurry(self) -> None:
        """Every ledger is due now: what was in the way may be gone."""
        self._due_at.clear()

    def keep_only(self, ledger_ids: set[int]) -> None:
        """Forget all other ledgers: nobody marks them any more."""
        for ledger_id in (self._due_at.keys() | self._attempts.keys()) - ledger_ids:
            self.forget(ledger_id)

    def _wait(self, ledger_id: int, pause_s: float) -> None:
        self._due_at[ledger_id] = trio.current_time() + pause_s

    def _pause_s(self, attempts: int) -> float:
        return float(min(self._retry_s * 2.0 ** min(attempts - 1, 30), self._retry_max_s))
