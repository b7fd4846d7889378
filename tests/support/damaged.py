"""A bookie with damaged records, and the metadata that it tells of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import v2
from rig import Peer, Rig, serving, settings

from bookie.config import BookieConfig
from bookie.disk import DiskGuard
from bookie.upkeep import Upkeep
from metadata.records import (
    UnderReplicated,
    decode_underreplicated,
    ledger_key,
    underreplicated_key,
)
from metadata.store import MetadataStore
from metadata.urls import open_store
from native.store import scan_log

ENTRIES = 10
LEDGER = 1


class Ward:
    """A bookie whose one log was damaged while it was down, and its metadata."""

    def __init__(self, rig: Rig, store: MetadataStore, upkeep: Upkeep) -> None:
        self.rig = rig
        self.store = store
        self.upkeep = upkeep
        self.peer: Peer = rig.connect()

    async def code(self, entry_id: int) -> int:
        return (await self.peer.ask(v2.read(LEDGER, entry_id))).code

    async def mark(self, ledger_id: int = LEDGER) -> UnderReplicated | None:
        key = underreplicated_key(ledger_id)
        found = await self.store.get(key)
        return decode_underreplicated(key, found.value) if found else None


def damage(folder: Path, entries: Sequence[int]) -> Path:
    """Flip a bit of the payload of each of *entries*."""
    (log,) = (folder / "ledgers").glob("*.log")
    content = bytearray(log.read_bytes())
    for record in list(scan_log(log)):
        if getattr(record, "entry_id", -1) in entries:
            content[record.offset + 70] ^= 1
    log.write_bytes(content)
    return log


async def _fill(config: BookieConfig) -> None:
    async with serving(config) as rig:
        peer = rig.connect()
        for entry_id in range(ENTRIES):
            assert (await peer.ask(v2.add(LEDGER, entry_id, bytes(100)))).code == 0


@asynccontextmanager
async def ward(folder: Path, *, damaged: Sequence[int] | None = (5,)) -> AsyncIterator[Ward]:
    """A bookie whose entries *damaged* are; None: over the folder as it is."""
    config = settings(folder)
    if damaged is not None:
        await _fill(config)
        damage(folder, damaged)
    async with open_store(config.metadata) as store, serving(config) as rig:
        await store.put(ledger_key(LEDGER), b"{}")
        disk = DiskGuard(rig.storage.engine, config)
        yield Ward(rig, store, Upkeep(rig.storage, store, config, disk, bookie_id="b1"))
