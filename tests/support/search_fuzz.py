"""Search by fuzzing: each harness in turn, from the kept corpus on, with seeds of the search's own.

What a harness finds lies in build/search/fuzz, where the line that repeats it looks for it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from fuzzing import KEPT, Build, inputs, options
from search_processes import HUNG, Ended
from search_report import ROOT, Finding
from search_turn import BadName, Turn
from seeds import SEEDS, write_seeds

JOBS = 2
SLICE_S = 60
"""How long a harness runs at once, at most."""
OVERDUE_S = 120
ARTIFACTS = ("crash-*", "leak-*", "timeout-*", "oom-*", "slow-unit-*")


def search(turn: Turn) -> None:
    """Fuzz until the time is over; building the harnesses takes some of it.

    Raises:
        BadName: no harness is called so.
    """
    harnesses = turn.chosen(list(SEEDS))
    with _folder() as folder, ThreadPoolExecutor(JOBS) as jobs:
        build = Build(folder)
        programs = {harness: build.link(harness) for harness in harnesses}
        for harness in harnesses:
            corpus = folder / f"{harness}-corpus"
            corpus.mkdir()
            write_seeds(harness, corpus, folder / "scratch")
        rounds = count(turn.seed)
        is_first = True
        while is_first or turn.left_s >= 1:
            is_first = False
            seed = next(rounds)
            share = turn.left_s * JOBS / len(harnesses)
            seconds = max(1, min(SLICE_S, int(share)))
            done = [
                jobs.submit(_fuzz, turn, harness, programs[harness], seed, seconds)
                for harness in harnesses
            ]
            for each in done:
                each.result()


def _fuzz(turn: Turn, harness: str, program: Path, seed: int, seconds: int) -> None:
    corpus = program.parent / f"{harness}-corpus"
    found = program.parent / f"{harness}-found"
    found.mkdir(exist_ok=True)
    more = options(f"-seed={seed % 2**32 or 1}", f"-max_total_time={seconds}")
    command: list[str | Path] = [program, *more, f"-artifact_prefix={found}{os.sep}", corpus]
    ended = _run(turn, command, program.parent, seconds + OVERDUE_S)
    turn.count(f"inputs of {harness}", inputs(ended.said))
    files = [path for pattern in ARTIFACTS for path in found.glob(pattern)]
    for path in files:
        _find(turn, harness, path, ended.said)
    if ended.code != 0 and not files:
        what = "hangs" if ended.code == HUNG else f"ended with {ended.code} and names no input"
        repeat = f"python tests/search.py --minutes 2 --seed {seed} fuzz {harness}"
        turn.report.find(Finding(turn.kind, f"{harness} {what}", repeat, ended.said[-1500:]))


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for programs and for files of the harnesses: in memory where there is some."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="quire-", dir=memory) as name:
        yield Path(name)


def _run(turn: Turn, command: list[str | Path], folder: Path, seconds: float) -> Ended:
    environment = {**os.environ, "QUIRE_FUZZ_IN": str(folder)}
    return turn.processes.run(command, folder=folder, seconds=seconds, environment=environment)


def _find(turn: Turn, harness: str, path: Path, said: str) -> None:
    folder = turn.build / "fuzz" / harness
    folder.mkdir(parents=True, exist_ok=True)
    stays = folder / path.name
    shutil.move(path, stays)
    shown = stays.relative_to(ROOT) if stays.is_relative_to(ROOT) else stays
    repeat = f"python tests/search.py fuzz --repeat {harness} {shown}"
    title = f"{harness}: {_heading(said)}"
    turn.report.find(Finding(turn.kind, title, repeat, said[-1500:], lambda: keep(harness, stays)))


def _heading(said: str) -> str:
    words = ("ERROR: ", "runtime error: ", "does not hold: ")
    lines = (line for line in said.splitlines() if any(word in line for word in words))
    return next(lines, "an input brings it down")


def keep(harness: str, path: Path) -> str:
    """Copy a finding to the inputs that the gate tries each time."""
    (KEPT / harness).mkdir(parents=True, exist_ok=True)
    return str(shutil.copyfile(path, KEPT / harness / path.name))


def repeat(turn: Turn, harness: str, path: Path) -> str:
    """Build one harness, run it on one input, and return what it says; count it as tried.

    Raises:
        BadName: there is no such harness, or no such file.
    """
    if harness not in SEEDS or not path.is_file():
        raise BadName(f"--repeat HARNESS FILE: {harness} {path} is none of {' '.join(SEEDS)}")
    with _folder() as folder:
        command: list[str | Path] = [Build(folder).link(harness), *options(), path.resolve()]
        ended = _run(turn, command, folder, OVERDUE_S)
    turn.count(f"inputs of {harness}")
    if ended.code != 0:
        line = f"python tests/search.py fuzz --repeat {harness} {path}"
        title = f"{harness}: {_heading(ended.said)}"
        turn.report.find(Finding(turn.kind, title, line))
    return ended.said
