"""Runs mutants, each of which must make the test that it names fail.

The tests that are named run once without any change first: a test that fails anyway kills
nothing. A test that does not end in time decides nothing either.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from mutant import ROOT, Mutant
from search_processes import HUNG, Processes
from tree import DoesNotApply, DoesNotBuild, Tree

BATCH = 6
"""So many mutants' tests are run together without any mutant."""
BASE_S = 60
"""How long a run without a mutant may take, besides the time for each test."""
OBJECTS = ROOT / "build" / "mutants"
_PYTEST_FAILED = 1
_SAID = 3000


class Verdict(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    UNDECIDED = "undecided"
    UNFIT = "DOES NOT APPLY"
    UNBUILT = "DOES NOT BUILD"
    BROKEN = "BROKEN"


class Outcome(NamedTuple):
    """A verdict, and why in words."""

    verdict: Verdict
    why: str


def verdict(code: int, said: str) -> Outcome:
    """Return what a run's exit code means for the mutant."""
    if code == _PYTEST_FAILED:
        return Outcome(Verdict.KILLED, "")
    if code == HUNG:
        return Outcome(Verdict.UNDECIDED, "its test ran out of time: give it a shorter deadline")
    if code < 0 or code > 128:
        signal = -code if code < 0 else code - 128
        return Outcome(Verdict.KILLED, f"the process ended by signal {signal}")
    if code == 0:
        return Outcome(Verdict.SURVIVED, "its test passes")
    return Outcome(Verdict.BROKEN, f"pytest ended with {code}\n{said[-_SAID:]}")


def examine(tree: Tree, mutant: Mutant, seconds: float) -> Outcome:
    """Apply *mutant* and run the test that it names."""
    try:
        with tree.mutated(mutant):
            return verdict(*tree.test([mutant.test], seconds=seconds))
    except DoesNotApply as wrong:
        return Outcome(Verdict.UNFIT, str(wrong))
    except DoesNotBuild as wrong:
        return Outcome(Verdict.UNBUILT, str(wrong))


class Runner:
    """Some copies of the sources, in which mutants are examined beside each other."""

    def __init__(self, trees: Sequence[Tree], *, seconds: float) -> None:
        self._trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        self._workers = len(trees)
        self._seconds = seconds
        self._sound: dict[str, Outcome | None] = {}
        for tree in trees:
            self._trees.put(tree)

    def run(
        self,
        mutants: Sequence[Mutant],
        report: Callable[[Mutant, Outcome], None],
        is_over: Callable[[], bool],
    ) -> None:
        """Examine *mutants*, reporting each outcome; begins none when it *is_over*.

        Raises:
            Stopped: the search was interrupted.
        """

        def one(mutant: Mutant) -> None:
            if is_over():
                return
            wrong = self._sound[mutant.test]
            if wrong is None:
                with self._tree() as tree:
                    wrong = examine(tree, mutant, self._seconds)
            report(mutant, wrong)

        for first in range(0, len(mutants), BATCH):
            if is_over():
                return
            some = mutants[first : first + BATCH]
            self._try_without(sorted({each.test for each in some} - self._sound.keys()))
            with ThreadPoolExecutor(self._workers) as pool:
                list(pool.map(one, some))

    def _try_without(self, tests: list[str]) -> None:
        """Note which *tests* pass without a mutant: all at once, or else each by itself."""
        with self._tree() as tree:
            seconds = BASE_S + self._seconds * len(tests)
            ended = tree.test(tests, seconds=seconds, processes=self._workers) if tests else None
            for test in tests:
                code, said = ended or (0, "")
                if code != 0:
                    code, said = tree.test([test], seconds=BASE_S + self._seconds)
                self._sound[test] = None if code == 0 else _unsound(code, said)

    @contextmanager
    def _tree(self) -> Iterator[Tree]:
        tree = self._trees.get()
        try:
            yield tree
        finally:
            self._trees.put(tree)


def _unsound(code: int, said: str) -> Outcome:
    if code == HUNG:
        return Outcome(Verdict.UNDECIDED, "without it, its test ran out of time")
    return Outcome(Verdict.BROKEN, f"without it, its test ends with {code}\n{said[-_SAID:]}")


def make_trees(folder: Path, processes: Processes, *, count: int) -> list[Tree]:
    """Copy the sources *count* times below *folder*, and build each copy's core."""
    trees = [Tree(folder / str(index), OBJECTS, processes) for index in range(count)]
    for tree in trees:
        tree.build()
        tree.check()
    return trees
