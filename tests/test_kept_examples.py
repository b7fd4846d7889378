"""Examples and orders of tasks that broke a test once, tried again each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_seed import VARIABLE
from search_pytest import KEPT_EXAMPLES, Keep, KeptExample, kept_examples
from search_report import ROOT

KEPT = kept_examples(KEPT_EXAMPLES.read_text())


def name(kept: KeptExample) -> str:
    return f"{kept.test} {kept.seed}"


if KEPT:  # without any, pytest would report a test that is skipped

    @pytest.mark.slow
    @pytest.mark.parametrize("once", KEPT, ids=name)
    def test_an_example_that_failed_once_passes(once: KeptExample) -> None:
        command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, once.test],
            cwd=ROOT,
            env={**os.environ, VARIABLE: str(once.seed)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"again: {once.why}\n{done.stdout[-6000:]}"


def test_a_line_of_kept_examples_must_name_a_test_a_seed_and_a_reason() -> None:
    line = "tests/x/test_y.py::Some::test_z[a 7 b] 12 why it is"
    text = f"# x\n\n{line}\n"
    test = "tests/x/test_y.py::Some::test_z[a 7 b]"
    assert kept_examples(text) == [KeptExample(test, 12, "why it is")]
    for wrong in ("tests/x.py::test_y 7", "tests/x.py::test_y x why", "x.py::test_y 7 why"):
        with pytest.raises(ValueError, match="TESTID SEED WHY"):
            kept_examples(wrong)


def test_what_is_kept_can_be_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept.txt"
    monkeypatch.setattr("search_pytest.KEPT_EXAMPLES", path)
    Keep("tests/x.py::test_y[1 2]", 7, "assert 1 ==\n 2")()
    Keep("tests/x.py::test_y", 8, "")()
    assert [each[:2] for each in kept_examples(path.read_text())] == [
        ("tests/x.py::test_y[1 2]", 7),
        ("tests/x.py::test_y", 8),
    ]
