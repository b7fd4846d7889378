"""The plan of a simulated group: its consumers, and their troubles, beside those of a topic."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
from plan import draw_step, in_order
from steps import Step
from topic_plan import Publishing, TopicPlan
from troubles import draw_troubles

from metadata.groups.rows import Mode
from metadata.topics import Retention, RollPolicy

DURATION_S = 45.0
"""Longer than that of ledgers: sessions of members are longer than leases."""


SHARED = 0.5
BY_KEY = 0.5
DEAD = 0.5
"""The shares of the seeds with a shared group, of those with one by key, or with dead letters."""
ABSENT = 0.4
"""The share of the others with members that are away long and often."""


class Consuming(msgspec.Struct, frozen=True):
    """A consumer, process by process.

    *way*: it polls, or iterates. *commits*: by itself, after each poll, or after each message.
    *member*: a name that it keeps, "" for none. *back_share*: how often it commits again where
    it was before.
    """

    name: str
    host: str
    start_s: float
    way: str
    commits: str
    member: str
    auto_commit_s: float
    messages_max: int
    think_s_max: float
    back_share: float
    nack_share: float = 0.0
    """of the messages of a shared group, so many are refused"""


class GroupPlan(TopicPlan, frozen=True):
    """A plan with one group that consumes the topic."""

    consumings: list[Consuming]
    mode: Mode
    deliveries_max: int
    """of a message, then it is a dead letter; 0: without end"""
    poison: float
    """so many of the messages are refused by every consumer"""

    @property
    def shared(self) -> bool:
        """Messages are acknowledged one by one."""
        return self.mode != "exclusive"


_SPANS = {
    "crash": (0.2, 8.0),
    "power cut": (0.2, 3.0),
    "freeze": (0.1, 8.0),
    "freeze client": (0.5, 20.0),
    "cut": (0.1, 12.0),
    "slow": (0.1, 6.0),
    "lossy": (0.1, 6.0),
    "break": (0.0, 0.0),
    "repeat": (0.0, 0.0),
    "store away": (0.1, 12.0),
    "kill client": (0.0, 0.0),
    "leave": (0.5, 10.0),
    "leader away": (0.5, 12.0),
    "grow": (0.0, 0.0),
}


def make_group_plan(seed: int) -> GroupPlan:
    """Return the plan of *seed*."""
    chance = random.Random(f"group plan {seed}")
    bookies = [f"b{number}" for number in range(1, chance.choice([3, 3, 4]) + 1)]
    publishers = ["c1", "c2"]
    consumers = [f"g{number}" for number in range(1, chance.randint(2, 3) + 1)]
    troubles, more = draw_troubles(seed, "groups", bookies, consumers)
    steps = [*_steps(chance, bookies, publishers, consumers), *more]
    theme = random.Random(f"group theme {seed}")
    publishings = list(_publishings(chance, publishers))
    consumings = list(_consumings(chance, consumers))
    mode: Mode = "exclusive"
    deliveries_max, poison = 0, 0.0
    if theme.random() < SHARED:
        mode = _draw_mode(seed)
        deliveries_max, poison = _draw_limit(seed)
        consumings = [_made_shared(theme, each) for each in consumings]
        publishings = [_made_early(each) for each in publishings]
        kills = (_draw_time(theme) for _ in range(theme.randint(2, 8)))
        steps += [Step(0, at_s, "kill client", theme.choice(consumers)) for at_s in kills]
    elif theme.random() < ABSENT:
        consumings = [_made_slow(theme, each) for each in consumings]
        steps += [step for _ in range(3) for step in _absence(theme, consumers)]
    return GroupPlan(
        seed=seed,
        bookies=bookies,
        clients=[*publishers, *consumers],
        work=[],
        steps=in_order(steps),
        delay_s_max=chance.choice([0.002, 0.02, 0.1]),
        sync_s_max=chance.choice([0.001, 0.01]),
        split_share=chance.choice([0.0, 0.2]),
        troubles=troubles,
        partitions=chance.choice([2, 3, 5]),
        replication=chance.choice([2, 2, 3]),
        ack_quorum=2,
        ordered=False,
        compression="none",
        roll=RollPolicy(
            size=chance.choice([2_000, 1_000_000]),
            entries=chance.choice([0, 5, 20]),
            age_s=chance.choice([10.0, 3600.0]),
        ),
        retention=Retention(age_s=-1),
        publishings=publishings,
        consumings=consumings,
        mode=mode,
        deliveries_max=deliveries_max,
        poison=poison,
    )


def _draw_mode(seed: int) -> Mode:
    return "key-shared" if random.Random(f"group mode {seed}").random() < BY_KEY else "shared"


def _draw_limit(seed: int) -> tuple[int, float]:
    """Return after how many deliveries messages are dead, and the share of those that will be."""
    chance = random.Random(f"dead letters {seed}")
    if chance.random() >= DEAD:
        return 0, 0.0
    return chance.choice([1, 2, 2, 3, 4]), chance.choice([0.02, 0.05, 0.15])


def _made_shared(chance: random.Random, consuming: Consuming) -> Consuming:
    """Have members come when much is there, and refuse some, which leaves holes for a while."""
    start_s = consuming.start_s + chance.uniform(5.0, 10.0)
    nacks = chance.choice([0.0, 0.1, 0.3])
    return msgspec.structs.replace(consuming, start_s=start_s, nack_share=nacks)


def _made_early(publishing: Publishing) -> Publishing:
    return msgspec.structs.replace(publishing, start_s=0.0, way="tickets", batch_max=20)


def _made_slow(chance: random.Random, consuming: Consuming) -> Consuming:
    """Have progress that is not committed for long, when others take over."""
    every_s = chance.choice([3.0, 20.0])
    return msgspec.structs.replace(consuming, commits="itself", auto_commit_s=every_s)


def _publishings(chance: random.Random, hosts: list[str]) -> Iterator[Publishing]:
    for number in range(chance.randint(1, 2)):
        yield Publishing(
            name=f"p{number}",
            hosts=chance.sample(hosts, k=len(hosts)),
            access="shared",
            named=False,
            start_s=chance.uniform(0, 8.0),
            count=chance.randint(20, 80),
            way=chance.choice(["one", "tickets"]),
            batch_max=chance.choice([1, 5, 20]),
            think_s_max=chance.choice([0.3, 1.0, 2.0]),
            session_max=1000,
            tasks=1,
            payload_max=20,
            batching=True,
            linger_ms=chance.choice([0.0, 20.0]),
        )


def _consumings(chance: random.Random, hosts: list[str]) -> Iterator[Consuming]:
    for number in range(chance.randint(2, 4)):
        yield Consuming(
            name=f"m{number}",
            host=hosts[number % len(hosts)],
            start_s=chance.choice([0.0, chance.uniform(0, 15.0)]),
            way=chance.choice(["poll", "iterate", "iterate"]),
            commits=chance.choice(["itself", "itself", "poll", "message"]),
            member=f"m{number}" if chance.random() < 0.3 else "",
            auto_commit_s=chance.choice([0.0, 1.0, 3.0, 20.0]),
            messages_max=chance.choice([1, 5, 4096]),
            think_s_max=chance.choice([0.02, 0.5, 3.0]),
            back_share=chance.choice([0.0, 0.0, 0.05]),
        )


def _steps(
    chance: random.Random, bookies: list[str], publishers: list[str], consumers: list[str]
) -> Iterator[Step]:
    kinds = chance.sample(sorted(_SPANS), k=chance.randint(2, 6))
    for _ in range(chance.randint(4, 20)):
        kind = chance.choice(kinds)
        yield _step(chance, kind, bookies, [*publishers, *consumers * 3])
    for _ in range(chance.choice([0, 1, 2])):
        yield from _absence(chance, consumers)


def _step(chance: random.Random, kind: str, bookies: list[str], clients: list[str]) -> Step:
    low, high = _SPANS[kind]
    at_s, span_s = _draw_time(chance), low + (high - low) * chance.random() ** 2
    if kind in ("kill client", "grow"):
        return Step(0, at_s, kind, chance.choice(clients))
    if kind == "leave":
        return Step(0, at_s, kind, f"m{chance.randrange(4)}", span_s)
    if kind == "leader away":
        ways = ["crash", "freeze", "store away", "store away", "cut"]
        return Step(0, at_s, kind, "", span_s, chance.choice(ways))
    drawn = draw_step(chance, kind, bookies, clients, _SPANS[kind])
    return msgspec.structs.replace(drawn, at_s=at_s)


def _absence(chance: random.Random, consumers: list[str]) -> Iterator[Step]:
    """A member stands still for longer than its session, and wakes up among new owners."""
    at_s = _draw_time(chance) / 2
    span_s = chance.choice([chance.uniform(6.0, 10.0), chance.uniform(8.0, 20.0)])
    yield Step(0, at_s, "freeze client", chance.choice(consumers), span_s)
    if chance.random() < 0.5:
        ways = ["crash", "freeze", "store away"]
        away_s = chance.uniform(2.0, 10.0)
        yield Step(0, at_s + chance.uniform(0, 6.0), "leader away", "", away_s, chance.choice(ways))


def _draw_time(chance: random.Random) -> float:
    return round(chance.uniform(0.5, DURATION_S), 3)
