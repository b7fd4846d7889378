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
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
AREAS = frozenset(
    {"native", "bookie", "metadata", "ledgers", "lanes", "producing", "groups", "jobs", "time"},
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
        """Its area and file name, as tests/search.py names it."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def names(self) -> frozenset[str]:
        """All that the command line may call it by: see load_all()."""
        test = self.test.partition("::")[0]
        return frozenset({self.name, self.path.parent.name, str(self.file), test})

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
    """Read the mutants that *names* fit, or all without names.

    A name is an area, a mutant's name, or a path in the repository: of the file that a mutant
    changes, or of the test that must notice.

    Raises:
        BadMutant: a file is no mutant, or a name fits none.
    """
    mutants = [load(path) for path in sorted(FOLDER.glob("*/*.patch"))]
    wanted = {_short(name) for name in names}
    known = {name for each in mutants for name in each.names}
    if wanted - known:
        raise BadMutant(f"no mutant is called, changes or fails {sorted(wanted - known)}")
    return [each for each in mutants if not wanted or each.names & wanted]


def load_changed(base: str) -> list[Mutant]:
    """Read the mutants of files, and of tests, that differ from the revision *base* of git.

    Raises:
        BadMutant: git does not know *base*, or a file is no mutant.
    """
    changed = _git("diff", "--name-only", base, "--")
    changed += _git("ls-files", "--others", "--exclude-standard")
    names = {_short(name) for name in changed}
    return [each for each in load_all() if each.names & names]


def _short(name: str) -> str:
    return name.removeprefix("tests/mutants/").removesuffix(".patch")


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BadMutant(done.stderr.strip())
    return done.stdout.splitlines()
