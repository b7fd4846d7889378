"""The cluster in a few numbers: its bookies by state, and what waits for repair."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import get_args

import msgspec

from ledger_client.marks import Reason
from ledger_client.repair.census import Census
from ledger_client.repair.records import list_marks, list_repairs
from metadata.records import RepairProgress, UnderReplicated
from metadata.store import MetadataStore

STATES = ("registered", "read_only", "limbo", "draining", "lost")
"""Of bookies; one may be in several. Lost: not registered, and given up."""
REASONS: tuple[str, ...] = get_args(Reason)


class Waiting(msgspec.Struct, frozen=True):
    """Ledgers that want repair for one reason; *size*: payload bytes to copy, as far as known."""

    ledgers: int = 0
    size: int = 0


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """One look. Sizes are payload bytes, summed over copies."""

    at_s: float
    """Unix time"""
    bookies: dict[str, int]
    """how many are in each of STATES"""
    waiting: dict[str, Waiting]
    """by each of REASONS"""
    repairs: int
    """under way"""
    repair_size: int
    """that these are to copy"""
    repair_done: int
    """that these have copied"""


class ClusterFigures:
    """What the leader saw last of its cluster. *seen* is None while it does not lead."""

    def __init__(self, store: MetadataStore, *, lost_after_s: float) -> None:
        self.seen: Cluster | None = None
        self._store = store
        self._census = Census(store, lost_after_s=lost_after_s)
        self._unreadable: set[str] = set()

    async def look(self) -> None:
        """Look at bookies, marks and repairs. Raises MetadataError; then nothing changes."""
        await self._census.refresh()
        marks = await list_marks(self._store, unreadable=self._unreadable)
        repairs = await list_repairs(self._store)
        self.seen = Cluster(
            at_s=time.time(),
            bookies=_states(self._census),
            waiting=_by_reason(marks),
            **_under_way(repairs),
        )


def _states(census: Census) -> dict[str, int]:
    live = census.live.values()
    counts = {
        "registered": len(live),
        "read_only": sum(bookie.read_only for bookie in live),
        "limbo": sum(bookie.limbo for bookie in live),
        "draining": len(census.draining),
        "lost": len(census.all_lost()),
    }
    return {state: counts[state] for state in STATES}


def _by_reason(marks: Sequence[UnderReplicated]) -> dict[str, Waiting]:
    ledgers: Counter[str] = Counter(mark.reason for mark in marks)
    sizes: Counter[str] = Counter()
    for mark in marks:
        sizes[mark.reason] += mark.size
    return {reason: Waiting(ledgers[reason], sizes[reason]) for reason in REASONS}


def _under_way(repairs: Sequence[RepairProgress]) -> dict[str, int]:
    return {
        "repairs": len(repairs),
        "repair_size": sum(repair.size for repair in repairs),
        "repair_done": sum(repair.copied_size for repair in repairs),
    }
