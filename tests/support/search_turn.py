"""A turn: the time that one kind of search has, and what it is given."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from search_processes import Processes
from search_report import ROOT, Report


class BadName(Exception):
    """A name on the command line fits nothing; the message says which."""


@dataclass(frozen=True)
class Turn:
    """What a kind of search is given.

    Attributes:
        kind: its name.
        seed: the number from which all that it draws comes.
        seconds: the time that it has; what is under way then is finished, where that is short.
        names: what narrows it, by words of the command line.
        plant: a planted mistake to look for.
        changed: narrows mutants to files that changed since this revision of git.
        build: a folder that stays, for what a line that repeats a finding needs.
    """

    kind: str
    seed: int
    seconds: float
    report: Report
    processes: Processes
    names: tuple[str, ...] = ()
    plant: str = ""
    changed: str = ""
    build: Path = ROOT / "build" / "search"
    began: float = field(default_factory=lambda: time.monotonic())

    @property
    def left_s(self) -> float:
        """The time that is left; none below zero."""
        return max(0.0, self.began + self.seconds - time.monotonic())

    def count(self, what: str, times: int = 1) -> None:
        """Note that *what* was tried."""
        self.report.count(self.kind, what, times)

    def chosen(self, known: list[str]) -> list[str]:
        """Return those of *known* that the names narrow it to: all without a name.

        Raises:
            BadName: a name is not known.
        """
        if wrong := [name for name in self.names if name not in known]:
            raise BadName(f"{self.kind}: {' '.join(wrong)}: only {' '.join(known)}")
        return [each for each in known if not self.names or each in self.names]


Search = Callable[[Turn], None]
