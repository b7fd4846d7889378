"""What repair can be told, with units and edge values."""

from __future__ import annotations

import msgspec


class RepairOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds end in ``_s``, sizes are bytes."""

    lost_after_s: float = 10.0
    """A bookie without a lease for so long is lost; its ledgers are copied elsewhere."""
    open_grace_s: float = 30.0
    """A ledger that is still written, with a lost bookie, is recovered after so long."""
    repair_rate: float = 50 * 1024 * 1024
    """Payload bytes a second that one worker copies: writers and readers go first."""
    audit_interval_s: float = 86_400.0
    """Between two checks of what every bookie holds of every ledger."""
    poll_s: float = 1.0
    """Between two looks at the marks and at the leases of bookies."""
    concurrency: int = 4
    """Ledgers that one worker repairs at a time."""
    retry_s: float = 5.0
    """After a repair that failed, before the next attempt; doubles each time."""
    retry_max_s: float = 300.0
    """The longest pause between two attempts to repair a ledger."""
