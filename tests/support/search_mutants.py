"""Search by mutants: in an order that the seed shuffles, until the time is over."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from mutant import BadMutant, Mutant, load_all, load_changed
from runner import Outcome, Runner, Verdict, make_trees
from search_report import Finding
from search_turn import BadName, Turn

WORKERS = 2
DEADLINE_S = 120.0
"""For one mutant's test."""


def chosen(turn: Turn) -> list[Mutant]:
    """Return the mutants that the command line names, in another order for each seed.

    Raises:
        BadName: a name fits none.
    """
    try:
        mutants = load_all(turn.names)
        if turn.changed:
            changed = {each.name for each in load_changed(turn.changed)}
            mutants = [each for each in mutants if each.name in changed]
    except BadMutant as wrong:
        raise BadName(str(wrong)) from None
    random.Random(turn.seed).shuffle(mutants)
    return mutants


def search(turn: Turn) -> None:
    """Examine mutants until the time is over, or all of them are.

    Raises:
        BadName: a name fits no mutant.
    """
    mutants = chosen(turn)
    if not mutants:
        return
    turn.report.say(f"mutants: {len(mutants)} to examine")

    def report(mutant: Mutant, outcome: Outcome) -> None:
        tell(turn, mutant, outcome)

    with tempfile.TemporaryDirectory(prefix="quire-mutants-") as folder:
        trees = make_trees(Path(folder), turn.processes, count=min(WORKERS, len(mutants)))
        Runner(trees, seconds=DEADLINE_S).run(mutants, report, lambda: not turn.left_s)


def tell(turn: Turn, mutant: Mutant, outcome: Outcome) -> None:
    """Count an outcome, and report it unless the mutant is dead."""
    turn.count(outcome.verdict.value)
    title = f"{mutant.name}: {outcome.verdict.value}: {mutant.breaks}"
    repeat = f"python tests/search.py --minutes 5 mutants {mutant.name}"
    told = f"{mutant.test}: {outcome.why}"
    if outcome.verdict is Verdict.UNDECIDED:
        turn.report.doubt(Finding(turn.kind, f"{title} ({outcome.why})", repeat))
    elif outcome.verdict is not Verdict.KILLED:
        turn.report.find(Finding(turn.kind, title, repeat, told))
    else:
        turn.report.say(f"{mutant.name}: killed")
