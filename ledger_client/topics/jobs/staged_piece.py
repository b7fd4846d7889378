"""One staged ledger of a job: as it is written, and what is known of it once it is sealed."""

from __future__ import annotations

import msgspec
import trio

from ledger_client.appends import Request
from ledger_client.errors import LedgerError
from ledger_client.topics.lanes.lane_state import Figures, LaneState
from ledger_client.topics.lanes.sealed_batch import SealedBatch
from ledger_client.writer import LedgerWriter


class StagedPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A staged ledger that is sealed, and what its row is to say."""

    ledger_id: int
    partition: int
    entries: int
    size: int
    """payload bytes"""
    created_ms: int
    figures: Figures


class PieceWriter:
    """A staged ledger that is written. For Rolling: batches, size and last event time."""

    def __init__(self, writer: LedgerWriter, partition: int) -> None:
        self.writer = writer
        self.partition = partition
        self.batches = self.size = 0
        self.due_size = 0
        """Bytes that it had when its topic first let it end; 0: it may not end yet."""
        self.last_event_time: int | None = None
        self.failure: LedgerError | None = None
        self._figures = Figures()
        self._opened_at = trio.current_time()

    @property
    def age_s(self) -> float:
        """Since it was made."""
        return trio.current_time() - self._opened_at

    def send(self, batch: SealedBatch) -> Request:
        """Send a batch. Raises WriterFailed: it was not sent."""
        request = Request([batch.payload])
        self.writer.submit(request)
        self.batches += 1
        self.size += batch.size
        self._figures.note(batch)
        self.last_event_time = self._figures.last_event_time
        return request

    def tell_state(self, now_ms: int) -> None:
        """Send what the next writer of the lane reads, as the last entry."""
        state = LaneState(last_event_time=self.last_event_time, figures=self._figures)
        self.writer.submit(Request([state.encode(now_ms)]))

    async def seal(self, limit: trio.CapacityLimiter) -> None:
        """Wait until all is durable and close; *failure* says why that cannot be."""
        async with limit:
            try:
                await self.writer.settle()
                if self.writer.failure is not None:
                    raise self.writer.failure
                await self.writer.close()
            except LedgerError as failure:
                self.failure = failure

    def piece(self) -> StagedPiece:
        """Return what is in it, once it is sealed."""
        record = self.writer.metadata
        return StagedPiece(
            ledger_id=record.ledger_id,
            partition=self.partition,
            entries=record.last_entry + 1,
            size=record.length,
            created_ms=record.created_ms,
            figures=self._figures,
        )
