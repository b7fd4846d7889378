"""Every mutant fits the sources of today; tests/mutants/run.py tries whether tests kill it."""

from __future__ import annotations

import ast
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest
from mutant import AREAS, FOLDER, ROOT, BadMutant, load

PATCHES = sorted(FOLDER.glob("*/*.patch"))
HEAD = "Breaks: a promise.\nKilled by: tests/test_layers.py::test_imports_run_downward[x y]\n\n"
DIFF = "diff --git a/bookie/events.py b/bookie/events.py\n--- a/bookie/events.py\n"


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@cache
def functions(path: Path) -> frozenset[str]:
    """The dotted names of all functions in a file."""

    def inside(node: ast.AST, prefix: str) -> list[str]:
        found: list[str] = []
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(f"{prefix}{child.name}")
            elif isinstance(child, ast.ClassDef):
                found += inside(child, f"{prefix}{child.name}::")
        return found

    return frozenset(inside(ast.parse(path.read_bytes()), ""))


@pytest.mark.parametrize("path", PATCHES, ids=name)
def test_a_mutant_applies_and_names_a_test_that_is_there(path: Path) -> None:
    mutant = load(path)
    file, _, test = mutant.test.partition("::")
    assert test.partition("[")[0] in functions(ROOT / file)
    applied = subprocess.run(
        ["git", "apply", "--check", str(path)],
        cwd=ROOT,
        # Also where the sources lie inside another repository.
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert applied.returncode == 0, applied.stderr


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
