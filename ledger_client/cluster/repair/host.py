"""The bookie as repair sees it, and the options of repair."""

from __future__ import annotations

from typing import Protocol

import msgspec

from metadata.groups.coordinator import Coordinator
from metadata.time.timekeeper import Timekeeper


class RepairFigures(Protocol):
    """Numbers that repair updates and the bookie's metrics page shows."""

    leads: bool
    """this bookie leads"""
    marks: int
    """ledgers waiting for repair when last listed"""
    repaired: int
    """ledgers that were made whole here"""
    failed: int
    """repairs that failed here"""
    copied_size: int
    """payload bytes copied by this bookie's worker"""


class RepairHost(Protocol):
    """The running bookie, as far as its repair and leader roles use it."""

    @property
    def bookie_id(self) -> str:
        """Its name in the cluster, as location lists use it."""

    @property
    def address(self) -> str:
        """The host:port that clients connect to."""

    @property
    def limbo(self) -> bool:
        """True while it may have lost entries, and so denies none."""

    @property
    def doubts(self) -> int:
        """How many reasons for limbo came up since its start."""

    @property
    def figures(self) -> RepairFigures:
        """Its part in repair, for its metrics page."""

    @property
    def coordinator(self) -> Coordinator:
        """What answers the bookie's calls about groups."""

    @property
    def timekeeper(self) -> Timekeeper:
        """What answers the bookie's calls for timestamps."""

    async def leave_limbo(self, *, doubts: int | None = None) -> bool:
        """End limbo unless more than *doubts* reasons came up; return True once it is over."""


# --- Options ----------------------------------------------------------------------------


class RepairOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How fast and how patient repair is. Times are seconds, sizes are bytes."""

    lost_after_s: float = 10.0
    """A bookie without a lease for this long is lost: its ledgers are copied elsewhere."""
    open_grace_s: float = 30.0
    """The writer of an open ledger has this long to replace a lost bookie; then it is fenced."""
    repair_rate: float = 50 * 1024 * 1024
    """Payload bytes a second that one worker copies, so that clients keep their bandwidth."""
    audit_interval_s: float = 86_400.0
    """Time between two checks of every ledger against what its bookies hold."""
    poll_s: float = 1.0
    """Time between two looks at marks and at the leases of bookies."""
    concurrency: int = 4
    """Ledgers that one worker repairs at once."""
    retry_s: float = 5.0
    """Pause after a failed repair; it doubles with every further failure."""
    retry_max_s: float = 300.0
    """Upper limit of that pause."""
