"""The plan of a simulation: settings and steps, all drawn from the seed beforehand.

A plan is data. So a failing one can be made smaller by leaving steps out (shrinking.py),
and printed. Not every seed is like the others: each draws which kinds of faults are
frequent in it, since faults that are all rare hide each other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Self

import msgspec
from steps import DURATION_S, Scene, Step, draw_time
from troubles import Troubles, draw_troubles


class Work(msgspec.Struct, frozen=True):
    """One ledger and how it is written.

    *ending*: close it, leave it open and go on slowly, or die. A *stubborn* writer
    (stubborn_writer.py) never closes it. *large*: entries are about as large as they may be.
    """

    start_s: float
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    appends: int
    batch_max: int
    payload_max: int
    think_s_max: float
    tasks: int
    ending: str
    stubborn: bool = False
    large: bool = False


class Plan(msgspec.Struct, frozen=True):
    """A whole simulation but for what is drawn on the way, from the seed too."""

    seed: int
    bookies: list[str]
    clients: list[str]
    work: list[Work]
    steps: list[Step]
    delay_s_max: float
    sync_s_max: float
    split_share: float
    troubles: Troubles

    def only(self, numbers: Sequence[int]) -> Self:
        """Return the same plan with these steps only."""
        kept = set(numbers)
        steps = [step for step in self.steps if step.number in kept]
        return msgspec.structs.replace(self, steps=steps)


# What may go wrong, each with the least and the greatest span. Disk damage is apart: it
# costs copies, and no more may be lost than the quorums bear.
_SPANS = {
    "crash": (0.2, 5.0),
    "power cut": (0.2, 3.0),
    "freeze": (0.1, 6.0),
    "freeze client": (0.1, 6.0),
    "cut": (0.1, 6.0),
    "slow": (0.1, 6.0),
    "lossy": (0.1, 3.0),
    "break": (0.0, 0.0),
    "break late": (0.1, 4.0),
    "repeat": (0.0, 0.0),
    "sync error": (0.5, 3.0),
    "full": (0.5, 6.0),
    "clock": (0.0, 0.0),
    "store away": (0.1, 6.0),
    "drain": (0.5, 8.0),
    "recover": (0.0, 0.0),
    "read": (0.0, 0.0),
}
SITES = [f"{f}_{c}" for f in ("journal", "log", "index", "table") for c in ("write", "sync")]
_ALWAYS = ["recover", "read"]
_TAILS = ["clean", "clean", "torn group", "torn flush", "no mark"]


def make_plan(seed: int) -> Plan:
    """Return the plan of *seed*."""
    chance = random.Random(f"plan {seed}")
    theme = chance.choice([None, None, *THEMES])
    bookies = [
        f"b{number}"
        for number in range(1, chance.choice([3] if theme is _race else [3, 4, 4, 5]) + 1)
    ]
    clients = [f"c{number}" for number in range(1, chance.randint(2, 3) + 1)]
    troubles, more = draw_troubles(seed, "ledgers", bookies, clients)
    copies = chance.choice([1, 1, 2])
    if "misdirected writes" in troubles.kinds:
        copies = 2  # else a bookie would have to be spared
    work = list(_works(chance, len(bookies), theme, copies=copies))
    if "ids again" in troubles.kinds:  # clients of another kind name no incarnation
        work = [msgspec.structs.replace(each, stubborn=False) for each in work]
    steps = [*_steps(chance, bookies, clients, work, theme), *more]
    return Plan(
        seed=seed,
        bookies=bookies,
        clients=clients,
        work=[_made_large(work[0]), *work[1:]] if "large entries" in troubles.kinds else work,
        steps=in_order(steps),
        delay_s_max=chance.choice([0.002, 0.02] if theme is _race else [0.002, 0.02, 0.2]),
        sync_s_max=chance.choice([0.001, 0.01, 0.1]),
        split_share=chance.choice([0.0, 0.2]),
        troubles=troubles,
    )


def _made_large(work: Work) -> Work:
    return msgspec.structs.replace(work, large=True, batch_max=2, appends=min(work.appends, 8))


def in_order(steps: Sequence[Step]) -> list[Step]:
    """Return steps by their times, with numbers."""
    ordered = sorted(steps, key=lambda step: step.at_s)
    return [msgspec.structs.replace(step, number=n) for n, step in enumerate(ordered)]


def _works(
    chance: random.Random, bookies: int, theme: Scene | None, *, copies: int
) -> Iterator[Work]:
    """Draw ledgers, each acknowledged by *copies* bookies at least."""
    for _ in range(chance.randint(1, 4)):
        least = 1 if copies == 1 and (theme is _takeover or chance.random() < 0.1) else 2
        most = 2 if theme in (_takeover, _race) else min(bookies, 4)
        ensemble_size = chance.randint(least, most)
        write_quorum = chance.choice([ensemble_size, chance.randint(copies, ensemble_size)])
        ack_quorum = chance.randint(max(copies, (write_quorum + 1) // 2), write_quorum)
        staged = theme is not None and chance.random() < 0.7
        yield Work(
            start_s=chance.choice([0.0, chance.uniform(0, DURATION_S * 0.7)]),
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=write_quorum if theme is _race else ack_quorum,
            appends=1000 if theme is _race else chance.randint(5, 40),
            batch_max=chance.choice([1, 4, 12]),
            payload_max=chance.choice([20, 400, 3000]),
            think_s_max=0.3 if theme is _race else chance.choice([0.02, 0.5, 1.0]),
            tasks=1 if staged else chance.choice([1, 1, 3]),
            ending="leave" if staged else chance.choice(["close", "close", "leave", "die"]),
            stubborn=chance.random() < (0.6 if theme is _race else 0.3),
        )


def _steps(
    chance: random.Random,
    bookies: list[str],
    clients: list[str],
    work: list[Work],
    theme: Scene | None,
) -> Iterator[Step]:
    kinds = [*chance.sample(sorted(set(_SPANS) - set(_ALWAYS)), k=chance.randint(1, 5)), *_ALWAYS]
    for _ in range(chance.randint(4, 24) if theme is None else chance.randint(0, 6)):
        kind = chance.choice(kinds)
        yield draw_step(chance, kind, bookies, clients, _SPANS[kind])
    for _ in range(chance.randint(3, 8) if theme else chance.choice([0, 1])):
        yield from (theme or chance.choice(THEMES))(chance, bookies, clients)
    losses = min(each.ack_quorum for each in work) - 1
    for target in chance.sample(bookies, k=min(losses, len(bookies))):
        if chance.random() < 0.5:
            kind = chance.choice(["damage", "damage", "wipe"])
            yield Step(0, draw_time(chance), kind, target, chance.uniform(0.2, 3.0))


def draw_step(
    chance: random.Random,
    kind: str,
    bookies: list[str],
    clients: list[str],
    span: tuple[float, float],
) -> Step:
    """Draw whom *kind* befalls, when, and for how long: *span* seconds at least and at most."""
    low, high = span
    span_s = low + (high - low) * chance.random() ** 2
    target, detail = chance.choice(bookies), ""
    if kind == "crash":
        detail = chance.choice(_TAILS) + chance.choice(["", ", silently"])
    elif kind == "power cut":
        target, detail = "all", chance.choice(_TAILS)
    elif kind in ("freeze client", "recover", "read"):
        target = chance.choice(clients)
    elif kind == "cut":
        others = [name for name in bookies + clients if name != target]
        detail = chance.choice(others) + chance.choice(["", ", one way"])
    elif kind == "store away":
        target = chance.choice([*bookies, *clients, "all"])
    elif kind == "sync error":
        detail = chance.choice(SITES)
    elif kind == "clock":
        detail = str(chance.choice([-3_600_000, -5000, 5000, 3_600_000]))
    return Step(0, draw_time(chance), kind, target, span_s, detail)


# --- scenes: what must come together for a rare mistake to show ----------------------------


def _race(chance: random.Random, bookies: list[str], clients: list[str]) -> Iterator[Step]:
    """A recovery while entries are under way, and one bookie misses its beginning.

    The writer's entries reach that bookie late; the recoverer does not reach it at all
    while it asks how far the ledger is confirmed, and hears from the others late after.
    """
    at_s, late = draw_time(chance), chance.choice(bookies)
    recoverer = chance.choice(clients)
    for writer in sorted(set(clients) - {recoverer}):
        yield Step(0, at_s, "slow", writer, chance.uniform(1.0, 3.0), late)
    at_s += chance.uniform(0.3, 0.8)
    yield Step(0, at_s, "lossy", recoverer, chance.uniform(0.08, 0.2), late)
    yield Step(0, at_s, "recover", recoverer)
    slow_at_s = at_s + chance.uniform(0.02, 0.06)
    for bookie in bookies:
        if bookie != late:
            yield Step(0, slow_at_s, "slow", bookie, chance.uniform(0.5, 2.0), recoverer)


def _aftermath(chance: random.Random, bookies: list[str], clients: list[str]) -> Iterator[Step]:
    """A recovery, and soon all bookies start again: what they promised must still hold."""
    at_s = draw_time(chance)
    yield Step(0, at_s, "recover", chance.choice(clients))
    yield Step(0, at_s + chance.uniform(0.3, 3.0), "power cut", "all", 0.2, chance.choice(_TAILS))


def _takeover(chance: random.Random, bookies: list[str], clients: list[str]) -> Iterator[Step]:
    """Bookies are replaced one after the other, then the ledger is recovered."""
    at_s = draw_time(chance)
    for name in chance.sample(bookies, k=chance.randint(1, len(bookies) - 1)):
        yield Step(0, at_s, "crash", name, chance.uniform(1.0, 5.0), "clean")
        at_s += chance.uniform(0.1, 1.5)
    yield Step(0, at_s + chance.uniform(0, 1.0), "recover", chance.choice(clients))


def _checkpoint(chance: random.Random, bookies: list[str], _: list[str]) -> Iterator[Step]:
    """A crash right after a flush, when what came during the flush is in the journal only."""
    wait_s = chance.uniform(0.0, 0.05)
    tail = chance.choice(_TAILS)
    yield Step(0, draw_time(chance), "crash at flush", chance.choice(bookies), wait_s, tail)


THEMES: list[Scene] = [_race, _aftermath, _takeover, _checkpoint]
