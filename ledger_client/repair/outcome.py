"""How an attempt to make a ledger whole ended."""

from __future__ import annotations

import msgspec

from metadata.records import DamagedRun

AGAIN_S = 1.0
"""After somebody else changed the ledger, its mark, or the cluster meanwhile."""


class Outcome(msgspec.Struct, frozen=True):
    """Without a *reason* the ledger is whole, and its mark is gone."""

    reason: str = ""
    """why it is not whole, in one line"""
    again_s: float | None = None
    """look again after this time, since nothing failed; None: after a pause that grows"""
    damaged: list[DamagedRun] | None = None
    """what is left of the damage that its mark named; None: nobody looked"""


WHOLE = Outcome()


def told(reasons: list[str]) -> str:
    """Return *reasons*, those that are not empty, in one line."""
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))
