"""Chance that is the same each time, in a process that a test starts."""

from __future__ import annotations

import random

import trio


def seed_process(seed: object) -> None:
    """Seed ``random``, and the order in which trio takes tasks; before trio.run()."""
    random.seed(f"{seed}")
    trio._core._run._r.seed(f"{seed}")  # there is no other way
