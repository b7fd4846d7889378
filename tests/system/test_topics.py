"""Topics under SIGKILL: of producers, of bookies, of all at once, by the checker of histories.

Every message that was acknowledged is read, with the id that its sender was told: once, if
the producer has a name and sends again what it was not told of. A producer's process learns
from the histories of those before it what it need not send again.

QUIRE_SEED=7 strikes at other moments.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from checker import check
from fleet import Fleet
from history import History
from message_events import LaneTaken, MessagesAcknowledged, MessagesRead
from never_twice import never_twice
from run_seed import run_seed
from topic_crew import Crew

SEED = 1 + run_seed()
DEADLINE_S = 60.0


def judge(history: History, least: int) -> None:
    violations = check(history)
    with never_twice():
        assert violations[:10] == [], f"{len(violations)} in all"
    told = (event for event in history.events if isinstance(event, MessagesAcknowledged))
    assert len({mark for event in told for mark in event.marks}) == least
    assert any(isinstance(event, MessagesRead) for event in history.events)


@pytest.mark.real_processes
@pytest.mark.slow
def test_a_producer_that_is_killed_sends_again_and_nothing_is_there_twice(tmp_path: Path) -> None:
    """PS-39: its sequence numbers outlive it."""
    with Fleet(tmp_path, 3) as fleet, Crew(fleet, tmp_path) as crew:
        crew.start("read", "reader")
        crew.start("produce", "named", "3000", "take-over")
        for _ in range(2):
            wait_for_acknowledgements(crew, "named")
            crew.restart("named")
        history = crew.finish()
    judge(history, 3000)
    assert len({e.epoch for e in history.events if isinstance(e, LaneTaken)}) > 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.real_processes
def test_killing_producers_and_bookies_loses_nothing(tmp_path: Path) -> None:
    """PS-29, PS-39: through rolls, replaced bookies and a cluster that is gone for a moment."""
    chance = random.Random(SEED)
    with Fleet(tmp_path, 4) as fleet, Crew(fleet, tmp_path, partitions=2) as crew:
        crew.start("read", "reader")
        crew.start("produce", "named", "6000", "shared")
        crew.start("produce", "others", "4000", "shared")
        for _ in range(4):
            time.sleep(chance.uniform(0.3, 1.5))
            strike(fleet, crew, chance)
        history = crew.finish()
    judge(history, 10_000)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.real_processes
def test_a_producer_that_takes_over_a_living_one_fences_it(tmp_path: Path) -> None:
    """TB-02: one of two who both insist has the lane at a time, and nothing is there twice.

    Each is stopped while the next one begins, and comes back believing that it has the lane.
    """
    with Fleet(tmp_path, 3) as fleet, Crew(fleet, tmp_path) as crew:
        for name in ("named-a", "named-b"):
            crew.start("produce", name, "1500", "take-over", "0.1")
            wait_for_acknowledgements(crew, name)
            crew.pause(name)
        crew.start("produce", "others", "1500", "take-over", "0.05")
        wait_for_acknowledgements(crew, "others")
        for name in ("named-a", "named-b"):
            crew.resume(name)
        history = crew.finish()
    judge(history, 4500)
    assert len({e.epoch for e in history.events if isinstance(e, LaneTaken)}) > 3


def strike(fleet: Fleet, crew: Crew, chance: random.Random) -> None:
    """Kill a bookie, or all, or a producer, or both; all of it starts again."""
    bookies = chance.choice([[chance.choice(fleet.numbers)], [], list(fleet.numbers)])
    for number in bookies:
        fleet.kill(number)
    if not bookies or chance.random() < 0.5:
        crew.restart(chance.choice(["named", "others"]))
    time.sleep(chance.choice([0.1, 1.0]))
    fleet.start_all()


def wait_for_acknowledgements(crew: Crew, name: str) -> None:
    """Return once the worker's process was told of some messages."""
    path, until = crew.paths[name], time.monotonic() + DEADLINE_S
    while not path.exists() or path.read_bytes().count(b'"MessagesAcknowledged"') < 100:
        assert time.monotonic() < until, "nothing is acknowledged"
        time.sleep(0.02)
