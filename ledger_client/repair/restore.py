"""The end of limbo: a bookie that may have lost entries gets them back from its peers.

All ledgers that name the bookie are marked. Workers compare what it holds with the end of
each ledger, fill the gaps, and take the marks off; when none is left, everything that
it should hold is there, and it may deny again what it does not hold.
"""

from __future__ import annotations

import logging

import msgspec
import trio

from ledger_client.errors import LedgerError
from ledger_client.marks import new_mark
from ledger_client.repair.host import Host
from ledger_client.repair.marking import add_mark, read_mark, size_on
from ledger_client.repair.records import ledger_records
from ledger_client.repair.settings import RepairOptions
from metadata.errors import MetadataError
from metadata.leadership import holder
from metadata.records import bookie_lease, decode_bookie
from metadata.store import MetadataStore

_log = logging.getLogger(__name__)


async def restore(store: MetadataStore, host: Host, options: RepairOptions) -> None:
    """Whenever *host* is in limbo, have its ledgers made whole and end it; until cancelled.

    Raises:
        OSError: the host's disk failed.
    """
    while True:
        if host.limbo:
            try:
                await _restore(store, host, options.poll_s)
            except (MetadataError, LedgerError) as failure:
                _log.warning("still in limbo: %s", failure)
        await trio.sleep(options.poll_s)


async def _restore(store: MetadataStore, host: Host, poll_s: float) -> None:
    doubts = host.doubts
    if not await _is_told(store, host.bookie_id):
        return  # workers would take an open ledger that names it for sound
    for ledger_id in await _mark_all(store, host.bookie_id):
        while await read_mark(store, ledger_id) is not None:
            if host.doubts != doubts:
                return  # there is more to look at: begin again
            await trio.sleep(poll_s)
    if await host.leave_limbo(doubts=doubts):
        _log.warning("every ledger of %s is whole: limbo is over", host.bookie_id)


async def _is_told(store: MetadataStore, bookie_id: str) -> bool:
    """Whether the bookie's lease says by now that it is in limbo."""
    name = bookie_lease(bookie_id)
    lease = await holder(store, name)
    return lease is not None and decode_bookie(name, lease.value).limbo


async def _mark_all(store: MetadataStore, bookie_id: str) -> list[int]:
    """Mark every ledger that names the bookie, for who looks from now on; return their ids."""
    ledger_ids: list[int] = []
    async for record in ledger_records(store):
        if any(bookie_id in fragment.bookies for fragment in record.fragments):
            mark = new_mark(record.ledger_id, "limbo", [bookie_id], [])
            mark = msgspec.structs.replace(mark, size=size_on(record, {bookie_id}))
            await add_mark(store, mark, anew=True)
            ledger_ids.append(record.ledger_id)
    return ledger_ids
