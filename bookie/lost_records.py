"""A bookie that lost its records, and so forgot which entries it has and which ledgers it fenced.

It must neither answer that an entry is absent nor accept one from a fenced writer. There are two
cases. A bookie with empty folders that ledger records name was formatted or got new disks (`bookie
replace`): it starts in limbo (limbo.py). And a bookie in limbo may have forgotten fences. A writer
whose ledger was recovered and closed elsewhere may still have it in its ensemble; accepting that
writer's entries would acknowledge what no reader will ever find. So before it opens its port it
fences

    every ledger that it knows,
    every ledger in recovery or closed: the recovery may have fenced it here, and its record
    may no longer name this bookie,
    every open ledger whose last fragment names this bookie.

An open ledger that does not name it was never fenced here, because a recovery changes the state
first; its writer may choose this bookie later.

It may also have forgotten which incarnation of a ledger it has, with entries left of it. Nobody
can read these. Repair has them forgotten, once it has found all entries elsewhere, and copies them
anew.
"""

from __future__ import annotations

import logging
from pathlib import Path

import trio

from bookie.config import BookieConfig
from bookie.limbo import enter_limbo
from bookie.mark import FILE_NAME as MARK
from bookie.storage import Storage
from metadata.clock import host_wall_ms
from metadata.records import LEDGERS, LedgerRecord, LedgerState, decode_ledger
from metadata.store import MetadataStore, pages
from native.digest import Digest
from native.errors import Full, OtherLedger, Refused

_log = logging.getLogger(__name__)


async def notice_amnesia(config: BookieConfig, store: MetadataStore, bookie_id: str) -> None:
    """Put a bookie without data into limbo, durably, if a ledger's record names it.

    Costs a listing of ledgers for a bookie that never served, and nothing for others.

    Raises:
        MetadataError: the store did not answer, or a record cannot be decoded. Do not
            serve then.
        OSError: the limbo file cannot be written.
    """
    folder = Path(config.ledger_folder)
    if (folder / MARK).exists():
        return
    naming = 0
    async for page in pages(store, LEDGERS):
        naming += sum(_names(decode_ledger(key, found.value), bookie_id) for key, found in page)
    if naming:
        _log.warning("%d ledgers name this bookie, which has no data", naming)
        await trio.to_thread.run_sync(enter_limbo, folder, ())


async def fence_forgotten(storage: Storage, store: MetadataStore, bookie_id: str) -> int:
    """Fence durably each ledger that may have been fenced here; return their number.

    Costs one listing of all ledgers.

    Raises:
        MetadataError: the store did not answer, or a record cannot be decoded. Do not
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


def is_unidentified(storage: Storage, ledger_id: int) -> bool:
    """Return True if a ledger is here and its incarnation unknown."""
    here = storage.engine.ledger(ledger_id)
    return here is not None and here.incarnation == 0 and not here.deleted


async def forget_unknown(storage: Storage, record: LedgerRecord) -> bool:
    """Forget a ledger whose incarnation is unknown here; it stays as that of *record*, fenced.

    What is gathered then must be synced before anybody relies on it. False: it is not so here.

    Raises:
        OSError: the disk failed.
    """
    await storage.checkpoint()  # room for what follows, so that nobody comes in between
    if not is_unidentified(storage, record.ledger_id):
        return False
    storage.engine.delete_ledger(record.ledger_id, host_wall_ms(), 0)
    await _fence(storage, record)
    _log.warning(
        "forgot what was here of ledger %d, as its incarnation was lost; repair copies it anew",
        record.ledger_id,
    )
    return True


def may_be_forgotten(record: LedgerRecord, bookie_id: str) -> bool:
    """Return True if this ledger may have been fenced here, or its writer may be outdated."""
    return record.state is not LedgerState.OPEN or bookie_id in record.fragments[-1].bookies


def _names(record: LedgerRecord, bookie_id: str) -> bool:
    return any(bookie_id in fragment.bookies for fragment in record.fragments)


async def _fence(storage: Storage, record: LedgerRecord) -> None:
    key = Digest(password=record.password_bytes).master_key
    while True:
        try:
            storage.engine.fence(record.ledger_id, key, record.incarnation)
        except Full:
            await storage.checkpoint()
        except OtherLedger:
            if is_unidentified(storage, record.ledger_id):
                return  # no writer that declares its ledger is let at it (incarnations.py)
            # The stored incarnation is over, and the current one may have been fenced here too.
            await _renew(storage, record)
        except Refused:
            return  # stored here with another key, and fenced with all stored ledgers
        else:
            return


async def _renew(storage: Storage, record: LedgerRecord) -> None:
    here = storage.engine.ledger(record.ledger_id)
    before = here.incarnation if here is not None else 0
    try:
        storage.engine.renew_ledger(record.ledger_id, before, record.incarnation)
    except Full:
        await storage.checkpoint()
