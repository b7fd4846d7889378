"""Troubles that only a part of the seeds have, one, several or none of them.

Each kind is drawn by itself, so that another kind changes no plan that does not have it. What
a machine has from the start is here as data; the rest are steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec
from steps import DURATION_S, Step, draw_time

SHARE = 0.18
"""of the seeds has a kind"""
HOURS_8_MS = 8 * 3600 * 1000


class Clock(msgspec.Struct, frozen=True):
    """The wall clock of a machine: so far off at the start, and so much too fast."""

    off_ms: int = 0
    drift: float = 0.0


class Troubles(msgspec.Struct, frozen=True):
    """What a seed has beside the plan. *clocks*: by machine."""

    kinds: list[str] = []
    clocks: dict[str, Clock] = {}


Draw = Callable[[random.Random, list[str], list[str]], Iterator[Step]]


def draw_troubles(
    seed: int, world: str, bookies: list[str], clients: list[str]
) -> tuple[Troubles, list[Step]]:
    """Return the troubles of *seed*, none or a few of those in its *world*, and their steps."""
    kinds: list[str] = []
    steps: list[Step] = []
    clocks: dict[str, Clock] = {}
    for kind, draw in TROUBLES[world].items():
        chance = random.Random(f"{kind} {seed}")
        if chance.random() < SHARE and kind not in HELD_BACK[world]:
            kinds.append(kind)
            steps += draw(chance, bookies, clients)
            if kind == "clocks":
                clocks = _draw_clocks(chance, [*bookies, *clients])
    return Troubles(kinds, clocks), steps


def _draw_clocks(chance: random.Random, machines: list[str]) -> dict[str, Clock]:
    return {
        name: Clock(
            off_ms=chance.choice([-HOURS_8_MS, HOURS_8_MS, chance.randint(-60_000, 60_000)]),
            drift=chance.choice([0.0, 0.0, 1e-3, -1e-3, 0.1, -0.1]),
        )
        for name in machines
        if chance.random() < 0.6
    }


def _clocks(chance: random.Random, bookies: list[str], clients: list[str]) -> Iterator[Step]:
    """Clocks are off from the start, and somebody sets some of them."""
    for _ in range(chance.randint(0, 3)):
        step_ms = chance.choice([-HOURS_8_MS, HOURS_8_MS, -5000, 5000])
        target = chance.choice([*bookies, *clients, *clients])
        yield Step(0, draw_time(chance), "clock", target, detail=str(step_ms))


def _levelling(chance: random.Random, _bookies: list[str], clients: list[str]) -> Iterator[Step]:
    """Closed ledgers are moved until bookies hold about the same."""
    for _ in range(chance.randint(2, 5)):
        yield Step(0, draw_time(chance), "level", chance.choice(clients))


def _growth(chance: random.Random, bookies: list[str], clients: list[str]) -> Iterator[Step]:
    """Partitions are added while messages are under way, of which some are lost.

    What a producer sends again goes where its key belongs now, unless it belonged elsewhere.
    """
    for _ in range(chance.randint(1, 4)):
        at_s = chance.uniform(1.0, DURATION_S * 0.8)
        victim, other = chance.sample(clients, k=2)
        for bookie in chance.sample(bookies, k=chance.randint(0, 2)):
            kind = chance.choice(["cut", "slow"])
            yield Step(0, at_s, kind, victim, chance.uniform(0.2, 2.0), bookie)
        killed_at_s = at_s + chance.uniform(0.02, 0.6)
        if chance.random() < 0.8:
            yield Step(0, killed_at_s, "kill client", victim)
        yield Step(0, killed_at_s + chance.uniform(-0.1, 0.4), "grow", other)


def _large(*_: object) -> Iterator[Step]:
    """Entries are as large as they may be, and fill memtables: plan.py draws them."""
    return iter(())


def _limits(chance: random.Random, bookies: list[str], _clients: list[str]) -> Iterator[Step]:
    """Bookies have small limits, and strangers come who use them up."""
    for _ in range(chance.randint(1, 3)):
        count = str(chance.choice([5, 20, 60]))
        span_s = chance.uniform(1.0, 8.0)
        yield Step(0, draw_time(chance), "strangers", chance.choice(bookies), span_s, count)


def _truncation(chance: random.Random, _bookies: list[str], clients: list[str]) -> Iterator[Step]:
    """Messages are deleted from some place of a lane to its end, whoever writes and reads it."""
    for _ in range(chance.randint(1, 3)):
        yield Step(0, draw_time(chance), "truncate", chance.choice(clients))


_OF_LEDGERS: dict[str, Draw] = {
    "clocks": _clocks,
    "large entries": _large,
    "levelling": _levelling,
    "limits": _limits,
}
_OF_TOPICS: dict[str, Draw] = {
    "clocks": _clocks,
    "growth": _growth,
    "levelling": _levelling,
    "limits": _limits,
    "truncation": _truncation,
}
TROUBLES = {"ledgers": _OF_LEDGERS, "topic": _OF_TOPICS}
HELD_BACK: dict[str, set[str]] = {"ledgers": set(), "topic": {"clocks", "growth"}}
"""What no seed has, since the product is known not to bear it: a gate that always fails helps
nobody. Clocks: a lane forgets numbers by its writers' clocks. Growth: what is sent again after
partitions were added is taken for a duplicate where its key did not belong before."""


def expected(world: str) -> set[str]:
    """Return the kinds that must have an effect in a campaign of many seeds."""
    return set(TROUBLES[world]) - HELD_BACK[world]
