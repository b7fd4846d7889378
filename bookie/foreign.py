"""Foreign ledgers: those that a client of its own kind made without asking the metadata.

A bookie creates a ledger it does not know on its first add. A client that speaks only
the wire protocol picks ids itself, so its ledgers are absent from the metadata like
deleted ones. They are told apart by the counter that issues ledger ids: an id above
everything issued so far was never a ledger of the metadata.

That is decided when a collection first meets the ledger, and kept in the file
``foreign.json``, since the counter may pass the id later. A foreign client that picks an
id which was issued cannot be told from a deleted ledger; let it pick ids from the upper
half of the range (2^62 and above).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import trio

from bookie.durable import replace_file
from metadata.records import LEDGER_COUNTER
from metadata.store import MetadataStore

FILE_NAME = "foreign.json"


class ForeignLedgers:
    """The foreign ledgers of one bookie, remembered in its ledger folder."""

    def __init__(self, ledger_folder: Path) -> None:
        self._path = ledger_folder / FILE_NAME
        self._known: set[int] | None = None

    async def among(self, ledger_ids: Iterable[int], store: MetadataStore) -> set[int]:
        """Those of *ledger_ids*, all absent from the metadata, that never were in it.

        Costs one ledger id when one of them is met for the first time.

        Raises:
            MetadataError: the store did not answer.
            OSError: the file cannot be read or written.
            msgspec.MsgspecError: the file is damaged.
        """
        absent = set(ledger_ids)
        known = await self._load()
        if fresh := absent - known:
            issued = await store.next_id(LEDGER_COUNTER)
            # What is absent now and was foreign before stays; deleted ones drop out.
            self._known = (known & absent) | {each for each in fresh if each > issued}
            if self._known != known:
                data = msgspec.json.encode(sorted(self._known))
                await trio.to_thread.run_sync(replace_file, self._path, data)
        assert self._known is not None
        return self._known & absent

    async def _load(self) -> set[int]:
        if self._known is None:
            path = trio.Path(self._path)
            data = await path.read_bytes() if await path.exists() else b"[]"
            self._known = msgspec.json.decode(data, type=set[int])
        return self._known
