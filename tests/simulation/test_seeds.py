"""The promises of a cluster hold whatever a seed does to it, and a seed does the same again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from campaign import Finding, Task, campaign, run_seed
from history import fingerprint
from simulation import simulate

REPLAY = Path(__file__).with_name("replay.py")
QUICK = range(20)
MANY = range(1000)


@pytest.mark.parametrize("seed", QUICK)
def test_no_promise_is_broken(seed: int) -> None:
    told = run_seed(Task(seed)).told
    assert not told, told


@pytest.mark.slow
def test_no_promise_is_broken_by_any_of_a_thousand_seeds() -> None:
    with campaign(Task(seed) for seed in MANY) as findings:
        found: list[Finding] = [finding for finding in findings if finding.told]
    assert not found, "\n\n".join(finding.told for finding in found[:3])


def test_a_seed_gives_the_same_history_again() -> None:
    first = fingerprint(simulate(3).history)
    simulate(4)
    assert fingerprint(simulate(3).history) == first
    assert fingerprint(simulate(4).history) != first


def test_a_seed_gives_the_same_history_in_every_process() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, str(REPLAY), "7"],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    last_lines = [process.communicate(timeout=60)[0].splitlines()[-1] for process in processes]
    assert last_lines == [f"history {fingerprint(simulate(7).history)}"] * 2
