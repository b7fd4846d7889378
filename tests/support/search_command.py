"""The command line of tests/search.py."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
import search_fuzz
import search_mutants
import search_simulation
from rich.console import Console
from search_processes import Processes, Stopped
from search_pytest import search_cuts, search_examples, search_storms
from search_report import Report
from search_turn import BadName, Search, Turn

KINDS: Mapping[str, Search] = {
    "simulation": search_simulation.search,
    "examples": search_examples,
    "mutants": search_mutants.search,
    "fuzz": search_fuzz.search,
    "storms": search_storms,
    "cuts": search_cuts,
}
FOUND, NOTHING_TRIED, INTERRUPTED = 1, 3, 130

HELP = f"""Look for what the gate does not try: it tries the same on every commit, and this
something else each time.

\b
KIND is one of
  simulation  seeds of the simulation, in each world in turn. NAMES: worlds
  examples    tests of hypothesis with other examples and, in turn with them, the other quick
              tests with another order of tasks. NAMES: files and folders of tests
  mutants     changes that each take a promise away, which a test must notice, in another
              order. NAMES: areas, mutants, files that they change, files of their tests
  fuzz        bytes for the core, from the kept inputs on. NAMES: harnesses
  storms      real processes that are killed and paused. NAMES: parts of tests' names
  cuts        cuts of the power, at other moments. NAMES: parts of tests' names
Without KIND all of them share the time.

A finding is printed with the one line that repeats it, and --keep puts it among what the gate
tries from then on. What a search found decides nothing about a commit: mend it, or the checker.

\b
examples:
  python tests/search.py --minutes 30
  python tests/search.py --minutes 10 --keep simulation topic
  python tests/search.py --minutes 5 --plant no_floor simulation
  python tests/search.py --minutes 10 --changed main mutants
  python tests/search.py --minutes 5 mutants native bookie/server.py
  python tests/search.py fuzz --repeat journal build/search/fuzz/journal/crash-0a1b

\b
exit codes:
  0    nothing was found; with --plant: a seed shows it
  {FOUND}    something was found; with --plant: no seed shows it
  2    the command line is wrong
  {NOTHING_TRIED}    nothing was tried of a kind that was asked for
  {INTERRUPTED}  it was interrupted before it found anything
"""


@click.command(help=HELP, context_settings={"max_content_width": 100})
@click.argument("kind", type=click.Choice(list(KINDS)), required=False, metavar="[KIND]")
@click.argument("names", nargs=-1, metavar="[NAMES]...")
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    help="How long to search. A test, a storm or a mutant under way then is finished.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="What all that is drawn comes from; printed, and the clock's without it.",
)
@click.option("--keep", is_flag=True, help="Let the gate try each finding from then on.")
@click.option("--plant", default="", metavar="NAME", help="Look for seeds that show this mistake.")
@click.option(
    "--changed",
    default="",
    metavar="BASE",
    help="Only mutants of files and tests that differ from this revision of git.",
)
@click.option(
    "--repeat",
    nargs=2,
    type=(str, click.Path(path_type=Path)),
    metavar="HARNESS FILE",
    help="Build this harness and run it once, on this input.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as a line of JSON too.")
def main(
    kind: str | None,
    names: tuple[str, ...],
    minutes: float | None,
    seed: int | None,
    keep: bool,
    plant: str,
    changed: str,
    repeat: tuple[str, Path] | None,
    as_json: bool,
) -> None:
    """Search, and sum up."""
    _check(kind, minutes, plant, changed, repeat)
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    report = Report(console.print, keeps=keep)
    processes = Processes()
    drawn = int(time.time()) if seed is None else seed
    first = Turn("", drawn, 60 * (minutes or 0), report, processes, names, plant, changed)
    is_interrupted = False
    with _ends_all(processes):
        try:
            if repeat is not None:
                console.print(search_fuzz.repeat(replace(first, kind="fuzz"), *repeat))
            else:
                report.say(f"seed {drawn}")
                search([kind] if kind else list(KINDS), first, console)
        except (KeyboardInterrupt, Stopped):
            is_interrupted = True
        except BadName as wrong:
            raise click.UsageError(str(wrong)) from None
    for line in ["", "interrupted" if is_interrupted else "what was tried", *report.lines()]:
        console.print(line)
    if as_json:
        console.print(report.as_json(drawn))
    sys.exit(exit_code(report, plant=plant, is_interrupted=is_interrupted))


def _check(
    kind: str | None,
    minutes: float | None,
    plant: str,
    changed: str,
    repeat: tuple[str, Path] | None,
) -> None:
    if minutes is None and repeat is None:
        raise click.UsageError("say how long: --minutes N")
    needs = {"--plant": (plant, "simulation"), "--changed": (changed, "mutants")}
    needs["--repeat"] = ("repeat" if repeat else "", "fuzz")
    for option, (value, wanted) in needs.items():
        if value and kind != wanted:
            raise click.UsageError(f"{option} is for {wanted}")


def search(kinds: list[str], first: Turn, console: Console) -> None:
    """Give each of *kinds* an equal part of the time that is left when its turn comes."""
    for kind in kinds:
        first.report.begin(kind)
    for index, kind in enumerate(kinds):
        seconds = first.left_s / (len(kinds) - index)
        turn = replace(first, kind=kind, seconds=seconds, began=time.monotonic())
        with _progress(console, turn):
            KINDS[kind](turn)


def exit_code(report: Report, *, plant: str, is_interrupted: bool) -> int:
    """Return the exit code that the help promises."""
    if report.findings:
        return FOUND
    if is_interrupted:
        return INTERRUPTED
    if report.idle():
        return NOTHING_TRIED
    return FOUND if plant and not report.shown else 0


@contextmanager
def _ends_all(processes: Processes) -> Iterator[None]:
    """Within the block, let Ctrl-C and SIGTERM kill what runs; afterwards nothing does."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        processes.stop()
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        processes.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(console: Console, turn: Turn) -> Iterator[None]:
    """Keep a line at the bottom of a terminal up to date; print nothing elsewhere."""
    if not console.is_terminal:
        with nullcontext():
            yield
        return
    with console.status(_line(turn)) as status, _every(1.0, lambda: status.update(_line(turn))):
        yield


def _line(turn: Turn) -> str:
    tried = turn.report.tried.get(turn.kind)
    counted = tried.total() if tried else 0
    left = divmod(int(turn.left_s), 60)
    found = len(turn.report.findings)
    return f"{turn.kind}: {counted:,} tried, {found} found, {left[0]}:{left[1]:02} left"


@contextmanager
def _every(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            action()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
