"""The number that moves all that a run of the tests tries: 0, unless QUIRE_SEED says another.

Without the variable each run tries the same, on every commit and every machine. With it, seeds
of the simulation, of storms and of power cuts are counted from that number, hypothesis draws
other examples, and trio takes tasks in another order. tests/search.py sets it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

VARIABLE = "QUIRE_SEED"
"""In the environment: the number to use."""


def run_seed() -> int:
    """Return the number of this run.

    Raises:
        ValueError: the variable is not a whole number of 0 or more.
    """
    text = os.environ.get(VARIABLE, "0")
    if not text.isdecimal():
        raise ValueError(f"{VARIABLE}={text}: give a whole number, or unset it")
    return int(text)


def drawn(numbers: Iterable[int]) -> list[int]:
    """Return the seeds with these *numbers*: the numbers themselves, unless QUIRE_SEED is set."""
    return [run_seed() + number for number in numbers]
