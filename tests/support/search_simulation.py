"""Search by simulation: seeds from the search's own on, in each world in turn.

A world has the processes for a while, then the next one; no seed is passed over.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from multiprocessing import forkserver

from campaign import PROCESSES, Finding as Simulated, Task, campaign, run_seed
from search_report import Finding
from search_turn import BadName, Turn
from seed_list import KEPT
from worlds import WORLDS

SLICE_S = 60.0
"""How long a world has the processes at most."""
WHY_SIZE_MAX = 120
AHEAD = 2 * PROCESSES
"""Tasks that are under way or wait for a process: few, since all of them are finished."""


def search(turn: Turn) -> None:
    """Try seeds until the time is over.

    Raises:
        BadName: no world or plant is called so.
    """
    worlds = _worlds_of_plant(turn.plant) if turn.plant else turn.chosen(list(WORLDS))
    seeds = {world: count(turn.seed) for world in worlds}
    _start_server()
    while turn.left_s:
        slice_s = min(SLICE_S, turn.left_s / len(worlds))
        for index, world in enumerate(worlds, 1):
            is_last = turn.left_s < slice_s * 1.5 and index == len(worlds)
            _try_some(turn, world, seeds[world], turn.left_s if is_last else slice_s)


def _worlds_of_plant(plant: str) -> list[str]:
    worlds = [name for name, world in WORLDS.items() if plant in world.plants]
    if not worlds:
        known = " ".join(name for world in WORLDS.values() for name in world.plants)
        raise BadName(f"no plant is called {plant}: only {known}")
    return worlds


def _try_some(turn: Turn, world: str, seeds: Iterator[int], seconds: float) -> None:
    """Simulate for so long, and finish what is under way then."""
    hand = Hand(turn.plant, world, seeds, time.monotonic() + seconds)
    failures: list[Exception] = []
    with campaign(hand.tasks()) as findings, closing(hand):
        while True:
            try:
                simulated = next(findings)
            except StopIteration:
                break
            except Exception as wrong:  # noqa: BLE001 - whatever a simulation raises is a finding
                failures.append(wrong)
                hand.take()
                continue
            hand.take(simulated.seed)
            turn.count(f"seeds of {world}")
            if simulated.told:
                _tell(turn, world, simulated)
    # The campaign does not say which seed an exception belongs to: those that did not come back.
    for seed in sorted(hand.under_way):
        turn.count(f"seeds of {world}")
        _find(turn, world, seed, "the simulation raises", "\n".join(map(repr, failures)))


class Hand:
    """Hands out tasks until a time, a few ahead of those that are done, to another thread."""

    def __init__(self, plant: str, world: str, seeds: Iterator[int], end: float) -> None:
        self._plant = plant
        self._world = world
        self._seeds = seeds
        self._end = end
        self._room = threading.Semaphore(AHEAD)
        self.under_way: set[int] = set()

    def tasks(self) -> Iterator[Task]:
        """Return tasks, waiting for room; ends when the time is over."""
        while time.monotonic() < self._end:
            if self._room.acquire(timeout=0.1):
                seed = next(self._seeds)
                self.under_way.add(seed)
                yield Task(seed, self._plant, shrinks=False, world=self._world)

    def take(self, seed: int | None = None) -> None:
        """Note that a task is done, and of which seed, if that is known."""
        if seed is not None:
            self.under_way.discard(seed)
        self._room.release()

    def close(self) -> None:
        """Hand out nothing more."""
        self._end = 0.0


def _tell(turn: Turn, world: str, simulated: Simulated) -> None:
    seed = simulated.seed
    if turn.plant:
        clean = run_seed(Task(seed, shrinks=False, world=world))
        if not clean.told:
            turn.report.show(turn.plant, seed, replay(world, seed, "--plant", turn.plant))
            return
        simulated = clean  # it fails without the mistake, too
    broken = next((each for each in simulated.told.splitlines()[1:2]), "a promise is broken")
    _find(turn, world, seed, broken, simulated.told)


def _find(turn: Turn, world: str, seed: int, why: str, told: str) -> None:
    why = " ".join(why.split())[:WHY_SIZE_MAX]

    def keep() -> str:
        with KEPT.open("a") as file:
            file.write(f"{world} {seed}  found by the search: {why}\n")
        return str(KEPT)

    title = f"{world} {seed}: {why}"
    turn.report.find(Finding(turn.kind, title, replay(world, seed, "--shrink"), told, keep))


def replay(world: str, seed: int, *options: str) -> str:
    """Return the line that shows *seed* of *world* again."""
    words = ["python", "tests/simulation/replay.py", str(seed)]
    words += [] if world == "ledgers" else ["--world", world]
    return " ".join([*words, *options])


def _start_server() -> None:
    """Let what forks the simulating processes ignore Ctrl-C: the pool ends them, without words."""
    with _ignored(signal.SIGINT):
        forkserver.ensure_running()


@contextmanager
def _ignored(number: signal.Signals) -> Iterator[None]:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)
