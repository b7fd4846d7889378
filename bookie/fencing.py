"""Fences of a bookie in limbo: what it may have forgotten is fenced again.

A bookie that lost its ledger table, or all, does not know any more which ledgers it fenced.
A writer whose ledger was recovered and closed elsewhere may still hold it in its ensemble;
taking that writer's entries would acknowledge what no reader will ever find. So before such
a bookie opens its port it fences

    every ledger that it knows,
    every ledger in recovery or closed: whoever recovered it may have fenced it here, and
    its record need not name this bookie any more,
    every open ledger whose last fragment names this bookie.

An open ledger that does not name it was never fenced here, as a recovery changes the state
first; its writer may choose this bookie later.
"""

from __future__ import annotations

import logging

from bookie.storage import Storage
from metadata.records import LEDGERS, LedgerRecord, LedgerState, decode_ledger
from metadata.store import MetadataStore, pages
from native.digest import Digest
from native.errors import BadKey, Full

_log = logging.getLogger(__name__)


async def fence_forgotten(storage: Storage, store: MetadataStore, bookie_id: str) -> int:
    """Fence durably what this bookie may have fenced before; return how many records say so.

    Costs one listing of all ledgers.

    Raises:
        MetadataError: the store did not answer, or a record cannot be understood. Do not
            serve then.
        OSError: the disk failed.
    """
    count = 0
    async for page in pages(store, LEDGERS):
        for key, found in page:
            record = decode_ledger(key, found.value)
            if may_be_forgotten(record, bookie_id):
                await _fence(storage, record)
                count += 1
    storage.engine.fence_all()
    await storage.checkpoint()
    _log.warning("in limbo: fenced %d ledgers of the metadata, and all that are here", count)
    return count


def may_be_forgotten(record: LedgerRecord, bookie_id: str) -> bool:
    """Whether the bookie may once have fenced this ledger, or is written to in doubt."""
    return record.state is not LedgerState.OPEN or bookie_id in record.fragments[-1].bookies


async def _fence(storage: Storage, record: LedgerRecord) -> None:
    key = Digest(password=record.password_bytes).master_key
    while True:
        try:
            storage.engine.fence(record.ledger_id, key)
        except Full:
            await storage.checkpoint()
        except BadKey:
            return  # it is known here by another key, and fenced with all that are
        else:
            return
