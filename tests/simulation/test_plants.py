"""The simulation has teeth: each planted mistake is found, and only where it is planted."""

from __future__ import annotations

import pytest
from campaign import Task, campaign, run_seed
from plants import PLANTS, timeout_is_absence
from shrinking import shrink
from simulation import simulate

SEEDS = range(500)


# The promises that each mistake breaks, one of which must be seen to be broken.
BREAKS = {
    "acknowledge_before_sync": {1, 6},
    "fence_only_the_first_read": {3},
    "timeout_is_absence": {3},
    "no_floor": {3},
    "stale_acknowledgements": {1, 3},
    "fence_forgotten": {1, 3},
    "late_mark": {6},
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_mistake_is_found(plant: str) -> None:
    with campaign(Task(seed, plant, shrinks=False) for seed in SEEDS) as findings:
        found = next((each for each in findings if each.invariants & BREAKS[plant]), None)
    assert found is not None
    assert not run_seed(Task(found.seed)).told, "the seed fails without the mistake, too"


@pytest.mark.slow
def test_a_failure_is_told_with_fewer_steps_that_lead_to_it_again() -> None:
    with timeout_is_absence():
        outcome = next(o for o in map(simulate, SEEDS) if o.violations)
        smaller = shrink(outcome)
        kept = [step.number for step in smaller.plan.steps]
        again = simulate(outcome.plan.seed, only=kept)
    assert len(kept) < len(outcome.plan.steps)
    assert again.violations == smaller.violations
