"""The worlds to simulate, ledgers or a topic, with their plans and planted mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from plants import PLANTS, Plant
from simulation import Outcome, simulate
from topic_plan import TopicPlan
from topic_plants import TOPIC_PLANTS
from topic_simulation import simulate_topic


class Simulate(Protocol):
    """Runs a seed, with all its steps or some *only*."""

    def __call__(self, seed: int, *, only: Sequence[int] | None = None) -> Outcome:
        """Run it and return the outcome."""


class World(NamedTuple):
    """A kind of simulation."""

    simulate: Simulate
    plants: dict[str, Plant]


WORLDS = {
    "ledgers": World(simulate, PLANTS),
    "topic": World(simulate_topic, TOPIC_PLANTS),
}


def world_of(outcome: Outcome) -> str:
    """Return the name of the world in which *outcome* came about."""
    return "topic" if isinstance(outcome.plan, TopicPlan) else "ledgers"
