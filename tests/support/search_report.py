"""What a search tried and found, printed while it goes on and summed up at its end."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TOLD_LINES = 12
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Attributes:
        kind: the kind of search that found it.
        title: one line that says what.
        repeat: the one line for a shell that shows it again.
        told: the first lines of what was printed, for a reader in a hurry.
        keep: puts it among what the gate tries each time, and returns where; None if it cannot.
    """

    kind: str
    title: str
    repeat: str
    told: str = ""
    keep: Callable[[], str] | None = None


@dataclass
class Report:
    """Counts and prints; from any thread.

    Attributes:
        say: prints a line.
        keeps: whether findings are kept.
    """

    say: Callable[[str], None]
    keeps: bool = False
    tried: dict[str, Counter[str]] = field(default_factory=dict)
    undecided: list[Finding] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    shown: dict[str, list[int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, kind: str) -> None:
        """Have *kind* in the summary, even if nothing is tried."""
        self.tried.setdefault(kind, Counter())

    def count(self, kind: str, what: str, times: int = 1) -> None:
        """Note that *what* was tried so many *times*."""
        with self._lock:
            self.tried.setdefault(kind, Counter())[what] += times

    def find(self, finding: Finding) -> None:
        """Print a finding with the line that repeats it, and keep it if that is wanted."""
        with self._lock:
            self.findings.append(finding)
            lines = [f"FOUND by {finding.kind}: {finding.title}"]
            lines += [f"    {line}" for line in finding.told.splitlines()[:TOLD_LINES]]
            lines.append(f"  repeat: {finding.repeat}")
            if self.keeps and finding.keep is not None:
                lines.append(f"  kept: {finding.keep()}")
            self.say("\n".join(lines))

    def doubt(self, finding: Finding) -> None:
        """Print that it was not decided whether something is wrong."""
        with self._lock:
            self.undecided.append(finding)
            self.say(f"undecided: {finding.title}\n  repeat: {finding.repeat}")

    def show(self, plant: str, seed: int, line: str) -> None:
        """Print a seed that shows a planted mistake."""
        with self._lock:
            self.shown.setdefault(plant, []).append(seed)
            self.say(f"{plant}: shown by seed {seed}\n  repeat: {line}")

    def idle(self) -> list[str]:
        """The kinds of which nothing was tried."""
        return [kind for kind, counts in self.tried.items() if not counts.total()]

    def lines(self) -> list[str]:
        """Sum up."""
        lines = [
            f"{kind}: {'; '.join(_counted(counts)) or 'NOTHING was tried'}"
            for kind, counts in self.tried.items()
        ]
        lines += [
            f"{plant}: shown by {' '.join(map(str, seeds))}" for plant, seeds in self.shown.items()
        ]
        lines += [f"undecided: {each.title}: {each.repeat}" for each in self.undecided]
        lines += [f"found: {each.title}: {each.repeat}" for each in self.findings]
        lines.append(f"{len(self.findings)} found, {len(self.undecided)} undecided")
        return lines

    def as_json(self, seed: int) -> str:
        """Return the same for programs, in one line."""

        def rows(findings: list[Finding]) -> list[Mapping[str, str]]:
            return [{"kind": f.kind, "title": f.title, "repeat": f.repeat} for f in findings]

        return json.dumps(
            {
                "seed": seed,
                "tried": self.tried,
                "shown": self.shown,
                "undecided": rows(self.undecided),
                "found": rows(self.findings),
            }
        )


def _counted(counts: Counter[str]) -> list[str]:
    return [f"{times} {what}" for what, times in sorted(counts.items()) if times]
