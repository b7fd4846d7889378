"""The plan of a topic whose writers end, or pause, right at an acknowledgement.

The last confirmed entry that bookies know lags acknowledgements by some milliseconds. Whoever reads
up to the end at once must have the last message all the same, and nothing that it has may be denied
later. As topic_plan.py, and drawn apart from it: histories of the other worlds stay as they are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from plan import in_order
from steps import Step
from topic_plan import Publishing, TopicPlan
from troubles import draw_troubles

from metadata.topics import Retention, RollPolicy

WRITERS = ["c1", "c2"]
READER = "c3"
"""No writer runs there, and nothing befalls it."""


class EndingPlan(TopicPlan, frozen=True):
    """A plan whose steps are "die", "pause" and "go deaf", and a little else."""


def make_ending_plan(seed: int) -> EndingPlan:
    """Return the plan of *seed*."""
    chance = random.Random(f"ending plan {seed}")
    bookies = ["b1", "b2", "b3", "b4"]
    goes_deaf = chance.random() < 0.5
    replication = 2 if goes_deaf else chance.choice([2, 2, 3])
    partitions = 0 if goes_deaf else chance.choice([0, 0, 2])
    troubles, more = draw_troubles(seed, "ending", bookies, [*WRITERS, READER])
    steps = [*_steps(chance, bookies, goes_deaf=goes_deaf), *more]
    return EndingPlan(
        seed=seed,
        bookies=bookies,
        clients=[*WRITERS, READER],
        work=[],
        steps=in_order(steps),
        delay_s_max=chance.choice([0.002, 0.02]),
        sync_s_max=chance.choice([0.001, 0.01]),
        split_share=chance.choice([0.0, 0.2]),
        troubles=troubles,
        partitions=partitions,
        replication=replication,
        ack_quorum=2,
        ordered=False,
        compression="none",
        roll=RollPolicy(
            size=chance.choice([20_000, 1_000_000]),
            entries=chance.choice([0, 0, 20]),
            age_s=3600.0,
        ),
        retention=Retention(age_s=-1),
        publishings=list(_publishings(chance, partitions)),
    )


def _publishings(chance: random.Random, partitions: int) -> Iterator[Publishing]:
    for number in range(2):
        yield Publishing(
            name=f"p{number}",
            hosts=WRITERS[number:] + WRITERS[:number],
            access="shared",
            named=chance.random() < 0.7,
            start_s=0.0,
            count=chance.randint(40, 100),
            way=chance.choice(
                ["one", "tickets", "many"] if partitions == 0 else ["one", "tickets"]
            ),
            batch_max=chance.choice([1, 5]),
            think_s_max=chance.choice([0.3, 1.0]),
            session_max=1000,
            tasks=1,
            payload_max=chance.choice([20, 400]),
            batching=chance.random() < 0.8,
            linger_ms=chance.choice([0.0, 1.0]),
        )


def _steps(chance: random.Random, bookies: list[str], *, goes_deaf: bool) -> Iterator[Step]:
    """Draw endings, and a bookie that is away for a while, but never two of them at a time.

    With two away nobody may know where a ledger ends (docs/limits.md).
    """
    begin_s = 0.5
    if goes_deaf:
        at_s, target = chance.uniform(0.5, 2.0), f"p{chance.randrange(2)}"
        yield Step(0, at_s, "go deaf", target, chance.uniform(0.3, 1.5))
        begin_s = 7.0
    elif chance.random() < 0.5:
        at_s, target = chance.uniform(0.5, 5.0), chance.choice(bookies)
        kind = chance.choice(["crash", "freeze"])
        yield Step(0, at_s, kind, target, chance.uniform(0.5, 3.0), "clean")
    for _ in range(chance.randint(2, 4)):
        at_s, target = begin_s + chance.uniform(0.0, 6.0), f"p{chance.randrange(2)}"
        span_s = chance.choice([chance.uniform(0.5, 3.0), chance.uniform(3.0, 14.0)])
        yield Step(0, at_s, chance.choice(["die", "die", "pause"]), target, span_s)
