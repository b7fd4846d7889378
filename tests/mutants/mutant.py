"""A mutant: one change to the code that takes one promise away, and the test that must notice.

It is a patch with a head of two lines, ``tests/mutants/AREA/NAME.patch``::

    Breaks: one sentence that names the promise.
    Killed by: tests/bookie/test_x.py::test_name

    diff --git a/bookie/x.py b/bookie/x.py
    ...

The rest is ``git diff -U1`` and changes one file, never a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
AREAS = frozenset(
    {"native", "bookie", "metadata", "ledgers", "lanes", "producing", "jobs"},
)

_HEAD = re.compile(
    r"Breaks: (?P<breaks>\S[^\n]*)\n"
    r"Killed by: (?P<test>tests/\S+\.py::\S[^\n]*)\n"
    r"\n(?P<diff>diff --git .*)",
    re.DOTALL,
)
_TOUCHED = re.compile(r"^diff --git a/(\S+) b/\1$", re.MULTILINE)


class BadMutant(Exception):
    """The file is not a mutant; the message says why."""


@dataclass(frozen=True)
class Mutant:
    """One patch.

    Attributes:
        path: its file.
        breaks: the promise that it takes away.
        test: the pytest id of the test that must fail.
        file: what it changes, relative to the repository.
    """

    path: Path
    breaks: str
    test: str
    file: Path

    @property
    def name(self) -> str:
        """Its area and file name, as the runner's arguments name it."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def is_native(self) -> bool:
        """Whether the core must be built for it."""
        return self.file.parts[0] == "native" and self.file.suffix in {".c", ".h"}


def load(path: Path) -> Mutant:
    """Read one mutant.

    Raises:
        BadMutant: the head is incomplete, or it changes more or less than one file of the code.
    """
    head = _HEAD.match(path.read_text())
    if head is None:
        raise BadMutant(f"{path.name}: 'Breaks:', 'Killed by:' and a diff are expected")
    if path.parent.name not in AREAS:
        raise BadMutant(f"{path.name}: {path.parent.name} is no area, which are {sorted(AREAS)}")
    touched = _TOUCHED.findall(head["diff"])
    if len(touched) != 1 or touched[0].startswith("tests/"):
        raise BadMutant(f"{path.name}: a mutant changes one file of the code, not {touched}")
    return Mutant(path, head["breaks"], head["test"].strip(), Path(touched[0]))


def load_all(names: Iterable[str] = ()) -> list[Mutant]:
    """Read the mutants whose name or area is among *names*, or all without names.

    Raises:
        BadMutant: a file is no mutant, or a name fits none.
    """
    mutants = [load(path) for path in sorted(FOLDER.glob("*/*.patch"))]
    wanted = {name.removesuffix(".patch").removeprefix("tests/mutants/") for name in names}
    known = {each.name for each in mutants} | {each.path.parent.name for each in mutants}
    if wanted - known:
        raise BadMutant(f"no mutant is called {sorted(wanted - known)}")
    return [
        each
        for each in mutants
        if not wanted or each.name in wanted or each.path.parent.name in wanted
    ]
