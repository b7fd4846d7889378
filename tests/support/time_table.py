"""Where the time of a run went: by folder, and by what its tests are marked with.

Workers add the processor's time to what they report of a test; pytest itself adds up. Seconds of
the clock are those of all workers together, so more than the run took.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import pytest

TITLE = "where the time goes"
DEAREST_TITLE = "most of the processor"
DEAREST = 40
"""How many tests are named that used the processor most."""
MARKS = ("real_processes", "slow")
"""A test is counted under the first that it has, else under "quick"."""
COLUMNS = ("quick", "slow", "real_processes")
LARGE = {"ledger_client", "metadata"}
"""Folders of which each folder within has a line of its own."""


class Stopwatch:
    """Measures how much of a processor this process uses, with its children that have ended."""

    def __init__(self) -> None:
        self._last_s = _processor_s()

    def lap_s(self) -> float:
        """Return the seconds since the last call."""
        before, self._last_s = self._last_s, _processor_s()
        return self._last_s - before


def _processor_s() -> float:
    return sum(os.times()[:4])


class TimeTable:
    """Adds up the seconds of tests."""

    def __init__(self) -> None:
        self._tests: Counter[str] = Counter()
        self._seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._processor_s: dict[str, float] = defaultdict(float)
        self._of_test: dict[str, float] = defaultdict(float)

    def add(self, report: pytest.TestReport) -> None:
        """Note how long one phase of a test took."""
        folder, used_s = folder_of(report.nodeid), getattr(report, "processor_s", 0.0)
        kind = next((mark for mark in MARKS if mark in report.keywords), "quick")
        self._seconds[folder][kind] += report.duration
        self._processor_s[folder] += used_s
        self._of_test[report.nodeid] += used_s
        self._tests[folder] += report.when == "teardown"

    def lines(self) -> Iterator[str]:
        """Return the lines of a table, the dearest folder first, and the sums of all."""
        yield f"{'folder':32} {'tests':>6} " + " ".join(f"{each:>14}" for each in HEADS)
        folders = sorted(self._seconds, key=lambda each: -sum(self._seconds[each].values()))
        for folder in folders:
            yield self._line(folder, [folder])
        yield self._line("all", folders)

    def dearest(self) -> Iterator[str]:
        """Return a line for each of the tests that used the processor most.

        What is shared is counted where it ends: a Spark session is in its worker's last test.
        """
        by_use = sorted(self._of_test.items(), key=lambda pair: -pair[1])
        for test, used_s in by_use[:DEAREST]:
            yield f"{used_s:8.1f} s  {test}"

    def _line(self, name: str, folders: Iterable[str]) -> str:
        folders = list(folders)
        parts = [sum(self._seconds[each][kind] for each in folders) for kind in COLUMNS]
        parts += [sum(parts), sum(self._processor_s[each] for each in folders)]
        tests = sum(self._tests[each] for each in folders)
        return f"{name:32} {tests:6} " + " ".join(f"{part:12.1f} s" for part in parts)


HEADS = (*COLUMNS, "all", "processor")


def folder_of(test: str) -> str:
    """Return the folder under which a test is counted."""
    words = test.partition("::")[0].split("/")[:-1]
    size = 3 if len(words) > 1 and words[1] in LARGE else 2
    return "/".join(words[:size])
