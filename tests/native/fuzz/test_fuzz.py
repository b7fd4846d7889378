"""Some thousand inputs for each harness, from sound seeds on, under ASan and UBSan.

They are the same inputs each time, as long as the code is: ``python tests/search.py --minutes 10
fuzz`` tries others, and inputs that it keeps are tried here from then on.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from fuzzing import HARNESSES, SHARED, Build, try_some
from seeds import SEEDS, write_seeds

INPUTS = {
    "frames": 4_000,
    "connection": 10_000,
    "journal": 200,
    "table": 750,
    "entry_log": 800,
    "store": 400,
    "batch": 30_000,
    "compacted": 25_000,
}
"""How many: one to three seconds of them on a quiet machine. A store or an engine is opened for
each one of some."""
HANGS_S = 600
"""Protects against a hang, and decides nothing else."""
JOBS = 2

# The harnesses are built once, in one process.
pytestmark = pytest.mark.xdist_group("fuzz")


def tried(harness: str, build: Build, folder: Path) -> int:
    """Try inputs in the empty *folder*; return how many were taken."""
    corpus = folder / "corpus"
    corpus.mkdir()
    write_seeds(harness, corpus, folder / "scratch")
    program = build.link(harness)
    return try_some(program, corpus, count=INPUTS[harness], seconds_max=HANGS_S)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[int]]]:
    """All harnesses, a few at a time."""
    build = Build(tmp_path_factory.mktemp("build"))
    with ThreadPoolExecutor(JOBS) as jobs:
        yield {
            harness: jobs.submit(tried, harness, build, tmp_path_factory.mktemp(harness))
            for harness in SEEDS
        }


@pytest.mark.slow
@pytest.mark.parametrize("harness", SEEDS)
def test_no_bytes_bring_the_core_down(harness: str, runs: dict[str, Future[int]]) -> None:
    assert runs[harness].result() == INPUTS[harness]


@pytest.mark.facts
def test_every_harness_is_run() -> None:
    assert {path.stem for path in HARNESSES.glob("*.c")} == {*SEEDS, *SHARED}
    assert INPUTS.keys() == SEEDS.keys()
