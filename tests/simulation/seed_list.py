"""Which seeds a run tries: some of its own, and those that failed once (seeds.txt)."""

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


def drawn(numbers: range) -> list[int]:
    """Return the seeds of this run with these *numbers*; another commit has others."""
    return [run_seed() + number for number in numbers]


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
