"""The plan of a simulated topic: its writers, its readers, and their troubles.

As plan.py, which draws what happens to ledgers, and of the same make.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import msgspec
from plan import Plan, draw_step, in_order
from steps import Step, draw_time
from troubles import draw_troubles

from ledger_client.topics.catalogue import Compression
from ledger_client.topics.producing.producer_options import Access
from metadata.topics import Retention, RollPolicy


class Publishing(msgspec.Struct, frozen=True):
    """A producer, session by session, until all its messages are sent.

    *way*: one by one, several at once with tickets, or by one call. *hosts*: where it runs
    first, and where it is moved to while it may still be running there.
    """

    name: str
    hosts: list[str]
    access: Access | None
    named: bool
    start_s: float
    count: int
    way: str
    batch_max: int
    think_s_max: float
    session_max: int
    """messages of a session, at most"""
    tasks: int
    payload_max: int
    batching: bool
    linger_ms: float
    patience_s: float = math.inf
    """after so long it leaves a session, whatever is under way"""
    lane_name: str = ""


class TopicPlan(Plan, frozen=True):
    """A plan with one topic."""

    partitions: int
    replication: int
    ack_quorum: int
    ordered: bool
    compression: Compression
    roll: RollPolicy
    retention: Retention
    publishings: list[Publishing]


_SPANS = {
    "crash": (0.2, 5.0),
    "power cut": (0.2, 3.0),
    "freeze": (0.1, 6.0),
    "freeze client": (0.1, 14.0),
    "cut": (0.1, 6.0),
    "slow": (0.1, 6.0),
    "lossy": (0.1, 3.0),
    "break": (0.0, 0.0),
    "break late": (0.1, 4.0),
    "repeat": (0.0, 0.0),
    "sync error": (0.5, 3.0),
    "store away": (0.1, 6.0),
    "drain": (0.5, 8.0),
    "kill client": (0.0, 0.0),
    "move": (0.0, 0.0),
    "recover": (0.0, 0.0),
    "purge": (0.0, 0.0),
    "grow": (0.0, 0.0),
    "read": (0.0, 0.0),
}
_ALWAYS = ["read", "read", "recover"]
_COMPRESSIONS: list[Compression] = ["none", "none", "zstd", "lz4"]


def make_topic_plan(seed: int) -> TopicPlan:
    """Return the plan of *seed*."""
    chance = random.Random(f"topic plan {seed}")
    bookies = [f"b{number}" for number in range(1, chance.choice([3, 3, 4]) + 1)]
    clients = [f"c{number}" for number in range(1, chance.randint(2, 3) + 1)]
    replication = chance.choice([2, 2, 3])
    ack_quorum = chance.randint((replication + 1) // 2, replication)
    troubles, more = draw_troubles(seed, "topic", bookies, clients)
    partitions = chance.choice([0, 0, 1, 3])
    if "growth" in troubles.kinds:
        partitions = max(partitions, 2)
    publishings = list(draw_publishings(chance, clients, partitions))
    if "growth" in troubles.kinds:
        publishings = [_made_numbered(publishings[0]), *publishings[1:]]
    steps = [*_steps(chance, bookies, clients, ack_quorum), *more]
    return TopicPlan(
        seed=seed,
        bookies=bookies,
        clients=clients,
        work=[],
        steps=in_order(steps),
        delay_s_max=chance.choice([0.002, 0.02, 0.1]),
        sync_s_max=chance.choice([0.001, 0.01, 0.1]),
        split_share=chance.choice([0.0, 0.2]),
        troubles=troubles,
        partitions=partitions,
        replication=replication,
        ack_quorum=ack_quorum,
        ordered=chance.random() < 0.4,
        compression=chance.choice(_COMPRESSIONS),
        roll=RollPolicy(
            size=chance.choice([2_000, 20_000, 1_000_000]),
            entries=chance.choice([0, 0, 5, 20]),
            age_s=chance.choice([2.0, 10.0, 3600.0]),
        ),
        retention=Retention(age_s=chance.choice([-1, -1, 5.0])),
        publishings=publishings,
    )


def _made_numbered(publishing: Publishing) -> Publishing:
    """Have messages under way in several partitions at once, each with its number."""
    return msgspec.structs.replace(
        publishing, named=True, way="tickets", tasks=1, batch_max=max(publishing.batch_max, 5)
    )


def draw_publishings(
    chance: random.Random, clients: list[str], partitions: int
) -> Iterator[Publishing]:
    """Draw producers, rivals or not, that run on *clients*."""
    rivals = chance.choice([1, 1, 2, 2, 3])
    accesses: list[Access | None] = ["shared", None, "exclusive", "wait", "take-over"]
    access = chance.choice(accesses)
    for number in range(rivals):
        named = chance.random() < 0.6
        # Numbers count in each partition, so one call may have them for one partition alone.
        ways = ["one", "tickets", *(["many"] if partitions <= 1 or not named else [])]
        yield Publishing(
            name=f"p{number}",
            hosts=chance.sample(clients, k=len(clients)),
            access=access if chance.random() < 0.7 else chance.choice(accesses),
            named=named,
            start_s=chance.choice([0.0, chance.uniform(0, 8.0)]),
            count=chance.randint(10, 120),
            way=chance.choice(ways),
            batch_max=chance.choice([1, 5, 20]),
            think_s_max=chance.choice([0.02, 0.3, 1.0]),
            session_max=chance.choice([10, 1000]),
            tasks=1 if named else chance.choice([1, 3]),
            payload_max=chance.choice([20, 400, 3000]),
            batching=chance.random() < 0.8,
            linger_ms=chance.choice([0.0, 1.0, 20.0]),
        )


def _steps(
    chance: random.Random, bookies: list[str], clients: list[str], ack_quorum: int
) -> Iterator[Step]:
    kinds = [*chance.sample(sorted(set(_SPANS) - set(_ALWAYS)), k=chance.randint(2, 6)), *_ALWAYS]
    for _ in range(chance.randint(4, 24)):
        yield _step(chance, chance.choice(kinds), bookies, clients)
    for _ in range(chance.choice([0, 0, 1, 2])):
        yield from _zombie(chance, clients)
    for target in chance.sample(bookies, k=min(ack_quorum - 1, len(bookies))):
        if chance.random() < 0.3:
            kind = chance.choice(["damage", "wipe"])
            yield Step(0, draw_time(chance), kind, target, chance.uniform(0.2, 3.0))


def _step(chance: random.Random, kind: str, bookies: list[str], clients: list[str]) -> Step:
    if kind in ("kill client", "purge", "grow"):
        return Step(0, draw_time(chance), kind, chance.choice(clients))
    if kind == "move":
        return Step(0, draw_time(chance), kind, f"p{chance.randrange(3)}")
    return draw_step(chance, kind, bookies, clients, _SPANS[kind])


def _zombie(chance: random.Random, clients: list[str]) -> Iterator[Step]:
    """A producer's machine stands still, another goes on in its place, and it wakes up."""
    at_s, client = draw_time(chance), chance.choice(clients)
    yield Step(0, at_s, "freeze client", client, chance.uniform(3.0, 14.0))
    for number in range(3):
        yield Step(0, at_s + chance.uniform(0.1, 3.0), "move", f"p{number}")
