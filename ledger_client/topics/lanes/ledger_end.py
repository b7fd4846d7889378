"""Where a ledger of a lane ends, and what it holds: what its row says once it is closed."""

from __future__ import annotations

import msgspec

from ledger_client.marks import Reason
from ledger_client.topics.lanes.lane_state import Figures
from metadata.topics import LaneLedger


class End(msgspec.Struct, frozen=True):
    """Where a ledger of a lane ends."""

    last_entry: int
    length: int
    """payload bytes"""
    figures: Figures
    is_sealed: bool
    """its record says so already"""
    reason: Reason | None = None
    """why copies may be missing, if it is to be sealed"""

    def close(self, row: LaneLedger, now_ms: int) -> LaneLedger:
        """Return the ledger's row, closed now, by the store's time."""
        figures = self.figures
        return msgspec.structs.replace(
            row,
            state="closed",
            closed_ms=now_ms,
            entries=self.last_entry + 1,
            messages=figures.messages,
            size=self.length,
            first_timestamp=figures.first_timestamp,
            last_timestamp=figures.last_timestamp,
            first_event_time=figures.first_event_time,
            last_event_time=figures.last_event_time,
            named_ms=figures.named_ms,
        )
