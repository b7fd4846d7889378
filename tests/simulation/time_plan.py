"""The plan of a simulated topic with timestamps: its readers, who takes timestamps, their troubles.

As topic_plan.py, of which it has the producers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import msgspec
from plan import draw_step, in_order
from steps import Step
from topic_plan import Publishing, TopicPlan, draw_publishings
from troubles import Clock, Troubles, draw_troubles

from metadata.topics import Retention, RollPolicy

DURATION_S = 22.0
"""Longer than that of ledgers: a lane whose writer died is closed some seconds later."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
AHEAD = 0.5
"""The share of the seeds with a clock that is 24 hours ahead."""
ABSENT = 0.2
HASTY = 0.2
"""The shares of the seeds with a crowd on a machine that is away for long, or that leaves often."""
AWAY = "a1"
"""The machine that is away for long, and its lane."""
SLOW = 0.25
SLOW_CHANGES = 6
"""So many in this share of the seeds."""


class Reading(msgspec.Struct, frozen=True):
    """A reader that follows by timestamp, process by process, each from its last position."""

    name: str
    host: str
    start_s: float
    from_now: bool
    """it begins at the cluster's time then, otherwise at the beginning"""
    arrow: bool
    session_s: float
    """so long it reads, at most, until it goes on from its position"""
    size: int
    """it reads ahead so many bytes"""


class Taking(msgspec.Struct, frozen=True):
    """A client that takes timestamps, and sees the newest tick at times."""

    name: str
    host: str
    count_max: int
    think_s_max: float
    sees_ticks: bool


class TimePlan(TopicPlan, frozen=True):
    """A plan with one topic whose messages have timestamps."""

    readings: list[Reading]
    takings: list[Taking]

    @property
    def has_absence(self) -> bool:
        """A machine with many messages under way stands still for longer than a lease."""
        return AWAY in self.clients

    @property
    def has_haste(self) -> bool:
        """A producer is left again and again with messages under way."""
        return any(each.patience_s < math.inf for each in self.publishings)


_SPANS = {
    "crash": (0.2, 6.0),
    "power cut": (0.2, 3.0),
    "freeze": (0.1, 8.0),
    "freeze client": (0.5, 8.0),
    "cut": (0.1, 6.0),
    "slow": (0.1, 6.0),
    "lossy": (0.1, 3.0),
    "break": (0.0, 0.0),
    "break late": (0.1, 4.0),
    "repeat": (0.0, 0.0),
    "sync error": (0.5, 3.0),
    "store away": (0.1, 8.0),
    "kill client": (0.0, 0.0),
    "move": (0.0, 0.0),
    "recover": (0.0, 0.0),
    "clock": (0.0, 0.0),
    "leader away": (0.5, 8.0),
    "grow": (0.0, 0.0),
    "alter": (0.0, 0.0),
    "make topic": (0.0, 0.0),
    "replay": (0.0, 0.0),
}
_ALWAYS = ["clock", "leader away", "replay"]


def make_time_plan(seed: int) -> TimePlan:
    """Return the plan of *seed*."""
    chance = random.Random(f"time plan {seed}")
    bookies = [f"b{number}" for number in range(1, chance.choice([3, 3, 4]) + 1)]
    publishers = [f"c{number}" for number in range(1, chance.randint(2, 3) + 1)]
    readers = [f"r{number}" for number in range(1, chance.randint(2, 3) + 1)]
    replication = chance.choice([2, 2, 3])
    troubles, more = draw_troubles(seed, "time", bookies, [*publishers, *readers])
    partitions = chance.choice([0, 1, 2, 3])
    steps = [*_steps(chance, bookies, publishers, readers), *_slow_changes(seed, publishers), *more]
    plan = TimePlan(
        seed=seed,
        bookies=bookies,
        clients=[*publishers, *readers],
        work=[],
        steps=in_order(steps),
        delay_s_max=chance.choice([0.002, 0.02, 0.1]),
        sync_s_max=chance.choice([0.001, 0.01, 0.1]),
        split_share=chance.choice([0.0, 0.2]),
        troubles=_with_a_day_ahead(seed, troubles, [*bookies, *publishers]),
        partitions=partitions,
        replication=replication,
        ack_quorum=2,
        ordered=chance.random() < 0.2,
        compression="none",
        roll=RollPolicy(
            size=chance.choice([2_000, 1_000_000]),
            entries=chance.choice([0, 5, 20]),
            age_s=chance.choice([2.0, 10.0, 3600.0]),
        ),
        retention=Retention(age_s=-1),
        publishings=list(draw_publishings(chance, publishers, partitions)),
        readings=list(_readings(chance, readers)),
        takings=list(_takings(chance, readers)),
    )
    return plan if plan.ordered else _with_crowds(plan, publishers)


def _with_a_day_ahead(seed: int, troubles: Troubles, machines: list[str]) -> Troubles:
    """Set the clock of a machine 24 hours ahead, a bookie's as a rule."""
    chance = random.Random(f"a day ahead {seed}")
    if chance.random() >= AHEAD:
        return troubles
    clocks = troubles.clocks | {chance.choice(machines): Clock(off_ms=DAY_MS)}
    return msgspec.structs.replace(troubles, clocks=clocks)


def _readings(chance: random.Random, hosts: list[str]) -> Iterator[Reading]:
    for number in range(chance.randint(2, 3)):
        yield Reading(
            name=f"o{number}",
            host=hosts[number % len(hosts)],
            start_s=chance.choice([0.0, chance.uniform(0, DURATION_S * 0.7)]),
            from_now=number > 0 and chance.random() < 0.3,
            arrow=chance.random() < 0.4,
            session_s=chance.choice([2.0, 5.0, 1000.0]),
            size=chance.choice([1_000, 100_000]),
        )


def _takings(chance: random.Random, hosts: list[str]) -> Iterator[Taking]:
    for number in range(chance.randint(1, 3)):
        yield Taking(
            name=f"t{number}",
            host=chance.choice(hosts),
            count_max=chance.choice([1, 100, 200_000]),
            think_s_max=chance.choice([0.05, 0.5]),
            sees_ticks=number == 0 or chance.random() < 0.5,
        )


def _steps(
    chance: random.Random, bookies: list[str], publishers: list[str], readers: list[str]
) -> Iterator[Step]:
    kinds = [*chance.sample(sorted(set(_SPANS) - set(_ALWAYS)), k=chance.randint(2, 6)), *_ALWAYS]
    for _ in range(chance.randint(5, 20)):
        yield _step(chance, chance.choice(kinds), bookies, [*publishers * 2, *readers])
    for _ in range(chance.choice([0, 0, 1, 2])):
        yield from _takeover(chance, publishers)


def _step(chance: random.Random, kind: str, bookies: list[str], clients: list[str]) -> Step:
    low, high = _SPANS[kind]
    at_s, span_s = _draw_time(chance), low + (high - low) * chance.random() ** 2
    if kind in ("kill client", "grow", "alter", "make topic", "replay"):
        return Step(0, at_s, kind, chance.choice(clients))
    if kind == "move":
        return Step(0, at_s, kind, f"p{chance.randrange(3)}")
    if kind == "clock":
        step_ms = chance.choice([-HOUR_MS, HOUR_MS])
        return Step(0, at_s, kind, chance.choice([*bookies * 2, *clients]), detail=str(step_ms))
    if kind == "leader away":
        ways = ["crash", "crash", "freeze", "freeze", "store away"]
        return Step(0, at_s, kind, "", span_s, chance.choice(ways))
    drawn = draw_step(chance, kind, bookies, clients, _SPANS[kind])
    return msgspec.structs.replace(drawn, at_s=at_s)


def _takeover(chance: random.Random, publishers: list[str]) -> Iterator[Step]:
    """A producer's machine stands still, others take its lanes, and it wakes up."""
    at_s = _draw_time(chance)
    yield Step(0, at_s, "freeze client", chance.choice(publishers), chance.uniform(3.0, 10.0))
    for number in range(3):
        yield Step(0, at_s + chance.uniform(0.1, 3.0), "move", f"p{number}")


def _with_crowds(plan: TimePlan, publishers: list[str]) -> TimePlan:
    """Add producers with many messages under way at once, and what befalls them."""
    chance = random.Random(f"absence {plan.seed}")
    if chance.random() < ABSENT:
        plan = _with_an_absence(chance, plan)
    chance = random.Random(f"haste {plan.seed}")
    if chance.random() < HASTY:
        hosts, start_s = chance.sample(publishers, k=len(publishers)), chance.uniform(0.0, 6.0)
        crowd = _crowd(chance, "hasty", hosts, start_s)
        patience_s = chance.choice([0.3, 1.0, 2.0])
        hasty = msgspec.structs.replace(crowd, count=60, patience_s=patience_s)
        plan = msgspec.structs.replace(plan, publishings=[*plan.publishings, hasty])
    return plan


def _with_an_absence(chance: random.Random, plan: TimePlan) -> TimePlan:
    """Let a machine stand still for longer than a lease while its messages wait for disks.

    Its lane is closed meanwhile, and it goes on with it. All its messages wait in one lane, which
    the other producers leave to it. They wait for so long that it asks for no timestamps when it
    begins to stand still.
    """
    at_s = chance.uniform(3.0, 6.0)
    crowd = _crowd(chance, "absent", [AWAY], at_s - 2.5)
    stop_s = at_s + chance.uniform(1.0, 1.5)
    steps = [*plan.steps, Step(0, stop_s, "freeze client", AWAY, chance.uniform(12.5, 16.0))]
    for bookie in plan.bookies:
        steps.append(Step(0, at_s, "hang", bookie, chance.uniform(2.0, 3.0)))
        # So it gets no answer that came meanwhile.
        steps.append(Step(0, stop_s + chance.uniform(1.0, 10.0), "break", bookie))
    shared = [msgspec.structs.replace(each, access="shared") for each in plan.publishings]
    return msgspec.structs.replace(
        plan,
        clients=[*plan.clients, AWAY],
        partitions=min(plan.partitions, 1),
        publishings=[*shared, msgspec.structs.replace(crowd, lane_name=AWAY)],
        steps=in_order(steps),
    )


def _crowd(chance: random.Random, name: str, hosts: list[str], start_s: float) -> Publishing:
    return Publishing(
        name=name,
        hosts=hosts,
        access="shared",
        named=False,
        start_s=start_s,
        count=120,
        way="one",
        batch_max=chance.choice([1, 2]),
        think_s_max=1.0,
        session_max=1000,
        tasks=chance.randint(16, 24),
        payload_max=20,
        batching=True,
        linger_ms=0.0,
    )


def _slow_changes(seed: int, publishers: list[str]) -> Iterator[Step]:
    """The topic is changed, and whoever changes it stands still meanwhile."""
    chance = random.Random(f"slow changes {seed}")
    for _ in range(SLOW_CHANGES if chance.random() < SLOW else 0):
        at_s, client = _draw_time(chance), chance.choice(publishers)
        yield Step(0, at_s, "alter", client)
        frozen_at_s = at_s + chance.uniform(0.0, chance.choice([0.03, 0.1, 0.3]))
        yield Step(0, frozen_at_s, "freeze client", client, chance.uniform(0.5, 2.0))


def _draw_time(chance: random.Random) -> float:
    return round(chance.uniform(0.3, DURATION_S), 3)
