"""Machines of the simulation: tasks that are stopped, killed and misled together.

Each task knows its machine by a context variable, which the tasks that it starts
inherit. The scheduler (virtual.py) passes over the tasks of a frozen machine, as
SIGSTOP does: its timers fire late, and what is sent to it piles up in the network.
A dead machine still unwinds its tasks, but nothing that they do has an effect.
"""

from __future__ import annotations

import random
from contextvars import ContextVar

import trio

MACHINE: ContextVar[Machine | None] = ContextVar("MACHINE", default=None)


class Killed(OSError):
    """Something was asked of a machine that is dead."""


class Machine:
    """A computer with a process on it.

    Attributes:
        name: what others call it.
        chance: its own source of randomness.
        alive: False once its process was killed, until it is started again.
        clock_ms: how far its wall clock is off.
        clock_drift: and how much too fast it goes, as a share.
        misled: how often it was told a wrong time.
        slow_share: of what it does off the loop, this much takes its time.
        owner: what it is part of.
    """

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name = name
        self.chance = chance
        self.alive = False
        self.clock_ms = 0
        self.clock_drift = 0.0
        self.misled = 0
        self.slow_share = chance.choice([0.02, 0.1, 0.6])
        self.owner: object = None
        self._frozen = False
        self._held: list[trio.lowlevel.Task] = []

    @property
    def frozen(self) -> bool:
        """True if its tasks are paused."""
        return self._frozen

    def freeze(self) -> None:
        """Stop every task of the machine where it next waits."""
        self._frozen = True
        FROZEN.add(self)

    def thaw(self) -> None:
        """Resume all tasks."""
        self._frozen = False
        FROZEN.discard(self)
        held, self._held = self._held, []
        trio._core._run.GLOBAL_RUN_CONTEXT.runner.runq.extend(held)

    def hold(self, task: trio.lowlevel.Task) -> None:
        """Keep a task that would run now until thaw()."""
        self._held.append(task)

    def check_alive(self) -> None:
        """Raise Killed when the machine is dead."""
        if not self.alive:
            raise Killed(f"{self.name} was killed")


FROZEN: set[Machine] = set()
"""Machines that the scheduler passes over."""


def machine_of(task: trio.lowlevel.Task) -> Machine | None:
    """Return the machine that a task runs on, None for the simulation's own tasks."""
    found: Machine | None = task.context.get(MACHINE)
    return found
