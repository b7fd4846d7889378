"""What a reader knows of a ledger: its record and how far it may read.

Both grow older from the moment they are learnt. They are renewed on demand, and
while somebody follows the ledger its record is watched.
"""

from __future__ import annotations

import trio

from ledger_client.catalogue import Catalogue
from ledger_client.confirmed import ask_confirmed
from ledger_client.errors import NoSuchEntry
from ledger_client.source import LedgerSource
from metadata.errors import MetadataError
from metadata.records import LedgerRecord, LedgerState

WATCH_RETRY_S = 1.0


class LedgerView:
    """The state of one ledger as known here, shared by its reader and followers."""

    def __init__(self, source: LedgerSource, catalogue: Catalogue, nursery: trio.Nursery) -> None:
        self.source = source
        self._catalogue = catalogue
        self._nursery = nursery
        self._watch_scope: trio.CancelScope | None = None
        self._hinted = trio.Event()

    @property
    def closed(self) -> bool:
        """True when the ledger is known to be closed: it will not grow."""
        return self.source.record.state is LedgerState.CLOSED

    @property
    def last_confirmed(self) -> int:
        """The greatest entry that may be read; -1 for none."""
        return self.source.last_confirmed

    @property
    def hinted(self) -> trio.Event:
        """Set when the record may have changed since the last reload."""
        return self._hinted

    def raise_confirmed(self, last_confirmed: int) -> None:
        """Take note that a bookie calls entries up to *last_confirmed* confirmed."""
        if not self.closed:  # a closed ledger ends where its record says, whatever bookies say
            self.source.last_confirmed = max(self.source.last_confirmed, last_confirmed)

    async def reload(self) -> None:
        """Read the record again, to learn of new fragments and of the ledger's end.

        Raises:
            NoSuchLedger: it was deleted.
            MetadataUnavailable: the store did not answer.
        """
        if self._hinted.is_set():
            self._hinted = trio.Event()
        self.source.record, _ = await self._catalogue.get(*self.source.name)
        if self.closed:
            self.source.last_confirmed = self.source.record.last_entry

    async def moved_since(self, record: LedgerRecord) -> bool:
        """Read the record again; return whether it lists other places than *record*.

        Raises as reload().
        """
        await self.reload()
        return self.source.record.fragments != record.fragments

    async def refresh(self) -> None:
        """Read the record again and, of an open ledger, ask the bookies as well.

        Raises as reload(), and ReplicasUnavailable when no bookie answered.
        """
        await self.reload()
        await self.learn_confirmed()

    async def learn_confirmed(self) -> None:
        """Ask the bookies of an open ledger how far it is confirmed.

        Raises:
            ReplicasUnavailable: none of them answered.
        """
        if not self.closed:
            self.raise_confirmed(await ask_confirmed(self.source))

    async def check_range(self, first: int, last: int) -> None:
        """Raise NoSuchEntry unless entries *first* to *last* may be read."""
        if last > self.last_confirmed and not self.closed:
            await self.refresh()
        if first < 0 or last > self.last_confirmed:
            raise NoSuchEntry(
                ledger_id=self.source.ledger_id,
                entry_id=first if first < 0 else max(first, self.last_confirmed + 1),
                last_confirmed=self.last_confirmed,
            )

    def watch(self) -> None:
        """Begin to watch the record, if that is not done yet."""
        if self._watch_scope is None:
            self._watch_scope = trio.CancelScope()
            self._nursery.start_soon(self._watch, self._watch_scope)

    def close(self) -> None:
        """End the watch."""
        if self._watch_scope is not None:
            self._watch_scope.cancel()

    async def _watch(self, scope: trio.CancelScope) -> None:
        with scope:
            while not self.closed:
                try:
                    async with self._catalogue.watch(self.source.ledger_id) as changes:
                        self._hinted.set()  # what changed before the watch began
                        async for _ in changes:
                            self._hinted.set()
                except MetadataError:
                    await trio.sleep(WATCH_RETRY_S)  # followers look by themselves meanwhile
