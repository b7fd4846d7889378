"""The ledgers of a cluster, page by page."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ledger_client.catalogue import Catalogue
from metadata.records import LedgerRecord, LedgerState


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """A ledger as metadata describes it; the password is left out."""

    ledger_id: int
    state: LedgerState
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    last_entry: int
    """-1 while the ledger is not closed, or without entries"""
    length: int
    """payload bytes; 0 while the ledger is not closed"""
    bookies: tuple[tuple[int, tuple[str, ...]], ...]
    """fragments: their first entry and their bookies"""
    digest: str
    created_ms: int
    custom: dict[str, str]

    @classmethod
    def of(cls, record: LedgerRecord) -> LedgerInfo:
        """Return what may be shown of *record*."""
        return cls(
            ledger_id=record.ledger_id,
            state=record.state,
            ensemble_size=record.ensemble_size,
            write_quorum=record.write_quorum,
            ack_quorum=record.ack_quorum,
            last_entry=record.last_entry,
            length=record.length,
            bookies=tuple((f.first_entry, tuple(f.bookies)) for f in record.fragments),
            digest=record.digest,
            created_ms=record.created_ms,
            custom=dict(record.custom),
        )


class LedgerListing:
    """All ledgers by rising id; an async iterator that holds one page."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._page: deque[LedgerRecord] = deque()
        self._after = ""

    def __aiter__(self) -> LedgerListing:
        return self

    async def __anext__(self) -> LedgerInfo:
        if not self._page:
            records, self._after = await self._catalogue.page(self._after)
            if not records:
                raise StopAsyncIteration
            self._page.extend(records)
        return LedgerInfo.of(self._page.popleft())
