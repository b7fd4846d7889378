"""Where a change of a ledger's ensemble is recorded.

A writer makes it known before an entry counts as acknowledged by the new bookies:
readers must find them. A recoverer keeps its changes to itself and publishes them
with the end of the ledger, in one compare-and-set, so that of several recoverers
only one is ever seen.
"""

from __future__ import annotations

from typing import Protocol

from ledger_client.catalogue import Catalogue
from ledger_client.fragments import with_fragment
from metadata.records import Fragment, LedgerRecord


class Changes(Protocol):
    """How a writer changes the fragments of its ledger."""

    async def change(self, expected_last: Fragment, fragment: Fragment) -> LedgerRecord:
        """Let the ledger go on with *fragment* and return the record that says so.

        *fragment* replaces the last one when both begin at the same entry. It
        returns once this is certain, and waits when metadata goes away halfway.
        Cancelled, the change may have been made.

        Raises:
            LedgerFenced: another client recovers the ledger, or the last fragment
                is not *expected_last*.
            LedgerClosed: another client sealed it.
            NoSuchLedger: it was deleted.
            MetadataUnavailable: nothing was changed.
            MetadataBroken: a person must look.
        """


class CatalogueChanges:
    """Changes made in metadata, by compare-and-set."""

    def __init__(self, catalogue: Catalogue, ledger_id: int, incarnation: int = 0) -> None:
        self._catalogue = catalogue
        self._ledger_id = ledger_id
        self._incarnation = incarnation

    async def change(self, expected_last: Fragment, fragment: Fragment) -> LedgerRecord:
        """As Changes.change."""
        return await self._catalogue.change_ensemble(
            self._ledger_id, expected_last, fragment, incarnation=self._incarnation
        )


class MemoryChanges:
    """Changes that nobody else sees; ``record`` holds them until they are published."""

    def __init__(self, record: LedgerRecord) -> None:
        self.record = record

    async def change(self, expected_last: Fragment, fragment: Fragment) -> LedgerRecord:
        """As Changes.change; it takes no time."""
        self.record = with_fragment(self.record, expected_last, fragment)
        return self.record
