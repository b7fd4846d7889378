"""Run mutants: each must make the test that it names fail.

    python tests/mutants/run.py                          all of them
    python tests/mutants/run.py native lanes/no_fence    an area, and one by name
    python tests/mutants/run.py --sample 20 --within 200 some, other ones for each commit

The tests that are named run once without any change first: a test that fails anyway kills
nothing. Exit code 1 means that a mutant survived, does not apply, or does not build.
"""

from __future__ import annotations

import queue
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
from mutant import ROOT, BadMutant, Mutant, load_all
from tree import HUNG, DoesNotApply, DoesNotBuild, Tree

_PYTEST_FAILED = 1


def head() -> str:
    """The commit's id: it decides what a sample holds."""
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def verdict(code: int, said: str) -> tuple[bool, str]:
    """Whether a run's exit code says that the mutant is dead, and in words."""
    if code == _PYTEST_FAILED:
        return True, "killed"
    if code == HUNG:
        return True, "killed, but it HANGS until the deadline: give the test a shorter one"
    if code < 0 or code > 128:
        return True, f"killed: the process ended by signal {-code if code < 0 else code - 128}"
    if code == 0:
        return False, "SURVIVED"
    return False, f"BROKEN: pytest ended with {code}\n{said[-2000:]}"


def examine(tree: Tree, mutant: Mutant, seconds: float) -> tuple[bool, str]:
    """Whether the named test fails with *mutant*, and in words."""
    try:
        with tree.mutated(mutant):
            return verdict(*tree.test([mutant.test], seconds=seconds))
    except DoesNotApply as wrong:
        return False, f"DOES NOT APPLY\n{wrong}"
    except DoesNotBuild as wrong:
        return False, f"DOES NOT BUILD\n{wrong}"


def run(
    mutants: Sequence[Mutant], folder: Path, *, workers: int, seconds: float, within: float
) -> int:
    """Examine *mutants*; the number of those that are not dead. Begins none after *within*."""
    began = time.monotonic()
    trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    objects = ROOT / "build" / "mutants"
    for index in range(workers):
        tree = Tree(folder / str(index), objects)
        tree.build()
        tree.check()
        trees.put(tree)
    tree = trees.get()
    tests = sorted({each.test for each in mutants})
    code, said = tree.test(tests, seconds=60 + seconds * len(tests), processes=workers)
    trees.put(tree)
    if code != 0:
        click.echo(f"without any mutant the tests end with {code}:\n{said[-6000:]}")
        return len(mutants)
    click.echo(f"{len(tests)} tests pass without a mutant, {time.monotonic() - began:.0f} s")

    def one(mutant: Mutant) -> bool | None:
        if time.monotonic() - began > within:
            return None
        mine = trees.get()
        start = time.monotonic()
        dead, words = examine(mine, mutant, seconds)
        trees.put(mine)
        click.echo(f"{mutant.name}: {words} ({time.monotonic() - start:.0f} s)")
        return dead

    with ThreadPoolExecutor(workers) as pool:
        outcomes = list(pool.map(one, mutants))
    counts = {which: outcomes.count(which) for which in (True, False, None)}
    late = f", {counts[None]} not begun in time" if counts[None] else ""
    click.echo(f"{counts[True]} killed, {counts[False]} not{late}")
    return counts[False]


@click.command(help=__doc__, context_settings={"max_content_width": 100})
@click.argument("names", nargs=-1)
@click.option("--sample", type=click.IntRange(1), help="Take so many of them.")
@click.option("--seed", default=head, help="What chooses a sample; the commit's id.")
@click.option("--within", type=float, default=1e9, help="Begin none after so many seconds.")
@click.option("--deadline", type=float, default=120, help="Seconds for one mutant.")
@click.option("--workers", type=click.IntRange(1), default=2)
def main(
    names: tuple[str, ...],
    sample: int | None,
    seed: str,
    within: float,
    deadline: float,
    workers: int,
) -> None:
    """Choose, run, report."""
    try:
        mutants = load_all(names)
    except BadMutant as wrong:
        raise click.UsageError(str(wrong)) from None
    if sample is not None and sample < len(mutants):
        mutants = random.Random(seed).sample(mutants, sample)
        click.echo(f"sample of {sample} by seed {seed}: {' '.join(m.name for m in mutants)}")
    with tempfile.TemporaryDirectory(prefix="quire-mutants-") as folder:
        left = run(mutants, Path(folder), workers=workers, seconds=deadline, within=within)
    sys.exit(1 if left else 0)


if __name__ == "__main__":
    main()
