"""The simulation has teeth: each planted mistake is found, and only where it is planted.

Each is planted at a seed that is known to show it. The search finds another when plans are
drawn otherwise: ``python tests/search.py --minutes 5 simulation --plant NAME``.
"""

from __future__ import annotations

import pytest
from campaign import Task, run_seed
from plants import PLANTS, timeout_is_absence
from shrinking import shrink
from simulation import simulate
from topic_plants import TOPIC_PLANTS

# The seed at which each mistake is seen; the cheapest of those that were tried first.
SHOWN_AT = {
    "acknowledge_before_sync": 31,
    "fence_only_the_first_read": 1,
    "timeout_is_absence": 1,
    "no_floor": 66,
    "stale_acknowledgements": 36,
    "fence_forgotten": 60,
    "late_mark": 123,
    "move_without_copying": 50,
    "damage_is_absence": 97,
    "journal_not_synced": 24,
    "log_not_synced": 21,
    "name_no_incarnation": 131,
    "take_over_without_fencing": 4,
    "send_again_without_looking": 5,
    "roll_with_what_is_settled": 0,
    "forget_sequence_numbers": 5,
    "forget_event_time": 14,
    "ignore_the_epoch": 4,
    "pass_over_gaps": 10,
    "delete_too_much": 38,
    "compare_no_versions": 74,
}
# Those whose two runs take more than three seconds together.
SLOW = {
    "late_mark",
    "compare_no_versions",
    "take_over_without_fencing",
    "ignore_the_epoch",
    "pass_over_gaps",
}
# The promises that each mistake breaks, one of which must be seen to be broken.
BREAKS = {
    "take_over_without_fencing": {15, 17, 20},
    "send_again_without_looking": {15},
    "roll_with_what_is_settled": {17, 20},
    "forget_sequence_numbers": {17},
    "forget_event_time": {18},
    "ignore_the_epoch": {15, 17},
    "pass_over_gaps": {19},
    "acknowledge_before_sync": {1, 6},
    "fence_only_the_first_read": {3},
    "timeout_is_absence": {3},
    "no_floor": {3},
    "stale_acknowledgements": {1, 3},
    "fence_forgotten": {1, 3},
    "late_mark": {6},
    "move_without_copying": {1, 5},
    "delete_too_much": {15},
    "damage_is_absence": {1, 3, 5},
    "journal_not_synced": {6},
    "log_not_synced": {5},
    "name_no_incarnation": {1, 3},
    "compare_no_versions": {3, 15},
}


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(plant, marks=[pytest.mark.slow] * (plant in SLOW))
        for plant in (*PLANTS, *TOPIC_PLANTS)
    ],
)
def test_a_planted_mistake_is_found(plant: str) -> None:
    seed, world = SHOWN_AT[plant], "topic" if plant in TOPIC_PLANTS else "ledgers"
    found = run_seed(Task(seed, plant, shrinks=False, world=world))
    assert found.invariants & BREAKS[plant], _look_elsewhere(plant, seed)
    clean = run_seed(Task(seed, world=world))
    assert not clean.told, f"the seed fails without the mistake, too:\n{clean.told}"


def _look_elsewhere(plant: str, seed: int) -> str:
    return (
        f"seed {seed} does not show {plant}. If plans are drawn otherwise now, look for a seed "
        f"that does, and name it in SHOWN_AT:\n"
        f"python tests/search.py --minutes 5 simulation --plant {plant}"
    )


@pytest.mark.slow
def test_a_failure_is_told_with_fewer_steps_that_lead_to_it_again() -> None:
    with timeout_is_absence():
        outcome = simulate(SHOWN_AT["timeout_is_absence"])
        assert outcome.violations
        smaller = shrink(outcome, runs_max=4)
        kept = [step.number for step in smaller.plan.steps]
        again = simulate(outcome.plan.seed, only=kept)
    assert len(kept) < len(outcome.plan.steps)
    assert again.violations == smaller.violations
