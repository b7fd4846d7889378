"""Some seconds of fuzzing for each harness, from sound seeds, under ASan and UBSan."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzing import HARNESSES, SHARED, Build, fuzz
from seeds import SEEDS, write_seeds

SECONDS = 6


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return Build(tmp_path_factory.mktemp("build"))


@pytest.mark.slow
@pytest.mark.parametrize("harness", SEEDS)
def test_no_bytes_bring_the_core_down(harness: str, build: Build, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_seeds(harness, corpus, tmp_path / "scratch")
    seeds = len(list(corpus.iterdir()))
    assert fuzz(build.link(harness), corpus, seconds=SECONDS) > seeds


def test_every_harness_is_run() -> None:
    assert {path.stem for path in HARNESSES.glob("*.c")} == {*SEEDS, *SHARED}
