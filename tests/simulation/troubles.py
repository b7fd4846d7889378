"""Troubles that only a part of the seeds have, one, several or none of them.

Each kind is drawn by itself, so that another kind changes no plan that does not have it. What
a machine has from the start is here as data; the rest are steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec
from steps import DURATION_S, Step, draw_time

SHARE = 0.18
"""of the seeds has a kind"""
HOURS_8_MS = 8 * 3600 * 1000
SQLITE = "SQLite file"
ENSEMBLE = "ZooKeeper"
READ_ERRORS = "read errors"
SESSIONS_EXPIRED = "ZooKeeper sessions expired"
ANSWERS_LOST = "answers to multis lost"
LAG = "old reads"
HINTS_LOST = "hints lost"
LAG_SHARE = 0.5
"""of the seeds with ZooKeeper has servers that lag"""


class Clock(msgspec.Struct, frozen=True):
    """The wall clock of a machine: so far off at the start, and so much too fast."""

    off_ms: int = 0
    drift: float = 0.0


class Troubles(msgspec.Struct, frozen=True):
    """The troubles of a seed, beside its plan. *clocks* are by machine."""

    kinds: list[str] = []
    clocks: dict[str, Clock] = {}


Draw = Callable[[random.Random, list[str], list[str]], Iterator[Step]]


def draw_troubles(
    seed: int, world: str, bookies: list[str], clients: list[str]
) -> tuple[Troubles, list[Step]]:
    """Return the troubles of *seed*, none or a few of those in its *world*, and their steps."""
    kinds: list[str] = []
    steps: list[Step] = []
    clocks: dict[str, Clock] = {}
    for kind, draw in TROUBLES[world].items():
        chance = random.Random(f"{kind} {seed}")
        is_other = kind == ENSEMBLE and SQLITE in kinds
        if chance.random() < SHARE and kind not in HELD_BACK[world] and not is_other:
            kinds.append(kind)
            steps += draw(chance, bookies, clients)
            if kind == "clocks":
                clocks = _draw_clocks(chance, [*bookies, *clients])
    if ENSEMBLE in kinds and LAG not in HELD_BACK[world]:
        kinds += [LAG] if random.Random(f"{LAG} in {seed}").random() < LAG_SHARE else []
    return Troubles(kinds, clocks), steps


def _draw_clocks(chance: random.Random, machines: list[str]) -> dict[str, Clock]:
    return {
        name: Clock(
            off_ms=chance.choice([-HOURS_8_MS, HOURS_8_MS, chance.randint(-60_000, 60_000)]),
            drift=chance.choice([0.0, 0.0, 1e-3, -1e-3, 0.1, -0.1]),
        )
        for name in machines
        if chance.random() < 0.6
    }


def _clocks(chance: random.Random, bookies: list[str], clients: list[str]) -> Iterator[Step]:
    """Clocks are off from the start, and somebody sets some of them."""
    for _ in range(chance.randint(0, 3)):
        step_ms = chance.choice([-HOURS_8_MS, HOURS_8_MS, -5000, 5000])
        target = chance.choice([*bookies, *clients, *clients])
        yield Step(0, draw_time(chance), "clock", target, detail=str(step_ms))


def _levelling(chance: random.Random, _bookies: list[str], clients: list[str]) -> Iterator[Step]:
    """Ledgers that are closed are moved until bookies hold about the same."""
    for _ in range(chance.randint(2, 5)):
        at_s = chance.uniform(3.0, DURATION_S)
        yield Step(0, at_s - chance.uniform(0.5, 2.5), "recover", chance.choice(clients))
        yield Step(0, at_s, "level", chance.choice(clients))


def _growth(chance: random.Random, bookies: list[str], clients: list[str]) -> Iterator[Step]:
    """Partitions are added while messages are under way, of which some are lost.

    What a producer sends again goes where its key belongs now, unless it belonged elsewhere.
    """
    for _ in range(chance.randint(1, 4)):
        at_s = chance.uniform(1.0, DURATION_S * 0.8)
        victim, other = chance.sample(clients, k=2)
        for bookie in chance.sample(bookies, k=chance.randint(0, 2)):
            kind = chance.choice(["cut", "slow"])
            yield Step(0, at_s, kind, victim, chance.uniform(0.2, 2.0), bookie)
        killed_at_s = at_s + chance.uniform(0.02, 0.6)
        if chance.random() < 0.8:
            yield Step(0, killed_at_s, "kill client", victim)
        yield Step(0, killed_at_s + chance.uniform(-0.1, 0.4), "grow", other)


def _large(*_: object) -> Iterator[Step]:
    """Entries are as large as they may be, and fill memtables: plan.py draws them."""
    return iter(())


def _lost_hints(*_: object) -> Iterator[Step]:
    """Machines are not told of some changes, but of a failure after a while: metadata_view.py."""
    return iter(())


def _sqlite(*_: object) -> Iterator[Step]:
    """The metadata are in a file of the bookies, whom clients ask: simulation.py opens it."""
    return iter(())


def _ensemble(chance: random.Random, bookies: list[str], _clients: list[str]) -> Iterator[Step]:
    """The metadata are in ZooKeeper, with which bookies have sessions, and clients ask these."""
    for _ in range(chance.randint(1, 3)):
        yield Step(0, draw_time(chance), "session expires", chance.choice(bookies))
    for _ in range(chance.randint(1, 3)):
        span_s = chance.uniform(1.0, 8.0)
        yield Step(0, draw_time(chance), "answers lost", chance.choice(bookies), span_s)
    for _ in range(chance.randint(0, 2)):
        target = chance.choice([*bookies, "all"])
        span_s = chance.choice([chance.uniform(0.2, 3.0), chance.uniform(3.0, 10.0)])
        yield Step(0, draw_time(chance), "ensemble away", target, span_s)


def _ensemble_that_waits(
    chance: random.Random, bookies: list[str], clients: list[str]
) -> Iterator[Step]:
    """As _ensemble(), but a session ends only once nothing was heard of it for its whole life.

    Timestamps rely on that: a leader is sure of its lease for a while without asking. No ensemble
    ends a session sooner, unless somebody who has the bookie's password tells it to.
    """
    for step in _ensemble(chance, bookies, clients):
        if step.kind == "session expires":
            span_s = chance.uniform(7.0, 9.0)
            yield Step(0, step.at_s, "ensemble away", step.target, span_s)
        else:
            yield step


def _limits(chance: random.Random, bookies: list[str], _clients: list[str]) -> Iterator[Step]:
    """Bookies have small limits, and strangers come who use them up."""
    for _ in range(chance.randint(1, 3)):
        count = str(chance.choice([5, 20, 60]))
        span_s = chance.uniform(1.0, 8.0)
        yield Step(0, draw_time(chance), "strangers", chance.choice(bookies), span_s, count)


def _disks(chance: random.Random, bookies: list[str], _clients: list[str]) -> Iterator[Step]:
    """Disks are slow, and some hang: neither fails anything."""
    for _ in range(chance.randint(1, 3)):
        sync_s = str(chance.choice([0.1, 0.3]))
        span_s = chance.uniform(1.0, 8.0)
        yield Step(0, draw_time(chance), "slow disk", chance.choice(bookies), span_s, sync_s)
    for _ in range(chance.randint(1, 3)):
        span_s = chance.choice([chance.uniform(0.5, 4.0), chance.uniform(4.0, 14.0)])
        yield Step(0, draw_time(chance), "hang", chance.choice(bookies), span_s)


def _flushes(chance: random.Random, bookies: list[str], _: list[str]) -> Iterator[Step]:
    """Flushes hang while the journal goes on, and some bookies die of something else then."""
    for _number in range(chance.randint(1, 3)):
        at_s, target = draw_time(chance), chance.choice(bookies)
        span_s = chance.choice([chance.uniform(0.5, 4.0), chance.uniform(4.0, 14.0)])
        yield Step(0, at_s, "hang flush", target, span_s)
        if chance.random() < 0.4:
            killed_at_s = at_s + chance.uniform(0.5, 1.0) * span_s
            yield Step(0, killed_at_s, "crash", target, chance.uniform(0.2, 2.0), "clean")


def _unreadable(chance: random.Random, bookies: list[str], clients: list[str]) -> Iterator[Step]:
    """Disks cannot read for a while what lies on them, and ledgers are recovered meanwhile."""
    for _ in range(chance.randint(1, 3)):
        at_s, span_s = draw_time(chance), chance.uniform(1.0, 8.0)
        share = str(chance.choice([0.3, 1.0]))
        yield Step(0, at_s, "unreadable", chance.choice(bookies), span_s, share)
        for kind in ("read", "recover"):
            yield Step(0, at_s + chance.uniform(0.0, span_s), kind, chance.choice(clients))


def _lost_pages(chance: random.Random, bookies: list[str], _: list[str]) -> Iterator[Step]:
    """Whoever dies loses what was not synced, page by page; some die while much is under way."""
    for _number in range(chance.randint(2, 5)):
        tail = chance.choice(["clean", "torn group", "torn flush", "torn flush", "no mark"])
        target, wait_s = chance.choice(bookies), chance.uniform(0.0, 0.05)
        yield Step(0, draw_time(chance), "crash at flush", target, wait_s, tail)
    if chance.random() < 0.7:
        tail = chance.choice(["clean", "torn group", "torn flush", "no mark"])
        yield Step(0, draw_time(chance), "power cut", "all", 0.2, tail)


def _misdirected(chance: random.Random, bookies: list[str], clients: list[str]) -> Iterator[Step]:
    """A misdirected write: the data lies at another place, and is read there."""
    for target in chance.sample(bookies, k=chance.randint(1, 2)):
        at_s, span_s = chance.uniform(2.0, DURATION_S), chance.uniform(0.2, 1.0)
        yield Step(0, at_s, "damage", target, span_s, "misdirected")
        yield Step(0, at_s + span_s + 2.0, "read", chance.choice(clients))


def _ids_again(chance: random.Random, _bookies: list[str], _clients: list[str]) -> Iterator[Step]:
    """The metadata are set back to a backup, and give out ids that bookies know already."""
    share = str(chance.choice([0.5, 1.0]))
    yield Step(0, chance.uniform(3.0, 10.0), "restore", "all", chance.uniform(0.2, 1.0), share)


def _truncation(chance: random.Random, _bookies: list[str], clients: list[str]) -> Iterator[Step]:
    """Messages are deleted from some place of a lane to its end, whoever writes and reads it."""
    for _ in range(chance.randint(1, 3)):
        yield Step(0, draw_time(chance), "truncate", chance.choice(clients))


_OF_LEDGERS: dict[str, Draw] = {
    "clocks": _clocks,
    "large entries": _large,
    "disks": _disks,
    "flushes that hang": _flushes,
    "ids again": _ids_again,
    "levelling": _levelling,
    "limits": _limits,
    "lost pages": _lost_pages,
    "misdirected writes": _misdirected,
    READ_ERRORS: _unreadable,
    HINTS_LOST: _lost_hints,
    SQLITE: _sqlite,
    ENSEMBLE: _ensemble,
}
_OF_TOPICS: dict[str, Draw] = {
    "clocks": _clocks,
    "growth": _growth,
    "lost pages": _lost_pages,
    "disks": _disks,
    "flushes that hang": _flushes,
    "levelling": _levelling,
    "limits": _limits,
    READ_ERRORS: _unreadable,
    HINTS_LOST: _lost_hints,
    SQLITE: _sqlite,
    ENSEMBLE: _ensemble,
    "truncation": _truncation,
}
_OF_GROUPS: dict[str, Draw] = {
    "clocks": _clocks,
    "disks": _disks,
    HINTS_LOST: _lost_hints,
    SQLITE: _sqlite,
    ENSEMBLE: _ensemble,
}
_OF_TIME: dict[str, Draw] = {
    "clocks": _clocks,
    "disks": _disks,
    HINTS_LOST: _lost_hints,
    SQLITE: _sqlite,
    ENSEMBLE: _ensemble_that_waits,
}
_OF_METADATA: dict[str, Draw] = {SQLITE: _sqlite, ENSEMBLE: _ensemble}
TROUBLES = {
    "ledgers": _OF_LEDGERS,
    "topic": _OF_TOPICS,
    "groups": _OF_GROUPS,
    "time": _OF_TIME,
    "ids": _OF_METADATA,
    "ending": _OF_METADATA,
}
HELD_BACK: dict[str, set[str]] = {world: set() for world in TROUBLES}
"""What no seed has as long as the product is known not to bear it: a gate that always fails
helps nobody. Say here why."""


FOREIGN_REFUSED = "foreign frames refused"
FOREIGN_TAKEN = "foreign ledgers"
FOREIGN_REACHED = "ids reached that foreign clients tried"
TABLE_LOST = "renewed ledgers in a lost table"
DIED = "writers that died at an acknowledgement"
PAUSED = "writers that paused at an acknowledgement"
DEAF = "writers that replaced a bookie they did not hear"
WHOLE = "bounded reads that came to their end"
OF_ITS_OWN = {
    "ids": {FOREIGN_REFUSED, FOREIGN_TAKEN, FOREIGN_REACHED, TABLE_LOST},
    "ending": {DIED, PAUSED, DEAF, WHOLE},
}
"""What a world is there for, so that each of its seeds may have all of it."""


def expected(world: str) -> set[str]:
    """Return the kinds that must have an effect in a campaign of many seeds."""
    kinds = set(TROUBLES[world]) - HELD_BACK[world] | OF_ITS_OWN.get(world, set())
    kinds |= (
        {SESSIONS_EXPIRED, ANSWERS_LOST, LAG} - HELD_BACK[world] if ENSEMBLE in kinds else set()
    )
    return kinds - {"disks"} | {"slow disks", "disks that hang"} if "disks" in kinds else kinds
