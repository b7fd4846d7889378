"""Some seconds of fuzzing for each harness, from sound seeds, under ASan and UBSan."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from fuzzing import HARNESSES, SHARED, Build, fuzz
from seeds import SEEDS, write_seeds

SECONDS = 6
JOBS = 2

# The harnesses are built once, in one process.
pytestmark = pytest.mark.xdist_group("fuzz")


def more_than_seeds(harness: str, build: Build, folder: Path) -> bool:
    """Fuzz for some seconds; return whether more inputs were taken than there were seeds."""
    corpus = folder / "corpus"
    corpus.mkdir()
    write_seeds(harness, corpus, folder / "scratch")
    seeds = len(list(corpus.iterdir()))
    return fuzz(build.link(harness), corpus, seconds=SECONDS) > seeds


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[bool]]]:
    """All harnesses, a few at a time."""
    build = Build(tmp_path_factory.mktemp("build"))
    with ThreadPoolExecutor(JOBS) as jobs:
        yield {
            harness: jobs.submit(more_than_seeds, harness, build, tmp_path_factory.mktemp(harness))
            for harness in SEEDS
        }


@pytest.mark.slow
@pytest.mark.parametrize("harness", SEEDS)
def test_no_bytes_bring_the_core_down(harness: str, runs: dict[str, Future[bool]]) -> None:
    assert runs[harness].result()


def test_every_harness_is_run() -> None:
    assert {path.stem for path in HARNESSES.glob("*.c")} == {*SEEDS, *SHARED}
