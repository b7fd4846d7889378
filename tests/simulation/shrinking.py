"""A failing simulation made smaller: fewer steps, and still the same promise broken.

Steps are left out in ever smaller groups, as delta debugging does. A run without a step
is another run, in which a failure may hide; so what is found is small, not the smallest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from group_plan import GroupPlan
from simulation import Outcome
from time_plan import TimePlan
from topic_plan import TopicPlan
from worlds import WORLDS, world_of

Simulate = Callable[[Sequence[int]], Outcome]
RUNS_MAX = 30


def shrink(outcome: Outcome, run: Simulate | None = None, *, runs_max: int = RUNS_MAX) -> Outcome:
    """Return an outcome with as few steps as *runs_max* attempts find.

    *run* simulates with some of the plan's steps.
    """
    seed = outcome.plan.seed
    again = WORLDS[world_of(outcome)].simulate
    run = run or (lambda numbers: again(seed, only=numbers))
    broken = {violation.invariant for violation in outcome.violations}
    size = max(1, len(outcome.plan.steps) // 2)
    while size and runs_max > 0:
        for rest in _without_groups(_numbers(outcome), size):
            runs_max -= 1
            attempt = run(rest)
            if broken & {violation.invariant for violation in attempt.violations}:
                outcome = attempt
                break
            if runs_max <= 0:
                break
        else:
            size //= 2
    return outcome


def report(outcome: Outcome, *, plant: str = "") -> str:
    """Return a report of a failure, with the way to repeat it."""
    numbers = ",".join(map(str, _numbers(outcome)))
    violations = [
        f"invariant {v.invariant}, ledger {v.ledger}, entry {v.entry}: {v.message}"
        for v in outcome.violations[:10]
    ]
    world = world_of(outcome)
    command = f"python tests/simulation/replay.py {outcome.plan.seed} --only {numbers or 'none'}"
    if world != "ledgers":
        command += f" --world {world}"
    if plant:
        command += f" --plant {plant}"
    return "\n".join(
        [
            f"seed {outcome.plan.seed}: {len(outcome.violations)} promises broken",
            *violations,
            f"with {len(outcome.plan.bookies)} bookies, and",
            *(f"     {work}" for work in _work(outcome)),
            *outcome.trace,
            f"see it again: {command}",
            f"keep it, as a line of tests/simulation/seeds.txt: {world} {outcome.plan.seed} WHY",
        ]
    )


def _work(outcome: Outcome) -> Sequence[object]:
    plan = outcome.plan
    if isinstance(plan, GroupPlan):
        return [*plan.publishings, *plan.consumings]
    if isinstance(plan, TimePlan):
        return [*plan.publishings, *plan.readings, *plan.takings]
    return plan.publishings if isinstance(plan, TopicPlan) else plan.work


def _numbers(outcome: Outcome) -> list[int]:
    return [step.number for step in outcome.plan.steps]


def _without_groups(numbers: list[int], size: int) -> list[list[int]]:
    """Return *numbers* without each group of *size*, the last group first."""
    starts = range(0, len(numbers), size)
    return [numbers[:start] + numbers[start + size :] for start in reversed(starts)]
