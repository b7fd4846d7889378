"""Foreign ledgers: ledgers on this bookie that were never in the metadata.

A bookie creates a ledger on the first add that names it. A client that speaks only the
wire protocol picks its own ledger ids, so its ledgers are missing from the metadata, as
deleted ledgers are. The counter that issues ledger ids distinguishes the two: an id above
every issued id never belonged to a ledger in the metadata.

Garbage collection decides this when it first meets the ledger, and keeps the result in the
file ``foreign.json``, since the counter may pass the id later. If a foreign client picked an
id that was already issued, its ledger looks like a deleted one.

So a bookie lets such clients create ledgers from FREE_FROM up only (incarnations.py); others may
be there from before it did. In a store that BookKeeper's clients share there are no free ids at
all: they create their ledgers in the metadata.
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
FREE_FROM = 1 << 62
"""Ids from here up are never issued where only our own clients create ledgers."""


class ForeignLedgers:
    """The foreign ledgers of one bookie, kept in ``foreign.json`` in its ledger folder."""

    def __init__(self, ledger_folder: Path) -> None:
        self._path = ledger_folder / FILE_NAME
        self._known: set[int] | None = None

    async def known(self) -> set[int]:
        """Return the foreign ledgers as of the last call of among(). Raises as that does."""
        return await self._load()

    async def among(self, ledger_ids: Iterable[int], store: MetadataStore) -> set[int]:
        """Return those of *ledger_ids* that are foreign. All must be absent from the metadata.

        All of known() that are still absent must be among them: the others are forgotten. If any
        of them is new, this takes one ledger id from the counter.

        Raises:
            MetadataError: the store did not answer.
            OSError: the file cannot be read or written.
            msgspec.MsgspecError: the file is damaged.
        """
        absent = set(ledger_ids)
        known = await self._load()
        if fresh := absent - known:
            issued = await store.next_id(LEDGER_COUNTER)
            # A known foreign ledger stays while it is still reported absent; others are dropped.
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
