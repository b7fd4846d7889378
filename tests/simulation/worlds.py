"""The worlds to simulate: ledgers, a topic, a group or timestamps; with plans and mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from group_plan import GroupPlan
from group_plants import GROUP_PLANTS
from group_simulation import simulate_group
from plants import PLANTS, Plant
from simulation import Outcome, simulate
from time_plan import TimePlan
from time_plants import TIME_PLANTS
from time_simulation import simulate_time
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
    "groups": World(simulate_group, GROUP_PLANTS),
    "time": World(simulate_time, TIME_PLANTS),
}


def world_of(outcome: Outcome) -> str:
    """Return the name of the world in which *outcome* came about."""
    if isinstance(outcome.plan, GroupPlan):
        return "groups"
    if isinstance(outcome.plan, TimePlan):
        return "time"
    return "topic" if isinstance(outcome.plan, TopicPlan) else "ledgers"
