"""The bookie that lends its process to repair, as repair sees it."""

from __future__ import annotations

from typing import Protocol


class Figures(Protocol):
    """Numbers that repair sets and the bookie's metrics tell."""

    leads: bool
    """whether this bookie leads"""
    marks: int
    """ledgers that want repair, as last seen"""
    repaired: int
    """ledgers that were made whole here"""
    failed: int
    """repairs that ended here without success"""
    copied_size: int
    """payload bytes copied here from bookie to bookie"""


class Host(Protocol):
    """A bookie that serves."""

    @property
    def bookie_id(self) -> str:
        """Its name."""

    @property
    def address(self) -> str:
        """host:port for clients."""

    @property
    def limbo(self) -> bool:
        """Whether it may have lost records, so that it denies no entry."""

    @property
    def doubts(self) -> int:
        """How often since its start there was a reason to be in limbo."""

    @property
    def figures(self) -> Figures:
        """What it tells of its part in repair."""

    async def leave_limbo(self, *, doubts: int | None = None) -> bool:
        """End limbo, unless there are more than *doubts* by now; return whether it is over."""
