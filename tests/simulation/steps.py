"""The steps of a simulation, with their times, as data."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec

DURATION_S = 15.0
Scene = Callable[[random.Random, list[str], list[str]], Iterator["Step"]]
"""Draws steps that belong together, for bookies and clients."""


class Step(msgspec.Struct, frozen=True):
    """*kind* befalls *target* at *at_s* for *span_s* seconds."""

    number: int
    at_s: float
    kind: str
    target: str
    span_s: float = 0.0
    detail: str = ""

    def __str__(self) -> str:
        span = f" for {self.span_s:.3f} s" if self.span_s else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.number:3d}  {self.at_s:7.3f} s  {self.kind} {self.target}{span}{detail}"


def draw_time(chance: random.Random) -> float:
    """Draw when something happens."""
    return round(chance.uniform(0.2, DURATION_S), 3)
