"""Upkeep: the background work of a bookie on its own disk while it serves.

garbage   deletes ledgers that are no longer needed here, and frees their space
damage    marks ledgers for repair if a read found damage
scrub     reads closed logs in search of damage
"""

from __future__ import annotations

from typing import NoReturn

import trio

from bookie.config import BookieConfig
from bookie.damage import DamageWatch
from bookie.disk import DiskGuard
from bookie.garbage import Collector
from bookie.scrub import Scrubber
from bookie.storage import Storage
from metadata.store import MetadataStore


class Upkeep:
    """The housekeepers of one bookie.

    Attributes:
        collector: of garbage.
        watch: over damage.
        scrubber: of entry logs.
    """

    def __init__(
        self,
        storage: Storage,
        store: MetadataStore,
        config: BookieConfig,
        disk: DiskGuard,
        *,
        bookie_id: str,
    ) -> None:
        entries = storage.engine.store
        self.collector = Collector(storage, store, config, disk, bookie_id=bookie_id)
        self.watch = DamageWatch(storage.damage, storage.limbo, store, bookie_id)
        self.scrubber = Scrubber(entries, storage.damage, self.watch, config)

    async def run(self) -> NoReturn:
        """Do all of it until cancelled.

        Raises:
            OSError: the disk failed. Let it end the process.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.collector.run)
            nursery.start_soon(self.watch.run)
            nursery.start_soon(self.scrubber.run)
        raise AssertionError("upkeep ends by cancellation or failure only")
