"""Many seeds, in several processes where there is room for them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from typing import NamedTuple

from shrinking import report, shrink
from worlds import WORLDS

# Beside other tests one is enough: they have the other processors.
PROCESSES = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
SEEDS_PER_PROCESS = 250


class Finding(NamedTuple):
    """The outcome of a seed; *told* is empty when every promise was kept.

    *happened*: how often each kind of trouble had an effect.
    """

    seed: int
    told: str
    invariants: frozenset[int]
    happened: Counter[str]


class Task(NamedTuple):
    """A seed to run in one of the worlds, with a mistake planted or none."""

    seed: int
    plant: str = ""
    shrinks: bool = True
    world: str = "ledgers"


def run_seed(task: Task) -> Finding:
    """Simulate one seed; a failure is made smaller before it is told."""
    world = WORLDS[task.world]
    with world.plants[task.plant]() if task.plant else nullcontext():
        outcome = world.simulate(task.seed)
        if not outcome.violations:
            return Finding(task.seed, "", frozenset(), outcome.happened)
        if task.shrinks:
            outcome = shrink(outcome)
        invariants = frozenset(violation.invariant for violation in outcome.violations)
        told = report(outcome, plant=task.plant)
        return Finding(task.seed, told, invariants, outcome.happened)


@contextmanager
def campaign(tasks: Iterable[Task]) -> Iterator[Iterator[Finding]]:
    """Run *tasks* in processes of their own; findings come as they are made.

    Leaving the block ends what is still under way. Instead of a single process this one runs
    them, as another would have to import everything first.
    """
    if PROCESSES == 1:
        yield map(run_seed, tasks)
        return
    with get_context("forkserver").Pool(PROCESSES, maxtasksperchild=SEEDS_PER_PROCESS) as pool:
        yield pool.imap_unordered(run_seed, tasks)
