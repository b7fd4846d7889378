"""The simulation has teeth: each planted mistake is found.

Each is planted at a seed that is known to show it, and to break no promise without it: the search
looks at both when it finds another, where plans are drawn otherwise:
``python tests/search.py --minutes 5 simulation --plant NAME``.
"""

from __future__ import annotations

import pytest
from campaign import Task, run_seed
from plants import no_floor
from shrinking import shrink
from simulation import simulate
from worlds import WORLDS

# The seed at which each mistake is seen; the cheapest of those that were tried first.
SHOWN_AT = {
    "acknowledge_before_sync": 20,
    "fence_only_the_first_read": 45,
    "timeout_is_absence": 27,
    "no_floor": 70,
    "stale_acknowledgements": 24,
    "fence_forgotten": 66,
    "late_mark": 24,
    "move_without_copying": 50,
    "damage_is_absence": 6,
    "journal_not_synced": 50,
    "log_not_synced": 50,
    "name_no_incarnation": 131,
    "confirm_what_is_stored": 5,
    "give_up_at_damage": 1796065532,
    "read_without_sync": 16,
    "take_over_without_fencing": 3,
    "send_again_without_looking": 27,
    "roll_with_what_is_settled": 40,
    "forget_sequence_numbers": 50,
    "forget_event_time": 45,
    "ignore_the_epoch": 24,
    "pass_over_gaps": 27,
    "delete_too_much": 38,
    "compare_no_versions": 21,
    "compare_no_versions_of_nodes": 231,
    "commit_from_an_old_epoch": 21,
    "lose_wake_ups": 0,
    "read_on_when_revoked": 13,
    "forget_members": 28,
    "answer_after_the_term": 8,
    "lose_acks_when_a_hole_closes": 49,
    "forget_counts_of_the_lost": 0,
    "give_slots_on_in_hand": 37,
    "pass_those_that_come_again": 6,
    "bury_too_early": 28,
    "ignore_a_producer": 12,
    "keep_the_window": 13,
    "leave_old_ticks_open": 33,
    "let_changes_pass": 0,
    "keep_a_range_over_a_claim": 150,
    "report_what_is_unknown": 4,
    "create_whatever_is_asked": 3,
    "rebuild_without_logs": 20,
    "lost_table_is_no_damage": 1,
    "end_at_what_is_confirmed": 0,
    "state_nothing": 14,
}
# Those that take more than two seconds.
SLOW = {
    "log_not_synced",
    *WORLDS["groups"].plants,
    *WORLDS["time"].plants,
    *WORLDS["ids"].plants,
    *WORLDS["ending"].plants,
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
    "confirm_what_is_stored": {1},
    "give_up_at_damage": {4},
    "read_without_sync": {0},
    "compare_no_versions": {3, 15},
    "compare_no_versions_of_nodes": {15, 17, 20},
    "commit_from_an_old_epoch": {11},
    "lose_wake_ups": {14},
    "read_on_when_revoked": {22},
    "forget_members": {23},
    "answer_after_the_term": {23},
    "lose_acks_when_a_hole_closes": {24},
    "forget_counts_of_the_lost": {24},
    "give_slots_on_in_hand": {26},
    "pass_those_that_come_again": {26},
    "bury_too_early": {25},
    "ignore_a_producer": {8},
    "keep_the_window": {9, 10, 27},
    "leave_old_ticks_open": {28},
    "let_changes_pass": {8},
    "keep_a_range_over_a_claim": {8},
    "report_what_is_unknown": {8},
    "create_whatever_is_asked": {1, 3},
    "rebuild_without_logs": {1},
    "lost_table_is_no_damage": {4},
    "end_at_what_is_confirmed": {15},
    "state_nothing": {19},
}


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(plant, marks=[pytest.mark.slow] * (plant in SLOW))
        for world in WORLDS.values()
        for plant in world.plants
    ],
)
def test_a_planted_mistake_is_found(plant: str) -> None:
    world = next(name for name, world in WORLDS.items() if plant in world.plants)
    seed = SHOWN_AT[plant]
    found = run_seed(Task(seed, plant, shrinks=False, world=world))
    assert found.invariants & BREAKS[plant], _look_elsewhere(plant, seed)


def _look_elsewhere(plant: str, seed: int) -> str:
    return (
        f"seed {seed} does not show {plant}. If plans are drawn otherwise now, look for a seed "
        f"that does, and name it in SHOWN_AT:\n"
        f"python tests/search.py --minutes 5 simulation --plant {plant}"
    )


@pytest.mark.slow
def test_a_failure_is_told_with_fewer_steps_that_lead_to_it_again() -> None:
    with no_floor():
        outcome = simulate(SHOWN_AT["no_floor"])
        assert outcome.violations
        smaller = shrink(outcome, runs_max=2)
        kept = [step.number for step in smaller.plan.steps]
        again = simulate(outcome.plan.seed, only=kept)
    assert len(kept) < len(outcome.plan.steps)
    assert again.violations == smaller.violations
