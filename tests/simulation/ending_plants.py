"""Mistakes at the end of a ledger that is being written. As plants.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio
from plants import Plant
from replaced import replaced

from ledger_client.ledgers import ledgers, settling
from ledger_client.ledgers.reader import IsWritten, LedgerView
from ledger_client.ledgers.settling import SETTLE_S, Recover
from metadata.records import LedgerRecord


@contextmanager
def end_at_what_is_confirmed() -> Iterator[None]:
    """End a bounded read at the last confirmed entry that bookies know."""

    async def settle(view: LedgerView, _is_written: IsWritten, *, recover: Recover) -> int:
        for _ in range(2):
            await view.refresh()
            await trio.sleep(SETTLE_S)
        return view.last_confirmed

    with replaced(ledgers, "settle", settle):
        yield


@contextmanager
def state_nothing() -> Iterator[None]:
    """Return what enough bookies have, and put nothing into the ledger's record."""
    decide = settling._Settling._decide

    async def trust(self: settling._Settling, record: LedgerRecord, last: int, held: int) -> None:
        if held > last and not await self._is_left(record):
            self._view.raise_confirmed(held)
        else:
            await decide(self, record, last, held)

    with replaced(settling._Settling, "_decide", trust):
        yield


ENDING_PLANTS: dict[str, Plant] = {
    plant.__name__: plant for plant in (end_at_what_is_confirmed, state_nothing)
}
