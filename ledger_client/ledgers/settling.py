"""How far a bounded read goes in a ledger that is being written."""

from __future__ import annotations

import trio

from ledger_client.ledgers.reader import LedgerReader

SETTLE_S = 0.03
"""A quiet writer reports its last confirmed entry to bookies within a third of this."""


async def settle(reader: LedgerReader) -> int:
    """Return the last entry acknowledged before this call, -1 for none. Takes SETTLE_S.

    The last confirmed entry lags acknowledgements by some milliseconds, so for an open ledger it
    is asked for again after SETTLE_S. Entries that a dead writer left unconfirmed are known once
    its lane is taken over.

    Raises:
        NoSuchLedger, ReplicasUnavailable, MetadataUnavailable: as LedgerReader.refresh().
    """
    if reader.closed:
        return reader.last_confirmed
    await trio.sleep(SETTLE_S)
    return await reader.refresh()
