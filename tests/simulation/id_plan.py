"""The plan of a world whose ledger ids others use, too, and which are issued again.

Clients of another kind add, fence and read under ids that the counter is about to reach. In most
seeds the metadata are set back, so that ids are issued a second time, and then a bookie loses its
ledger table, after it has trimmed its journal. As plan.py, and drawn apart from it, so that
histories of the other worlds stay as they are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
from plan import Plan, Work, draw_step, in_order
from steps import Step
from troubles import draw_troubles

LEDGERS_S = 9.0
"""Ledgers are begun so long."""


class IdPlan(Plan, frozen=True):
    """A plan whose steps may be "foreign" and "lose table", too."""


_SPANS = {
    "crash": (0.2, 3.0),
    "power cut": (0.2, 2.0),
    "break": (0.0, 0.0),
    "store away": (0.1, 3.0),
    "recover": (0.0, 0.0),
    "read": (0.0, 0.0),
}


def make_id_plan(seed: int) -> IdPlan:
    """Return the plan of *seed*."""
    chance = random.Random(f"id plan {seed}")
    bookies = [f"b{number}" for number in range(1, chance.choice([3, 3, 4]) + 1)]
    clients = ["c1", "c2"]
    troubles, more = draw_troubles(seed, "ids", bookies, clients)
    steps = [*_foreign(chance, bookies), *_others(chance, bookies, clients), *more]
    if chance.random() < 0.7:
        steps += _again(chance, bookies)
    return IdPlan(
        seed=seed,
        bookies=bookies,
        clients=clients,
        work=list(_works(chance)),
        steps=in_order(steps),
        delay_s_max=chance.choice([0.002, 0.02]),
        sync_s_max=chance.choice([0.001, 0.01]),
        split_share=chance.choice([0.0, 0.2]),
        troubles=troubles,
    )


def _works(chance: random.Random) -> Iterator[Work]:
    """Draw many short ledgers, one after the other, so that the counter moves on."""
    count = chance.randint(6, 9)
    for number in range(count):
        copies = chance.choice([2, 2, 3])
        yield Work(
            start_s=number * LEDGERS_S / count + chance.uniform(0.0, 0.5),
            ensemble_size=copies,
            write_quorum=copies,
            ack_quorum=2,
            appends=chance.randint(3, 12),
            batch_max=chance.choice([1, 4]),
            payload_max=chance.choice([20, 400]),
            think_s_max=chance.choice([0.02, 0.3]),
            tasks=1,
            ending=chance.choice(["close", "close", "leave", "die"]),
        )


def _foreign(chance: random.Random, bookies: list[str]) -> Iterator[Step]:
    for _ in range(chance.randint(2, 4)):
        at_s, span_s = chance.uniform(0.1, 9.0), chance.uniform(1.0, 5.0)
        yield Step(0, at_s, "foreign", chance.choice(bookies), span_s)


def _others(chance: random.Random, bookies: list[str], clients: list[str]) -> Iterator[Step]:
    kinds = [*chance.sample(sorted(_SPANS), k=3), "recover", "read"]
    for _ in range(chance.randint(2, 7)):
        kind = chance.choice(kinds)
        yield draw_step(chance, kind, bookies, clients, _SPANS[kind])


def _again(chance: random.Random, bookies: list[str]) -> Iterator[Step]:
    """Ids are issued again, the ledgers that have them now are written, and a table is lost."""
    at_s, span_s = chance.uniform(4.0, 7.0), chance.uniform(0.2, 1.0)
    yield Step(0, at_s, "restore", "all", span_s, str(chance.choice([0.5, 1.0])))
    lost_at_s = at_s + span_s + chance.uniform(2.0, 6.0)
    yield Step(0, lost_at_s, "lose table", chance.choice(bookies), chance.uniform(0.3, 1.0))


def spread(work: Work) -> Work:
    """Return *work* to be begun anew: sooner than at first, and not all of it at once."""
    return msgspec.structs.replace(work, start_s=work.start_s / 3)
