"""The worlds to simulate, with plans and mistakes.

ledgers, topic, groups, time    whatever may befall them, some of it in each seed
ids, ending                     what comes together too seldom there: see their plans
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ending_plan import EndingPlan
from ending_plants import ENDING_PLANTS
from ending_simulation import simulate_ending
from group_plan import GroupPlan
from group_plants import GROUP_PLANTS
from group_simulation import simulate_group
from id_plan import IdPlan
from id_plants import ID_PLANTS
from id_simulation import simulate_ids
from plan import Plan
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
    "ids": World(simulate_ids, ID_PLANTS),
    "ending": World(simulate_ending, ENDING_PLANTS),
}


def world_of(outcome: Outcome) -> str:
    """Return the name of the world in which *outcome* came about."""
    for kind, world in _BY_PLAN:
        if isinstance(outcome.plan, kind):
            return world
    return "ledgers"


_BY_PLAN: list[tuple[type[Plan], str]] = [
    (GroupPlan, "groups"),
    (TimePlan, "time"),
    (EndingPlan, "ending"),
    (TopicPlan, "topic"),
    (IdPlan, "ids"),
]
"""A plan is of the first kind here that it is of."""
