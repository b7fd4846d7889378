"""Every mutant fits the sources of today, and names a test of today.

``python tests/search.py --minutes 10 mutants`` tries whether that test notices.
"""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mutant import AREAS, FOLDER, ROOT, BadMutant, load

if TYPE_CHECKING:
    from tests.conftest import Collected

pytestmark = pytest.mark.facts

JOBS = 4
PATCHES = sorted(FOLDER.glob("*/*.patch"))
HEAD = "Breaks: a promise.\nKilled by: tests/test_layers.py::test_imports_run_downward[x y]\n\n"
DIFF = "diff --git a/bookie/events.py b/bookie/events.py\n--- a/bookie/events.py\n"


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def refusal(path: Path) -> str:
    """What git says of a patch that does not fit; nothing of one that does."""
    applied = subprocess.run(
        ["git", "apply", "--check", str(path)],
        cwd=ROOT,
        # Also where the sources lie inside another repository.
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if applied.returncode == 0 else f"{name(path)}: {applied.stderr}"


def test_every_mutant_applies() -> None:
    with ThreadPoolExecutor(JOBS) as jobs:
        refused = list(filter(None, jobs.map(refusal, PATCHES)))
    assert not refused, "".join(refused)


def test_every_mutant_names_a_test_that_is_there(collected: list[Collected]) -> None:
    """With its parameters; a name without any means the test with all of them."""
    ids = {each.id for each in collected}
    known = ids | {each.partition("[")[0] for each in ids}
    lost = [
        f"{each.name} names {each.test}" for each in map(load, PATCHES) if each.test not in known
    ]
    assert not lost, "\n".join(lost)


def test_every_file_among_the_mutants_lies_in_an_area() -> None:
    assert {path.parent.name for path in PATCHES} <= AREAS
    assert PATCHES


@pytest.mark.parametrize(
    "text",
    [
        "",
        DIFF,
        HEAD,
        HEAD.replace("Breaks", "Hurts") + DIFF,
        HEAD.replace("tests/", "bookie/") + DIFF,
        HEAD + DIFF + DIFF.replace("bell", "host"),
        HEAD + DIFF.replace("bookie/events.py", "tests/conftest.py"),
    ],
)
def test_what_is_no_mutant_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bookie" / "x.patch"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(BadMutant):
        load(path)


def test_a_mutant_is_read_with_its_test_and_its_file(tmp_path: Path) -> None:
    path = tmp_path / "bookie" / "x.patch"
    path.parent.mkdir()
    path.write_text(HEAD + DIFF)
    mutant = load(path)
    assert mutant.name == "bookie/x"
    assert mutant.test == "tests/test_layers.py::test_imports_run_downward[x y]"
    assert mutant.file == Path("bookie/events.py")
    assert not mutant.is_native
    stray = tmp_path / "x.patch"
    stray.write_text(HEAD + DIFF)
    with pytest.raises(BadMutant):
        load(stray)
