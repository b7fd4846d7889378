"""The promises of a cluster, and of its topics, hold whatever a seed does to it.

A seed does the same again, in every process. Each commit tries seeds of its own
(tests/support/run_seed.py), and those that failed once (seeds.txt).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from campaign import Finding, Task, campaign, run_seed
from history import fingerprint
from run_seed import VARIABLE
from seed_list import KEPT, KeptSeed, drawn, kept
from simulation import simulate
from topic_simulation import simulate_topic
from troubles import expected

REPLAY = Path(__file__).with_name("replay.py")
QUICK = range(10)
QUICK_TOPICS = range(4)
MANY = [("ledgers", range(first, first + 150)) for first in range(0, 300, 150)]
MANY_TOPICS = [("topic", range(75))]


@pytest.mark.parametrize("number", QUICK)
def test_no_promise_is_broken(number: int) -> None:
    (seed,) = drawn(range(number, number + 1))
    told = run_seed(Task(seed)).told
    assert not told, told


@pytest.mark.parametrize("number", QUICK_TOPICS)
def test_no_promise_of_a_topic_is_broken(number: int) -> None:
    """PS-04, PS-29, PS-39, TB-02, TB-14, TB-17, TB-76: see message_checker.py."""
    (seed,) = drawn(range(number, number + 1))
    told = run_seed(Task(seed, world="topic")).told
    assert not told, told


@pytest.mark.slow
@pytest.mark.parametrize(("world", "numbers"), [*MANY, *MANY_TOPICS], ids=str)
def test_no_promise_is_broken_by_any_of_many_seeds(world: str, numbers: range) -> None:
    found: list[Finding] = []
    happened: Counter[str] = Counter()
    with campaign(Task(seed, world=world) for seed in drawn(numbers)) as findings:
        for finding in findings:
            happened += finding.happened
            found += [finding] if finding.told else []
    assert not found, "\n\n".join(finding.told for finding in found[:3])
    missing = {kind for kind in expected(world) if not happened[kind]}
    assert not missing, f"no seed has {missing}, but {happened}"


@pytest.mark.parametrize("once", kept(KEPT.read_text()), ids=lambda k: f"{k.world} {k.seed}")
def test_a_seed_that_failed_once_breaks_no_promise(once: KeptSeed) -> None:
    told = run_seed(Task(once.seed, world=once.world)).told
    assert not told, f"again: {once.why}\n{told}"


def test_a_line_of_kept_seeds_must_name_a_world_a_seed_and_a_reason() -> None:
    assert kept("# x\n\ntopic 7  why it is\n") == [KeptSeed("topic", 7, "why it is")]
    for line in ("topic 7", "topic x why", "moon 7 why"):
        with pytest.raises(ValueError, match=r"."):
            kept(line)


def test_another_commit_tries_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "500")
    assert drawn(range(2, 4)) == [502, 503]
    monkeypatch.setenv(VARIABLE, "x")
    with pytest.raises(ValueError, match="whole number"):
        drawn(range(1))
    monkeypatch.delenv(VARIABLE)
    assert drawn(range(1)) == drawn(range(1)) != [500]


def test_a_seed_gives_the_same_history_again() -> None:
    first = fingerprint(simulate(3).history)
    simulate(4)
    assert fingerprint(simulate(3).history) == first
    assert fingerprint(simulate(4).history) != first


@pytest.mark.parametrize(
    ("world", "seed"),
    [("ledgers", 199), ("ledgers", 15), pytest.param("topic", 148, marks=pytest.mark.slow)],
)
def test_a_seed_gives_the_same_history_in_every_process(world: str, seed: int) -> None:
    """Troubled seeds: ids given out again, bookies that are levelled, SQLite behind bookies."""
    words, again = (["--topic"], simulate_topic) if world == "topic" else ([], simulate)
    processes = [
        subprocess.Popen(
            [sys.executable, str(REPLAY), str(seed), *words],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    last_lines = [process.communicate(timeout=60)[0].splitlines()[-1] for process in processes]
    assert last_lines == [f"history {fingerprint(again(seed).history)}"] * 2
