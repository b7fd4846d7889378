"""Reads that wait until the last confirmed entry of a ledger moves on."""

from __future__ import annotations

import trio

from native.engine import Engine
from native.errors import Absent

_PARKED_MAX = 4096
"""Of all connections; a parked read is a task of some kilobytes."""


class _LedgerWatch:
    """The parked reads of one ledger."""

    def __init__(self) -> None:
        self.woken = trio.Event()
        self.readers = 0


class ParkedReads:
    """The reads of all connections that wait until a ledger's last confirmed entry moves on.

    Attributes:
        parked: number of these reads.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watches: dict[int, _LedgerWatch] = {}
        self.parked = 0

    @property
    def is_full(self) -> bool:
        """True while no further read can be parked."""
        return self.parked >= _PARKED_MAX

    def is_over(self, ledger_id: int, known_lac: int) -> bool:
        """True if a read of the ledger has nothing to wait for."""
        try:
            return not self._engine.watch(ledger_id, known_lac)
        except Absent:
            return True

    async def park(self, ledger_id: int, known_lac: int, wait_s: float) -> None:
        """Wait until the LAC is above *known_lac*, the ledger has ended, or *wait_s* passed."""
        watch = self._watches.setdefault(ledger_id, _LedgerWatch())
        watch.readers += 1
        self.parked += 1
        try:
            with trio.move_on_after(wait_s):
                while not self.is_over(ledger_id, known_lac):
                    await watch.woken.wait()
        finally:
            self.parked -= 1
            watch.readers -= 1
            if watch.readers == 0:
                del self._watches[ledger_id]

    def wake(self, ledger_id: int) -> None:
        """Let the parked reads of a ledger check again, because its watch came true."""
        watch = self._watches.get(ledger_id)
        if watch is not None:
            watch.woken.set()
            watch.woken = trio.Event()
