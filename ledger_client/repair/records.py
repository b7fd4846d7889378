"""What repair has written down in metadata, for whoever wants to look."""

from __future__ import annotations

from collections.abc import AsyncIterator

from metadata.leadership import holder
from metadata.records import (
    COOKIES,
    COORDINATOR,
    DRAINING,
    LEDGERS,
    REPAIRS,
    UNDERREPLICATED,
    Leader,
    LedgerRecord,
    RepairProgress,
    UnderReplicated,
    decode_leader,
    decode_ledger,
    decode_repair,
    decode_underreplicated,
)
from metadata.store import MetadataStore, pages


async def list_marks(store: MetadataStore) -> list[UnderReplicated]:
    """Return the ledgers that want repair, by rising id. Raises MetadataError."""
    return [
        decode_underreplicated(key, found.value)
        async for page in pages(store, UNDERREPLICATED)
        for key, found in page
    ]


async def list_repairs(store: MetadataStore) -> list[RepairProgress]:
    """Return the repairs and moves under way, by rising ledger. Raises MetadataError."""
    found: list[RepairProgress] = []
    after = ""
    while leases := await store.leases(REPAIRS, after=after):
        found += [decode_repair(lease.name, lease.value) for lease in leases]
        after = leases[-1].name
    return found


async def leader(store: MetadataStore) -> Leader | None:
    """Return who leads; None: nobody does now. Raises MetadataError."""
    lease = await holder(store, COORDINATOR)
    return None if lease is None else decode_leader(lease.name, lease.value)


async def list_draining(store: MetadataStore) -> set[str]:
    """Return the bookies that are being decommissioned. Raises MetadataError."""
    return {key.removeprefix(DRAINING) async for page in pages(store, DRAINING) for key, _ in page}


async def list_cookies(store: MetadataStore) -> set[str]:
    """Return the bookies that were made and not decommissioned. Raises MetadataError."""
    return {key.removeprefix(COOKIES) async for page in pages(store, COOKIES) for key, _ in page}


async def ledger_records(store: MetadataStore) -> AsyncIterator[LedgerRecord]:
    """Yield every ledger, by rising id, a page in memory at a time. Raises MetadataError."""
    async for page in pages(store, LEDGERS):
        for key, found in page:
            yield decode_ledger(key, found.value)
