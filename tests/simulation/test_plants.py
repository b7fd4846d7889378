"""The simulation has teeth: each planted mistake is found, and only where it is planted."""

from __future__ import annotations

import pytest
from campaign import Task, campaign, run_seed
from plants import PLANTS, timeout_is_absence
from shrinking import shrink
from simulation import simulate
from topic_plants import TOPIC_PLANTS

SEEDS = range(500)
FIRST = {
    "acknowledge_before_sync": 24,
    "fence_only_the_first_read": 48,
    "no_floor": 53,
    "fence_forgotten": 12,
    "late_mark": 12,
    "forget_event_time": 14,
    "pass_over_gaps": 61,
    "move_without_copying": 36,
    "delete_too_much": 36,
    "journal_not_synced": 8,
    "damage_is_absence": 28,
    "name_no_incarnation": 300,
    "compare_no_versions": 7,
}
"""Seeds from which on a mistake is looked for that only a few show."""


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


@pytest.mark.slow
@pytest.mark.parametrize("plant", [*PLANTS, *TOPIC_PLANTS])
def test_a_planted_mistake_is_found(plant: str) -> None:
    world = "topic" if plant in TOPIC_PLANTS else "ledgers"
    seeds = SEEDS[FIRST.get(plant, 0) :]
    with campaign(Task(seed, plant, shrinks=False, world=world) for seed in seeds) as findings:
        found = next((each for each in findings if each.invariants & BREAKS[plant]), None)
    assert found is not None
    clean = run_seed(Task(found.seed, world=world))
    assert not clean.told, "the seed fails without the mistake, too"


@pytest.mark.slow
def test_a_failure_is_told_with_fewer_steps_that_lead_to_it_again() -> None:
    with timeout_is_absence():
        outcome = next(o for o in map(simulate, SEEDS) if o.violations)
        smaller = shrink(outcome)
        kept = [step.number for step in smaller.plan.steps]
        again = simulate(outcome.plan.seed, only=kept)
    assert len(kept) < len(outcome.plan.steps)
    assert again.violations == smaller.violations
