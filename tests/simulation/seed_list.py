"""Which seeds a run tries: the same on every commit, and those that failed once (seeds.txt).

QUIRE_SEED moves the former (tests/support/run_seed.py); tests/search.py tries others.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from run_seed import run_seed
from worlds import WORLDS

KEPT = Path(__file__).with_name("seeds.txt")


class KeptSeed(NamedTuple):
    """A seed that failed once. *why*: what was wrong then."""

    world: str
    seed: int
    why: str


def moved() -> bool:
    """Return whether QUIRE_SEED moves the seeds, so that nobody knows what befalls them."""
    return run_seed() != 0


def kept(text: str) -> list[KeptSeed]:
    """Return the seeds that *text* names, as seeds.txt does.

    Raises:
        ValueError: a line names no world, no seed or no reason.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [_seed_of(line) for line in lines]


def _seed_of(line: str) -> KeptSeed:
    world, seed, why = line.split(maxsplit=2)
    if world not in WORLDS:
        raise ValueError(f"{line!r}: no world {world!r}, only {', '.join(WORLDS)}")
    return KeptSeed(world, int(seed), why)
